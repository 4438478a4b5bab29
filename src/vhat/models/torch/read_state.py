"""Copies of a module's tensors in float64, divided into trained and fixed ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vhat.errors import ModelError
from vhat.models.selection import ALL, Selection, select
from vhat.models.torch.state import State

__all__ = ["read_state"]


def read_state(module: Any, parameters: Selection = ALL) -> tuple[State, Any]:
    """Return float64 copies of a module's tensors, and the flat vector of trained parameters.

    Args:
        module: The module.
        parameters: The trained ones: ``"all"`` that require a gradient, or a selection among all parameters.

    Raises:
        InputError: For a selection with names that the module does not have.
        ModelError: When no parameter is trained, or the tensors cannot be converted to float64.
    """
    own = dict(module.named_parameters())
    selected = not (isinstance(parameters, str) and parameters == ALL)
    if selected:
        trained = {name: own[name] for name in select(parameters, tuple(own), ".")}
    else:
        trained = {name: value for name, value in own.items() if value.requires_grad}
    if not trained:
        raise ModelError("the module has no parameter with requires_grad=True: there is nothing that training moved.")
    tensors = {**own, **dict(module.named_buffers())}
    device = _device(tensors)
    frozen = tuple(name for name in own if name not in trained)
    with torch.inference_mode(False), torch.no_grad():
        theta = torch.cat([value.detach().to(torch.float64).reshape(-1) for value in trained.values()])
        fixed = {name: _as_float64(value) for name, value in tensors.items() if name not in trained}
    bad = [name for name, value in trained.items() if not value.detach().isfinite().all()]
    if bad:
        raise ModelError(f"parameters hold NaN or infinite values: {', '.join(bad)}. Training diverged; fit again.")
    dtypes = sorted({str(value.dtype).removeprefix("torch.") for value in trained.values()})
    shapes = tuple(tuple(value.shape) for value in trained.values())
    return State(tuple(trained), shapes, fixed, frozen, device, ", ".join(dtypes), selected), theta


def _device(tensors: dict[str, Any]) -> Any:
    """Return the device of all tensors; raise for tensors that cannot be used."""
    for name, value in tensors.items():
        if isinstance(value, nn.parameter.UninitializedTensorMixin):
            raise ModelError(f"{name} is not initialised yet (a lazy module): run the module once on a batch.")
        if value.is_complex():
            raise ModelError(f"{name} is complex; vhat differentiates real parameters only.")
    devices = {value.device for value in tensors.values()}
    if len(devices) > 1:
        listed = ", ".join(sorted(str(device) for device in devices))
        raise ModelError(f"the module lives on several devices ({listed}). Move it to one: module.to('cpu').")
    (device,) = devices
    if device.type in ("mps", "meta"):
        raise ModelError(f"device {device} has no float64, which the solve needs. Use module.to('cpu').")
    return device


def _as_float64(value: Any) -> Any:
    """Return a copy, floats as float64, other values in their own dtype."""
    dtype = torch.float64 if value.is_floating_point() else value.dtype
    return value.detach().to(dtype=dtype, copy=True)
