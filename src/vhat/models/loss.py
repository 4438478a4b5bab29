"""The loss of every training row and its derivatives in predictions and responses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["LossDerivatives", "diagonal_if_separable", "half_square", "half_square_values"]


@dataclass(frozen=True)
class LossDerivatives:
    """The loss of every training row and its derivatives at the fitted values, sample weights included.

    ``curvature`` and ``cross`` are ``(n, K)`` where the loss is a sum over outputs (the diagonal), else
    ``(n, K, K)``.

    Attributes:
        value: ``w_i l(f_i, y_i)``, shape (n,).
        first: ``w_i dl/df``, shape (n, K).
        curvature: ``w_i d2l/df df``; the weight of the Gauss-Newton part.
        cross: ``w_i d2l/df dy``, first index f, second y; the score weight before noise. Square loss: ``-w_i``.
        location: Whether ``l`` depends on ``f - y`` alone, so that ``f - y`` is a residual.
        square: Whether ``l`` is half the squared error by its name. A function of the user's counts as another loss:
            no finite number of values could tell a square from a loss that has other tails (Huber's).
    """

    value: np.ndarray
    first: np.ndarray
    curvature: np.ndarray
    cross: np.ndarray
    location: bool
    square: bool = False

    @property
    def own_curvature(self) -> np.ndarray:
        """The second derivative in each output alone, (n, K)."""
        return self.curvature if self.curvature.ndim == 2 else np.einsum("ijj->ij", self.curvature)

    def weigh(self, t: np.ndarray) -> np.ndarray:
        """Return ``C t`` for blocks t of shape (k, n, K)."""
        if self.curvature.ndim == 2:
            weighted: np.ndarray = self.curvature * t
            return weighted
        return np.einsum("iab,kib->kia", self.curvature, t)

    def in_unit(self, unit: np.ndarray) -> LossDerivatives:
        """Return the derivatives in predictions and responses that are ``unit`` times as large, unit (K,)."""
        squares, pairs = unit**2, unit[:, None] * unit
        return LossDerivatives(
            self.value,
            self.first / unit,
            self.curvature / (squares if self.curvature.ndim == 2 else pairs),
            self.cross / (squares if self.cross.ndim == 2 else pairs),
            self.location,
            self.square,
        )


def half_square_values(f: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return ``w_i |f_i - y_i|^2 / 2``, (n,); not finite where that overflows."""
    with np.errstate(over="ignore", invalid="ignore"):  # at parameters that a search has gone too far to
        value: np.ndarray = 0.5 * weights * ((f - y) ** 2).sum(axis=1)
        return value


def half_square(f: np.ndarray, y: np.ndarray, weights: np.ndarray) -> LossDerivatives:
    """Return ``w_i |f_i - y_i|^2 / 2`` and its derivatives, f and y of shape (n, K)."""
    w = weights[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        first = w * (f - y)
    flat = w * np.ones_like(f)
    return LossDerivatives(half_square_values(f, y, weights), first, flat, -flat, location=True, square=True)


def diagonal_if_separable(blocks: np.ndarray) -> np.ndarray:
    """Return the diagonals (n, K) of per-row matrices (n, K, K) when nothing stands beside them, else the blocks."""
    diagonal = np.einsum("ijj->ij", blocks)
    beside = blocks - diagonal[:, :, None] * np.eye(blocks.shape[1])
    return blocks if beside.any() else diagonal.copy()
