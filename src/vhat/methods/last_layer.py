"""Sample splitting: features from some of the rows, ridge regression of the last layer on the others."""

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
from vhat.methods.base.guarantee import Claim, gaussian_noise
from vhat.methods.base.kernel_smoother import KernelFit, biased_answer, check_bound, fit_kernel, offset
from vhat.methods.base.method import check_level, check_noise
from vhat.methods.base.requirements import require_one_output, require_one_weight, require_square_loss
from vhat.variance.weighted_norm import gradient_blocks, row_curvature

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.problem import Problem
    from vhat.variance.noise import Noise

__all__ = ["FittedLastLayer", "LastLayer"]

_CHECKED_ROWS = 8
"""Number of rows on which the model is checked to be linear in its last layer."""
_LINEAR_TOLERANCE = 1e-6
"""Relative tolerance of that check, enough for models that compute in float32."""
_STREAM = 21
"""Number of this method's stream of random numbers."""


@dataclass(frozen=True)
class LastLayer(BaseMethod["FittedLastLayer"]):
    """Train on some rows, keep all but the last layer, and refit that on the other rows by ridge regression.

    Given the first rows, the features ``phi(x)`` are fixed. The interval is that of ridge regression on the m other
    rows, with ``S = phi'phi/m + lam``::

        f(x) +- ( lam |phi(x)' S^-1 theta*| + sigma sqrt((pi^2/2) ln(2/delta) / m) |phi(x)|_{S^-1} )

    A model with internal standardisation adds the mean of its responses to the last layer: the regression is then on
    deviations from that mean. The model must have one output and the square loss, and all rows the same weight.

    Attributes:
        share: Share of the rows on which the features are trained.
        leaves: Number of the model's last parameter arrays that form its last layer: 2 with a bias, 1 without. The
            method checks that the model is linear in them.
        weight_decay: lam of the ridge regression, in the unit of the training loss, as in a recipe; None takes that of
            the trained last layer.
        norm: A bound on ``|theta*|``, which bounds the bias by ``lam norm |S^-1 phi(x)|``; None puts the estimate in
            place of theta*, a heuristic that is too small.
        noise: Standard deviation of y; None estimates it from the residuals of the ridge regression.

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
            # The features are in units of the response: divide the decay by the loss's second derivative.
            decay = self._decay(problem, last) / float(row_curvature(problem)[0])
            Z = _features(problem, problem.inputs(parts.rest.X), last)
        regression = fit_kernel(Z @ Z.T, parts.rest.y - offset(problem), decay)
        return FittedLastLayer(self, fitted, last, Z, regression, parts.numbers)

    def _decay(self, problem: Problem, last: slice) -> float:
        """Return lam of the ridge regression, in the unit of the training loss.

        Raises:
            InputError: When it is to be that of the trained last layer, whose parameters differ in decay or have none.
        """
        if self.weight_decay is not None:
            return self.weight_decay
        decay = problem.numpy(problem.decay)[last]
        if not decay.min() > 0 or np.ptp(decay) > 0:
            raise InputError("the last layer was not trained with one weight decay above 0. Give weight_decay=.")
        return float(decay[0])


def _last_layer(problem: Problem, leaves: int) -> slice:
    """Return the slice of the last layer in the flat parameter vector, after checking that the model is linear in it.

    The model is linear in the last layer if doubling its parameters does not change its features, and the product of
    features and parameters is the prediction.

    Raises:
        InputError: When the model is not linear in these parameter arrays, or has fewer arrays.
    """
    sizes = [int(np.prod(shape)) for shape in problem.leaves]
    if leaves > len(sizes):
        raise InputError(f"leaves={leaves}, but the model has only {len(sizes)} parameter arrays.")
    last = slice(sum(sizes[:-leaves]), None)
    rows = problem.take(problem.X, 0, min(_CHECKED_ROWS, problem.n))
    theta = problem.numpy(problem.theta)
    doubled = theta.copy()
    doubled[last] *= 2
    features = _features(problem, rows, last)
    features_doubled = _features(problem.at(problem.native(doubled)), rows, last)
    rounding = 1e-9 * float(np.abs(features).max())
    unchanged = np.allclose(features, features_doubled, rtol=_LINEAR_TOLERANCE, atol=rounding)
    f = problem.predict(rows)[:, 0] - offset(problem)
    # The sum of absolute terms: the scale of the rounding in the product.
    size = np.abs(features) @ np.abs(theta[last])
    if not (unchanged and np.all(np.abs(f - features @ theta[last]) <= _LINEAR_TOLERANCE * size)):
        raise InputError(
            f"the model is not linear in its last {leaves} parameter arrays, so they are not a last layer. Set "
            "leaves= to 1 for a last layer without bias, and order the parameters so that it comes last."
        )
    return last


def _features(problem: Problem, inputs: Any, last: slice) -> np.ndarray:
    """Return the features, (m, q): the gradient of the prediction with respect to the last layer's parameters."""
    return np.concatenate([problem.numpy(g)[:, last] for g in gradient_blocks(problem, inputs)])


@dataclass(frozen=True, eq=False)
class FittedLastLayer(FittedToModel):
    """Features from some rows and a ridge regression on the others.

    Attributes:
        options: The options.
        fitted: The model trained on the first rows.
        last: Slice of its last layer in the flat parameter vector.
        Z: Features of the other rows, (m, q).
        regression: The ridge regression on these features.
        rows: Numbers of the other rows in the data.
    """

    options: LastLayer
    fitted: FittedModel = field(repr=False)
    last: slice = field(repr=False)
    Z: np.ndarray = field(repr=False)
    regression: KernelFit
    rows: np.ndarray = field(repr=False)

    def _answer(self, asked: Question) -> Answer:
        """Compute ridge limits."""
        problem = self.fitted.problem
        regression = self.regression
        z = _features(problem, problem.inputs(asked.x), self.last)
        noise = regression.noise(self.options.noise)
        predicted = regression.predict(z @ self.Z.T, np.sum(z**2, axis=1))
        for_noise = bounds.ridge(z, self.Z, regression.decay, noise.overall, asked.delta)
        if self.options.norm is None:
            # The estimate in place of theta*: the ridge solution theta = Z'(y - f) / (m lam).
            theta = self.Z.T @ regression.residuals[:, 0] / (regression.n * regression.decay)
            total = bounds.ridge(z, self.Z, regression.decay, noise.overall, asked.delta, theta_star=theta)
            bias = total - for_noise
        else:
            bias = self.options.norm * predicted.power
        return biased_answer(
            self._claim(noise),
            offset(problem) + predicted.center,
            bias=bias[:, None],
            noise_half_width=for_noise[:, None],
            standard_error=noise.overall * predicted.response[:, None],
            noise=noise,
            squeeze=problem.squeeze,
        )

    def _claim(self, noise: Noise) -> Claim:
        norm = self.options.norm
        bias = "a bias no larger than the estimate in place of the truth says, WHICH ERRS LOW"
        if norm is not None:
            bias = f"true last-layer parameters of length at most {norm:g}"
        return Claim(
            name="last layer",
            covers="the regression function, if it is linear in the features that the first rows gave",
            by=f"the ridge interval, bias included, from the {self.regression.n} rows that the features have not seen",
            checked=("that the model is linear in its last layer",),
            assumed=(bias, gaussian_noise(noise)),
            response="a new response, if the regression function is linear in the features that the first rows gave",
            nominal=norm is None or self.options.noise is None,
        )
