"""The noise level: given by the user, or estimated from the residuals and their degrees of freedom.

For a model that is linear in its parameters, the noise can also be estimated from the part of the responses that no
parameter explains, ``(I - P) y`` with P the projection on the columns of J. That part is independent of the fit, also
with weight decay, so that Student's t is exact.

Rows with sample weight zero do not enter the loss, and their residuals were not fitted. They count neither in ``|r|^2``
nor in ``|I - S|_F^2``.
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
"""Relative standard error of a level estimated from validation rows above which it is mentioned: 12 rows or fewer."""
_EXACT_FLOPS = 2e11
"""Largest number of flops for exact traces or ranks, about ten seconds on one core."""
_LEAST_SHARE = 0.01
"""Share of their degrees of freedom that the residuals must keep for an estimate; below it the fit interpolates."""
_ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""Root mean square residual, relative to y, up to which residuals are rounding errors."""
_FEW = 128
"""Training rows up to which a unit vector per row is used in place of random probes, which makes the traces exact."""
_SVD_FLOPS = 10
"""Flops of a singular value decomposition with left vectors, in units of n p min(n, p)."""
_SVD_COPIES = 4
"""Matrices of the size of J during the decomposition: the scaled J, LAPACK's copy, left and right vectors."""
_MATCH_RTOL = 1e-6
"""Relative deviation of weights from 1/noise^2 up to which they match: it does not change the leading digits of any
quantile."""
_BLOCK_BYTES = 2**27
"""Bytes of the gradients of one block of training rows, 128 MB."""


@dataclass(frozen=True)
class Noise:
    """The noise of the training responses, as an interval uses it.

    Attributes:
        values: ``sigma_ib`` of each row and output, (n, K).
        level: Root mean square over the rows, per output, (K,).
        overall: Root mean square over rows and outputs: the reference of a functional.
        source: Where the level comes from, in words for messages.
        df: Residual degrees of freedom of each output, (K,), if estimated; else None.
        uniform: Whether every row of an output has the same noise.
        independent: Whether the level was estimated from the part that no parameter explains, and is therefore
            independent of the fit if the weights match the noise.
        own: Whether the model's variance head predicts it.
        validation_rows: Number of rows outside of training from which the level was estimated; 0 for other sources.
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

    @property
    def estimated(self) -> bool:
        """Whether the level was estimated from residuals, of training rows or of others."""
        return self.df is not None

    @property
    def given(self) -> bool:
        """Whether the user gave the level: it is neither estimated nor that of the model's variance head."""
        return not (self.estimated or self.own)

    @property
    def relative_error(self) -> float:
        """Relative standard error of an estimated level, ``1/sqrt(2 df)``, the largest of the outputs; 0 if given."""
        return 0.0 if self.df is None else float(np.max((2.0 * self.df) ** -0.5))

    @cached_property
    def digest(self) -> bytes:
        """Hash of ``values``: cache key of results that depend on the noise."""
        return hashlib.blake2b(np.ascontiguousarray(self.values).tobytes(), digest_size=32).digest()


@dataclass(frozen=True)
class Freedom:
    """Traces of the smoother ``S = df/dy`` in the metric of the noise shape, over the rows of positive weight.

    Attributes:
        effective: ``tr S``, the effective degrees of freedom per output, (K,).
        residual: ``M_kj = |(I - S)_kj|_F^2``, so that ``E |r_k|^2 = sum_j M_kj sigma_j^2``, (K, K).
        fitted: ``|S|_F^2`` summed over the outputs: ``n`` times the mean V of the training rows.
        rows: Number of rows of positive weight.
        method: "exact" or the number of random probes.
    """

    effective: np.ndarray
    residual: np.ndarray
    fitted: float
    rows: int
    method: str

    @property
    def share(self) -> float:
        """Residual degrees of freedom per row, the smallest over the outputs: 0 for an interpolating fit."""
        return float(np.min(np.diag(self.residual))) / self.rows

    def undetermined(self, parameters: int) -> float:
        """Return the share of the training predictions' freedom that weight decay determines: ``1 - tr(SS) / tr S``.

        It is the mean of ``unsupported`` over the training rows, weighted by ``g'h``; near 1 the data determine almost
        nothing. If several parameters leave less than one degree of freedom per output, the share is relative to one
        per output: a network shrunk to its last offset is not supported better because its freedom is small.

        The share is free of the units of the outputs. In the units of the loss S is symmetric, and
        ``|S_kj|_F |S_jk|_F`` is ``|S_kj|_F^2``.

        Args:
            parameters: Number of trained parameters.
        """
        outputs = len(self.effective)
        freedom = float(np.sum(self.effective))
        total = max(freedom, outputs) if parameters > outputs else freedom
        if not total > 0:
            return 1.0
        size = np.maximum(self.residual - np.diag(self.rows - 2 * self.effective), 0.0)  # |S_kj|_F^2
        return 1.0 - float(np.sum(np.sqrt(size * size.T))) / total

    @property
    def own(self) -> float:
        """``sum_k |S_kk|_F^2``: response of each output to its own noise, free of the units of the outputs."""
        return float(np.sum(np.diag(self.residual) - self.rows + 2 * self.effective))


def _make(values: np.ndarray, source: str, df: np.ndarray | None, uniform: bool) -> Noise:
    level = np.sqrt(np.mean(values**2, axis=0))
    return Noise(values, level, float(np.sqrt(np.mean(values**2))), source, df, uniform)


def given_noise(noise: Any, problem: Problem) -> Noise:
    """Return the given noise for each training response: from one number, one per row (n,), or (n, K).

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
    """Return noise whose level was estimated from errors at validation rows.

    Args:
        level: The level of each output, (K,).
        shape: Relative noise of each training response, (n, K).
        rows: Number of validation rows.
        predicted: Whether the model predicts the noise of each row, including the validation rows.
    """
    df = np.full(len(level), float(rows))
    uniform = _is_uniform(shape)
    assumption = "" if uniform or predicted else ", as if their noise were that of an average training row"
    found = _make(level * shape, f"estimated from {rows:,} validation rows{assumption}", df, uniform)
    return replace(found, validation_rows=rows)


def own_noise(deviations: np.ndarray) -> Noise:
    """Return noise from the standard deviations that the model's variance head predicts, (n, K)."""
    found = _make(deviations, "as the model's own variance head has it", None, _is_uniform(deviations))
    return replace(found, own=True)


def _is_uniform(values: np.ndarray) -> bool:
    """Return whether every row of an output has the same noise."""
    return bool(np.all(values == values[0]))


def _counted_rows(problem: Problem) -> np.ndarray:
    """Return which rows the loss depends on, (n,) of bool: those with a derivative that is not zero."""
    loss = problem.loss_derivatives
    parts = (loss.first, loss.curvature, loss.cross)
    return np.any([part.reshape(problem.n, -1).any(axis=1) for part in parts], axis=0)


def estimate_noise(problem: Problem, freedom: Freedom, shape: np.ndarray) -> Noise:
    """Return noise with ``sigma^2 = |r|^2 / |I - S|_F^2``, a level per output times the shape of the noise.

    Args:
        problem: The training problem.
        freedom: The traces of its smoother.
        shape: Relative noise of each response, (n, K); ones for equal noise.

    Raises:
        NoiseError: When the fit interpolates, or the loss has no residual.
    """
    if not problem.loss_derivatives.location:
        raise NoiseError(
            "the noise cannot be estimated from the residuals, because the loss is not a function of f - y. Give "
            "noise=, the standard deviation of y."
        )
    counted = _counted_rows(problem)
    residuals = ((problem.fitted_values - problem.targets) / shape)[counted]
    if freedom.share < _LEAST_SHARE:
        raise NoiseError(
            f"the fit interpolates: the residuals keep {freedom.share:.2g} of their {freedom.rows} degrees of freedom, "
            "too few to estimate the noise. Give noise=, from replicates, a holdout or the instrument."
        )
    squares = np.sum(residuals**2, axis=0)
    sizes = np.sum((problem.targets / shape)[counted] ** 2, axis=0)
    if not np.all(squares > _ROUNDING**2 * sizes):
        raise NoiseError(
            "the fit is perfect: the residuals are zero, or what rounding leaves of y, and say nothing of the noise. "
            "Give noise=; or subtract a large constant from y, if it has one."
        )
    # Several outputs: E |r_k|^2 = sum_j M_kj sigma_j^2 is a linear system for the sigma_j^2.
    variance = np.linalg.solve(freedom.residual, squares)
    method = freedom.method
    if np.all(variance > 0):
        df = freedom.residual @ variance / variance
    else:
        # The unbiased estimate may be negative by chance. Then attribute the residuals of each output to its own noise,
        # which overestimates it. M_kj has the unit of sigma_k^2 / sigma_j^2, so that only its diagonal has none, and
        # the sum of a row would depend on the units of the outputs.
        df = np.diag(freedom.residual)
        variance = squares / df
        method = f"{method}, outputs not separated"
    # With weights the smoother is oblique, and |I - S|_F^2 may exceed n - tr S, the most that residuals can have.
    df = np.minimum(df, freedom.rows - freedom.effective)
    return _make(np.sqrt(variance) * shape, f"estimated from residuals ({method})", df, _is_uniform(shape))


def projected_noise(problem: Problem, shape: np.ndarray) -> Noise | None:
    """Return noise with ``sigma_k^2 = |(I - P_k) y_k|^2 / (n - rank J_k)`` for each output k of a linear model.

    ``J_k`` has the gradients of output k at the rows of positive weight, and ``P_k`` projects on its columns, both in
    units of the noise shape. For the residuals r at any parameters, ``(I - P_k) r_k`` is the same; those of the fit are
    used. If the true function is in the model,

    - ``(n - rank J_k) sigma_k^2`` is exactly the true variance times a chi-square with ``n - rank J_k`` degrees of
      freedom. Otherwise it is larger in distribution, and intervals are wider;
    - it is independent of the fit, for any decay, if the weights match the noise (:func:`weights_match`). The fit
      depends on the responses only through ``J_k' W_k y_k``, which ``P_k`` does not change. This also holds for outputs
      that share parameters, because each has its own projection.

    Rows count as observations, whatever their weight: a row of weight 2 is one row, and two rows of weight 1/2 are two.

    Args:
        problem: The training problem.
        shape: Relative noise of each response, (n, K); ones for equal noise.

    Returns:
        The noise. None if the model is not known to be linear or the loss not to be a square; if no degree of freedom,
        or only rounding, is left; or if the decomposition of J does not fit into memory or would take minutes.
    """
    n = problem.n
    K = problem.outputs
    p = problem.p
    fits = in_blocks(problem) or 8 * n * p * (K + _SVD_COPIES) <= problem.memory / 2
    if not (problem.linear and problem.loss_derivatives.square and fits):
        return None
    if K * _SVD_FLOPS * n * p * min(n, p) > _EXACT_FLOPS:
        return None
    counted = _counted_rows(problem)
    variance = np.zeros(K)
    df = np.zeros(K)
    for k, (square, rank) in enumerate(_unexplained_squares(problem, shape, counted)):
        size = float(np.sum((problem.targets[counted, k] / shape[counted, k]) ** 2))
        df[k] = int(counted.sum()) - rank
        if df[k] < 1 or not square > _ROUNDING**2 * size:
            return None
        variance[k] = square / df[k]
    shown = df[:1] if np.all(df == df[0]) else df
    degrees = ", ".join(f"{each:.0f}" for each in shown)
    source = f"estimated from what no parameter explains (n - rank = {degrees})"
    return replace(_make(np.sqrt(variance) * shape, source, df, _is_uniform(shape)), independent=True)


def weights_match(problem: Problem, shape: np.ndarray) -> bool:
    """Return whether the loss is a square with weights proportional to ``1/shape^2`` in each output.

    Only then is the noise of :func:`projected_noise` independent of the fit.

    Args:
        problem: The training problem.
        shape: Relative noise of each response, (n, K).
    """
    loss = problem.loss_derivatives
    if not loss.square:
        return False
    counted = _counted_rows(problem)
    ratio = loss.curvature[counted] * shape[counted] ** 2
    return bool(np.all(np.ptp(ratio, axis=0) <= _MATCH_RTOL * np.max(ratio, axis=0)))


def _unexplained_squares(problem: Problem, shape: np.ndarray, counted: np.ndarray) -> list[tuple[float, int]]:
    """Return for each output ``|(I - P_k) r_k|^2`` and the rank of ``J_k``."""
    residuals = (problem.fitted_values - problem.targets) / shape
    if in_blocks(problem):
        return unexplained_squares(problem, residuals, shape, counted)
    with problem.scope():
        J = _jacobian(problem).reshape(problem.n, problem.outputs, problem.p)
    found = []
    for k in range(problem.outputs):
        part, rank = _unexplained(J[counted, k] / shape[counted, k, None], residuals[counted, k])
        found.append((float(np.sum(part**2)), rank))
    return found


def _unexplained(J: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the part of r orthogonal to the columns of J, and the rank of J.

    Columns are scaled to length one first, so that the rank does not depend on the units of parameters. A singular
    value below ``max(n, p)`` machine epsilons times the largest counts as zero. A wrong rank is harmless: a direction
    too many costs one degree of freedom, and a direction too few is hardly used by the fit.
    """
    lengths = np.linalg.norm(J, axis=0)
    scaled = J / np.where(lengths > 0, lengths, 1.0)
    left, values, _ = np.linalg.svd(scaled, full_matrices=False)
    basis = left[:, values > max(J.shape) * np.finfo(np.float64).eps * values[0]]
    # Project twice: if the explained part is far larger, rounding of the first projection is not negligible.
    for _ in range(2):
        r = r - basis @ (basis.T @ r)
    return r, basis.shape[1]


def measure_freedom(problem: Problem, prepared: Prepared, shape: np.ndarray, seed: int = 0) -> Freedom:
    """Return the traces of the smoother: exact if the Jacobian fits into memory, else by random probes.

    Args:
        problem: The training problem.
        prepared: A solver for ``A``.
        shape: Relative noise of each response, (n, K).
        seed: Seed of the probes.
    """
    rows = problem.n * problem.outputs
    p = problem.p
    half = prepared.half
    blocked = in_blocks(problem)
    fits = blocked or 3 * 8 * rows * p <= problem.memory / 2
    if half is None or not fits or rows * p * min(p, rows) > _EXACT_FLOPS:
        return _by_probes(problem, prepared, shape, seed)
    if blocked:
        return _exact_in_blocks(problem, half, shape)
    return _exact(problem, half(_jacobian(problem)), shape)


def _exact(problem: Problem, half: np.ndarray, shape: np.ndarray) -> Freedom:
    """Return the traces of ``S_kj = -B_k' (B cross)_j / n``, ``B = L^-1 J'``, by products of small Gram matrices."""
    n = problem.n
    K = problem.outputs
    counted = _counted_rows(problem)
    B = half.reshape(n, K, problem.p)
    B_cross = contract(B.transpose(2, 0, 1), problem.loss_derivatives.cross).transpose(1, 2, 0)
    rows = slice(None) if counted.all() else counted
    left = B[rows] / shape[rows, :, None]
    right = B_cross[rows] * shape[rows, :, None]
    effective = -np.einsum("nkp,nkp->k", left, right) / n
    size = np.array([[_cross_norm(left[:, k], right[:, j]) for j in range(K)] for k in range(K)]) / n**2
    # |I - S|_F^2 = n - 2 tr S + |S|_F^2, where the first two terms belong to the diagonal blocks.
    residual = size + np.diag(len(left) - 2 * effective)
    return Freedom(effective, residual, float(size.sum()), len(left), "exact")


def _exact_in_blocks(problem: Problem, half: Callable[[np.ndarray], np.ndarray], shape: np.ndarray) -> Freedom:
    """Return the traces of :func:`_exact`, by sums over blocks of rows."""
    counted = _counted_rows(problem)
    count = int(counted.sum())
    K = problem.outputs
    n = problem.n
    sums = smoother_sums(problem, half, shape, counted)
    effective = -sums.effective / n
    size = np.array([[np.sum(sums.left[k] * sums.right[j]) for j in range(K)] for k in range(K)]) / n**2
    residual = size + np.diag(count - 2 * effective)
    return Freedom(effective, residual, float(size.sum()), count, "exact")


def _jacobian(problem: Problem) -> np.ndarray:
    """Return J over the training rows, (n * K, p), computed in blocks."""
    n = problem.n
    step = max(1, _BLOCK_BYTES // (8 * problem.p * problem.outputs))
    parts = (problem.take(problem.X, start, min(start + step, n)) for start in range(0, n, step))
    return np.concatenate([problem.numpy(problem.gradients(part)) for part in parts])


def _cross_norm(a: np.ndarray, b: np.ndarray) -> float:
    """Return ``|a b'|_F^2`` for (n, p) matrices, through the smaller of n x n and p x p."""
    if a.shape[0] <= a.shape[1]:
        return float(np.sum((a @ b.T) ** 2))
    return float(np.sum((a.T @ a) * (b.T @ b)))


def _by_probes(problem: Problem, prepared: Prepared, shape: np.ndarray, seed: int) -> Freedom:
    """Return the traces by Hutchinson's estimator, ``E |(I - S) z|^2 = |I - S|_F^2`` for random signs z.

    One output is probed at a time. With few rows, unit vectors replace the random signs, and the traces are exact.
    """
    n = problem.n
    K = problem.outputs
    counted = _counted_rows(problem)
    rows = int(counted.sum())
    probes = int(np.clip(np.ceil(2e4 / n), 2, 64))
    if n <= _FEW:
        vectors = np.broadcast_to(np.eye(n)[counted], (K, rows, n))
        factor = rows  # the sum over all unit vectors, where random probes have the mean
        method = "exact"
    else:
        vectors = np.random.default_rng(seed).choice([-1.0, 1.0], size=(K, probes, n)) * counted
        factor = 1
        method = f"{probes} random probes"
    effective = np.zeros(K)
    residual = np.zeros((K, K))
    fitted = 0.0
    cross = problem.loss_derivatives.cross
    if cross.ndim == 3:
        cross = cross.transpose(0, 2, 1)
    for j in range(K):
        z = np.zeros((vectors.shape[1], n, K))
        z[:, :, j] = vectors[j]
        # S z = -J A^-1 J' cross z / n, in units of the noise shape.
        solution = prepared.solve(problem.vjp(contract(z * shape, cross)))
        if np.any(solution.status != Status.CONVERGED):
            raise NotConverged(
                "the solves that measure the residual degrees of freedom did not converge. Raise max_steps of "
                "vhat.CG, or give noise=."
            )
        Sz = -problem.jvp(solution.h) / n / shape * counted[:, None]
        effective[j] = factor * np.mean(np.sum(Sz * z, axis=(1, 2)))
        residual[:, j] = factor * np.mean(np.sum((z - Sz) ** 2, axis=1), axis=0)
        fitted += factor * float(np.mean(np.sum(Sz**2, axis=(1, 2))))
    return Freedom(effective, residual, fitted, rows, method)
