"""Traces of smoothers and projections of residuals, summed over blocks of training rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg

from vhat.linalg.solvers.interface import contract
from vhat.models.problem import Problem

__all__ = ["SmootherSums", "in_blocks", "smoother_sums", "unexplained_squares"]

_MAX_JACOBIAN_BYTES = 2**28
"""Bytes of a Jacobian above which it is not stored as a whole."""
_BLOCK_BYTES = 2**24
"""Bytes of the Jacobian of one block of rows: enough for matrix products at full speed."""


def in_blocks(problem: Problem) -> bool:
    """Return whether sums over the Jacobian are computed block by block: it has more rows than columns and is large."""
    rows = problem.n * problem.outputs
    return rows > problem.p and 8 * rows * problem.p > _MAX_JACOBIAN_BYTES


def _blocks(problem: Problem) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slices of training rows with their Jacobian, (rows, K, p)."""
    step = max(1, _BLOCK_BYTES // (8 * problem.p * problem.outputs))
    for start in range(0, problem.n, step):
        rows = slice(start, min(start + step, problem.n))
        J = problem.numpy(problem.gradients(problem.take(problem.X, rows.start, rows.stop)))
        yield rows, J.reshape(-1, problem.outputs, problem.p)


class SmootherSums:
    """Sums over the training rows that give every trace of a smoother.

    With ``B = L^-1 J'``, its part ``B_k`` for output k, and s the relative noise:

    Attributes:
        effective: ``sum_i b_ik' (B cross)_ik``, (K,).
        left: ``B_k diag(1/s^2) B_k'``, (K, p, p).
        right: ``(B cross)_k diag(s^2) (B cross)_k'``, (K, p, p).
    """

    def __init__(self, outputs: int, p: int) -> None:
        self.effective = np.zeros(outputs)
        self.left = np.zeros((outputs, p, p))
        self.right = np.zeros((outputs, p, p))

    def add(self, left: np.ndarray, right: np.ndarray) -> None:
        """Add the sums of some rows, (rows, K, p) each."""
        for k in range(left.shape[1]):
            self.effective[k] += float(np.sum(left[:, k] * right[:, k]))
            self.left[k] += left[:, k].T @ left[:, k]
            self.right[k] += right[:, k].T @ right[:, k]


def smoother_sums(
    problem: Problem, half: Callable[[np.ndarray], np.ndarray], shape: np.ndarray, counted: np.ndarray
) -> SmootherSums:
    """Return the sums over the rows that count.

    Args:
        problem: The training problem.
        half: Function from ``g`` to ``L^-1 g`` for rows of gradients.
        shape: Relative noise of each response, (n, K).
        counted: The rows on which the loss depends, (n,) of bool.
    """
    cross = problem.loss_derivatives.cross
    sums = SmootherSums(problem.outputs, problem.p)
    with problem.scope():
        for rows, J in _blocks(problem):
            B = half(J.reshape(-1, problem.p)).reshape(J.shape)
            B_cross = contract(B.transpose(2, 0, 1), cross[rows]).transpose(1, 2, 0)
            spread = shape[rows, :, None]
            sums.add((B / spread)[counted[rows]], (B_cross * spread)[counted[rows]])
    return sums


def unexplained_squares(
    problem: Problem, residuals: np.ndarray, shape: np.ndarray, counted: np.ndarray
) -> list[tuple[float, int]]:
    """Return for each output k ``|(I - P_k) r_k|^2`` and the rank of ``J_k``, both in units of the noise shape.

    The triangular factor R of a QR factorisation of ``[J_k, r_k]`` is updated block by block. Its columns have the same
    lengths and inner products as those of the whole matrix, so that its last column can be projected on the others.

    Args:
        problem: The training problem.
        residuals: Residuals of the fit, in units of the noise shape, (n, K).
        shape: Relative noise of each response, (n, K).
        counted: The rows on which the loss depends, (n,) of bool.
    """
    triangles = [np.zeros((0, problem.p + 1))] * problem.outputs
    with problem.scope():
        for rows, J in _blocks(problem):
            keep = counted[rows]
            for k in range(problem.outputs):
                scaled = J[keep, k] / shape[rows][keep, k, None]
                block = np.concatenate([scaled, residuals[rows][keep, k, None]], axis=1)
                stacked = np.concatenate([triangles[k], block])
                (triangles[k],) = scipy.linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)
                triangles[k] = triangles[k][: problem.p + 1]
    return [_unexplained_square(triangle, int(counted.sum())) for triangle in triangles]


def _unexplained_square(triangle: np.ndarray, n: int) -> tuple[float, int]:
    """Return the square of the part of the last column orthogonal to the other columns, and the rank of these.

    Columns are scaled to length one first. A singular value below ``max(n, p)`` machine epsilons times the largest
    counts as zero, as for a decomposition of the whole matrix.
    """
    J = triangle[:, :-1]
    r = triangle[:, -1]
    lengths = np.linalg.norm(J, axis=0)
    left, values, _ = np.linalg.svd(J / np.where(lengths > 0, lengths, 1.0), full_matrices=False)
    basis = left[:, values > max(n, J.shape[1]) * np.finfo(np.float64).eps * values[0]]
    # Project twice: if the explained part is far larger, rounding of the first projection is not negligible.
    for _ in range(2):
        r = r - basis @ (basis.T @ r)
    return float(r @ r), basis.shape[1]
