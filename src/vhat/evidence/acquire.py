"""Greedy choice of the points of a pool whose measurement reduces the variance of the pool's predictions most.

With ``k(a, b) = g_a' (H + lam)^-1 g_b / n``, a measurement at ``+`` changes the variance of every prediction to

    k(x, x) - k(x, +)^2 / (1 + k(+, +))

whatever its response. The point that lowers the sum over the pool most is taken, the kernel is updated, and the next is
chosen, so that the neighbours of a chosen point are not. The variance k contains both V and the unsupported part.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from vhat.checks import check_count
from vhat.errors import ConvergenceWarning, InputError, MemoryBudgetError, name_rows, outside
from vhat.linalg.solvers import Prepared, Status
from vhat.models.problem import Problem
from vhat.progress import bar
from vhat.variance.weighted_norm import GradientBlocks

__all__ = ["Acquisition", "acquire"]


@dataclass(frozen=True, repr=False)
class Acquisition:
    """The points of a pool to measure next, in the order in which they were chosen.

    Attributes:
        indices: Rows of the pool, (k,), most useful first.
        before: Variance of each pool point's prediction, with its unsupported part, in units of the noise variance of
            one response: ``c g'(H + lam)^-1 g / n``, (m,), summed over outputs. c is the training rows' mean curvature
            of the loss, 1 for the plain square loss. NaN where the solve failed: such a point is never chosen.
        after: The same once the chosen points are measured, to first order and whatever their responses.
        gains: Reduction of the sum of ``before`` by each choice, (k,).
        status: How the solve of each pool point ended, (m,).
        caveat: The assumption that choosing inputs by the model violates.

    Examples:
        >>> import numpy as np, vhat
        >>> x = np.linspace(0, 4, 30)
        >>> y = 2.0 * np.exp(-x) + 0.01 * np.cos(30 * x)
        >>> fitted = vhat.from_numpy(lambda q, x: q[0] * np.exp(-q[1] * x), [2.0, 1.0], x, y).polish()
        >>> fitted.acquire(np.linspace(0, 4, 5), 2).indices
        array([0, 1])
    """

    indices: np.ndarray
    before: np.ndarray
    after: np.ndarray
    gains: np.ndarray
    status: np.ndarray
    caveat: str = (
        "Inputs chosen by a model that has seen responses are not a fixed design: after a refit with them the bounds, "
        "which take the inputs as given, are no longer proved."
    )

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        total, left = np.nansum(self.before), np.nansum(self.after)
        share = f", {1 - left / total:.0%} of the pool's variance taken away" if total > 0 else ""
        head = f"Acquisition of {len(self)} from a pool of {len(self.before)}{share}"
        return f"{head}\nindices {self.indices}\n{self.caveat}"


def acquire(problem: Problem, prepared: Prepared, blocks: GradientBlocks, k: int) -> Acquisition:
    """Choose k points of a pool, one after the other.

    Args:
        problem: The training problem.
        prepared: The solver of ``A = H + lam``.
        blocks: The gradient rows of the pool.
        k: How many to choose.

    Raises:
        InputError: When the pool, or what is usable of it, holds fewer than k points.
        MemoryBudgetError: When the pool's kernel does not fit.
    """
    pool = problem.count(blocks.inputs)
    _check_number(k, pool)
    K = problem.outputs
    _check_budget(problem, pool)
    kernel, status = _kernel(problem, prepared, blocks, pool)
    usable = status == Status.CONVERGED
    if usable.sum() < k:
        raise InputError(f"only {int(usable.sum())} of {pool} pool points have a usable solve; k={k} were asked for.")
    _warn_of_points(status)
    before = np.where(usable, _traces(kernel, K), np.nan)
    indices, gains = _greedy(kernel, K, usable, k)
    return Acquisition(indices, before, np.where(usable, _traces(kernel, K), np.nan), gains, status)


def _check_number(k: int, pool: int) -> None:
    check_count("k", k, least=1)
    if k > pool:
        raise InputError(f"k={k} points were asked of a pool of {pool}. Ask for fewer, or give a larger pool.")


def _warn_of_points(status: np.ndarray) -> None:
    failed = np.flatnonzero(status != Status.CONVERGED)
    if failed.size:
        told = "; ".join(f"{kind}: {Status(kind).remedy}" for kind in dict.fromkeys(status[failed]))
        warnings.warn(
            f"{failed.size} of {status.size} pool points cannot be chosen ({name_rows(failed)}). {told}.",
            ConvergenceWarning,
            stacklevel=outside(),
        )


def _check_budget(problem: Problem, pool: int) -> None:
    need = 3 * 8 * (pool * problem.outputs) ** 2
    if need > problem.memory:
        most = int(np.sqrt(problem.memory / 24) / problem.outputs)
        raise MemoryBudgetError(
            f"a pool of {pool} points needs {need / 1e9:.1f} GB for its kernel; the budget is "
            f"{problem.memory / 1e9:.1f} GB. Give at most {most} points, such as a random part of the pool."
        )


def _kernel(problem: Problem, prepared: Prepared, blocks: GradientBlocks, pool: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``R G A^-1 G' R / n`` over the pool, (m K, m K), R^2 the mean curvature of the loss, and statuses (m,).

    Rows and columns of points whose solve failed are zero.
    """
    K, N = problem.outputs, pool * problem.outputs
    kernel = np.zeros((N, N))
    status = []
    start = 0
    with bar("pool", len(blocks)) as advance:
        for g in blocks:
            solution = prepared.solve(g)
            stop = start + len(solution.status)
            kernel[start:stop] = np.concatenate([problem.numpy(solution.h @ other.T) for other in blocks], axis=1)
            status.append(solution.status)
            start = stop
            advance("")
    flat = np.concatenate(status).reshape(pool, K)
    failed = flat != Status.CONVERGED
    rows = flat[np.arange(pool), failed.argmax(axis=1)]
    lost = np.repeat(failed.any(axis=1), K)
    kernel[lost] = 0.0
    kernel[:, lost] = 0.0
    root = _curvature_root(problem)
    blocked = kernel.reshape(pool, K, pool, K)
    whitened = np.einsum("ab,iajd,de->ibje", root, blocked, root).reshape(N, N) / problem.n
    return (whitened + whitened.T) / 2, rows


def _curvature_root(problem: Problem) -> np.ndarray:
    """Return the symmetric root of the expected loss curvature of a new row, (K, K): the mean over training rows.

    Rows of weight zero are left out.
    """
    curvature = problem.loss_derivatives.curvature
    mean = np.mean(curvature[problem.numpy(problem.weights) > 0], axis=0)
    values, vectors = np.linalg.eigh(np.diag(mean) if curvature.ndim == 2 else mean)
    root: np.ndarray = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root


def _traces(kernel: np.ndarray, K: int) -> np.ndarray:
    return np.diag(kernel).reshape(-1, K).sum(axis=1)


def _greedy(kernel: np.ndarray, K: int, usable: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose k points, and update the kernel in place to that after their measurement.

    Returns:
        The indices, (k,), and the reduction of the trace by each, (k,).
    """
    m = len(usable)
    free = usable.copy()
    indices = []
    gains = []
    for _ in range(k):
        # Reduction of the pool's variance by each point: the trace of (I + k(+,+))^-1 sum_x k(+,x) k(x,+).
        columns = kernel.reshape(m * K, m, K)
        squares = np.einsum("xma,xmb->mab", columns, columns)
        own = kernel.reshape(m, K, m, K)[np.arange(m), :, np.arange(m), :]
        fall = np.trace(np.linalg.solve(np.eye(K) + own, squares), axis1=1, axis2=2)
        best = int(np.argmax(np.where(free, fall, -np.inf)))
        chosen = slice(best * K, (best + 1) * K)
        # Subtract k(x, +) (I + k(+, +))^-1 k(+, x), by a Cholesky factor so that the kernel stays symmetric.
        half = np.linalg.solve(np.linalg.cholesky(np.eye(K) + own[best]), kernel[chosen])
        kernel -= half.T @ half
        free[best] = False
        indices.append(best)
        gains.append(float(fall[best]))
    return np.array(indices), np.array(gains)
