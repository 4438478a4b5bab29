"""Weights of the training rows in sums over them.

The weights are one matrix M, block diagonal over the rows: a sum of squares is ``(M'J)'(M'J)``, and a random draw z
over the rows becomes ``J'M z``. They are plain data and can be sent to the workers of a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vhat.linalg.solvers.curvature_root import Root

__all__ = ["CurvatureWeights", "NoiseWeights", "RowWeights"]


class RowWeights(Protocol):
    """The matrix M of some training rows."""

    def take(self, start: int, stop: int) -> RowWeights:
        """Return the weights of rows ``start`` to ``stop``."""

    def rows(self, J: np.ndarray) -> np.ndarray:
        """Return ``M'J`` with the Jacobian J of these rows, (rows * K, p), which may be overwritten."""

    def times(self, z: np.ndarray) -> np.ndarray:
        """Return ``M z`` for draws z over these rows, (k, rows, K)."""


@dataclass(frozen=True, eq=False)
class CurvatureWeights:
    """``M = s`` with ``s s' = C/n``, the curvature weights of the loss: ``(M'J)'(M'J)`` is the Gauss-Newton matrix."""

    root: Root

    def take(self, start: int, stop: int) -> CurvatureWeights:
        """Return the weights of some rows."""
        return CurvatureWeights(Root(self.root.values[start:stop], self.root.exact))

    def rows(self, J: np.ndarray) -> np.ndarray:
        """Return ``M'J = s J``, because s is symmetric."""
        if self.root.values.ndim == 2:
            J *= self.root.values.reshape(-1, 1)
            return J
        return self.root.rows(0, len(self.root.values), J)

    def times(self, z: np.ndarray) -> np.ndarray:
        """Return ``s z``."""
        return self.root.times(z)


@dataclass(frozen=True, eq=False)
class NoiseWeights:
    """``M = d2l/df dy diag(spread)``, the effect of noise on the loss gradient.

    The variance of a prediction is ``h' (M'J)'(M'J) h``.

    Attributes:
        cross: The mixed second derivative of the loss, (rows, K) or (rows, K, K).
        spread: Noise standard deviation of each response divided by ``sqrt(n)``, (rows, K).
    """

    cross: np.ndarray
    spread: np.ndarray

    def take(self, start: int, stop: int) -> NoiseWeights:
        """Return the weights of some rows."""
        return NoiseWeights(self.cross[start:stop], self.spread[start:stop])

    def rows(self, J: np.ndarray) -> np.ndarray:
        """Return ``M'J``."""
        if self.cross.ndim == 2:
            J *= (self.spread * self.cross).reshape(-1, 1)
            return J
        rows = J.reshape(*self.spread.shape, -1)
        turned = np.einsum("iap,iab->ibp", rows, self.cross)
        return (turned * self.spread[:, :, None]).reshape(J.shape)

    def times(self, z: np.ndarray) -> np.ndarray:
        """Return ``M z``."""
        scaled = z * self.spread
        if self.cross.ndim == 2:
            return scaled * self.cross
        return np.einsum("iab,kib->kia", self.cross, scaled)
