"""Arrays of JAX, in float64 for the duration of a call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vhat.errors import InputError

__all__ = ["JaxArrays", "refuse_tracing"]

_compile = lru_cache(maxsize=None)(jax.jit)


def refuse_tracing(*trees: Any) -> None:
    """Raise inside a transformation of JAX, where arrays have no values.

    Args:
        trees: Arguments in which tracers are looked for, as they occur under ``jax.grad`` and ``jax.vmap``.

    Raises:
        InputError: With the remedy.
    """
    leaves = jax.tree.leaves(trees)
    # Under jit every new array is a tracer, also if no argument is one.
    if any(isinstance(leaf, jax.core.Tracer) for leaf in (jnp.zeros(()), *leaves)):
        raise InputError(
            "vhat was called inside a function that JAX traces (jit, grad, vmap), where arrays have no values. Call it "
            "outside, with arrays."
        )


@dataclass(frozen=True)
class JaxArrays:
    """Arrays of JAX: see :class:`vhat.models.protocols.Arrays`."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return a context manager that switches to float64 for one call and leaves the global flag unchanged."""
        refuse_tracing()
        return jax.enable_x64(True)

    def native(self, a: Any, /) -> jax.Array:
        """Copy an array to the device, in float64."""
        return jnp.asarray(a, jnp.float64)

    def numpy(self, a: Any, /) -> np.ndarray:
        """Convert a device array to NumPy."""
        return np.asarray(a, dtype=np.float64)

    def width(self, k: int, /) -> int:
        """Return the smallest power of two that is at least k, so that few shapes are compiled."""
        return int(2 ** max(k - 1, 0).bit_length())

    def compiled(self, step: Callable[..., Any], /) -> Callable[..., Any]:
        """Compile a pure function; a second call with the same function reuses the compilation."""
        return _compile(step)
