"""The kernel of a few training rows drawn at random, made to stand for that of all.

``P_m = J_m'CJ_m/m + d Lam`` over m rows stands for ``P = J'CJ/n + Lam``. In expectation over the draw ``P_m^-1`` is
close to a multiple of ``(J'CJ/n + k Lam)^-1`` with ``k (1 - f) = d``, where f is the share of the m dimensions that the
rows fill, ``tr[K (K + d)^-1] / m`` of their kernel K. Where they fill nearly all of them the sample says little about
the rest, and more decay is the better guess: ``d >= 1`` is the smallest at which about half are filled.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from vhat.errors import MemoryBudgetError
from vhat.linalg.memory import in_words, most_allowed
from vhat.linalg.solvers.cost import gradient_flops
from vhat.linalg.solvers.jacobian_factors import GRAM_ROWS, find_structure, read_features
from vhat.linalg.solvers.kernel import Kernel, make_kernel
from vhat.models.problem import Array, Problem

__all__ = ["affordable_rows", "most_rows", "sample_bytes", "sample_flops", "sample_kernel"]

_GRADIENTS_MOST = 100.0
"""Gradients of the loss that a default number of rows may cost: about two steps for one block of points."""
_MEMORY_SHARE = 0.3
"""Of the budget, for the sample; the rest is for points."""
_PROBED = 8
"""Rows from whose gradients it is read whether matrices of parameters have gradients of rank one."""
_FILLED = 0.65
"""Share of the sample's dimensions that may be filled; a Newton step towards one half is taken above it."""
_TRIALS = 3
"""Steps of Newton's method towards the decay that is wanted; each factorises the kernel of the sample again."""
_STEEP = 4.0
"""The most that a step of Newton's method may stretch: spectra in two far clumps have no slope to go by."""
_PROBES = 8
"""Random signs for a trace over the sample: with hundreds of rows they give the filled share to a few per cent."""
_FLOOR = 0.1
"""Least decay that a parameter has in the sample, against the share of its scale that decay is for most."""
_MOST = 0.75
"""The quantile over parameters that says what share decay is for most of them."""
_NO_DECAY = 1e-6
"""That share where no parameter has decay."""


def sample_kernel(problem: Problem, scale: Array, rows: int | None, seed: int) -> Kernel:
    """Draw rows and factorise their kernel.

    Args:
        problem: The training problem.
        scale: The unit of each parameter, from :func:`vhat.linalg.curvature.scale`.
        rows: How many; None for :func:`affordable_rows`.
        seed: Draws them.

    Raises:
        MemoryBudgetError: When the kernel of that many rows does not fit.
    """
    order = np.random.default_rng(seed).permutation(problem.n)
    held = problem.with_decay(problem.native(_sample_decay(problem, scale)))
    numbers = read_features(held.rows(order[:_PROBED])).structure.numbers
    m = affordable_rows(problem, numbers) if rows is None else min(rows, problem.n)
    _require_memory(problem, m, numbers)
    return _calmed(make_kernel(held.rows(np.sort(order[:m]))), seed)


def affordable_rows(problem: Problem, numbers: int) -> int:
    """How many rows to draw: what fits into its share of the memory budget and costs at most a hundred gradients.

    Args:
        problem: The training problem.
        numbers: How many numbers a row of its features takes.
    """
    fits = most_rows(problem, numbers, int(_MEMORY_SHARE * problem.memory))
    most = _GRADIENTS_MOST * gradient_flops(problem)
    pays = most_allowed(problem.n, lambda rows: sample_flops(problem, rows, numbers) <= most)
    return max(1, min(fits, pays, problem.n // 2))


def sample_bytes(problem: Problem, rows: int, numbers: int) -> int:
    """What the features of ``rows`` rows take, twice while their decay is settled, and their kernel."""
    N = rows * problem.outputs
    return 2 * 8 * N * numbers + 8 * N * (N + 3 * min(N, GRAM_ROWS))


def sample_flops(problem: Problem, rows: int, numbers: int) -> float:
    """Return the flops of forming and factorising the kernel of ``rows`` rows."""
    N = float(rows * problem.outputs)
    return N**2 * numbers + 2 * N**3 / 3


def most_rows(problem: Problem, numbers: int, memory: int) -> int:
    """Return how many rows fit into so much memory."""
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
    """Return the decay of the sample's own matrix, (p,), positive everywhere.

    It is the problem's, except that a parameter with none, or with far less than most in its own unit, is held by what
    they have: the sample need not determine it. A matrix under one decay keeps it, since it then has rank-one features.
    """
    decay, square = problem.numpy(problem.decay), problem.numpy(scale) ** 2
    share = float(np.quantile((decay / square)[decay > 0], _MOST)) if np.any(decay > 0) else _NO_DECAY
    raised = np.maximum(decay, _FLOOR * share * square)
    for leaf in find_structure(problem).leaves:
        if leaf.matrix is not None:
            raised[leaf.start : leaf.stop] = leaf.decay[0]
    return raised


def _calmed(kernel: Kernel, seed: int) -> Kernel:
    """Return the kernel under as much more decay as leaves about half of the sample's dimensions unfilled."""
    for _ in range(_TRIALS):
        more = _wanted(kernel, seed)
        more_decay = kernel.problem.with_decay(kernel.problem.decay * more)
        calmer = None if more <= 1.0 else kernel.under(more_decay, overwrite=True)
        if calmer is None:
            break
        kernel = calmer
    return kernel


def _wanted(kernel: Kernel, seed: int) -> float:
    """Return by how much more decay about half of the dimensions would be filled, 1 where not many more are.

    With ``B = (I + K)^-1`` the filled share is ``1 - tr B / N`` and its slope in the logarithm of decay is
    ``-tr(B - B^2) / N``: one step of Newton's method on the logit, both traces by random signs.
    """
    signs = np.random.default_rng([seed, 1]).choice([-1.0, 1.0], size=(len(kernel.features), _PROBES))
    signs[kernel.diagonal == 0] = 0.0  # a row without gradient or weight fills nothing
    half = scipy.linalg.solve_triangular(kernel.factor, signs, lower=True, check_finite=False)
    full = scipy.linalg.solve_triangular(kernel.factor, half, lower=True, trans="T", check_finite=False)
    live = float(np.count_nonzero(signs)) or 1.0
    empty = float(np.sum(half**2)) / live
    filled, slope = 1.0 - empty, empty - float(np.sum(full**2)) / live
    if not (filled > _FILLED and empty > 0 and slope > 0):
        return 1.0
    return float((filled / empty) ** min(filled * empty / slope, _STEEP))
