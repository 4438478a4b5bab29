"""The loss of every training row and its derivatives in predictions and responses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["LossDerivatives", "diagonal_if_separable", "half_square", "half_square_values"]


@dataclass(frozen=True)
class LossDerivatives:
    """The loss of every training row and its derivatives at the fitted values, sample weights included.

    ``curvature`` and ``cross`` are diagonals ``(n, K)`` where the loss is a sum over outputs, else matrices
    ``(n, K, K)``.

    Attributes:
        value: ``w_i l(f_i, y_i)``, shape (n,).
        first: ``w_i dl/df``, shape (n, K).
        curvature: ``w_i d2l/df df``, the weight C of the Gauss-Newton part.
        cross: ``w_i d2l/df dy``, first index f, second y. The derivative of the score ``first`` in the response;
            ``-w_i`` for the square loss.
        location: Whether ``l`` depends on ``f - y`` only, so that ``f - y`` is a residual.
        square: Whether the loss was given by the name of half the squared error. False for a user's function, even
            if its values are squares: finitely many values cannot exclude other tails (Huber's loss).
    """

    value: np.ndarray
    first: np.ndarray
    curvature: np.ndarray
    cross: np.ndarray
    location: bool
    square: bool = False

    @property
    def own_curvature(self) -> np.ndarray:
        """The diagonal of ``curvature``, (n, K)."""
        return self.curvature if self.curvature.ndim == 2 else np.einsum("ijj->ij", self.curvature)

    def weigh(self, t: np.ndarray) -> np.ndarray:
        """Return ``C t`` for blocks t of shape (k, n, K)."""
        if self.curvature.ndim == 2:
            weighted: np.ndarray = self.curvature * t
            return weighted
        return np.einsum("iab,kib->kia", self.curvature, t)

    def in_unit(self, unit: np.ndarray) -> LossDerivatives:
        """Return the derivatives with respect to predictions and responses multiplied by ``unit``, (K,)."""
        squares = unit**2
        pairs = unit[:, None] * unit
        return LossDerivatives(
            self.value,
            self.first / unit,
            self.curvature / (squares if self.curvature.ndim == 2 else pairs),
            self.cross / (squares if self.cross.ndim == 2 else pairs),
            self.location,
            self.square,
        )


def half_square_values(f: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return ``w_i |f_i - y_i|^2 / 2``, (n,); not finite where it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):  # a line search may try parameters that are too large
        value: np.ndarray = 0.5 * weights * ((f - y) ** 2).sum(axis=1)
        return value


def half_square(f: np.ndarray, y: np.ndarray, weights: np.ndarray) -> LossDerivatives:
    """Return ``w_i |f_i - y_i|^2 / 2`` and its derivatives, f and y of shape (n, K)."""
    w = weights[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        first = w * (f - y)
    second = w * np.ones_like(f)
    return LossDerivatives(half_square_values(f, y, weights), first, second, -second, location=True, square=True)


def diagonal_if_separable(blocks: np.ndarray) -> np.ndarray:
    """Return the diagonals (n, K) of per-row matrices (n, K, K) if all matrices are diagonal, else the matrices."""
    diagonal = np.einsum("ijj->ij", blocks)
    off_diagonal = blocks - diagonal[:, :, None] * np.eye(blocks.shape[1])
    return blocks if off_diagonal.any() else diagonal.copy()
