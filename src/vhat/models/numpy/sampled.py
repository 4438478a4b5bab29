"""A function of parameters with its values at a point, and estimates of their rounding."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vhat.errors import VhatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["EPS", "Pair", "Sampled"]

EPS = float(np.finfo(np.float64).eps)
"""Relative rounding of float64."""


class Pair(NamedTuple):
    """Values of a function at both sides of a point, (m,), and the distance between the two arguments."""

    up: np.ndarray
    down: np.ndarray
    width: float


@dataclass(frozen=True)
class Sampled:
    """A function of p parameters with m values, and its values at the point of interest.

    Attributes:
        call: Maps theta (p,) to values (m,).
        theta: The point (p,).
        base: ``call(theta)``, (m,).
        floor: Magnitude added to that of each value when its rounding is estimated, per changed parameter, (p, m).
        eps: Relative rounding of the values: that of float64, or more where `measure_rounding` has measured more.
    """

    call: Callable[[np.ndarray], np.ndarray]
    theta: np.ndarray
    base: np.ndarray
    floor: np.ndarray | None = None
    eps: float = EPS

    def values_with(self, changes: Sequence[tuple[int, float]]) -> np.ndarray:
        """Return the values with ``theta[j] = t`` for each (j, t) of ``changes``; NaN if the function fails there."""
        theta = self.theta.copy()
        for j, t in changes:
            theta[j] = t
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a step that is too long shows in the values
            try:
                return self.call(theta)
            except (VhatError, MemoryError):
                raise
            except Exception:  # the function has a value at theta, so the step is too long
                return np.full_like(self.base, np.nan)

    def both_sides(self, j: int, h: float) -> Pair:
        """Return the values at ``theta[j] + h`` and ``theta[j] - h``, and the distance between them after rounding."""
        up = self.theta[j] + h
        down = self.theta[j] - h
        return Pair(self.values_with([(j, up)]), self.values_with([(j, down)]), up - down)

    def rounding_error(self, changed: Sequence[int], *values: np.ndarray) -> np.ndarray:
        """Return the rounding error of values at which the parameters ``changed`` differ from theta, (m,)."""
        size = np.maximum.reduce([np.abs(self.base), *map(np.abs, values)])
        if self.floor is not None:
            size = size + self.floor[list(changed)].max(axis=0)
        return self.eps * size
