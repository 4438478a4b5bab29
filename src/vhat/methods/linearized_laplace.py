"""The linearised Laplace approximation: a Gaussian posterior with the Gauss-Newton matrix."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import InputError
from vhat.methods.base.answering import Answer, FittedToModel, Question
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import PRIOR_MEAN, PRIOR_RESPONSE, Claim, gaussian_noise
from vhat.methods.base.limits import normal_limits
from vhat.methods.base.local_error import stationarity_caveat
from vhat.methods.base.marginal_likelihood import best_factor
from vhat.methods.base.method import check_noise, find_noise
from vhat.methods.base.noise_levels import describe_mismatch, effective_levels, level_range, scaled_levels
from vhat.methods.base.requirements import require_square_loss
from vhat.variance.weighted_norm import row_curvature

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["FittedLaplace", "LinearizedLaplace"]


@dataclass(frozen=True)
class LinearizedLaplace(BaseMethod["FittedLaplace"]):
    """One fit, and the posterior ``N(theta_hat, sigma^2/n (J'J/n + lam)^-1)`` of the model linearised about it.

    The variance of a prediction is ``sigma^2 g'(J'J/n + lam)^-1 g / n``. It is never below the library's own with
    Gauss-Newton curvature, because it counts the prior's share as uncertainty, not as bias. The loss must be the square
    loss.

    Outputs that differ in noise but were trained with equal weight have no such posterior. Their standard error is then
    the root mean square error of the fit, with the truth of each output drawn from a prior in units of its own noise.
    If the outputs share no parameter, each has the interval that it would have alone.

    Attributes:
        evidence: Whether to tune the decay of the posterior after training, by one factor for all outputs that
            maximises the evidence of the linearised model. The predictions stay those of the fit.
        noise: Standard deviation of y; None estimates it from the residuals.

    Examples:
        >>> import numpy as np, vhat
        >>> def line(X, y, *, seed, sample_weight=None):
        ...     slope = (X[:, 0] @ y / len(y)) / (X[:, 0] @ X[:, 0] / len(y) + 0.1)
        ...     return vhat.from_numpy(lambda q, X: X @ q, [slope], X, y, jac=lambda q, X: X, weight_decay=0.1)
        >>> X = np.linspace(-1, 1, 50)[:, None]
        >>> band = LinearizedLaplace(noise=0.5).fit(line, X, X[:, 0]).interval([[1.0]])
        >>> float((band.standard_error / (0.5 / np.sqrt(50 * (np.mean(X**2) + 0.1))))[0].round(6))
        1.0
    """

    evidence: bool = False
    noise: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.evidence, bool | np.bool_):
            raise InputError(f"evidence={self.evidence!r} is neither True nor False.")
        check_noise(self.noise)

    def _fit(self, data: Training) -> FittedLaplace:
        fitted = data.fit_once()
        require_square_loss(fitted, "LinearizedLaplace")
        if not self.evidence:
            return FittedLaplace(self, fitted, 1.0, fitted)
        levels = scaled_levels(fitted, find_noise(fitted, self.noise))
        factor = best_factor(fitted, levels)
        return FittedLaplace(self, fitted, factor, fitted.scale_weight_decay(factor))


@dataclass(frozen=True, eq=False)
class FittedLaplace(FittedToModel):
    """A fitted model and its posterior.

    Attributes:
        options: The options.
        fitted: The fitted model.
        factor: Decay of the posterior, in units of that of the fit.
        posterior: The same parameters with the decay of the posterior.
    """

    options: LinearizedLaplace
    fitted: FittedModel = field(repr=False)
    factor: float
    posterior: FittedModel = field(repr=False)

    @cached_property
    def _loss_curvature(self) -> np.ndarray | float:
        """The second derivative of the loss, one per output; a factor of ``weighted_norm(shortcut=True)``."""
        with self.fitted.problem.scope():
            curvature = row_curvature(self.fitted.problem)
        return float(curvature[0]) if self.fitted.problem.squeeze else curvature

    def _answer(self, asked: Question) -> Answer:
        """Compute credible limits."""
        noise = find_noise(self.fitted, self.options.noise)
        norm = self.posterior.weighted_norm(asked.x, curvature="ggn", shortcut=True)
        energy = norm.value / self._loss_curvature  # g'h with h = (J'J/n + lam)^-1 g
        error = effective_levels(self.posterior, asked.x, noise) * np.sqrt(energy / self.fitted.problem.n)
        center = self.fitted.predict(asked.x)
        return Answer(
            self._claim(noise),
            center,
            normal_limits(center, error, asked.delta),
            standard_error=error,
            noise=noise,
            curvature="ggn",
            solver=norm.solver,
        )

    def _claim(self, noise: Noise) -> Claim:
        name = "linearised Laplace"
        tuned = ""
        if self.options.evidence:
            name += ", evidence"
            tuned = f", the decay tuned to {self.factor:.3g} times that of training by the evidence"
        argument = "the Gaussian posterior"
        truth = "that the truth is a draw from that prior"
        # If the objective does not follow the noise, it is no log density: there is a known error but no posterior.
        mismatch = describe_mismatch(self.fitted, noise)
        if mismatch:
            argument = f"the mean square error, {mismatch},"
        if level_range(scaled_levels(self.fitted, noise)):
            truth += ", in units of each output's own noise"
        return Claim(
            name=name,
            covers=PRIOR_MEAN,
            response=PRIOR_RESPONSE,
            by=f"{argument} of the model linearised about its fit{tuned}",
            assumed=(
                *stationarity_caveat(self.fitted, noise, "ggn"),
                truth,
                gaussian_noise(noise),
                "a model that is linear in its parameters over the reach of the posterior",
            ),
        )
