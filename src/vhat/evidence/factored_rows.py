"""What leaving rows out needs of all training rows, in matrices of p x p numbers.

Row by row, the responses of the other rows cost n numbers each, and n rows cost ``n^2 p`` operations. With a
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
"""Operations ``n^2 p K^2`` up to which the rows are answered one by one, about a tenth of a second: a solver verifies
every answer of its own."""
_MOST_BYTES = 2**30
"""Memory for ``J L^-T``, which is otherwise computed twice."""


def is_worthwhile(problem: Problem, half: Callable[[np.ndarray], np.ndarray] | None) -> bool:
    """Whether the rows are left out by products of matrices: there is a factorisation, and row by row is dear.

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
    """Return what :func:`vhat.evidence.leave_one_out.leave_rows_out_of` needs: ``a`` and ``variance``, (n, K, K) each.

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
    # the row's own response is no longer there
    of_itself = n * a * sizes[:, None, :]
    return a, (together - of_itself @ of_itself.transpose(0, 2, 1)) / n


def _blocks(problem: Problem, half: Callable[[np.ndarray], np.ndarray]) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield ``J L^-T`` in blocks of rows, (rows * K, p), with the rows of the table that they are."""
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
