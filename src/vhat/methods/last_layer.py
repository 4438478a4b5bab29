"""Data splitting: features from one half of the rows, an interval for the last layer from the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat import bounds
from vhat.checks import check_count
from vhat.errors import InputError
from vhat.fit.recipe import check_positive
from vhat.methods.base.answering import Answer, FittedToModel, Question
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.kernel_smoother import KernelFit, check_bound, fit_kernel, offset
from vhat.methods.base.method import Claim, Limits, check_level, check_noise
from vhat.methods.base.requirements import require_one_output, require_one_weight, require_square_loss
from vhat.variance.weighted_norm import gradient_blocks, row_curvature

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.problem import Problem
    from vhat.variance.noise import Noise

__all__ = ["FittedLastLayer", "LastLayer"]

_FEW = 8
"""Rows on which the model is checked to be linear in its last layer."""
_STREAM = 21
"""Number of this method's stream of random numbers, different for each method."""


@dataclass(frozen=True)
class LastLayer(BaseMethod["FittedLastLayer"]):
    """Train on some rows, keep all but the last layer, and refit that on the other rows by ridge regression.

    Given the first rows the features ``phi(x)`` are fixed, and the interval is that of ridge regression, with ``S =
    phi'phi/m + lam`` over the m other rows::

        f(x) +- ( lam |phi(x)' S^-1 theta*| + sigma sqrt((pi^2/2) ln(2/delta) / m) |phi(x)|_{S^-1} )

    A model that standardises inside adds the mean of its responses to the last layer: the regression is one of
    deviations from it. The model must have one output and the square loss, and all rows one weight.

    Attributes:
        share: The share of rows on which the features are trained.
        leaves: How many of the model's last parameter arrays are its last layer: 2 with a bias, 1 without. That the
            model is linear in them is checked.
        weight_decay: lam of the ridge regression, in the unit of the training loss, as a recipe has it; None takes that
            of the trained last layer.
        norm: A bound on ``|theta*|``, which bounds the bias by ``lam norm |S^-1 phi(x)|``; None puts the estimate in
            place of theta*, which is a heuristic and errs low.
        noise: The standard deviation of y; None estimates it from the residuals of the ridge regression.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Minimum, Network
        >>> x = np.linspace(-1, 1, 60)[:, None]
        >>> recipe = Minimum(Network((1, 3, 1)), weight_decay=1e-2)
        >>> fit = LastLayer().fit(recipe, x, x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]]).bound
        'last layer'
    """

    share: float = 0.5
    leaves: int = 2
    weight_decay: float | None = None
    norm: float | None = None
    noise: float | None = None

    def __post_init__(self) -> None:
        check_level("share", self.share, zero=False)
        check_count("leaves", self.leaves, least=1)
        if self.weight_decay is not None:
            check_positive("weight_decay", self.weight_decay)
        check_bound("norm", self.norm)
        check_noise(self.noise)

    def _fit(self, data: Training) -> FittedLastLayer:
        parts = data.split(self.share, stream=_STREAM, method=f"LastLayer(share={self.share:g})", parts="halves")
        fitted = data._replace(X=parts.first.X, y=parts.first.y).fit_once()
        require_one_output(fitted.problem.outputs, "LastLayer")
        require_square_loss(fitted, "LastLayer")
        require_one_weight(fitted, "LastLayer")
        problem = fitted.problem
        with problem.scope():
            last = _last_layer(problem, self.leaves)
            # The decay in units of the response, like the features.
            decay = self._decay(problem, last) / float(row_curvature(problem)[0])
            Z = _features(problem, problem.inputs(parts.rest.X), last)
        found = fit_kernel(Z @ Z.T, parts.rest.y - offset(problem), decay)
        return FittedLastLayer(self, fitted, last, Z, found, parts.numbers)

    def _decay(self, problem: Problem, last: slice) -> float:
        if self.weight_decay is not None:
            return self.weight_decay
        decay = problem.numpy(problem.decay)[last]
        if not decay.min() > 0 or np.ptp(decay) > 0:
            raise InputError("the last layer was not trained with one weight decay above 0. Give weight_decay=.")
        return float(decay[0])


def _last_layer(problem: Problem, leaves: int) -> slice:
    """Return where the last layer is in the flat vector, after checking that the model is linear in it.

    It is where its features do not change as its parameters are doubled, and their product with the parameters is the
    prediction.
    """
    sizes = [int(np.prod(shape)) for shape in problem.leaves]
    if leaves > len(sizes):
        raise InputError(f"leaves={leaves}, but the model has only {len(sizes)} parameter arrays.")
    last = slice(sum(sizes[:-leaves]), None)
    few = problem.take(problem.X, 0, min(_FEW, problem.n))
    theta = problem.numpy(problem.theta)
    doubled = theta.copy()
    doubled[last] *= 2
    here = _features(problem, few, last)
    there = _features(problem.at(problem.native(doubled)), few, last)
    f = problem.predict(few)[:, 0] - offset(problem)
    size = np.abs(here) @ np.abs(theta[last])
    rounding = 1e-9 * float(np.abs(here).max())
    fixed = np.allclose(here, there, rtol=1e-6, atol=rounding)
    if not (fixed and np.all(np.abs(f - here @ theta[last]) <= 1e-6 * size)):
        raise InputError(
            f"the model is not linear in its last {leaves} parameter arrays, so that they are no last layer. Set "
            "leaves= to 1 for a last layer without bias, and order the parameters so that it comes last."
        )
    return last


def _features(problem: Problem, inputs: Any, last: slice) -> np.ndarray:
    """Return the inputs of the last layer, (m, q): the gradient of the prediction with respect to its parameters."""
    return np.concatenate([problem.numpy(g)[:, last] for g in gradient_blocks(problem, inputs)])


@dataclass(frozen=True, eq=False)
class FittedLastLayer(FittedToModel):
    """Features from some rows and a ridge regression on the others.

    Attributes:
        options: The options.
        fitted: The model that was trained on the first rows.
        last: Where its last layer is in the flat vector.
        Z: Features of the other rows, (m, q).
        found: The ridge regression on them.
        rows: Which rows these are.
    """

    options: LastLayer
    fitted: FittedModel = field(repr=False)
    last: slice = field(repr=False)
    Z: np.ndarray = field(repr=False)
    found: KernelFit
    rows: np.ndarray = field(repr=False)

    def _answer(self, asked: Question) -> Answer:
        """Compute ridge limits."""
        problem = self.fitted.problem
        found = self.found
        z = _features(problem, problem.inputs(asked.x), self.last)
        noise = found.noise(self.options.noise)
        at = found.at(z @ self.Z.T, np.sum(z**2, axis=1))
        noisy = bounds.ridge(z, self.Z, found.decay, noise.overall, asked.delta)
        if self.options.norm is None:
            theta = self.Z.T @ found.residuals[:, 0] / (found.n * found.decay)
            bias = bounds.ridge(z, self.Z, found.decay, noise.overall, asked.delta, theta_star=theta) - noisy
        else:
            bias = self.options.norm * at.power
        # (points,) where y was (n,), else (points, 1).
        shape = (-1,) if problem.squeeze else (-1, 1)
        center = np.reshape(offset(problem) + at.center[:, 0], shape)
        half = np.reshape(bias + noisy, shape)
        return Answer(
            self._claim(noise),
            center,
            Limits(center - half, center + half),
            standard_error=np.reshape(noise.overall * at.response, shape),
            noise=noise,
            bias=np.reshape(bias, shape),
        )

    def _claim(self, noise: Noise) -> Claim:
        norm = self.options.norm
        bias = "a bias no larger than the estimate in place of the truth says, WHICH ERRS LOW"
        if norm is not None:
            bias = f"true last-layer parameters of length at most {norm:g}"
        return Claim(
            name="last layer",
            covers="the regression function, if it is linear in the features that the first rows gave",
            by=f"the ridge interval, bias included, from the {self.found.n} rows that the features have not seen",
            checked=("that the model is linear in its last layer",),
            assumed=(bias, f"Gaussian noise, its level {noise.source}"),
            response="a new response, if the regression function is linear in the features that the first rows gave",
            nominal=norm is None or self.options.noise is None,
        )
