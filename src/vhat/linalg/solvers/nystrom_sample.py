"""Kernel of a random sample of the training rows, with the weight decay adapted to the size of the sample.

``P_m = J_m'CJ_m/m + d Lam`` over m rows approximates ``P = J'CJ/n + Lam``. In expectation over the draw, ``P_m^-1`` is
close to a multiple of ``(J'CJ/n + k Lam)^-1`` with ``k (1 - f) = d``. Here ``f = tr[K (K + d)^-1] / m``, with K the
kernel of the sample, is the effective degrees of freedom per sampled row, called the filled share. If f is close to
one, the sample says little about the directions outside of its span, and more decay gives a better preconditioner:
``d >= 1`` is chosen as the smallest decay with f about one half.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from vhat.errors import MemoryBudgetError
from vhat.linalg.memory import in_words, most_allowed
from vhat.linalg.solvers.cost import gradient_flops
from vhat.linalg.solvers.jacobian_factors import find_structure, read_features
from vhat.linalg.solvers.kernel import Kernel, make_kernel
from vhat.linalg.solvers.kernel_terms import GRAM_ROWS
from vhat.models.problem import Array, Problem

__all__ = ["affordable_rows", "most_rows", "sample_bytes", "sample_flops", "sample_kernel"]

_MAX_SETUP_GRADIENTS = 100.0
"""Largest cost of the default sample, in gradients of the loss: about two steps of one block of points."""
_MEMORY_SHARE = 0.3
"""Share of the memory budget for the sample; the rest is for points."""
_RANK_ROWS = 8
"""Rows whose gradients show which matrices of parameters have gradients of rank one."""
_MAX_FILLED = 0.65
"""Filled share above which a Newton step towards one half is taken."""
_NEWTON_STEPS = 3
"""Largest number of Newton steps for the decay; each factorises the kernel of the sample again."""
_MAX_EXPONENT = 4.0
"""Largest exponent of one Newton step: the slope is close to zero for a spectrum in two distant clusters."""
_PROBES = 8
"""Random-sign vectors for a trace over the sample; hundreds of rows give the filled share to a few per cent."""
_DECAY_FLOOR = 0.1
"""Smallest decay of a parameter in the sample, in its own unit, relative to the usual decay."""
_USUAL_QUANTILE = 0.75
"""Quantile, over the parameters with decay, of the decay in their own units: the usual decay."""
_NO_DECAY = 1e-6
"""Usual decay, in the unit of each parameter, if no parameter has decay."""


def sample_kernel(problem: Problem, scale: Array, rows: int | None, seed: int) -> Kernel:
    """Draw rows and factorise their kernel.

    Args:
        problem: The training problem.
        scale: The unit of each parameter, from :func:`vhat.linalg.curvature.scale`.
        rows: Number of rows; None for :func:`affordable_rows`.
        seed: Seed of the draw.

    Raises:
        MemoryBudgetError: When the kernel of that many rows does not fit.
    """
    order = np.random.default_rng(seed).permutation(problem.n)
    # Positive decay everywhere, so that the kernel has no border of parameters that the sample may not determine.
    regularised = problem.with_decay(problem.native(_sample_decay(problem, scale)))
    numbers = read_features(regularised.rows(order[:_RANK_ROWS])).structure.numbers
    m = affordable_rows(problem, numbers) if rows is None else min(rows, problem.n)
    _require_memory(problem, m, numbers)
    return _with_more_decay(make_kernel(regularised.rows(np.sort(order[:m]))), seed)


def affordable_rows(problem: Problem, numbers: int) -> int:
    """Return the default size of the sample.

    It fits into its share of the memory budget, costs at most a hundred gradients, and is at most half of the rows.

    Args:
        problem: The training problem.
        numbers: Numbers per row of the features.
    """
    fits = most_rows(problem, numbers, int(_MEMORY_SHARE * problem.memory))
    max_flops = _MAX_SETUP_GRADIENTS * gradient_flops(problem)
    affordable = most_allowed(problem.n, lambda rows: sample_flops(problem, rows, numbers) <= max_flops)
    return max(1, min(fits, affordable, problem.n // 2))


def sample_bytes(problem: Problem, rows: int, numbers: int) -> int:
    """Return the bytes of the kernel of ``rows`` rows and of two copies of their features.

    The second copy exists while the decay is adapted.
    """
    N = rows * problem.outputs
    return 2 * 8 * N * numbers + 8 * N * (N + 3 * min(N, GRAM_ROWS))


def sample_flops(problem: Problem, rows: int, numbers: int) -> float:
    """Return the flops of forming and factorising the kernel of ``rows`` rows."""
    N = float(rows * problem.outputs)
    return N**2 * numbers + 2 * N**3 / 3


def most_rows(problem: Problem, numbers: int, memory: int) -> int:
    """Return the largest sample that fits into ``memory`` bytes."""
    return most_allowed(problem.n, lambda rows: sample_bytes(problem, rows, numbers) <= memory)


def _require_memory(problem: Problem, rows: int, numbers: int) -> None:
    need = sample_bytes(problem, rows, numbers)
    if need > problem.memory:
        raise MemoryBudgetError(
            f"vhat.Nystrom(rows={rows}) needs {in_words(need)} for p = {problem.p:,} parameters; the budget is "
            f"{in_words(problem.memory)}, enough for {most_rows(problem, numbers, problem.memory):,} rows. Ask for "
            "fewer rows, use solver=vhat.CG(), or raise memory=."
        )


def _sample_decay(problem: Problem, scale: Array) -> np.ndarray:
    """Return the decay of the sample's matrix, (p,), positive everywhere.

    It is the problem's decay, with a floor for parameters that have none, or far less than usual in their own unit: the
    sample may not determine them. A factored leaf keeps its one decay, because its features are of rank one only then.
    """
    decay = problem.numpy(problem.decay)
    square = problem.numpy(scale) ** 2
    with_decay = decay > 0
    usual = _NO_DECAY
    if np.any(with_decay):
        usual = float(np.quantile((decay / square)[with_decay], _USUAL_QUANTILE))
    raised = np.maximum(decay, _DECAY_FLOOR * usual * square)
    for leaf in find_structure(problem).leaves:
        if leaf.matrix is not None:
            raised[leaf.start : leaf.stop] = leaf.decay[0]
    return raised


def _with_more_decay(kernel: Kernel, seed: int) -> Kernel:
    """Return the kernel under a larger decay, such that about half of the sample's dimensions are filled."""
    for _ in range(_NEWTON_STEPS):
        factor = _decay_factor(kernel, seed)
        if factor <= 1.0:
            break
        rescaled = kernel.under(kernel.problem.with_decay(kernel.problem.decay * factor), overwrite=True)
        if rescaled is None:
            break
        kernel = rescaled
    return kernel


def _decay_factor(kernel: Kernel, seed: int) -> float:
    """Return the factor on the decay with which about half of the dimensions are filled; 1 if not many more are now.

    With ``B = (I + K)^-1`` the filled share is ``f = 1 - tr B / N``, and its derivative in the logarithm of the decay
    is ``-tr(B - B^2) / N``. The factor is one step of Newton's method for ``logit f = 0``. Both traces are estimated
    with random signs.
    """
    signs = np.random.default_rng([seed, 1]).choice([-1.0, 1.0], size=(len(kernel.features), _PROBES))
    signs[kernel.diagonal == 0] = 0.0  # a row without gradient or weight fills no dimension
    # With B^-1 = L L', z'Bz = |L^-1 z|^2 and z'B^2 z = |L^-T L^-1 z|^2.
    half = scipy.linalg.solve_triangular(kernel.factor, signs, lower=True, check_finite=False)
    full = scipy.linalg.solve_triangular(kernel.factor, half, lower=True, trans="T", check_finite=False)
    count = float(np.count_nonzero(signs)) or 1.0
    empty = float(np.sum(half**2)) / count
    filled = 1.0 - empty
    slope = empty - float(np.sum(full**2)) / count
    if not (filled > _MAX_FILLED and empty > 0 and slope > 0):
        return 1.0
    return float((filled / empty) ** min(filled * empty / slope, _MAX_EXPONENT))
