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
    """Refuse to compute inside a transformation of JAX, where arrays have no values.

    Args:
        trees: Arguments that must not hold tracers, as they do under ``jax.grad`` and ``jax.vmap``.

    Raises:
        InputError: Saying where to call instead.
    """
    leaves = jax.tree.leaves(trees)
    # under jit every new array is a tracer
    if any(isinstance(leaf, jax.core.Tracer) for leaf in (jnp.zeros(()), *leaves)):
        raise InputError(
            "vhat was called inside a function that JAX traces (jit, grad, vmap), where arrays have no values. Call it "
            "outside, with arrays."
        )


@dataclass(frozen=True)
class JaxArrays:
    """Arrays of JAX: see :class:`vhat.models.protocols.Arrays`."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return float64 for the duration of one call; the global flag is not touched."""
        refuse_tracing()
        return jax.enable_x64(True)

    def native(self, a: Any, /) -> jax.Array:
        """Bring an array to the device, in float64."""
        return jnp.asarray(a, jnp.float64)

    def numpy(self, a: Any, /) -> np.ndarray:
        """Bring a device array to NumPy."""
        return np.asarray(a, dtype=np.float64)

    def width(self, k: int, /) -> int:
        """Return the next power of two: few shapes are compiled."""
        return int(2 ** max(k - 1, 0).bit_length())

    def compiled(self, step: Callable[..., Any], /) -> Callable[..., Any]:
        """Compile a pure function, once."""
        return _compile(step)
