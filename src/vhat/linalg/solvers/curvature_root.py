"""Square root of the curvature weights of a loss, applied to arrays over the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vhat.linalg.solvers.kernel_terms import GRAM_ROWS
from vhat.models.problem import LossDerivatives

__all__ = ["EIGENVALUE_ROUNDING", "Root"]

EIGENVALUE_ROUNDING = 1e-14
"""Rounding of a zero eigenvalue of curvature weights, of either sign, relative to the largest eigenvalue in any row."""


@dataclass(frozen=True)
class Root:
    """Square root ``s`` of the curvature weights, ``s s' = C/n``; negative weights are replaced by zero.

    Attributes:
        values: The roots: one number per output (n, K), or one symmetric block per row (n, K, K).
        exact: Whether no curvature weight was negative.
    """

    values: np.ndarray
    exact: bool

    @staticmethod
    def of(loss: LossDerivatives, n: int) -> Root:
        """Return the root of the curvature weights of a loss over n rows."""
        C = loss.curvature / n
        if C.ndim == 2:
            return Root(np.sqrt(np.maximum(C, 0.0)), bool((C >= 0).all()))
        values, vectors = np.linalg.eigh(C)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ vectors.transpose(0, 2, 1)
        # Rounding makes a zero eigenvalue slightly negative; the weights still count as exact.
        tiny = EIGENVALUE_ROUNDING * np.abs(values).max()
        return Root(root, bool((values >= -tiny).all()))

    def times(self, t: np.ndarray) -> np.ndarray:
        """Return ``s t`` for blocks (k, n, K)."""
        if self.values.ndim == 2:
            return t * self.values
        return np.einsum("iab,kib->kia", self.values, t)

    def divide(self, t: np.ndarray) -> np.ndarray:
        """Return ``s^-1 t`` for blocks (k, n, K); zero where s is zero."""
        if self.values.ndim == 2:
            return np.divide(t, self.values, out=np.zeros_like(t), where=self.values > 0)
        return np.einsum("iab,kib->kia", self._pseudoinverse, t)

    @cached_property
    def _pseudoinverse(self) -> np.ndarray:
        return np.linalg.pinv(self.values, hermitian=True)

    def rows(self, start: int, stop: int, t: np.ndarray) -> np.ndarray:
        """Return ``s t`` for training rows ``start`` to ``stop``, for columns t of n-space: (rows, columns)."""
        s = self.values[start:stop]
        if s.ndim == 2:
            return t * s.reshape(-1, 1)
        return np.einsum("iab,ibm->iam", s, t.reshape(*s.shape[:2], -1)).reshape(t.shape)

    def vanishes_where(self, weight: np.ndarray) -> bool:
        """Return whether s is zero at a place where ``weight``, a loss derivative (n, K) or (n, K, K), is not.

        The factorisation gives ``s'J h``. If s vanishes there, ``J h`` cannot be recovered at a row that V needs.
        """
        if self.values.ndim == 2:
            size = weight if weight.ndim == 2 else np.abs(weight).sum(axis=2)
            return bool(np.any(size[self.values == 0]))
        blocks = weight if weight.ndim == 3 else weight[:, :, None] * np.eye(weight.shape[1])
        # The part of the weight outside of the range of s.
        outside = blocks - self.values @ (self._pseudoinverse @ blocks)
        return bool(np.abs(outside).max() > 1e-9 * np.abs(blocks).max())

    def sandwich(self, K: np.ndarray) -> None:
        """Replace the kernel (N, N) by ``s K s``, in place."""
        if self.values.ndim == 2:
            flat = self.values.ravel()
            K *= flat
            K *= flat[:, None]
            return
        n, k = self.values.shape[:2]
        blocks = K.reshape(n, k, n * k)
        columns = K.reshape(n * k, n, k)
        # Some rows at a time: einsum over all of them would allocate a second matrix.
        for start in range(0, n, GRAM_ROWS):
            rows = slice(start, start + GRAM_ROWS)
            blocks[rows] = np.einsum("iab,ibm->iam", self.values[rows], blocks[rows])
        for start in range(0, n * k, GRAM_ROWS):
            rows = slice(start, start + GRAM_ROWS)
            columns[rows] = np.einsum("mib,iba->mia", columns[rows], self.values)
