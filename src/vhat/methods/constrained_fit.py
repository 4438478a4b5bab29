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
from vhat.fit.recipe import check_positive
from vhat.methods.base.answering import Answer, FittedToModel, Question
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.local_error import shortfall
from vhat.methods.base.method import Claim, Limits, check_noise, find_noise
from vhat.methods.base.noise_levels import different, met_levels, scaled_levels, unlike_rows
from vhat.methods.base.profile_likelihood import Region, farthest
from vhat.methods.base.requirements import require_square_loss

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["ConstrainedFit", "FittedRegion"]

_MOST = 300
"""Most parameters: with more, a search at every point takes too long."""


@dataclass(frozen=True)
class ConstrainedFit(BaseMethod["FittedRegion"]):
    """``[min f(x; theta), max f(x; theta)]`` over ``{theta: L(theta) <= L(theta_hat) + beta}``; small models.

    L is the objective of the fit, its weight decay included. For a linear model the region is an ellipsoid, and the
    limits are ``f(x) +- sqrt(2 beta g'(H + lam)^-1 g)``. The model may have at most 300 parameters. Unless beta is
    given, its loss must be the square loss.

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

    def _fit(self, data: Training) -> FittedRegion:
        fitted = data.fit_once()
        if fitted.problem.p > _MOST:
            raise InputError(
                f"ConstrainedFit searches among all parameters at every point, and this model has {fitted.problem.p}; "
                f"it takes at most {_MOST}. Use vhat.methods.Proposed."
            )
        if self.beta is None:
            require_square_loss(fitted, "ConstrainedFit(beta=None)")
        return FittedRegion(self, fitted)


@dataclass(frozen=True, eq=False)
class FittedRegion(FittedToModel):
    """A fitted model and the region about it.

    Attributes:
        options: The options.
        fitted: The fitted model.
    """

    options: ConstrainedFit
    fitted: FittedModel = field(repr=False)

    def _answer(self, asked: Question) -> Answer:
        """Search for the smallest and the largest prediction at every point."""
        options = self.options
        noise = None
        if options.beta is None or asked.target == "observation":
            noise = find_noise(self.fitted, options.noise)
        center = self.fitted.predict(asked.x)
        if options.beta is None:
            room = self._room(asked.x, noise, asked.delta)
            level = asked.delta
        else:
            room = np.full(center.shape, options.beta)
            level = math.nan  # of a region of the caller's own
        chosen = self.fitted.workspace.choose_curvature("auto", quiet=True)
        matrix = self.fitted.workspace.matrix(chosen.curvature)
        return Answer(
            self._claim(noise, chosen.curvature),
            center,
            self._extremes(asked.x, room, matrix),
            noise=noise,
            delta=level,
            simultaneous=options.beta is None and options.region == "joint",
            why="The search met no extreme on the region's edge. Raise weight_decay, or use vhat.methods.Proposed.",
        )

    def _extremes(self, x: Any, room: np.ndarray, matrix: np.ndarray) -> Limits:
        """Return the smallest and the largest prediction over the region of each point, in the shape of ``room``."""
        problem = self.fitted.problem
        inputs = problem.inputs(x)
        lower = []
        upper = []
        for row, betas in enumerate(room.reshape(-1, problem.outputs)):
            point = problem.take(inputs, row, row + 1)
            for output, beta in enumerate(betas):
                region = Region(problem, matrix, float(beta))
                lower.append(_extreme(region, point, output, -1.0))
                upper.append(_extreme(region, point, output, 1.0))
        return Limits(np.array(lower).reshape(room.shape), np.array(upper).reshape(room.shape))

    def _room(self, x: Any, noise: Noise | None, delta: float) -> np.ndarray:
        """Return beta for every prediction, (points,) or (points, outputs)."""
        assert noise is not None
        n = self.fitted.problem.n
        p = self.fitted.problem.p
        if self.options.region == "profile":
            square = bounds.asymptotic(1.0, 1, 1.0, delta, df=noise.df) ** 2
        elif noise.df is None:
            square = np.asarray(stats.chi2.isf(delta, p))
        else:
            square = np.asarray(p * stats.f.isf(delta, p, noise.df))
        met = met_levels(self.fitted, x, noise)
        if met.ndim == 1:
            square = np.ravel(square)[0]
        room: np.ndarray = met**2 * square / (2 * n)
        return room

    def _claim(self, noise: Noise | None, curvature: str) -> Claim:
        options = self.options
        if options.beta is None:
            name: str = options.region
            by = self._argument(noise)
        else:
            name = "beta given"
            by = f"a region of beta={options.beta:g}, whose level is not known"
        level = ""
        if noise is not None:
            level = f"Gaussian noise, its level {noise.source}, "
        return Claim(
            name=f"constrained fit ({name})",
            covers="the regression function, if the model contains it",
            by=by,
            checked=("that the search ended at an extreme on the region's edge, at least a local one",),
            assumed=(
                *shortfall(self.fitted, noise, curvature),
                f"{level}that no other extreme of the region is further out",
                "that the decay has not moved the fit",
            ),
        )

    def _argument(self, noise: Noise | None) -> str:
        """Say by what argument the region has its level, where beta follows from delta."""
        kind = "parameters" if self.options.region == "joint" else "one prediction"
        met = ""
        if noise is not None:
            apart = different(scaled_levels(self.fitted, noise))
            if apart:
                met = f" at the noise that each output meets ({apart} in the unit of the loss)"
            elif unlike_rows(self.fitted, noise):
                met = " at noise that the weights of the rows do not follow"
        return f"the likelihood ratio for {kind}{met}, whose level is right only as n grows"


def _extreme(region: Region, point: Any, output: int, sign: float) -> float:
    """Return an extreme prediction over a region; NaN where the region has no size, because a solve has failed."""
    if not math.isfinite(region.beta):
        return math.nan
    return farthest(region, point, output, sign)
