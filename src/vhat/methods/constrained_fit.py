"""Profile likelihood: the extremes of a prediction over all parameters that fit the data nearly as well."""

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
from vhat.methods.base.guarantee import Claim, gaussian_noise
from vhat.methods.base.limits import Limits
from vhat.methods.base.local_error import stationarity_caveat
from vhat.methods.base.method import check_noise, find_noise
from vhat.methods.base.noise_levels import describe_mismatch, effective_levels
from vhat.methods.base.profile_likelihood import Region, extreme_prediction
from vhat.methods.base.requirements import require_square_loss

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["ConstrainedFit", "FittedRegion"]

_MOST_PARAMETERS = 300
"""Largest number of parameters: with more, the search at every point takes too long."""


@dataclass(frozen=True)
class ConstrainedFit(BaseMethod["FittedRegion"]):
    """``[min f(x; theta), max f(x; theta)]`` over ``{theta: L(theta) <= L(theta_hat) + beta}``; small models.

    L is the objective of the fit with its weight decay. For a linear model the region is an ellipsoid, and the limits
    are ``f(x) +- sqrt(2 beta g'(H + lam)^-1 g)``. The model may have at most 300 parameters. Unless beta is given, the
    loss must be the square loss.

    Attributes:
        region: How delta determines beta. ``"profile"``: ``sigma^2 q^2 / (2n)`` with q the normal quantile (Student's
            if sigma was estimated), for each prediction taken alone; for a linear model without decay this is the t
            interval. ``"joint"``: the quantile of chi-square (F if sigma was estimated) with p degrees of freedom in
            place of ``q^2``, a region for all parameters and so for all predictions at once. If outputs differ in
            noise, sigma is the effective level of each prediction by its first-order variance, which is the output's
            own level if no parameter is shared.
        beta: A value of beta, in units of the objective, that replaces the one from delta. Such a region has no level:
            the interval's ``delta`` is NaN.
        noise: Standard deviation of y; None estimates it from the residuals.

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
        if fitted.problem.p > _MOST_PARAMETERS:
            raise InputError(
                f"ConstrainedFit searches among all parameters at every point, and this model has {fitted.problem.p}; "
                f"it takes at most {_MOST_PARAMETERS}. Use vhat.methods.Proposed."
            )
        if self.beta is None:
            require_square_loss(fitted, "ConstrainedFit(beta=None)")
        return FittedRegion(self, fitted)


@dataclass(frozen=True, eq=False)
class FittedRegion(FittedToModel):
    """A fitted model and the kind of region about it.

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
            betas = self._betas(asked.x, noise, asked.delta)
            level = asked.delta
        else:
            betas = np.full(center.shape, options.beta)
            level = math.nan  # a given beta has no known level
        chosen = self.fitted.workspace.choose_curvature("auto", quiet=True)
        matrix = self.fitted.workspace.matrix(chosen.curvature)
        return Answer(
            self._claim(noise, chosen.curvature),
            center,
            self._extremes(asked.x, betas, matrix),
            noise=noise,
            delta=level,
            simultaneous=options.beta is None and options.region == "joint",
            why="The search met no extreme on the region's edge. Raise weight_decay, or use vhat.methods.Proposed.",
        )

    def _extremes(self, x: Any, betas: np.ndarray, matrix: np.ndarray) -> Limits:
        """Return the smallest and largest prediction over the region of each point, in the shape of ``betas``."""
        problem = self.fitted.problem
        inputs = problem.inputs(x)
        lower = []
        upper = []
        for row, betas_of_row in enumerate(betas.reshape(-1, problem.outputs)):
            point = problem.take(inputs, row, row + 1)
            for output, beta in enumerate(betas_of_row):
                region = Region(problem, matrix, float(beta))
                lower.append(_extreme(region, point, output, -1.0))
                upper.append(_extreme(region, point, output, 1.0))
        return Limits(np.array(lower).reshape(betas.shape), np.array(upper).reshape(betas.shape))

    def _betas(self, x: Any, noise: Noise | None, delta: float) -> np.ndarray:
        """Return ``sigma^2 q^2 / (2n)`` for every prediction, (points,) or (points, outputs)."""
        assert noise is not None
        n = self.fitted.problem.n
        p = self.fitted.problem.p
        if self.options.region == "profile":
            squared_quantile = bounds.asymptotic(1.0, 1, 1.0, delta, df=noise.df) ** 2
        elif noise.df is None:
            squared_quantile = np.asarray(stats.chi2.isf(delta, p))
        else:
            squared_quantile = np.asarray(p * stats.f.isf(delta, p, noise.df))
        sigma = effective_levels(self.fitted, x, noise)
        if sigma.ndim == 1:
            squared_quantile = np.ravel(squared_quantile)[0]
        betas: np.ndarray = sigma**2 * squared_quantile / (2 * n)
        return betas

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
            level = f"{gaussian_noise(noise)}, "
        return Claim(
            name=f"constrained fit ({name})",
            covers="the regression function, if the model contains it",
            by=by,
            checked=("that the search ended at an extreme on the region's edge, at least a local one",),
            assumed=(
                *stationarity_caveat(self.fitted, noise, curvature),
                f"{level}that no other extreme of the region is further out",
                "that the decay has not moved the fit",
            ),
        )

    def _argument(self, noise: Noise | None) -> str:
        """Return the argument for the level of a region whose beta follows from delta."""
        kind = "parameters" if self.options.region == "joint" else "one prediction"
        mismatch = ""
        if noise is not None:
            mismatch = describe_mismatch(self.fitted, noise)
        if mismatch:
            kind += f" {mismatch}"
        return f"the likelihood ratio for {kind}, whose level is right only as n grows"


def _extreme(region: Region, point: Any, output: int, sign: float) -> float:
    """Return an extreme prediction over a region; NaN if beta is not finite because a solve failed."""
    if not math.isfinite(region.beta):
        return math.nan
    return extreme_prediction(region, point, output, sign)
