"""Tensors of torch on one device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vhat.errors import InputError

__all__ = ["TorchArrays", "plain", "refuse_without_numbers", "to_array"]


@dataclass(frozen=True)
class TorchArrays:
    """Tensors on a device: see :class:`vhat.models.protocols.Arrays`."""

    device: Any

    def scope(self) -> AbstractContextManager[Any]:
        """Return a context manager without gradient tape, for p-space arithmetic."""
        return torch.no_grad()  # type: ignore[no-any-return]

    def native(self, a: Any, /) -> Any:
        """Return a copy as a float64 tensor on the module's device."""
        with torch.inference_mode(False):
            if isinstance(a, torch.Tensor):
                return a.detach().to(device=self.device, dtype=torch.float64, copy=True)
            return torch.tensor(np.asarray(a), dtype=torch.float64, device=self.device)

    def numpy(self, a: Any, /) -> np.ndarray:
        """Convert a tensor to NumPy."""
        return np.asarray(plain(a), dtype=np.float64)

    def width(self, k: int, /) -> int:
        """Return k: nothing is compiled, so no block is padded."""
        return k

    def compiled(self, step: Callable[..., Any], /) -> Callable[..., Any]:
        """Return the function itself: eager torch has no compilation step."""
        return step


def to_array(tensor: Any) -> np.ndarray:
    """Return a tensor (any device, with or without gradient) as a NumPy array, floats as float64."""
    if tensor._is_zerotensor():
        # Derivatives that are identically zero may be zero tensors without storage, for which ``numpy`` of torch 2.9
        # and older returns uninitialised memory (pytorch issue 89034).
        tensor = tensor.clone()
    if tensor.is_floating_point():
        tensor = tensor.to(torch.float64)
    return np.asarray(tensor.numpy(force=True))


def plain(value: Any) -> Any:
    """Return a tensor as a NumPy array, and any other value unchanged, so that later checks see masks and types."""
    if not isinstance(value, torch.Tensor):
        return value
    refuse_without_numbers("what was given", value)
    return to_array(value)


def refuse_without_numbers(name: str, value: Any) -> None:
    """Raise for tensors that are not dense arrays with values.

    Raises:
        InputError: With the remedy.
    """
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        raise InputError(f"{name} is a sparse, nested or quantized tensor; give a dense one.")
    if value.is_meta:
        raise InputError(f"{name} is a tensor on the meta device, which has a shape and no numbers. Give the numbers.")
