"""The noise level: given by the user, or estimated from the residuals and the freedom that the fit left them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.errors import InputError, NoiseError, NotConverged
from vhat.norm import contract
from vhat.problem import Problem
from vhat.solve import Prepared, Status
from vhat.solve.dense import Factor

__all__ = ["Freedom", "Noise", "estimate_noise", "given_noise", "measure_freedom"]

_EXACT_FLOPS = 2e11
_LEAST_SHARE = 0.01
_FEW = 128


@dataclass(frozen=True)
class Noise:
    """The noise of the training responses, as an interval uses it.

    Attributes:
        values: ``sigma_ib`` of each row and output, (n, K).
        level: Root mean square over the rows, one an output, (K,).
        overall: Root mean square over everything: the reference of a functional.
        source: ``"given"`` or ``"estimated"``, with how.
        df: Residual degrees of freedom of each output, (K,), when estimated; else None.
        uniform: Whether every row of an output has the same noise.
    """

    values: np.ndarray
    level: np.ndarray
    overall: float
    source: str
    df: np.ndarray | None
    uniform: bool

    @property
    def estimated(self) -> bool:
        """Whether the level came from the residuals."""
        return self.source.startswith("estimated")


@dataclass(frozen=True)
class Freedom:
    """Traces of the smoother ``S = df/dy`` in the metric of the noise shape.

    Attributes:
        effective: ``tr S``, the effective degrees of freedom, one an output, (K,).
        residual: ``M_kj = |(I - S)_kj|_F^2``, so that ``E |r_k|^2 = sum_j M_kj sigma_j^2`` (K, K).
        fitted: ``|S|_F^2`` summed over everything: ``n`` times the mean V of the training rows.
        method: "exact" or how many random probes.
    """

    effective: np.ndarray
    residual: np.ndarray
    fitted: float
    method: str

    def plausible(self, n: int) -> bool:
        """Whether the residuals have at most as many degrees of freedom as there are rows.

        Near a fold of the minimum the exact ``S`` is no contraction and ``|I - S|_F^2`` exceeds n: first-order theory
        has left its domain, and the noise would come out too small.
        """
        return bool(np.all(np.diag(self.residual) <= n * (1 + 1e-6)))


def _make(values: np.ndarray, source: str, df: np.ndarray | None, uniform: bool) -> Noise:
    level = np.sqrt(np.mean(values**2, axis=0))
    return Noise(values, level, float(np.sqrt(np.mean(values**2))), source, df, uniform)


def given_noise(noise: Any, problem: Problem) -> Noise:
    """Spread a number, one per row (n,), or one per row and output (n, K), over the training responses.

    Raises:
        InputError: For a wrong shape or a level that is not positive and finite.
    """
    n, K = problem.n, problem.outputs
    try:
        array = np.asarray(noise, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"noise={noise!r} is not a number or an array of numbers.") from None
    if array.shape not in ((), (n,), (n, K), (1, K)):
        raise InputError(
            f"noise has shape {array.shape}; give one number, shape ({n},), shape ({n}, {K}), or shape (1, {K}) for "
            "one level an output."
        )
    if not (np.all(np.isfinite(array)) and np.all(array > 0)):
        worst = float(np.nanmin(array)) if array.size else float("nan")
        raise InputError(f"noise must be positive and finite; found {worst!r}. It is the standard deviation of y.")
    column = array[:, None] if array.shape == (n,) else array
    return _make(np.broadcast_to(column, (n, K)).copy(), "given", None, array.shape in ((), (1, K)))


def estimate_noise(problem: Problem, freedom: Freedom, shape: np.ndarray) -> Noise:
    """Estimate ``sigma^2 = |r|^2 / |I - S|_F^2``, one level an output, times the shape of the noise over rows.

    Args:
        problem: The training problem.
        freedom: The traces of its smoother.
        shape: Relative noise of each response, (n, K); ones where all rows are alike.

    Raises:
        NoiseError: When the fit interpolates, or the loss has no residual.
    """
    if not problem.loss_derivatives.location:
        raise NoiseError(
            "the noise cannot be read off the residuals, because the loss is not a function of f - y. Give noise=, the "
            "standard deviation of y."
        )
    residuals = (problem.fitted_values - problem.targets) / shape
    left = np.diag(freedom.residual) / problem.n
    if np.min(left) < _LEAST_SHARE:
        raise NoiseError(
            f"the fit interpolates: the residuals keep {np.min(left):.2g} of their {problem.n} degrees of freedom, too "
            "few to estimate the noise. Give noise=, from replicates, a holdout or the instrument."
        )
    squares = np.sum(residuals**2, axis=0)
    if not np.all(squares > 0):
        raise NoiseError("the fit is perfect: the residuals are zero and say nothing of the noise. Give noise=.")
    variance, method = np.linalg.solve(freedom.residual, squares), freedom.method
    if not np.all(variance > 0):
        # unbiased, but below zero by chance: charge each output's residuals to its own noise, which errs upwards
        variance = squares / np.sum(freedom.residual, axis=1)
        method = f"{method}, outputs not told apart"
    df = freedom.residual @ variance / variance
    uniform = bool(np.ptp(shape, 0).max() == 0)
    return _make(np.sqrt(variance) * shape, f"estimated from residuals ({method})", df, uniform)


def measure_freedom(problem: Problem, prepared: Prepared, shape: np.ndarray, seed: int = 0) -> Freedom:
    """Compute the traces of the smoother: exactly where the Jacobian fits, else by random probes.

    Args:
        problem: The training problem.
        prepared: A solver for ``A``.
        shape: Relative noise of each response, (n, K).
        seed: Seed of the probes.
    """
    rows, p = problem.n * problem.outputs, problem.p
    fits = 3 * 8 * rows * p <= problem.memory / 2 and rows * p * min(p, rows) <= _EXACT_FLOPS
    if isinstance(prepared, Factor) and fits:
        return _exact(problem, prepared, shape)
    return _probed(problem, prepared, shape, seed)


def _exact(problem: Problem, factor: Factor, shape: np.ndarray) -> Freedom:
    """``S_kj = -B_k' (B cross)_j / n`` with ``B = L^-1 J'``: every trace is a product of small Gram matrices."""
    n, K, p = problem.n, problem.outputs, problem.p
    step = max(1, 2**27 // (8 * p * K))
    parts = (problem.take(problem.X, start, min(start + step, n)) for start in range(0, n, step))
    J = np.concatenate([problem.numpy(problem.gradients(part)) for part in parts])
    half = factor.half(J).reshape(n, K, p)
    moved = contract(half.transpose(2, 0, 1), problem.loss_derivatives.cross).transpose(1, 2, 0)
    left, right = half / shape[:, :, None], moved * shape[:, :, None]
    effective = -np.einsum("nkp,nkp->k", left, right) / n
    size = np.array([[_cross_norm(left[:, k], right[:, j]) for j in range(K)] for k in range(K)]) / n**2
    residual = size + np.diag(n - 2 * effective)
    return Freedom(effective, residual, float(size.sum()), "exact")


def _cross_norm(a: np.ndarray, b: np.ndarray) -> float:
    """``|a b'|_F^2`` for (n, p) matrices, through the smaller of n x n and p x p."""
    if a.shape[0] <= a.shape[1]:
        return float(np.sum((a @ b.T) ** 2))
    return float(np.sum((a.T @ a) * (b.T @ b)))


def _probed(problem: Problem, prepared: Prepared, shape: np.ndarray, seed: int) -> Freedom:
    """Hutchinson: ``E |(I - S) z|^2 = |I - S|_F^2`` for random signs z, one output at a time.

    Few rows are probed one by one instead, which is exact.
    """
    n, K = problem.n, problem.outputs
    probes, exact = int(np.clip(np.ceil(2e4 / n), 2, 64)), n <= _FEW
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(K, probes, n))
    # n unit vectors sum to what one random probe gives in the mean
    vectors, times = (np.broadcast_to(np.eye(n), (K, n, n)), n) if exact else (signs, 1)
    effective, residual, fitted = np.zeros(K), np.zeros((K, K)), 0.0
    cross = problem.loss_derivatives.cross
    for j in range(K):
        z = np.zeros((vectors.shape[1], n, K))
        z[:, :, j] = vectors[j]
        moved = contract(z * shape, cross if cross.ndim == 2 else cross.transpose(0, 2, 1))
        solution = prepared.solve(problem.vjp(moved))
        if np.any(solution.status != Status.CONVERGED):
            raise NotConverged(
                "the solves that measure the residual degrees of freedom did not converge. Raise max_steps of "
                "vhat.CG, or give noise=."
            )
        Sz = -problem.jvp(solution.h) / n / shape
        effective[j] = times * np.mean(np.sum(Sz * z, axis=(1, 2)))
        residual[:, j] = times * np.mean(np.sum((z - Sz) ** 2, axis=1), axis=0)
        fitted += times * float(np.mean(np.sum(Sz**2, axis=(1, 2))))
    return Freedom(effective, residual, fitted, "exact" if exact else f"{probes} random probes")
