"""Descent of a small network by dense steps of Levenberg and Marquardt: tens of steps where gradients take thousands.

A step solves ``(A + mu) d = -grad`` with A the Gauss-Newton matrix plus lam or, near a minimum and where it is positive
definite, the exact Hessian plus lam. Nielsen's rule moves mu: down by up to a third after a step that kept what the
quadratic model promised, up by growing factors while none does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from vhat.models.dense_network.gauss_newton import gauss_newton
from vhat.models.dense_network.layers import Pass, forward, predict
from vhat.models.dense_network.second_order import residual_part
from vhat.models.networks import Network
from vhat.progress import note_descent, note_loss

__all__ = ["Descended", "Objective", "descend"]

_FIRST_DAMPING = 1e-2
"""The first mu, as a share of the largest curvature of a parameter."""
_NEAR = 0.05
"""Relative gradient below which the exact Hessian is tried: before, it is mostly indefinite."""
_INTERPOLATION = 1e-3
"""Residuals below this share of the predictions count as interpolation, as in the audit's relative gradient."""
_ROWS_PER_PARAMETER = 8
"""Rows for each parameter that a matrix in single precision is summed over; the gradient is of all rows. The matrix
only scales the steps, and sampling changes its eigenvalues by factors of about ``1 +- 2/sqrt(8)``. On 15,642 rows with
577 parameters a fit with its choice of lam took 63 CPU seconds in place of 108."""
_MANY_PRODUCTS = 1e9
"""Rows times squared parameters below which the matrix is summed over all rows: it costs little there."""
_MOST_DAMPING = 1e12
"""mu, as a share of the largest curvature, beyond which no step is left that the objective resolves."""


@dataclass(frozen=True, eq=False)
class Objective:
    """``1/(2n) sum_i w_i |f(x_i) - y_i|^2 + lam/2 |theta|^2`` of a network.

    Attributes:
        network: The network.
        X: Rows, (n, inputs).
        y: Responses, (n, K).
        weights: One a row, (n,).
        decay: lam.
        single: Whether the matrices of the steps are in single precision, which takes half the time. Values and
            gradients are in double precision all the same: only the last digits cost more steps.
    """

    network: Network
    X: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    decay: float
    single: bool = False

    def value(self, theta: np.ndarray) -> float:
        """Return the objective; infinite where it is not finite."""
        f = predict(self.network, theta, self.X)
        return self._of(f, theta)

    def _of(self, f: np.ndarray, theta: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            loss = float(self.weights @ np.sum((f - self.y) ** 2, axis=1)) / (2 * len(f))
        total = loss + 0.5 * self.decay * float(theta @ theta)
        return total if np.isfinite(total) else np.inf


@dataclass(frozen=True, eq=False)
class _Here:
    """The objective and its derivatives at one parameter vector."""

    theta: np.ndarray
    rows: Pass
    value: float
    residual: np.ndarray
    gradient: np.ndarray
    matrix: np.ndarray

    @classmethod
    def at(cls, objective: Objective, theta: np.ndarray) -> _Here:
        rows = forward(objective.network, theta, objective.X)
        n = len(rows.output)
        residual = objective.weights[:, None] * (rows.output - objective.y)
        gradient = rows.gradient(residual / n) + objective.decay * theta
        make = _single_precision if objective.single else gauss_newton
        matrix = make(rows, objective.weights / n)
        matrix[np.diag_indices_from(matrix)] += objective.decay
        return cls(theta, rows, objective._of(rows.output, theta), residual, gradient, matrix)

    def relative_gradient(self, objective: Objective) -> float:
        """Return the gradient without unit: see :mod:`vhat.evidence.minimise.stationarity`."""
        n, mean = len(self.residual), float(np.mean(objective.weights))
        square = float(np.sum(self.residual**2)) / n / mean + objective.decay * float(self.theta @ self.theta)
        square += _INTERPOLATION**2 * mean * float(np.sum(self.rows.output**2)) / n
        diagonal = np.diagonal(self.matrix)
        if objective.single and _sampled_rows(self.rows) is not None:
            # whether a descent has ended is not left to the rows that were drawn
            diagonal = self.rows.curvature_diagonal(objective.weights / n) + objective.decay
        scaled = self.gradient / np.sqrt(np.maximum(diagonal, np.finfo(float).tiny))
        return float(np.linalg.norm(scaled)) / max(square, np.finfo(float).tiny) ** 0.5

    def exact(self) -> np.ndarray:
        """Return the exact Hessian plus lam; in single precision its Gauss-Newton part may be of some rows only."""
        residual = residual_part(self.rows, self.residual / len(self.residual))
        return self.matrix + residual.astype(self.matrix.dtype)


def _single_precision(rows: Pass, weights: np.ndarray) -> np.ndarray:
    """Return the Gauss-Newton matrix in float32, of some rows where there are many more rows than parameters.

    By the Jacobian: where a descent of many steps ends depends on the rounding of single precision, and products of
    pairs, which round otherwise, save a quarter of the time at most.
    """
    chosen = _sampled_rows(rows)
    if chosen is not None and weights[chosen].sum() > 0:
        scale = weights.sum() / weights[chosen].sum()
        rows = rows.take(chosen)
        weights = scale * weights[chosen]
    J = rows.jacobian(np.float32)
    J *= np.sqrt(np.repeat(weights, rows.outputs))[:, None].astype(np.float32)
    found: np.ndarray = J.T @ J
    return found


def _sampled_rows(rows: Pass) -> np.ndarray | None:
    """Return the numbers of the rows that a matrix in single precision is summed over, or None for all.

    They are drawn, and drawn alike at every step: rows at equal distances miss whole groups of a table that is sorted.
    """
    n = len(rows.output)
    few = _ROWS_PER_PARAMETER * rows.parameters // rows.outputs
    if n < 2 * few or n * rows.parameters**2 < _MANY_PRODUCTS:
        return None
    return np.random.default_rng(n).choice(n, few, replace=False, shuffle=False)


@dataclass(frozen=True)
class Descended:
    """Where a descent ended.

    Attributes:
        theta: The parameters, (p,).
        relative_gradient: How far they are from stationary, without unit.
        steps: Steps tried.
    """

    theta: np.ndarray = field(repr=False)
    relative_gradient: float
    steps: int


def descend(objective: Objective, theta: np.ndarray, *, gtol: float, max_steps: int) -> Descended:
    """Lower the objective until the relative gradient is at most ``gtol``, nothing moves, or the steps are used up.

    Args:
        objective: What is minimised.
        theta: Where to begin, (p,).
        gtol: The relative gradient to reach, without unit.
        max_steps: The most steps tried.
    """
    here = _Here.at(objective, theta)
    note_descent()
    largest = float(np.max(np.diagonal(here.matrix)))
    damping, growth, steps = _FIRST_DAMPING * largest, 2.0, 0
    relative = here.relative_gradient(objective)
    exact: np.ndarray | None = None
    while steps < max_steps and relative > gtol and damping < _MOST_DAMPING * largest:
        steps += 1
        if exact is None and relative < _NEAR:
            exact = here.exact()
        step = _step(here, exact, damping)
        promised = 0.5 * float(step @ (damping * step - here.gradient))
        value = objective.value(here.theta + step)
        kept = (here.value - value) / promised if promised > 0 else -np.inf
        if kept > 0 or (_lost_in_rounding(promised, here.value) and _flatter(objective, here, step)):
            here, exact = _Here.at(objective, here.theta + step), None
            relative = here.relative_gradient(objective)
            note_loss(here.value)
            # where rounding hides the decrease, the quadratic model is as right as it can be
            trust = 1.0 if _lost_in_rounding(promised, value) else min(kept, 1.0)
            damping *= max(1 / 3, 1 - (2 * trust - 1) ** 3)
            growth = 2.0
        else:
            damping *= growth
            growth *= 2.0
    return Descended(here.theta, relative, steps)


def _step(here: _Here, exact: np.ndarray | None, damping: float) -> np.ndarray:
    """Solve for the step, with the exact Hessian where it is given and positive definite with the damping."""
    for matrix in (exact, here.matrix):
        if matrix is None:
            continue
        damped = matrix.copy()
        damped[np.diag_indices_from(damped)] += damping
        gradient = here.gradient.astype(damped.dtype)
        try:
            # the transpose of a symmetric matrix is the same in the order that LAPACK works in: no copy is made
            factor = cho_factor(damped.T, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            continue
        found: np.ndarray = -cho_solve(factor, gradient, check_finite=False).astype(np.float64)
        return found
    return np.zeros_like(here.gradient)


def _lost_in_rounding(promised: float, value: float) -> bool:
    return promised <= 1e3 * float(np.finfo(np.float64).eps) * abs(value)


def _flatter(objective: Objective, here: _Here, step: np.ndarray) -> bool:
    """Whether the gradient falls by a step that is too short for the objective to resolve."""
    theta = here.theta + step
    rows = forward(objective.network, theta, objective.X)
    residual = objective.weights[:, None] * (rows.output - objective.y)
    gradient = rows.gradient(residual / len(residual)) + objective.decay * theta
    return bool(np.linalg.norm(gradient) < np.linalg.norm(here.gradient))
