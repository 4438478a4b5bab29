"""Data splitting: features from one half of the rows, an interval for the last layer from the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat import bounds
from vhat.checks import check_count
from vhat.errors import InputError
from vhat.fit.many_fits import Recipe
from vhat.fit.recipe import check_positive
from vhat.fit.splits import check_table
from vhat.intervals.interval import Interval
from vhat.methods.base.kernel_smoother import KernelFit, check_bound, fit_kernel, offset
from vhat.methods.base.method import (
    Claim,
    Limits,
    Target,
    check_level,
    check_noise,
    check_question,
    fit_once,
    make_interval,
    widened,
)
from vhat.methods.base.requirements import require_one_output, require_one_weight, require_square_loss
from vhat.variance.weighted_norm import gradient_blocks, row_curvature

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.problem import Problem
    from vhat.variance.noise import Noise

__all__ = ["FittedLastLayer", "LastLayer"]

_FEW = 8
_FEWEST = 5
_STREAM = 21


@dataclass(frozen=True)
class LastLayer:
    """Train on some rows, keep all but the last layer, and refit that on the other rows by ridge regression.

    Given the first rows the features ``phi(x)`` are fixed, and the interval is that of ridge regression, with ``S =
    phi'phi/m + lam`` over the m other rows::

        f(x) +- ( lam |phi(x)' S^-1 theta*| + sigma sqrt((pi^2/2) ln(2/delta) / m) |phi(x)|_{S^-1} )

    A model that standardises inside adds the mean of its responses to the last layer: the regression is one of
    deviations from it.

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

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> FittedLastLayer:
        """Train on the first rows, and regress on the others.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``, with the square loss and one output.
            X: Rows, as one array.
            y: Responses.
            seed: Draws which rows are which, and the training's first parameters.

        Raises:
            InputError: For too few rows, several outputs, a model that is not linear in its last arrays, or a last
                layer without decay.
        """
        check_count("seed", seed)
        table = check_table(X, y)
        first = round(self.share * len(table))
        if min(first, len(table) - first) < _FEWEST:
            raise InputError(
                f"LastLayer(share={self.share:g}) leaves {first} and {len(table) - first} of {len(table)} rows to its "
                f"two halves; each needs at least {_FEWEST}."
            )
        order = np.random.default_rng([seed, _STREAM]).permutation(len(table))
        others = np.sort(order[first:])
        train, rest = table.rows(np.sort(order[:first])), table.rows(others)
        fitted = fit_once(recipe, train.X, train.y, seed)
        require_one_output(fitted.problem.outputs, "LastLayer")
        require_square_loss(fitted, "LastLayer")
        require_one_weight(fitted, "LastLayer")
        with fitted.problem.scope():
            last = _last_layer(fitted.problem, self.leaves)
            # in units of the response, like the features
            decay = self._decay(fitted.problem, last) / float(row_curvature(fitted.problem)[0])
            Z = _features(fitted.problem, fitted.problem.inputs(rest.X), last)
        found = fit_kernel(Z @ Z.T, rest.y - offset(fitted.problem), decay)
        return FittedLastLayer(self, fitted, last, Z, found, others)

    def _decay(self, problem: Problem, last: slice) -> float:
        if self.weight_decay is not None:
            return self.weight_decay
        decay = problem.numpy(problem.decay)[last]
        if not decay.min() > 0 or np.ptp(decay) > 0:
            raise InputError("the last layer was not trained with one weight decay above 0. Give weight_decay=.")
        return float(decay[0])


def _last_layer(problem: Problem, leaves: int) -> slice:
    """Return where the last layer is in the flat vector, after checking that the model is linear in it."""
    sizes = [int(np.prod(shape)) for shape in problem.leaves]
    if leaves > len(sizes):
        raise InputError(f"leaves={leaves}, but the model has only {len(sizes)} parameter arrays.")
    last = slice(sum(sizes[:-leaves]), None)
    few = problem.take(problem.X, 0, min(_FEW, problem.n))
    theta = problem.numpy(problem.theta)
    doubled = theta.copy()
    doubled[last] *= 2
    here, there = (_features(at, few, last) for at in (problem, problem.at(problem.native(doubled))))
    f = problem.predict(few)[:, 0] - offset(problem)
    size, rounding = np.abs(here) @ np.abs(theta[last]), 1e-9 * float(np.abs(here).max())
    fixed = np.allclose(here, there, rtol=1e-6, atol=rounding)
    if not (fixed and np.all(np.abs(f - here @ theta[last]) <= 1e-6 * size)):
        raise InputError(
            f"the model is not linear in its last {leaves} parameter arrays, so that they are no last layer. Set "
            "leaves= to 1 for a last layer without bias, and order the parameters so that it comes last."
        )
    return last


def _features(problem: Problem, inputs: Any, last: slice) -> np.ndarray:
    """Return what the last layer sees, (m, q): the gradient with respect to it."""
    return np.concatenate([problem.numpy(g)[:, last] for g in gradient_blocks(problem, inputs)])


@dataclass(frozen=True, eq=False)
class FittedLastLayer:
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

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute the ridge interval at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss.
            target: ``"mean"`` for the truth, ``"observation"`` for a new response.

        Raises:
            NoiseError: When the noise has to be estimated and the regression interpolates.
        """
        delta = check_question("LastLayer", delta, target)
        problem, found = self.fitted.problem, self.found
        with problem.scope():
            z = _features(problem, problem.inputs(x), self.last)
        noise, at = found.noise(self.options.noise), found.at(z @ self.Z.T, np.sum(z**2, axis=1))
        theta = self.Z.T @ found.residuals[:, 0] / (found.n * found.decay)
        norm = self.options.norm
        noisy = bounds.ridge(z, self.Z, found.decay, noise.overall, delta)
        if norm is None:
            bias = bounds.ridge(z, self.Z, found.decay, noise.overall, delta, theta_star=theta) - noisy
        else:
            bias = norm * at.power
        center, half, error = offset(problem) + at.center[:, 0], bias + noisy, noise.overall * at.response
        if not problem.squeeze:
            center, half, bias, error = center[:, None], half[:, None], bias[:, None], error[:, None]
        limits = Limits(center - half, center + half)
        return make_interval(
            self._claim(noise),
            center,
            widened(limits, noise, delta, bias=bias) if target == "observation" else limits,
            delta=delta,
            target=target,
            standard_error=error,
            noise=noise,
            x=x,
        )

    def _claim(self, noise: Noise) -> Claim:
        norm, m = self.options.norm, self.found.n
        bias = (
            "a bias no larger than the estimate in place of the truth says, WHICH ERRS LOW"
            if norm is None
            else f"true last-layer parameters of length at most {norm:g}"
        )
        return Claim(
            name="last layer",
            covers="the regression function, if it is linear in the features that the first rows gave",
            by=f"the ridge interval, bias included, from the {m} rows that the features have not seen",
            checked=("that the model is linear in its last layer",),
            assumed=(bias, f"Gaussian noise, its level {noise.source}"),
            response="a new response, if the regression function is linear in the features that the first rows gave",
            nominal=norm is None or self.options.noise is None,
        )
