r"""Dimensionless size of a gradient: the distance of parameters from a stationary point.

The gradient of the penalised objective divided by ``s`` (:func:`vhat.linalg.curvature.scale`) has the root unit of the
objective: for the square loss, the unit of y. It is compared with a quantity of the same unit,

    u^2 = |l'|^2 / (n c) + sum_j lam_j theta_j^2 + 1e-6 c |f|^2 / n,      relative = |grad L_lam / s| / u,

where ``c`` is the mean curvature weight of the loss. For the square loss the first term is the mean squared
residual, so that without decay each component of ``grad/s`` over ``u`` is the cosine between the residuals and one
column of the Jacobian. The last term counts residuals below a thousandth of the fitted values as interpolation:
rounding hides their direction. Units of y, of the loss and of any parameter cancel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vhat.linalg.curvature import scale
from vhat.models.problem import Array, Problem

__all__ = ["Point", "Units", "decrease", "evaluate", "relative_gradient", "units"]

_INTERPOLATION = 1e-3
"""Residuals below this share of the fitted values count as interpolation."""
_STIFFENING = 10.0
"""Factor of the decay's share in the stride: see :func:`units`."""
_RESOLVED = 100
"""A decrease of the objective is resolved where it is this many times its rounding."""
_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Point:
    """The penalised objective and its gradient at one parameter vector.

    Attributes:
        problem: The problem at these parameters.
        objective: ``L + 1/2 sum lam theta^2``.
        gradient: Its gradient, p-space (p,).
    """

    problem: Problem
    objective: float
    gradient: Array

    @property
    def finite(self) -> bool:
        """Whether the objective and its gradient are finite."""
        return bool(np.isfinite(self.objective) and np.isfinite(self.gradient_norm))

    @property
    def gradient_norm(self) -> float:
        """The Euclidean norm ``|grad L_lam|``."""
        return float(self.gradient @ self.gradient) ** 0.5


@dataclass(frozen=True)
class Units:
    """Scales of gradients, steps and objectives.

    Attributes:
        scale: ``s``, p-space (p,): the root unit of the objective over the unit of each parameter.
        stride: ``sqrt(s^2 + f)``, p-space (p,): the scale in which steps are measured, see :func:`units`.
        root: u of the module's formula, the root unit of the objective.
        resolution: Differences of the objective below this are rounding.
    """

    scale: Array
    stride: Array
    root: float
    resolution: float

    def resolve(self, decrease: float) -> bool:
        """Whether differences of the objective show such a decrease: their rounding is at most a hundredth of it."""
        return decrease > _RESOLVED * self.resolution


def evaluate(problem: Problem) -> Point:
    """Return the penalised objective and gradient at the problem's parameters."""
    objective = problem.objective() + problem.penalty()
    return Point(problem, objective, problem.gradient() + problem.penalty_gradient())


def units(problem: Problem) -> Units:
    """Return the scales at the problem's parameters.

    A parameter on which the predictions hardly depend (the input of a saturated unit) has a small ``s_j``: a step that
    is short in the metric ``diag(s^2)`` may move it far beyond the range of any local model. Where there is decay,
    ``lam_j theta_j^2`` averaged over the parameters measures their size, each in its own unit. The stride therefore
    adds ``f_j = 10 u^2 lam_j / mean(lam theta^2)`` to ``s_j^2``, in which a step as large as the parameters is not
    short.

    Raises:
        NotPositiveDefinite: When a parameter has no influence on any training prediction and no decay.
    """
    loss = problem.loss_derivatives
    theta = problem.numpy(problem.theta)
    decay = problem.numpy(problem.decay)
    curvature = loss.curvature
    if curvature.ndim == 3:  # a matrix per row: only its diagonal has the unit of a weight
        curvature = np.diagonal(curvature, axis1=1, axis2=2)

    # The terms of u^2 in the formula of this module.
    weight = float(np.mean(np.abs(curvature)))  # c
    slopes = float(np.sum(loss.first**2)) / problem.n  # |l'|^2 / n
    response = float(np.sum(problem.fitted_values**2)) / problem.n  # |f|^2 / n
    penalty = float(np.sum(decay * theta**2))
    square = (slopes / weight if weight > 0 else 0.0) + penalty + _INTERPOLATION**2 * weight * response

    # Size of what is added up in the objective, to which its rounding is proportional.
    size = float(np.mean(np.abs(loss.value))) + penalty + (slopes * response) ** 0.5

    s = problem.numpy(scale(problem))
    stride = np.sqrt(s**2 + _stiffening(s, decay, square, penalty / problem.p))
    return Units(
        scale=problem.native(s),
        stride=problem.native(stride),
        root=max(square, _TINY) ** 0.5,
        resolution=8 * _EPS * max(size, _TINY),
    )


def _stiffening(s: np.ndarray, decay: np.ndarray, square: float, mean_penalty: float) -> np.ndarray:
    """Return ``f`` of :func:`units`, limited to the size at which the stride is proportional to ``sqrt(lam)``."""
    decayed = decay > 0
    if mean_penalty <= 0:
        return np.zeros_like(s)
    most = float(np.max(s[decayed] ** 2 / decay[decayed]))
    return decay * min(_STIFFENING * square / mean_penalty, most)


def relative_gradient(point: Point, measured: Units) -> float:
    """Return ``|grad L_lam / s| / u``: 0 at a stationary point, of order 1 far from one."""
    slope = point.gradient / measured.scale
    return float(slope @ slope) ** 0.5 / measured.root


def decrease(start: Point, end: Point, expected: float, measured: Units) -> float:
    """Return the decrease of the objective from ``start`` to ``end``; -inf where it is not finite at the end.

    Where rounding hides a decrease of the ``expected`` size, the trapezoid rule ``-(g_start + g_end)'d/2`` replaces the
    difference of the objectives, because it has no cancellation. It is conservative: a shortfall against the quadratic
    model appears one and a half times as large.
    """
    if not end.finite:
        return -np.inf
    if measured.resolve(expected):
        return start.objective - end.objective
    return -0.5 * float((start.gradient + end.gradient) @ (end.problem.theta - start.problem.theta))
