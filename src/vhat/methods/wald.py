"""Wald intervals: the Fisher information, and the sandwich."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.checks import check_choice
from vhat.errors import InputError, NotPositiveDefinite
from vhat.fit.many_fits import Recipe
from vhat.intervals.interval import Interval
from vhat.linalg.solvers import Status
from vhat.methods.base.local_error import propagated_error, shortfall
from vhat.methods.base.method import (
    Claim,
    Target,
    check_noise,
    check_question,
    find_noise,
    fit_once,
    make_interval,
    normal_limits,
    residuals,
    widened,
)
from vhat.methods.base.requirements import require_residuals

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["FittedWald", "Wald"]

_COVARIANCES = ("fisher", "hc0", "hc3")


@dataclass(frozen=True)
class Wald:
    """One fit, and the textbook's standard error of its predictions.

    Attributes:
        covariance: ``"fisher"``: the inverse Fisher information of the data alone, ``sigma^2 (J'J)^-1``, as if nothing
            had been penalised; it exists only where the data determine every parameter. ``"hc0"``: the sandwich
            ``A^-1 (J' diag(r^2) J) A^-1 / n^2`` with ``A = H + lam`` and the residuals in place of the noise, which may
            then differ between rows; ``"hc3"``: with leave-one-out residuals, which do not err low where few rows
            speak.
        noise: The standard deviation of y, for ``"fisher"`` and for ``target="observation"``; None estimates it.
        curvature: The A of the sandwich: ``"auto"``, ``"hessian"`` or ``"ggn"``.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Minimum, Network
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> recipe = Minimum(Network((1, 1)), weight_decay=1e-6)
        >>> fit = Wald().fit(recipe, x, x[:, 0] + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]]).bound
        'Wald (fisher)'
    """

    covariance: Literal["fisher", "hc0", "hc3"] = "fisher"
    noise: float | None = None
    curvature: Literal["auto", "hessian", "ggn"] = "auto"

    def __post_init__(self) -> None:
        check_choice("covariance", self.covariance, _COVARIANCES)
        check_choice("curvature", self.curvature, ("auto", "hessian", "ggn"))
        check_noise(self.noise)

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> FittedWald:
        """Train once.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``.
            X: Rows.
            y: Responses.
            seed: Seed of the training.
        """
        return FittedWald(self, fit_once(recipe, X, y, seed))


@dataclass(frozen=True, eq=False)
class FittedWald:
    """A fitted model and the kind of its standard error.

    Attributes:
        options: The options.
        fitted: The fitted model.
    """

    options: Wald
    fitted: FittedModel = field(repr=False)

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute ``f(x) +- q error`` at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss.
            target: ``"mean"``, or ``"observation"`` for a new response.

        Raises:
            NotPositiveDefinite: When the Fisher information is singular.
            InputError: When the sandwich is asked for a new response without ``noise``.
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        delta = check_question("Wald", delta, target)
        if target == "observation":
            require_residuals(self.fitted, "target='observation'")
        return self._fisher(x, delta, target) if self.options.covariance == "fisher" else self._robust(x, delta, target)

    def _fisher(self, x: Any, delta: float, target: Target) -> Interval:
        from vhat.fitted.model import FittedModel

        noise = find_noise(self.fitted, self.options.noise)
        problem = self.fitted.problem
        with problem.scope():
            bare = FittedModel(problem.with_decay(0 * problem.decay))
        try:
            error = propagated_error(bare, x, noise.values, curvature="ggn")
        except NotPositiveDefinite as fault:
            raise NotPositiveDefinite(
                "the Fisher information of the data alone is singular: they do not determine every parameter, and Wald "
                'has no interval. Use fewer parameters, Wald(covariance="hc0"), or LinearizedLaplace, which adds the '
                "decay."
            ) from fault
        center = self.fitted.predict(x)
        df = None if noise.df is None else noise.df[0] if center.ndim == 1 else noise.df
        limits = normal_limits(center, error.value, delta, df=df)
        limits = widened(limits, noise, delta) if target == "observation" else limits
        return make_interval(
            self._claim(noise, error.curvature),
            center,
            limits,
            delta=delta,
            target=target,
            standard_error=error.value,
            noise=noise,
            x=x,
            curvature=error.curvature,
            solver=error.solver,
        )

    def _robust(self, x: Any, delta: float, target: Target) -> Interval:
        if target == "observation" and self.options.noise is None:
            raise InputError(
                f"Wald(covariance={self.options.covariance!r}) lets the noise differ between rows, so that of a new "
                "response is not known. Give noise=, or ask for target='mean'."
            )
        error = propagated_error(self.fitted, x, self._sizes(), curvature=self.options.curvature)
        center = self.fitted.predict(x)
        limits, noise = normal_limits(center, error.value, delta), None
        if target == "observation":
            noise = find_noise(self.fitted, self.options.noise)
            limits = widened(limits, noise, delta)
        return make_interval(
            self._claim(None, error.curvature),
            center,
            limits,
            delta=delta,
            target=target,
            standard_error=error.value,
            noise=noise,
            x=x,
            curvature=error.curvature,
            solver=error.solver,
        )

    def _sizes(self) -> np.ndarray:
        """Sizes of the residuals that stand for the noise, (n, K)."""
        require_residuals(self.fitted, "the sandwich")
        if self.options.covariance == "hc0":
            return np.abs(residuals(self.fitted))
        found = self.fitted.leave_one_out(curvature=self.options.curvature)
        if found.residual is None or np.any(found.status != Status.CONVERGED):
            raise InputError(
                'Wald(covariance="hc3") needs the leave-one-out residual of every row, and some have none (see '
                'fitted.leave_one_out()). Use covariance="hc0".'
            )
        return np.abs(found.residual).reshape(self.fitted.problem.targets.shape)

    def _claim(self, noise: Noise | None, curvature: str) -> Claim:
        fisher = self.options.covariance == "fisher"
        level = "" if noise is None else f", its level {noise.source}"
        assumed = (
            *shortfall(self.fitted, noise, curvature),
            f"noise of one size in every row{level}" if fisher else "independent noise, of any size in each row",
            "a prediction that is linear in the parameters over the reach of the noise",
            "that the decay has not moved the fit" if fisher else "one minimum that moves continuously with the noise",
        )
        return Claim(
            name=f"Wald ({self.options.covariance})",
            covers="the regression function at x, if the model contains it"
            if fisher
            else "the mean of this prediction over fresh noise, not the truth behind it",
            by="the inverse Fisher information, which is right only as n grows"
            if fisher
            else "the sandwich with residuals in place of the noise, which is right only as n grows",
            assumed=assumed,
        )
