"""The tangent kernel: inner products of the gradients of predictions, at one or several parameter vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat.checks import check_finite
from vhat.errors import InputError, MemoryBudgetError
from vhat.linalg.memory import in_words
from vhat.models.problem import Array, Problem
from vhat.variance.weighted_norm import gradient_blocks

__all__ = ["kernels_along", "tangent_kernel"]


def tangent_kernel(problem: Problem, x: Any, x2: Any = None, *, metric: Array | None = None) -> np.ndarray:
    """Return ``k(a, b) = grad f(a)' grad f(b)`` of all pairs of points.

    Gradients are computed in blocks that fit the memory budget; no matrix of points x p is formed.

    Args:
        problem: The training problem.
        x: Checked inputs, m rows.
        x2: Checked inputs, m2 rows; None for those of ``x``, in which case each pair is computed once.
        metric: Weights of the parameters in the inner product, p-space (p,); None for equal weights.

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
    start = 0
    for a in gradient_blocks(problem, x):
        stop = start + a.shape[0]
        weighted = a if metric is None else a * metric
        if x2 is None:
            kernel[start:stop, start:stop] = problem.numpy(weighted @ a.T)
            others = gradient_blocks(problem, x, first=stop // K)
            first = stop
        else:
            others = gradient_blocks(problem, x2)
            first = 0
        for b in others:
            last = first + b.shape[0]
            kernel[start:stop, first:last] = problem.numpy(weighted @ b.T)
            if x2 is None:  # symmetric: blocks above the diagonal are copied below it
                kernel[first:last, start:stop] = kernel[start:stop, first:last].T
            first = last
        start = stop
    return kernel if problem.squeeze else kernel.reshape(-1, K, columns // K, K)


def kernels_along(problem: Problem, along: Any, x: Any, x2: Any = None) -> np.ndarray:
    """Return the tangent kernel at each of several parameter vectors.

    Args:
        problem: The training problem.
        along: Flat parameter vectors, (steps, p).
        x: Checked inputs, m rows.
        x2: Checked inputs, m2 rows; None for those of ``x``.

    Returns:
        (steps, m, m2), or (steps, m, K, m2, K) with several outputs.

    Raises:
        InputError: When ``along`` is not (steps, p) or not finite.
        MemoryBudgetError: When all kernels together do not fit.
    """
    recorded = np.asarray(along, dtype=np.float64)
    if recorded.ndim != 2 or not len(recorded) or recorded.shape[1] != problem.p:
        raise InputError(
            f"along has shape {recorded.shape}; give one flat vector of {problem.p:,} parameters for each recorded "
            f"step, (steps, {problem.p})."
        )
    check_finite("along", recorded)
    rows = problem.count(x) * problem.outputs
    columns = rows if x2 is None else problem.count(x2) * problem.outputs
    _require_memory(problem, rows, columns, steps=len(recorded))
    return np.stack([tangent_kernel(problem.at(theta), x, x2) for theta in recorded])


def _require_memory(problem: Problem, rows: int, columns: int, *, steps: int = 1) -> None:
    """Refuse kernels that do not fit, before any work."""
    need = 8 * rows * columns * steps
    if need <= problem.memory:
        return
    each = f" at each of {steps:,} steps" if steps > 1 else ""
    raise MemoryBudgetError(
        f"a tangent kernel of {rows:,} x {columns:,} predictions{each} needs {in_words(need)}; the budget is "
        f"{in_words(problem.memory)}. Ask for fewer points at a time, or raise memory=."
    )
