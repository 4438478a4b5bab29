"""Leverages and variances of all training rows for leave-one-out, by products of p x p matrices.

Row by row, the sensitivities to all responses are n numbers each, and n rows cost ``n^2 p`` operations. With a
factorisation ``A = LL'`` the sums over all training rows are one matrix, ``M = L^-1 J' diag(c sigma)^2 J L^-T``, where
c is the second derivative of the loss in prediction and response, and n rows cost ``n p^2`` operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from vhat.models.problem import Problem
from vhat.variance.weighted_norm import gradient_blocks

__all__ = ["is_worthwhile", "products_of_rows"]

_FEW = 1e9
"""Operations ``n^2 p K^2`` up to which rows are left out one by one, in about a tenth of a second, because a solver
verifies each of its answers."""
_MOST_BYTES = 2**30
"""Memory for ``J L^-T``, in bytes. A larger one is computed twice."""


def is_worthwhile(problem: Problem, half: Callable[[np.ndarray], np.ndarray] | None) -> bool:
    """Whether to leave rows out by products of matrices: there is a factorisation, and row by row would be expensive.

    Args:
        problem: The training problem; its loss must be a sum over outputs.
        half: ``g`` to ``L^-1 g``, or None where there is no factorisation.
    """
    loss = problem.loss_derivatives
    if half is None or loss.curvature.ndim != 2 or loss.cross.ndim != 2:
        return False
    return float(problem.n * problem.outputs) ** 2 * problem.p > _FEW


def products_of_rows(
    problem: Problem, half: Callable[[np.ndarray], np.ndarray], sigma: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``a`` and ``variance`` of :func:`vhat.evidence.leave_one_out.leave_rows_out_of`, (n, K, K) each.

    Args:
        problem: The training problem.
        half: ``g`` to ``L^-1 g``.
        sigma: Noise of each training response, (n, K).
    """
    n, K = problem.n, problem.outputs
    sizes = problem.loss_derivatives.cross * sigma
    kept: Iterable[tuple[slice, np.ndarray]] = _blocks(problem, half)
    if 8 * n * K * problem.p <= _MOST_BYTES:
        kept = list(kept)
        middle = _middle(kept, sizes)
    else:
        middle = _middle(kept, sizes)
        kept = _blocks(problem, half)
    a = np.empty((n, K, K))
    together = np.empty((n, K, K))
    for rows, block in kept:
        own = block.reshape(len(block) // K, K, -1)
        a[rows] = own @ own.transpose(0, 2, 1) / n
        together[rows] = (block @ middle).reshape(own.shape) @ own.transpose(0, 2, 1)
    # Subtract the share of the row's own response.
    own_share = n * a * sizes[:, None, :]
    return a, (together - own_share @ own_share.transpose(0, 2, 1)) / n


def _blocks(problem: Problem, half: Callable[[np.ndarray], np.ndarray]) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield ``J L^-T`` in blocks, (rows * K, p), with the slice of training rows of each."""
    start = 0
    for g in gradient_blocks(problem, problem.X):
        count = len(g) // problem.outputs
        yield slice(start, start + count), half(problem.numpy(g))
        start += count


def _middle(blocks: Iterable[tuple[slice, np.ndarray]], sizes: np.ndarray) -> np.ndarray:
    """Return ``L^-1 J' diag(c sigma)^2 J L^-T``, (p, p)."""
    found: np.ndarray | None = None
    for rows, block in blocks:
        scaled = block * sizes[rows].reshape(-1, 1)
        part = scaled.T @ scaled
        found = part if found is None else found + part
    assert found is not None  # a problem has rows
    return found
