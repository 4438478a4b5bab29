"""Wald intervals from the Fisher information or the sandwich covariance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from vhat.checks import check_choice
from vhat.errors import InputError, NotPositiveDefinite
from vhat.linalg.solvers import Status
from vhat.methods.base.answering import Answer, FittedToModel, Question
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Claim
from vhat.methods.base.limits import normal_limits
from vhat.methods.base.local_error import propagated_error, stationarity_caveat
from vhat.methods.base.method import check_noise, find_noise, residuals
from vhat.methods.base.requirements import require_residuals

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["FittedWald", "Wald"]

_COVARIANCES = ("fisher", "hc0", "hc3")


@dataclass(frozen=True)
class Wald(BaseMethod["FittedWald"]):
    """One fit, and the textbook standard error of its predictions.

    Attributes:
        covariance: ``"fisher"``: the inverse Fisher information of the data, ``sigma^2 (J'J)^-1``, ignoring the
            penalty; it exists only if the data determine every parameter. ``"hc0"``: the sandwich
            ``A^-1 (J' diag(r^2) J) A^-1 / n^2`` with ``A = H + lam`` and the residuals r in place of the noise, which
            may differ between rows. ``"hc3"``: the same with leave-one-out residuals, which are not too small for rows
            of high leverage.
        noise: Standard deviation of y, for ``"fisher"`` and for ``target="observation"``; None estimates it.
        curvature: The H in A of the sandwich: ``"auto"``, ``"hessian"`` or ``"ggn"``.

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

    def _fit(self, data: Training) -> FittedWald:
        return FittedWald(self, data.fit_once())


@dataclass(frozen=True, eq=False)
class FittedWald(FittedToModel):
    """A fitted model and the kind of its standard error.

    Attributes:
        options: The options.
        fitted: The fitted model.
    """

    options: Wald
    fitted: FittedModel = field(repr=False)

    def _answer(self, asked: Question) -> Answer:
        """Compute ``f(x) +- q error``."""
        if asked.target == "observation":
            require_residuals(self.fitted, "target='observation'")
        if self.options.covariance == "fisher":
            return self._fisher(asked)
        return self._robust(asked)

    def _fisher(self, asked: Question) -> Answer:
        """Compute limits from the inverse Fisher information.

        Raises:
            NotPositiveDefinite: When the information is singular.
        """
        from vhat.fitted.model import FittedModel

        noise = find_noise(self.fitted, self.options.noise)
        problem = self.fitted.problem
        # The information of the data alone: the same parameters without the decay.
        unpenalised = FittedModel(problem.with_decay(0 * problem.decay))
        try:
            error = propagated_error(unpenalised, asked.x, noise.values, curvature="ggn")
        except NotPositiveDefinite as fault:
            raise NotPositiveDefinite(
                "the Fisher information of the data alone is singular: they do not determine every parameter, and Wald "
                'has no interval. Use fewer parameters, Wald(covariance="hc0"), or LinearizedLaplace, which adds the '
                "decay."
            ) from fault
        center = self.fitted.predict(asked.x)
        df = noise.df
        if df is not None and center.ndim == 1:
            df = df[0]
        return Answer(
            self._fisher_claim(noise, error.curvature),
            center,
            normal_limits(center, error.value, asked.delta, df=df),
            standard_error=error.value,
            noise=noise,
            curvature=error.curvature,
            solver=error.solver,
        )

    def _robust(self, asked: Question) -> Answer:
        """Compute limits from the sandwich.

        Raises:
            InputError: When the noise of a new response is needed and not given.
        """
        if asked.target == "observation" and self.options.noise is None:
            raise InputError(
                f"Wald(covariance={self.options.covariance!r}) lets the noise differ between rows, so the noise "
                "of a new response is not known. Give noise=, or ask for target='mean'."
            )
        error = propagated_error(self.fitted, asked.x, self._sizes(), curvature=self.options.curvature)
        center = self.fitted.predict(asked.x)
        return Answer(
            self._robust_claim(error.curvature),
            center,
            normal_limits(center, error.value, asked.delta),
            standard_error=error.value,
            curvature=error.curvature,
            solver=error.solver,
        )

    def _sizes(self) -> np.ndarray:
        """Return the absolute residuals that replace the noise, (n, K).

        Raises:
            InputError: When the loss has no residuals, or a row has no leave-one-out residual.
        """
        require_residuals(self.fitted, "the sandwich")
        if self.options.covariance == "hc0":
            return np.abs(residuals(self.fitted))
        left_out = self.fitted.leave_one_out(curvature=self.options.curvature)
        if left_out.residual is None or np.any(left_out.status != Status.CONVERGED):
            raise InputError(
                'Wald(covariance="hc3") needs the leave-one-out residual of every row, and some have none (see '
                'fitted.leave_one_out()). Use covariance="hc0".'
            )
        return np.abs(left_out.residual).reshape(self.fitted.problem.targets.shape)

    def _fisher_claim(self, noise: Noise, curvature: str) -> Claim:
        return Claim(
            name="Wald (fisher)",
            covers="the regression function at x, if the model contains it",
            by="the inverse Fisher information, which is right only as n grows",
            assumed=(
                *stationarity_caveat(self.fitted, noise, curvature),
                f"noise of one size in every row, its level {noise.source}",
                "a prediction that is linear in the parameters over the reach of the noise",
                "that the decay has not moved the fit",
            ),
        )

    def _robust_claim(self, curvature: str) -> Claim:
        return Claim(
            name=f"Wald ({self.options.covariance})",
            covers="the mean of this prediction over fresh noise, not the truth behind it",
            by="the sandwich with residuals in place of the noise, which is right only as n grows",
            assumed=(
                *stationarity_caveat(self.fitted, None, curvature),
                "independent noise, of any size in each row",
                "a prediction that is linear in the parameters over the reach of the noise",
                "one minimum that moves continuously with the noise",
            ),
        )
