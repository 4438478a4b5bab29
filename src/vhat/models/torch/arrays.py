"""Tensors of torch on one device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vhat.models.torch.inputs import plain

__all__ = ["TorchArrays"]


@dataclass(frozen=True)
class TorchArrays:
    """Tensors on a device: see :class:`vhat.models.protocols.Arrays`."""

    device: Any

    def scope(self) -> AbstractContextManager[Any]:
        """Return a scope without a gradient tape: p-space arithmetic is plain."""
        return torch.no_grad()  # type: ignore[no-any-return]

    def native(self, a: Any, /) -> Any:
        """Return a copy as a float64 tensor on the module's device."""
        with torch.inference_mode(False):
            if isinstance(a, torch.Tensor):
                return a.detach().to(device=self.device, dtype=torch.float64, copy=True)
            return torch.tensor(np.asarray(a), dtype=torch.float64, device=self.device)

    def numpy(self, a: Any, /) -> np.ndarray:
        """Bring a tensor to NumPy."""
        return np.asarray(plain(a), dtype=np.float64)

    def width(self, k: int, /) -> int:
        """Return k: nothing is compiled, so no block is padded."""
        return k

    def compiled(self, step: Callable[..., Any], /) -> Callable[..., Any]:
        """Return the function itself: eager torch compiles nothing."""
        return step
