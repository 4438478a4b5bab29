"""Arrays of NumPy, which serve as p-space and as n-space arrays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["NumpyArrays"]


@dataclass(frozen=True)
class NumpyArrays:
    """Arrays of NumPy: see :class:`vhat.models.protocols.Arrays`."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return a context manager without effect: NumPy has no state to set."""
        return nullcontext()

    def native(self, a: Any, /) -> np.ndarray:
        """Return a copy in float64."""
        return np.array(a, dtype=np.float64)

    def numpy(self, a: Any, /) -> np.ndarray:
        """Return the array as float64."""
        return np.asarray(a, dtype=np.float64)

    def width(self, k: int, /) -> int:
        """Return k: nothing is compiled, so no block is padded."""
        return k

    def compiled(self, step: Callable[..., Any], /) -> Callable[..., Any]:
        """Return the function itself."""
        return step
