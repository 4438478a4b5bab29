"""The smallest and the largest prediction over all parameters that fit the data nearly as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy import linalg, optimize, stats

from vhat import bounds
from vhat.checks import check_choice
from vhat.errors import InputError
from vhat.fit.many import Recipe
from vhat.fit.recipe import check_positive
from vhat.interval import Interval
from vhat.methods.local_error import shortfall
from vhat.methods.method import (
    Claim,
    Limits,
    Target,
    check_noise,
    check_question,
    find_noise,
    fit_once,
    make_interval,
    widened,
)
from vhat.methods.requirements import require_square_loss
from vhat.methods.smoother import at_once

if TYPE_CHECKING:
    from vhat.fitted import FittedModel
    from vhat.noise import Noise
    from vhat.problem import Problem

__all__ = ["ConstrainedFit", "FittedRegion"]

_MOST = 300
"""Parameters above which a search at every point would take too long."""
_KKT = 1e-5
"""How far from parallel the gradients of prediction and objective may be where the search ends."""
_FLAT = 1e-6


@dataclass(frozen=True)
class ConstrainedFit:
    """``[min f(x; theta), max f(x; theta)]`` over ``{theta: L(theta) <= L(theta_hat) + beta}``, by scipy; small models.

    L is the objective of the fit, its weight decay included. For a linear model the region is an ellipsoid, and the
    limits are ``f(x) +- sqrt(2 beta g'(H + lam)^-1 g)``.

    Attributes:
        region: How beta follows from delta. ``"profile"``: ``sigma^2 q^2 / (2n)`` with q the normal quantile (Student's
            where sigma was estimated), for one prediction at a time; without decay and for a linear model that is
            the t interval. ``"joint"``: with the quantile of chi-square (F) with p degrees of freedom in place of
            ``q^2``, a region for all parameters, so for all predictions at once.
        beta: In place of that, a number of your own, in units of the objective; delta then plays no part.
        noise: The standard deviation of y; None estimates it from the residuals.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Minimum, Network
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> recipe = Minimum(Network((1, 1)), weight_decay=1e-2)
        >>> fit = ConstrainedFit().fit(recipe, x, x[:, 0] + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]]).bound
        'constrained fit (profile)'
    """

    region: Literal["profile", "joint"] = "profile"
    beta: float | None = None
    noise: float | None = None

    def __post_init__(self) -> None:
        check_choice("region", self.region, ("profile", "joint"))
        if self.beta is not None:
            check_positive("beta", self.beta)
        check_noise(self.noise)

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> FittedRegion:
        """Train once.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``.
            X: Rows.
            y: Responses.
            seed: Seed of the training.

        Raises:
            InputError: When the model has too many parameters, or beta has to follow from delta and the loss is not
                the square loss.
        """
        fitted = fit_once(recipe, X, y, seed)
        if fitted.problem.p > _MOST:
            raise InputError(
                f"ConstrainedFit searches among all parameters at every point, and this model has {fitted.problem.p}; "
                f"it takes at most {_MOST}. Use vhat.methods.Proposed."
            )
        if self.beta is None:
            require_square_loss(fitted, "ConstrainedFit(beta=None)")
        return FittedRegion(self, fitted)


@dataclass(frozen=True, eq=False)
class FittedRegion:
    """A fitted model and the region about it.

    Attributes:
        options: The options.
        fitted: The fitted model.
    """

    options: ConstrainedFit
    fitted: FittedModel = field(repr=False)

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Search for the smallest and the largest prediction at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss.
            target: ``"mean"``, or ``"observation"`` for a new response.

        Raises:
            NotPositiveDefinite: When the objective has no positive definite curvature at the fit.
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        delta = check_question("ConstrainedFit", delta, target)
        problem, options = self.fitted.problem, self.options
        needed = options.beta is None or target == "observation"
        noise = find_noise(self.fitted, options.noise) if needed else None
        with problem.scope():
            beta = self._beta(noise, delta) if options.beta is None else options.beta
            chosen = self.fitted.workspace.choose_curvature("auto", quiet=True)
            search = _Search(problem, linalg.cholesky(self.fitted.workspace.matrix(chosen.curvature), lower=True), beta)
            inputs = problem.inputs(x)
            found = [
                search.extremes(problem.take(inputs, row, row + 1), output)
                for row in range(problem.count(inputs))
                for output in range(problem.outputs)
            ]
        center = self.fitted.predict(x)
        lower, upper = (np.array(side).reshape(center.shape) for side in zip(*found, strict=True))
        limits, claim = Limits(lower, upper), self._claim(noise, chosen.curvature)
        together = options.beta is None and options.region == "joint" and target == "mean"
        return make_interval(
            claim,
            center,
            limits if noise is None or target == "mean" else widened(limits, noise, delta),
            delta=delta,
            target=target,
            noise=noise,
            x=x,
            guarantee=at_once(claim.sentence(delta, target, noise)) if together else "",
        )

    def _beta(self, noise: Noise | None, delta: float) -> float:
        assert noise is not None
        n, p = self.fitted.problem.n, self.fitted.problem.p
        df = None if noise.df is None else float(np.sum(noise.df))
        if self.options.region == "profile":
            square = float(bounds.asymptotic(1.0, 1, 1.0, delta, df=df)) ** 2
        else:
            square = float(stats.chi2.isf(delta, p) if df is None else p * stats.f.isf(delta, p, df))
        return noise.overall**2 * square / (2 * n)

    def _claim(self, noise: Noise | None, curvature: str) -> Claim:
        options, joint = self.options, self.options.region == "joint"
        level = "" if noise is None else f"Gaussian noise, its level {noise.source}, "
        if options.beta is not None:
            by, assumed = f"a region of beta={options.beta:g}, whose level is not known: delta played no part", level
        else:
            kind = "parameters" if joint else "one prediction"
            by, assumed = f"the likelihood ratio for {kind}, whose level is right only as n grows", level
        return Claim(
            name=f"constrained fit ({'beta given' if options.beta is not None else options.region})",
            covers="the regression function, if the model contains it",
            by=by,
            checked=("that the search ended at an extreme on the region's edge, at least a local one",),
            assumed=(
                *shortfall(self.fitted, noise, curvature),
                assumed + "that no other extreme of the region is further out",
                "that the decay has not moved the fit",
            ),
        )


class _Extremes(NamedTuple):
    lower: float
    upper: float


@dataclass(eq=False)
class _Search:
    """The search in coordinates u in which the region is the unit ball where the objective is quadratic.

    ``theta = theta_hat + sqrt(2 beta) C'^-1 u`` with ``C C' = H + lam``: neither u, nor the objective in units of beta,
    nor the prediction in units of its own range has a unit.
    """

    problem: Problem
    factor: np.ndarray
    beta: float
    _last: tuple[bytes, Problem] | None = None

    def __post_init__(self) -> None:
        self._theta, self._decay = (self.problem.numpy(each) for each in (self.problem.theta, self.problem.decay))
        self._least = self._objective(self.problem)
        self._radius = math.sqrt(2 * self.beta)

    def extremes(self, point: Any, output: int) -> _Extremes:
        """Return the smallest and the largest prediction; NaN where the search does not end at an extreme."""
        center = float(self.problem.predict(point)[0, output])
        slope = self._whiten(self.problem.numpy(self.problem.gradients(point))[output])
        length = float(np.linalg.norm(slope))
        unit = self._radius * max(length, _FLAT)
        start = slope / length if length > 0 else np.full(len(slope), len(slope) ** -0.5)

        def outward(sign: float) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
            def prediction(u: np.ndarray) -> tuple[float, np.ndarray]:
                moved = self._at(u)
                value = float(moved.predict(point)[0, output])
                gradient = self._whiten(moved.numpy(moved.gradients(point))[output]) * self._radius
                return -sign * (value - center) / unit, -sign * gradient / unit

            return prediction

        below, above = (self._farthest(outward(sign), sign * start) for sign in (-1.0, 1.0))
        return _Extremes(center - unit * below, center + unit * above)

    def _farthest(self, prediction: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray) -> float:
        """Return how far out the prediction goes, in its own unit."""
        edge: Any = {"type": "ineq", "fun": lambda u: 1 - self._excess(u)[0], "jac": lambda u: -self._excess(u)[1]}
        found = optimize.minimize(
            prediction, start, jac=True, method="SLSQP", constraints=[edge], options={"ftol": 1e-12, "maxiter": 300}
        )
        excess, normal = self._excess(found.x)
        value, slope = prediction(found.x)
        push = max(-float(slope @ normal) / float(normal @ normal), 0.0) if excess > 1 - _KKT else 0.0
        stationary = np.linalg.norm(slope + push * normal) <= _KKT * max(float(np.linalg.norm(slope)), _KKT)
        return -float(value) if stationary and excess <= 1 + _KKT else math.nan

    def _excess(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the objective above that of the fit in units of beta, and its gradient."""
        moved = self._at(u)
        theta = moved.numpy(moved.theta)
        gradient = moved.numpy(moved.gradient()) + self._decay * theta
        return (self._objective(moved) - self._least) / self.beta, self._whiten(gradient) * self._radius / self.beta

    def _objective(self, problem: Problem) -> float:
        return problem.objective() + 0.5 * float(self._decay @ problem.numpy(problem.theta) ** 2)

    def _whiten(self, gradient: np.ndarray) -> np.ndarray:
        """Return a gradient with respect to u, up to the radius."""
        return np.asarray(linalg.solve_triangular(self.factor, gradient, lower=True))

    def _at(self, u: np.ndarray) -> Problem:
        """Return the problem at u; the last one is kept, for scipy asks for values and slopes apart."""
        key = u.tobytes()
        if self._last is None or self._last[0] != key:
            step = self._radius * linalg.solve_triangular(self.factor, u, lower=True, trans=1)
            self._last = key, self.problem.at(self.problem.native(self._theta + step))
        return self._last[1]
