"""The tangent kernel: inner products of the gradients of predictions, at the fitted parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat.errors import MemoryBudgetError
from vhat.linalg.memory import in_words
from vhat.models.problem import Array, Problem
from vhat.variance.weighted_norm import gradient_blocks

__all__ = ["tangent_kernel"]


def tangent_kernel(problem: Problem, x: Any, x2: Any = None, *, metric: Array | None = None) -> np.ndarray:
    """Return ``k(a, b) = grad f(a)' grad f(b)`` of all pairs of points.

    Gradients are made in blocks that fit the budget: no matrix of points x p is held.

    Args:
        problem: The training problem.
        x: Checked inputs, m rows.
        x2: Checked inputs, m2 rows; None for those of ``x``, of which each pair is computed once.
        metric: Weights of the parameters in the inner product, p-space (p,); None counts all alike.

    Returns:
        (m, m2), or (m, K, m2, K) with several outputs.

    Raises:
        MemoryBudgetError: When the kernel itself does not fit.
    """
    K = problem.outputs
    rows = problem.count(x) * K
    columns = rows if x2 is None else problem.count(x2) * K
    _require_memory(problem, rows, columns)
    kernel = np.empty((rows, columns))
    left = gradient_blocks(problem, x)
    right = left if x2 is None else gradient_blocks(problem, x2)
    start = 0
    for number, a in enumerate(left):
        stop = start + a.shape[0]
        weighted = a if metric is None else a * metric
        first = 0
        for other, b in enumerate(right):
            last = first + b.shape[0]
            # a symmetric kernel has its blocks below the diagonal from those above it
            if x2 is not None or other >= number:
                kernel[start:stop, first:last] = problem.numpy(weighted @ b.T)
            if x2 is None and other > number:
                kernel[first:last, start:stop] = kernel[start:stop, first:last].T
            first = last
        start = stop
    return kernel if problem.squeeze else kernel.reshape(-1, K, columns // K, K)


def _require_memory(problem: Problem, rows: int, columns: int) -> None:
    """Refuse a kernel that does not fit, before any work."""
    need = 8 * rows * columns
    if need > problem.memory:
        raise MemoryBudgetError(
            f"a tangent kernel of {rows:,} x {columns:,} predictions needs {in_words(need)}; the budget is "
            f"{in_words(problem.memory)}. Ask for fewer points at a time, or raise memory=."
        )
