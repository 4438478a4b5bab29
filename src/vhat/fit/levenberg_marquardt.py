"""Minimisation for small networks by dense Levenberg-Marquardt steps: tens of steps instead of thousands of gradients.

A step solves ``(A + mu) d = -grad``. A is the Gauss-Newton matrix plus lam or, near a minimum and if it is positive
definite, the exact Hessian plus lam. The damping mu follows Nielsen's rule: it falls, to no less than a third, after a
step that decreases the objective about as much as the quadratic model predicts. It grows by increasing factors after
rejected steps.
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
"""First mu, in units of the largest curvature of a parameter."""
_MOST_DAMPING = 1e12
"""Largest mu, in the same unit: beyond it steps are too short to change the objective."""
_NEAR_MINIMUM = 0.05
"""Relative gradient below which the exact Hessian is tried: above, it is mostly indefinite."""
_INTERPOLATION = 1e-3
"""Residuals below this share of the predictions count as interpolation, as in the audit's relative gradient."""
_ROUNDING_UNITS = 1e3
"""Predicted decrease that counts as lost in rounding, in units of the machine precision of the objective."""
_ROWS_PER_PARAMETER = 8
"""Sampled rows per parameter in the sum of a matrix in single precision; the gradient is always of all rows. The matrix
only scales the steps, and sampling changes its eigenvalues by factors of about ``1 +- 2/sqrt(8)``. On 15,642 rows with
577 parameters, a fit with the choice of lam took 63 CPU seconds instead of 108."""
_MANY_PRODUCTS = 1e9
"""Rows times squared parameters below which the matrix is summed over all rows, because that costs little."""


@dataclass(frozen=True, eq=False)
class Objective:
    """``1/(2n) sum_i w_i |f(x_i) - y_i|^2 + lam/2 |theta|^2`` of a network.

    Attributes:
        network: The network.
        X: Rows, (n, inputs).
        y: Responses, (n, K).
        weights: Row weights, (n,).
        decay: lam.
        single: Whether the matrices of the steps are in single precision, which takes half the time. Values and
            gradients are always in double precision. Single precision costs more steps for the last digits.
    """

    network: Network
    X: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    decay: float
    single: bool = False

    def value(self, theta: np.ndarray) -> float:
        """Return the objective; infinity if it is not finite."""
        f = predict(self.network, theta, self.X)
        return self.value_of(f, theta)

    def value_of(self, f: np.ndarray, theta: np.ndarray) -> float:
        """Return the objective from the predictions ``f`` at ``theta``; infinity if it is not finite."""
        with np.errstate(all="ignore"):
            loss = float(self.weights @ np.sum((f - self.y) ** 2, axis=1)) / (2 * len(f))
        total = loss + 0.5 * self.decay * float(theta @ theta)
        return total if np.isfinite(total) else np.inf

    def gradient(self, rows: Pass, theta: np.ndarray) -> np.ndarray:
        """Return the gradient from a forward pass at ``theta``, (p,)."""
        residual = self.weights[:, None] * (rows.output - self.y)
        return rows.gradient(residual / len(residual)) + self.decay * theta


@dataclass(frozen=True, eq=False)
class _Point:
    """The objective and its derivatives at one parameter vector.

    Attributes:
        theta: The parameters, (p,).
        rows: The forward pass.
        value: The objective.
        residual: Weighted residuals ``w (f - y)``, (n, K).
        gradient: The gradient, (p,).
        matrix: The Gauss-Newton matrix plus lam, (p, p).
    """

    theta: np.ndarray
    rows: Pass
    value: float
    residual: np.ndarray
    gradient: np.ndarray
    matrix: np.ndarray

    @classmethod
    def at(cls, objective: Objective, theta: np.ndarray) -> _Point:
        """Evaluate the objective and its derivatives at ``theta``."""
        rows = forward(objective.network, theta, objective.X)
        n = len(rows.output)
        residual = objective.weights[:, None] * (rows.output - objective.y)
        assemble = _single_precision if objective.single else gauss_newton
        matrix = assemble(rows, objective.weights / n)
        matrix[np.diag_indices_from(matrix)] += objective.decay
        value = objective.value_of(rows.output, theta)
        return cls(theta, rows, value, residual, objective.gradient(rows, theta), matrix)

    def relative_gradient(self, objective: Objective) -> float:
        """Return the gradient without unit: see :mod:`vhat.evidence.minimise.stationarity`."""
        n = len(self.residual)
        mean_weight = float(np.mean(objective.weights))
        # The scale of the objective: squared residuals and penalty, and a floor for fits that interpolate.
        square = float(np.sum(self.residual**2)) / n / mean_weight + objective.decay * float(self.theta @ self.theta)
        square += _INTERPOLATION**2 * mean_weight * float(np.sum(self.rows.output**2)) / n
        diagonal = np.diagonal(self.matrix)
        if objective.single and _sampled_rows(self.rows) is not None:
            # The convergence test must not depend on the sampled rows: take the diagonal over all rows.
            diagonal = self.rows.curvature_diagonal(objective.weights / n) + objective.decay
        scaled = self.gradient / np.sqrt(np.maximum(diagonal, np.finfo(float).tiny))
        return float(np.linalg.norm(scaled)) / max(square, np.finfo(float).tiny) ** 0.5

    def exact_hessian(self) -> np.ndarray:
        """Return the exact Hessian plus lam; in single precision its Gauss-Newton part may be of sampled rows."""
        residual = residual_part(self.rows, self.residual / len(self.residual))
        return self.matrix + residual.astype(self.matrix.dtype)


def _single_precision(rows: Pass, weights: np.ndarray) -> np.ndarray:
    """Return the Gauss-Newton matrix in float32, of sampled rows if there are many more rows than parameters.

    The matrix is assembled from the Jacobian. Products of pairs of layers would save at most a quarter of the time, but
    they round differently, and the end of a descent of many steps depends on the rounding of single precision.
    """
    chosen = _sampled_rows(rows)
    if chosen is not None and weights[chosen].sum() > 0:
        scale = weights.sum() / weights[chosen].sum()
        rows = rows.take(chosen)
        weights = scale * weights[chosen]
    J = rows.jacobian(np.float32)
    J *= np.sqrt(np.repeat(weights, rows.outputs))[:, None].astype(np.float32)
    matrix: np.ndarray = J.T @ J
    return matrix


def _sampled_rows(rows: Pass) -> np.ndarray | None:
    """Return the numbers of the rows that a matrix in single precision is summed over; None for all.

    The rows are drawn at random, because equally spaced rows miss whole groups of a sorted table. The draw is the same
    at every step.
    """
    n = len(rows.output)
    sample = _ROWS_PER_PARAMETER * rows.parameters // rows.outputs
    if n < 2 * sample or n * rows.parameters**2 < _MANY_PRODUCTS:
        return None
    return np.random.default_rng(n).choice(n, sample, replace=False, shuffle=False)


@dataclass(frozen=True)
class Descended:
    """The result of a descent.

    Attributes:
        theta: The parameters, (p,).
        relative_gradient: The relative gradient at these, without unit.
        steps: Number of steps tried.
    """

    theta: np.ndarray = field(repr=False)
    relative_gradient: float
    steps: int


def descend(objective: Objective, theta: np.ndarray, *, gtol: float, max_steps: int) -> Descended:
    """Minimise the objective until the relative gradient is at most ``gtol``, no step succeeds, or steps run out.

    Args:
        objective: The objective.
        theta: First parameters, (p,).
        gtol: Relative gradient to reach, without unit.
        max_steps: Largest number of steps tried.
    """
    here = _Point.at(objective, theta)
    note_descent()
    largest = float(np.max(np.diagonal(here.matrix)))
    damping = _FIRST_DAMPING * largest
    growth = 2.0
    steps = 0
    relative = here.relative_gradient(objective)
    exact: np.ndarray | None = None
    while steps < max_steps and relative > gtol and damping < _MOST_DAMPING * largest:
        steps += 1
        if exact is None and relative < _NEAR_MINIMUM:
            exact = here.exact_hessian()
        step = _step(here, exact, damping)
        # The decrease of the quadratic model: -g'd - d'A d/2, with A d = -g - mu d.
        predicted = 0.5 * float(step @ (damping * step - here.gradient))
        value = objective.value(here.theta + step)
        ratio = (here.value - value) / predicted if predicted > 0 else -np.inf
        if ratio > 0 or (_lost_in_rounding(predicted, here.value) and _reduces_gradient(objective, here, step)):
            here = _Point.at(objective, here.theta + step)
            exact = None
            relative = here.relative_gradient(objective)
            note_loss(here.value)
            # If rounding hides the decrease, the step is so short that the quadratic model is accurate.
            trust = 1.0 if _lost_in_rounding(predicted, value) else min(ratio, 1.0)
            damping *= max(1 / 3, 1 - (2 * trust - 1) ** 3)
            growth = 2.0
        else:
            damping *= growth
            growth *= 2.0
    return Descended(here.theta, relative, steps)


def _step(here: _Point, exact: np.ndarray | None, damping: float) -> np.ndarray:
    """Return the damped step, (p,), by the exact Hessian if given and positive definite with the damping."""
    for matrix in (exact, here.matrix):
        if matrix is None:
            continue
        damped = matrix.copy()
        damped[np.diag_indices_from(damped)] += damping
        gradient = here.gradient.astype(damped.dtype)
        try:
            # The transpose of the symmetric matrix is the same matrix in LAPACK's column order: no copy is made.
            factor = cho_factor(damped.T, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            continue
        step: np.ndarray = -cho_solve(factor, gradient, check_finite=False).astype(np.float64)
        return step
    return np.zeros_like(here.gradient)


def _lost_in_rounding(predicted: float, value: float) -> bool:
    """Return whether a predicted decrease is too small to show in the value of the objective."""
    return predicted <= _ROUNDING_UNITS * float(np.finfo(np.float64).eps) * abs(value)


def _reduces_gradient(objective: Objective, here: _Point, step: np.ndarray) -> bool:
    """Return whether a step reduces the gradient, if it is too short to change the objective."""
    theta = here.theta + step
    gradient = objective.gradient(forward(objective.network, theta, objective.X), theta)
    return bool(np.linalg.norm(gradient) < np.linalg.norm(here.gradient))
