"""The noise level: given by the user, or estimated from the residuals and the freedom that the fit left them.

Of a model that is linear in its parameters, the noise can also be read off the part of the responses that no parameter
explains, ``(I - P) y`` with P the projection on the columns of J. That part is independent of the fit, with weight
decay too, so that Student's t is exact.

Rows that the loss does not see (sample weight zero) have residuals that nothing held down: they count neither in
``|r|^2`` nor in ``|I - S|_F^2``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_level
from vhat.errors import InputError, NoiseError, NotConverged
from vhat.linalg.solvers import Prepared, Status
from vhat.linalg.solvers.interface import contract
from vhat.models.problem import Problem
from vhat.variance.row_blocks import in_blocks, smoother_sums, unexplained_squares

__all__ = [
    "UNCERTAIN",
    "Freedom",
    "Noise",
    "estimate_noise",
    "given_noise",
    "held_out_noise",
    "measure_freedom",
    "own_noise",
    "projected_noise",
    "weights_match",
]

UNCERTAIN = 0.2
"""Relative standard error of a level that validation rows tell, above which it is mentioned: 12 rows and fewer."""
_EXACT_FLOPS = 2e11
"""Of linear algebra for exact traces or ranks, some ten seconds on one core."""
_LEAST_SHARE = 0.01
"""Of their degrees of freedom that residuals must keep to tell of the noise: below, the fit interpolates."""
_ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""Residuals of this share of y, root mean square, are what float64 makes of a sum that is right."""
_FEW = 128
"""Training rows up to which every row is probed by itself, which makes the traces exact."""
_SVD_FLOPS = 10
"""Operations of a singular value decomposition with left vectors, for each of n p min(n, p)."""
_SVD_COPIES = 4
"""Matrices of the size of J that it holds: the scaled J, LAPACK's own copy, left and right vectors."""
_MATCHED = 1e-6
"""Relative deviation of weights from 1/noise^2 that counts as rounding: it moves no quantile in its first digits."""


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
        independent: Whether the level was read off what no parameter explains, so that it is independent of the fit
            where the weights match the noise.
        own: Whether the model's own variance head gives it.
        validation_rows: How many rows that training did not fit told the level; 0 where it came from elsewhere.
    """

    values: np.ndarray
    level: np.ndarray
    overall: float
    source: str
    df: np.ndarray | None
    uniform: bool
    independent: bool = False
    own: bool = field(default=False, kw_only=True)
    validation_rows: int = 0

    @cached_property
    def estimated(self) -> bool:
        """Whether the level came from residuals, of training rows or of others."""
        return self.source.startswith("estimated")

    @property
    def relative_error(self) -> float:
        """Relative standard error of an estimated level, ``1/sqrt(2 df)``, the largest of the outputs; 0 if given."""
        return 0.0 if self.df is None else float(np.max((2.0 * self.df) ** -0.5))

    @cached_property
    def digest(self) -> bytes:
        """A digest of ``values``: results that depend on the noise are cached under it."""
        return hashlib.blake2b(np.ascontiguousarray(self.values).tobytes(), digest_size=32).digest()


@dataclass(frozen=True)
class Freedom:
    """Traces of the smoother ``S = df/dy`` in the metric of the noise shape, over the rows that the loss sees.

    Attributes:
        effective: ``tr S``, the effective degrees of freedom, one an output, (K,).
        residual: ``M_kj = |(I - S)_kj|_F^2``, so that ``E |r_k|^2 = sum_j M_kj sigma_j^2`` (K, K).
        fitted: ``|S|_F^2`` summed over everything: ``n`` times the mean V of the training rows.
        rows: How many rows the loss sees.
        method: "exact" or how many random probes.
    """

    effective: np.ndarray
    residual: np.ndarray
    fitted: float
    rows: int
    method: str

    @property
    def share(self) -> float:
        """The smallest share of its freedom that an output's residuals keep: 0 at interpolation."""
        return float(np.min(np.diag(self.residual))) / self.rows

    def undetermined(self, parameters: int) -> float:
        """The share of the training predictions' freedom that weight decay takes: ``1 - tr(SS) / tr S``.

        The mean of ``unsupported`` over the training rows, by ``g'h``; near 1 the data decide nothing. A fit of several
        parameters that has less freedom left than one an output is measured against that: a network of which only the
        last offset is left is no better supported for being small. Free of the units of the outputs: S is symmetric in
        those of the loss, where ``|S_kj|_F |S_jk|_F`` is ``|S_kj|_F^2``.

        Args:
            parameters: How many parameters were trained.
        """
        outputs, freedom = len(self.effective), float(np.sum(self.effective))
        size = np.maximum(self.residual - np.diag(self.rows - 2 * self.effective), 0.0)
        whole = max(freedom, outputs) if parameters > outputs else freedom
        return 1.0 - float(np.sum(np.sqrt(size * size.T))) / whole if whole > 0 else 1.0

    @property
    def own(self) -> float:
        """``sum_k |S_kk|_F^2``: each output's response to its own noise, free of the units of the outputs."""
        return float(np.sum(np.diag(self.residual) - self.rows + 2 * self.effective))


def _make(values: np.ndarray, source: str, df: np.ndarray | None, uniform: bool) -> Noise:
    level = np.sqrt(np.mean(values**2, axis=0))
    return Noise(values, level, float(np.sqrt(np.mean(values**2))), source, df, uniform)


def given_noise(noise: Any, problem: Problem) -> Noise:
    """Spread a number, one per row (n,), or one per row and output (n, K), over the training responses.

    Raises:
        InputError: For a wrong shape or a level that is not positive and finite.
    """
    n, K = problem.n, problem.outputs
    array = as_numbers("noise", noise)
    if array.shape not in ((), (n,), (n, K), (1, K)):
        raise InputError(
            f"noise has shape {array.shape}; give one number, shape ({n},), shape ({n}, {K}), or shape (1, {K}) for "
            "one level an output."
        )
    check_level("noise", array, "y")
    values = np.broadcast_to(array[:, None] if array.shape == (n,) else array, (n, K)).copy()
    return _make(values, "given", None, _is_uniform(values))


def held_out_noise(level: np.ndarray, shape: np.ndarray, rows: int, *, predicted: bool = False) -> Noise:
    """Return the noise that errors at rows which training did not fit tell.

    Args:
        level: One an output, (K,).
        shape: Relative noise of each training response, (n, K).
        rows: How many rows told it.
        predicted: Whether the model itself predicts the noise of each row, so that that of these rows is known too.
    """
    df = np.full(len(level), float(rows))
    uniform = _is_uniform(shape)
    average = "" if uniform or predicted else ", as if their noise were that of an average training row"
    found = _make(level * shape, f"estimated from {rows:,} validation rows{average}", df, uniform)
    return replace(found, validation_rows=rows)


def own_noise(deviations: np.ndarray) -> Noise:
    """Return the noise that the model's own variance head predicts, (n, K)."""
    found = _make(deviations, "as the model's own variance head has it", None, _is_uniform(deviations))
    return replace(found, own=True)


def _is_uniform(values: np.ndarray) -> bool:
    """Whether every row of an output has the same noise."""
    return bool(np.all(values == values[0]))


def _seen(problem: Problem) -> np.ndarray:
    """Which rows the loss sees, (n,). In the others no derivative of it is left: their sample weight is zero."""
    loss = problem.loss_derivatives
    parts = (loss.first, loss.curvature, loss.cross)
    return np.any([part.reshape(problem.n, -1).any(axis=1) for part in parts], axis=0)


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
    seen = _seen(problem)
    residuals = ((problem.fitted_values - problem.targets) / shape)[seen]
    if freedom.share < _LEAST_SHARE:
        raise NoiseError(
            f"the fit interpolates: the residuals keep {freedom.share:.2g} of their {freedom.rows} degrees of freedom, "
            "too few to estimate the noise. Give noise=, from replicates, a holdout or the instrument."
        )
    squares = np.sum(residuals**2, axis=0)
    sizes = np.sum((problem.targets / shape)[seen] ** 2, axis=0)
    if not np.all(squares > _ROUNDING**2 * sizes):
        raise NoiseError(
            "the fit is perfect: the residuals are zero, or what rounding leaves of y, and say nothing of the noise. "
            "Give noise=; or subtract a large constant from y, if it has one."
        )
    variance, method = np.linalg.solve(freedom.residual, squares), freedom.method
    if not np.all(variance > 0):
        # unbiased, but below zero by chance: charge each output's residuals to its own noise, which errs upwards
        variance = squares / np.sum(freedom.residual, axis=1)
        method = f"{method}, outputs not told apart"
    # an oblique smoother (weights) can have |I - S|_F^2 above n - tr S; no residual has that many degrees of freedom
    df = np.minimum(freedom.residual @ variance / variance, freedom.rows - freedom.effective)
    return _make(np.sqrt(variance) * shape, f"estimated from residuals ({method})", df, _is_uniform(shape))


def projected_noise(problem: Problem, shape: np.ndarray) -> Noise | None:
    """Estimate ``sigma_k^2 = |(I - P_k) y_k|^2 / (n - rank J_k)`` of a linear model, one level an output k.

    ``J_k`` holds the gradients of output k over the rows that the loss sees, and ``P_k`` projects on its columns, both
    in units of the noise shape. The residuals r of any parameters have the same ``(I - P_k) r_k`` as the responses less
    their offset, so those of the fit are used. Where the truth is in the model,

    - ``(n - rank J_k) sigma_k^2`` is exactly the true variance times a chi-square with ``n - rank J_k`` degrees of
      freedom; otherwise it is larger in distribution, and intervals are wider;
    - it is independent of the fit, whatever the decay, if the weights match the noise (:func:`weights_match`): the
      fit depends on the responses through ``J_k' W_k y_k`` alone, which ``P_k`` leaves as it is. That holds for outputs
      that share parameters as well, whose projections are taken one at a time.

    Rows count as observations, whatever their weight: a row of weight 2 is one row here, and two rows of weight 1/2 are
    two.

    Args:
        problem: The training problem.
        shape: Relative noise of each response, (n, K); ones where all rows are alike.

    Returns:
        The noise, or None: where the model is not known to be linear or the loss not to be a square; where no degree of
        freedom is left, or only rounding; where the decomposition of J does not fit memory or would take minutes.
    """
    n, K, p = problem.n, problem.outputs, problem.p
    fits = in_blocks(problem) or 8 * n * p * (K + _SVD_COPIES) <= problem.memory / 2
    if not (problem.linear and problem.loss_derivatives.square and fits):
        return None
    if K * _SVD_FLOPS * n * p * min(n, p) > _EXACT_FLOPS:
        return None
    seen = _seen(problem)
    variance, df = np.zeros(K), np.zeros(K)
    for k, (square, rank) in enumerate(_squares_left(problem, shape, seen)):
        size = float(np.sum((problem.targets[seen, k] / shape[seen, k]) ** 2))
        df[k] = int(seen.sum()) - rank
        if df[k] < 1 or not square > _ROUNDING**2 * size:
            return None
        variance[k] = square / df[k]
    left = ", ".join(f"{each:.0f}" for each in (df[:1] if np.all(df == df[0]) else df))
    source = f"estimated from what no parameter explains (n - rank = {left})"
    return replace(_make(np.sqrt(variance) * shape, source, df, _is_uniform(shape)), independent=True)


def weights_match(problem: Problem, shape: np.ndarray) -> bool:
    """Return whether the loss is a square whose weights are proportional to ``1/shape^2``, in each output by itself.

    Only then is the noise of :func:`projected_noise` independent of the fit.

    Args:
        problem: The training problem.
        shape: Relative noise of each response, (n, K).
    """
    loss = problem.loss_derivatives
    if not loss.square:
        return False
    seen = _seen(problem)
    ratio = loss.curvature[seen] * shape[seen] ** 2
    return bool(np.all(np.ptp(ratio, axis=0) <= _MATCHED * np.max(ratio, axis=0)))


def _squares_left(problem: Problem, shape: np.ndarray, seen: np.ndarray) -> list[tuple[float, int]]:
    """Return of each output the square of what no parameter explains of its residuals, and the rank of its Jacobian."""
    residuals = (problem.fitted_values - problem.targets) / shape
    if in_blocks(problem):
        return unexplained_squares(problem, residuals, shape, seen)
    with problem.scope():
        J = _jacobian(problem).reshape(problem.n, problem.outputs, problem.p)
    found = []
    for k in range(problem.outputs):
        part, rank = _unexplained(J[seen, k] / shape[seen, k, None], residuals[seen, k])
        found.append((float(np.sum(part**2)), rank))
    return found


def _unexplained(J: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the part of r that no combination of the columns of J gives, and the rank of J.

    Columns are brought to length one first, so that the rank does not depend on the units of parameters. A singular
    value counts as zero below ``max(n, p)`` roundings of the largest one. An error either way is harmless: a direction
    too many costs one degree of freedom, one too few is one that the fit hardly uses.
    """
    lengths = np.linalg.norm(J, axis=0)
    scaled = J / np.where(lengths > 0, lengths, 1.0)
    left, values, _ = np.linalg.svd(scaled, full_matrices=False)
    kept = left[:, values > max(J.shape) * np.finfo(np.float64).eps * values[0]]
    for _ in range(2):  # once more takes away what rounding left of a fit far larger than the rest
        r = r - kept @ (kept.T @ r)
    return r, kept.shape[1]


def measure_freedom(problem: Problem, prepared: Prepared, shape: np.ndarray, seed: int = 0) -> Freedom:
    """Compute the traces of the smoother: exactly where the Jacobian fits, else by random probes.

    Args:
        problem: The training problem.
        prepared: A solver for ``A``.
        shape: Relative noise of each response, (n, K).
        seed: Seed of the probes.
    """
    rows, p = problem.n * problem.outputs, problem.p
    half, blocked = prepared.half, in_blocks(problem)
    fits = blocked or 3 * 8 * rows * p <= problem.memory / 2
    if half is None or not fits or rows * p * min(p, rows) > _EXACT_FLOPS:
        return _probed(problem, prepared, shape, seed)
    if blocked:
        return _exact_in_blocks(problem, half, shape)
    return _exact(problem, half(_jacobian(problem)), shape)


def _exact(problem: Problem, half: np.ndarray, shape: np.ndarray) -> Freedom:
    """``S_kj = -B_k' (B cross)_j / n`` with ``B = L^-1 J'``: every trace is a product of small Gram matrices."""
    n, K, p, seen = problem.n, problem.outputs, problem.p, _seen(problem)
    half = half.reshape(n, K, p)
    moved = contract(half.transpose(2, 0, 1), problem.loss_derivatives.cross).transpose(1, 2, 0)
    rows = slice(None) if seen.all() else seen
    left, right = half[rows] / shape[rows, :, None], moved[rows] * shape[rows, :, None]
    effective = -np.einsum("nkp,nkp->k", left, right) / n
    size = np.array([[_cross_norm(left[:, k], right[:, j]) for j in range(K)] for k in range(K)]) / n**2
    residual = size + np.diag(len(left) - 2 * effective)
    return Freedom(effective, residual, float(size.sum()), len(left), "exact")


def _exact_in_blocks(problem: Problem, half: Callable[[np.ndarray], np.ndarray], shape: np.ndarray) -> Freedom:
    """Return the same by sums over blocks of rows."""
    seen = _seen(problem)
    count, K, n = int(seen.sum()), problem.outputs, problem.n
    sums = smoother_sums(problem, half, shape, seen)
    effective = -sums.effective / n
    size = np.array([[np.sum(sums.left[k] * sums.right[j]) for j in range(K)] for k in range(K)]) / n**2
    residual = size + np.diag(count - 2 * effective)
    return Freedom(effective, residual, float(size.sum()), count, "exact")


def _jacobian(problem: Problem) -> np.ndarray:
    """Return J over the training rows, (n * K, p), made in blocks of 128 MB."""
    n = problem.n
    step = max(1, 2**27 // (8 * problem.p * problem.outputs))
    parts = (problem.take(problem.X, start, min(start + step, n)) for start in range(0, n, step))
    return np.concatenate([problem.numpy(problem.gradients(part)) for part in parts])


def _cross_norm(a: np.ndarray, b: np.ndarray) -> float:
    """``|a b'|_F^2`` for (n, p) matrices, through the smaller of n x n and p x p."""
    if a.shape[0] <= a.shape[1]:
        return float(np.sum((a @ b.T) ** 2))
    return float(np.sum((a.T @ a) * (b.T @ b)))


def _probed(problem: Problem, prepared: Prepared, shape: np.ndarray, seed: int) -> Freedom:
    """Hutchinson: ``E |(I - S) z|^2 = |I - S|_F^2`` for random signs z, one output at a time.

    Few rows are probed one by one instead, which is exact.
    """
    n, K, seen = problem.n, problem.outputs, _seen(problem)
    rows, exact = int(seen.sum()), n <= _FEW
    probes = int(np.clip(np.ceil(2e4 / n), 2, 64))
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(K, probes, n))
    # unit vectors of all rows sum to what one random probe gives in the mean
    vectors, times = (np.broadcast_to(np.eye(n)[seen], (K, rows, n)), rows) if exact else (signs * seen, 1)
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
        Sz = -problem.jvp(solution.h) / n / shape * seen[:, None]
        effective[j] = times * np.mean(np.sum(Sz * z, axis=(1, 2)))
        residual[:, j] = times * np.mean(np.sum((z - Sz) ** 2, axis=1), axis=0)
        fitted += times * float(np.mean(np.sum(Sz**2, axis=(1, 2))))
    return Freedom(effective, residual, fitted, rows, "exact" if exact else f"{probes} random probes")
