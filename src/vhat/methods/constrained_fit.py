"""The smallest and the largest prediction over all parameters that fit the data nearly as well."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import stats

from vhat import bounds
from vhat.checks import check_choice
from vhat.errors import InputError
from vhat.fit.many_fits import Recipe
from vhat.fit.recipe import check_positive
from vhat.intervals.interval import Interval
from vhat.methods.base.kernel_smoother import at_once
from vhat.methods.base.local_error import shortfall
from vhat.methods.base.method import (
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
from vhat.methods.base.noise_levels import different, met_levels, scaled_levels, unlike_rows
from vhat.methods.base.profile_likelihood import Region, farthest
from vhat.methods.base.requirements import require_square_loss

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["ConstrainedFit", "FittedRegion"]

_MOST = 300
"""Parameters above which a search at every point would take too long."""


@dataclass(frozen=True)
class ConstrainedFit:
    """``[min f(x; theta), max f(x; theta)]`` over ``{theta: L(theta) <= L(theta_hat) + beta}``; small models.

    L is the objective of the fit, its weight decay included. For a linear model the region is an ellipsoid, and the
    limits are ``f(x) +- sqrt(2 beta g'(H + lam)^-1 g)``.

    Attributes:
        region: How beta follows from delta. ``"profile"``: ``sigma^2 q^2 / (2n)`` with q the normal quantile (Student's
            where sigma was estimated), for one prediction at a time; without decay and for a linear model that is
            the t interval. ``"joint"``: with the quantile of chi-square (F) with p degrees of freedom in place of
            ``q^2``, a region for all parameters, so for all predictions at once. Where outputs differ in noise, sigma
            is what each prediction meets of it, by its variance to first order: its own where no parameter is shared.
        beta: In place of that, a number of your own, in units of the objective: a region without a level, so that the
            interval's ``delta`` is NaN, whatever was asked for.
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
        center = self.fitted.predict(x)
        room = self._room(x, noise, delta) if options.beta is None else np.full(center.shape, options.beta)
        with problem.scope():
            chosen = self.fitted.workspace.choose_curvature("auto", quiet=True)
            matrix, inputs = self.fitted.workspace.matrix(chosen.curvature), problem.inputs(x)
            places = [
                (Region(problem, matrix, float(beta)), problem.take(inputs, row, row + 1), output)
                for row, betas in enumerate(room.reshape(-1, problem.outputs))
                for output, beta in enumerate(betas)
            ]
            found = [[_extreme(*place, sign) for place in places] for sign in (-1.0, 1.0)]
        lower, upper = (np.array(side).reshape(center.shape) for side in found)
        limits, claim = Limits(lower, upper), self._claim(noise, chosen.curvature)
        together = options.beta is None and options.region == "joint" and target == "mean"
        return make_interval(
            claim,
            center,
            limits if noise is None or target == "mean" else widened(limits, noise, delta),
            delta=delta if options.beta is None else math.nan,
            target=target,
            noise=noise,
            x=x,
            guarantee=at_once(claim.sentence(delta, target, noise)) if together else "",
            why="The search met no extreme on the region's edge. Raise weight_decay, or use vhat.methods.Proposed.",
        )

    def _room(self, x: Any, noise: Noise | None, delta: float) -> np.ndarray:
        """Return beta for every prediction, (points,) or (points, outputs)."""
        assert noise is not None
        n, p = self.fitted.problem.n, self.fitted.problem.p
        if self.options.region == "profile":
            square = bounds.asymptotic(1.0, 1, 1.0, delta, df=noise.df) ** 2
        else:
            square = np.asarray(stats.chi2.isf(delta, p) if noise.df is None else p * stats.f.isf(delta, p, noise.df))
        met = met_levels(self.fitted, x, noise)
        room: np.ndarray = met**2 * (square if met.ndim == 2 else np.ravel(square)[0]) / (2 * n)
        return room

    def _claim(self, noise: Noise | None, curvature: str) -> Claim:
        options, joint = self.options, self.options.region == "joint"
        level = "" if noise is None else f"Gaussian noise, its level {noise.source}, "
        if options.beta is not None:
            by, assumed = f"a region of beta={options.beta:g}, whose level is not known", level
        else:
            kind = "parameters" if joint else "one prediction"
            apart = "" if noise is None else different(scaled_levels(self.fitted, noise))
            met = f" at the noise that each output meets ({apart} in the unit of the loss)" if apart else ""
            if not apart and noise is not None and unlike_rows(self.fitted, noise):
                met = " at noise that the weights of the rows do not follow"
            by, assumed = f"the likelihood ratio for {kind}{met}, whose level is right only as n grows", level
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


def _extreme(region: Region, point: Any, output: int, sign: float) -> float:
    """Return an extreme prediction over a region; NaN where the region has no size, because a solve has failed."""
    return farthest(region, point, output, sign) if math.isfinite(region.beta) else math.nan
