"""Traces and projections of linear algebra over many training rows, block by block: no matrix of n rows is held."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg

from vhat.linalg.solvers.interface import contract
from vhat.models.problem import Problem

__all__ = ["SmootherSums", "in_blocks", "smoother_sums", "unexplained_squares"]

_HELD = 2**28
"""Bytes of a Jacobian above which it is not held as a whole."""
_BLOCK_BYTES = 2**24
"""Bytes of the Jacobian of one block of rows: enough for a matrix product at full speed."""


def in_blocks(problem: Problem) -> bool:
    """Return whether the Jacobian has many rows, and is so large that sums over it are made block by block."""
    rows = problem.n * problem.outputs
    return rows > problem.p and 8 * rows * problem.p > _HELD


def _blocks(problem: Problem) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield some training rows and their Jacobian, (rows, K, p)."""
    step = max(1, _BLOCK_BYTES // (8 * problem.p * problem.outputs))
    for start in range(0, problem.n, step):
        rows = slice(start, min(start + step, problem.n))
        J = problem.numpy(problem.gradients(problem.take(problem.X, rows.start, rows.stop)))
        yield rows, J.reshape(-1, problem.outputs, problem.p)


class SmootherSums:
    """Sums over the training rows from which every trace of a smoother follows.

    With ``B = L^-1 J'``, of which ``B_k`` belongs to output k, and s the relative noise:

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
        """Add some rows, (rows, K, p) each."""
        for k in range(left.shape[1]):
            self.effective[k] += float(np.sum(left[:, k] * right[:, k]))
            self.left[k] += left[:, k].T @ left[:, k]
            self.right[k] += right[:, k].T @ right[:, k]


def smoother_sums(
    problem: Problem, half: Callable[[np.ndarray], np.ndarray], shape: np.ndarray, seen: np.ndarray
) -> SmootherSums:
    """Sum up over the rows that the loss sees.

    Args:
        problem: The training problem.
        half: ``g`` to ``L^-1 g`` for rows of gradients.
        shape: Relative noise of each response, (n, K).
        seen: The rows that the loss sees, (n,).
    """
    cross = problem.loss_derivatives.cross
    sums = SmootherSums(problem.outputs, problem.p)
    with problem.scope():
        for rows, J in _blocks(problem):
            B = half(J.reshape(-1, problem.p)).reshape(J.shape)
            moved = contract(B.transpose(2, 0, 1), cross[rows]).transpose(1, 2, 0)
            counted = seen[rows]
            spread = shape[rows, :, None]
            sums.add((B / spread)[counted], (moved * spread)[counted])
    return sums


def unexplained_squares(
    problem: Problem, residuals: np.ndarray, shape: np.ndarray, seen: np.ndarray
) -> list[tuple[float, int]]:
    """Return of each output k ``|(I - P_k) r_k|^2`` and the rank of ``J_k``, both in units of the noise shape.

    The triangle R of a QR factorisation of ``[J_k, r_k]`` is updated block by block: its columns have the lengths of
    those of the whole, and the projection is that of its last column on the others.

    Args:
        problem: The training problem.
        residuals: Of the fit, in units of the noise shape, (n, K).
        shape: Relative noise of each response, (n, K).
        seen: The rows that the loss sees, (n,).
    """
    triangles = [np.zeros((0, problem.p + 1))] * problem.outputs
    with problem.scope():
        for rows, J in _blocks(problem):
            counted = seen[rows]
            for k in range(problem.outputs):
                scaled = J[counted, k] / shape[rows][counted, k, None]
                block = np.concatenate([scaled, residuals[rows][counted, k, None]], axis=1)
                stacked = np.concatenate([triangles[k], block])
                (triangles[k],) = scipy.linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)
                triangles[k] = triangles[k][: problem.p + 1]
    return [_projected(triangle, int(seen.sum())) for triangle in triangles]


def _projected(triangle: np.ndarray, n: int) -> tuple[float, int]:
    """Return the square of what the last column keeps beside the others, and their rank.

    Columns are brought to length one first. A singular value counts as zero below ``max(n, p)`` roundings of the
    largest one, as where the whole matrix is decomposed.
    """
    J, r = triangle[:, :-1], triangle[:, -1]
    lengths = np.linalg.norm(J, axis=0)
    left, values, _ = np.linalg.svd(J / np.where(lengths > 0, lengths, 1.0), full_matrices=False)
    kept = left[:, values > max(n, J.shape[1]) * np.finfo(np.float64).eps * values[0]]
    for _ in range(2):  # once more takes away what rounding left of a fit far larger than the rest
        r = r - kept @ (kept.T @ r)
    return float(r @ r), kept.shape[1]
