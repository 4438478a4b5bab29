"""Torch problems: a copy of the user's module with the saved tensors in it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, TypedDict, cast

import numpy as np
import torch

from vhat.errors import StoreError
from vhat.models.problem import Problem
from vhat.models.selection import ALL
from vhat.models.torch import torch_problem
from vhat.models.torch.autodiff import TorchAutodiff, unwrapped
from vhat.models.torch.model import State, TorchModel
from vhat.models.torch.read_state import read_state
from vhat.models.torch.variance_head import GAUSSIAN_NLL
from vhat.schema import check
from vhat.store.document import Document
from vhat.store.match_model import Brought, describe_output

__all__ = [
    "describe",
    "describe_module",
    "inputs",
    "module_of",
    "move",
    "point",
    "rebuild",
    "refuse_other_tensors",
    "rows",
    "whose",
    "with_tensors",
]


class _Module(TypedDict):
    fixed: dict[str, np.ndarray]
    loss: str
    columns: tuple[Any, ...]
    dtype: str


def describe(problem: Problem) -> Document:
    """Describe the module: its class, the tensors that training did not move, and how it takes its inputs."""
    return describe_module(_autodiff(problem))


def describe_module(autodiff: TorchAutodiff) -> Document:
    """Describe a module as a function of its trained parameters."""
    model = autodiff.model
    state = model.state
    return {
        "class": type(model.module).__qualname__,
        "fixed": {name: _array(value) for name, value in state.fixed.items()},
        "frozen": state.frozen,
        "selected": state.selected,
        "loss": _loss(autodiff),
        "target_key": autodiff.target_key,
        "output": describe_output(model.output if autodiff.head is None else autodiff.head.output),
        "variance_head": None if autodiff.head is None else autodiff.head.kind,
        "columns": model.layout.columns,
        "dtype": state.dtype,
    }


def _loss(autodiff: TorchAutodiff) -> str:
    if autodiff.head is not None:
        return GAUSSIAN_NLL
    return "half_mse" if isinstance(autodiff.named_loss, str) else "function"


def _autodiff(problem: Problem) -> TorchAutodiff:
    return cast(TorchAutodiff, problem.autodiff)


def _model(problem: Problem) -> TorchModel:
    return _autodiff(problem).model


def point(problem: Problem) -> dict[str, np.ndarray]:
    """The trained parameters by name."""
    return {name: _array(value) for name, value in _model(problem).state.split(problem.theta).items()}


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.detach().numpy(force=True))


def inputs(problem: Problem) -> Any:
    """The training inputs as a document: an array, a tuple or a dict of them, as the module was given them."""
    parts, layout = rows(problem), _model(problem).layout
    if layout.kind == "dict":
        return dict(zip(layout.names, parts, strict=True))
    return tuple(parts) if layout.kind == "tuple" else parts[0]


def rows(problem: Problem) -> list[np.ndarray]:
    """The arrays of the training inputs, for their checksum."""
    return [_array(part) for part in problem.X]


def rebuild(saved: Document, at: dict[str, np.ndarray], X: Any, y: Any, brought: Brought) -> Problem:
    """Take a copy of the module, with the saved tensors in it, through the door again.

    Args:
        saved: The document, of which ``model``, ``weight_decay`` and ``sample_weight`` are read.
        at: The parameters, as :func:`point` gave them.
        X: Training inputs.
        y: Training responses; None with a DataLoader.
        brought: The caller's module and options.
    """
    model = saved["model"]
    check(_Module, model, "module")
    module = module_of(model, brought)
    parameters = tuple(at) if model.get("selected") else ALL
    state, theta = read_state(module, parameters)
    kind = model.get("variance_head")
    if kind is not None:  # what only the variance uses was held fixed
        state = state.hold([name for name in state.names if name not in model["fixed"]], {}, state.split(theta))
    refuse_other_tensors(state, model, at)
    problem = torch_problem(
        with_tensors(module, {**at, **model["fixed"]}, state.device),
        _tensors(X),
        y,
        weight_decay=0.0,
        loss=brought.loss_for(model["loss"]),
        target_key=model["target_key"],
        parameters=parameters,
        output=brought.output_for(model.get("output", {})),
        variance_head=kind or "log_variance",
        memory=brought.memory,
    )
    own = _model(problem)
    if len(model["columns"]) != len(own.layout.names):
        raise StoreError(f"the saved module is malformed: it names columns of {len(model['columns'])} inputs.")
    function = replace(
        own,
        state=replace(own.state, dtype=model["dtype"]),
        layout=replace(own.layout, columns=model["columns"]),
    )
    autodiff = replace(_autodiff(problem), model=function)
    decay = autodiff.arrays.native(saved["weight_decay"])
    return replace(problem, autodiff=autodiff, decay=decay, weights=saved["sample_weight"])


def module_of(model: Document, brought: Brought) -> Any:
    """Return the caller's module.

    Raises:
        StoreError: When there is none.
    """
    module = unwrapped(brought.required(f"module, a torch.nn.Module of class {model['class']} in eval() mode"))
    if not isinstance(module, torch.nn.Module):
        raise StoreError(f"model is a {type(module).__name__}; give a torch.nn.Module of class {model['class']}.")
    return module


def move(problem: Problem, to: dict[str, np.ndarray]) -> Problem:
    """Return the problem at other saved parameters."""
    state = _model(problem).state
    parts = [to[name][_array(state.slots[name].rows)] if name in state.slots else to[name] for name in state.names]
    return problem.at(np.concatenate([np.ravel(part) for part in parts]))


def whose(_: Document) -> str:
    """What messages call the model."""
    return "the module given"


def refuse_other_tensors(state: State, model: Document, params: dict[str, np.ndarray]) -> None:
    """Refuse a module whose tensors have other names, shapes or roles.

    Raises:
        StoreError: Naming them.
    """
    pairs = (
        ("trained parameters", dict(zip(state.names, state.shapes, strict=True)), params),
        ("buffers and frozen parameters", {n: tuple(t.shape) for n, t in state.fixed.items()}, model["fixed"]),
    )
    for what, found, tensors in pairs:
        wanted = {name: value.shape for name, value in tensors.items()}
        missing = [f"{name} {shape}" for name, shape in wanted.items() if found.get(name) != shape]
        unknown = [f"{name} {shape}" for name, shape in found.items() if wanted.get(name) != shape]
        if missing or unknown:
            raise StoreError(
                f"the module given does not have the structure of the one that was saved ({model['class']}): among its "
                f"{what}, missing {', '.join(missing) or 'nothing'}, unknown {', '.join(unknown) or 'nothing'}. Make "
                "it with the same options, and freeze the same parameters."
            )
    if state.names != tuple(params):
        raise StoreError("the module given registers its parameters in another order than the one that was saved.")


def with_tensors(module: Any, tensors: dict[str, np.ndarray], device: Any) -> Any:
    """Return a copy of the module that holds these tensors, in their own dtype; tied parameters stay tied."""
    try:
        own = copy.deepcopy(module)
    except Exception as error:
        raise StoreError(f"the module given cannot be copied: {type(error).__name__}: {error}") from error
    with torch.inference_mode(False), torch.no_grad():
        for name, tensor in (*own.named_parameters(), *own.named_buffers()):
            tensor.data = torch.from_numpy(tensors[name]).to(device, copy=True)
    return own


def _tensors(X: Any) -> Any:
    """Arrays as tensors that keep the order of their axes in memory; what a caller brought is left as it is."""
    if isinstance(X, np.ndarray) and X.dtype.kind in "fiub":
        return torch.from_numpy(X)
    if isinstance(X, tuple):
        return tuple(map(_tensors, X))
    return {name: _tensors(part) for name, part in X.items()} if type(X) is dict else X
