"""The linearised Laplace approximation: a Gaussian posterior with the Gauss-Newton matrix."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError
from vhat.fit.many_fits import Recipe
from vhat.intervals.interval import Interval
from vhat.methods.base.local_error import shortfall
from vhat.methods.base.marginal_likelihood import best_factor
from vhat.methods.base.method import (
    Claim,
    Target,
    check_noise,
    check_question,
    find_noise,
    fit_once,
    make_interval,
    normal_limits,
    widened,
)
from vhat.methods.base.noise_levels import different, met_levels, scaled_levels, unlike_rows
from vhat.methods.base.requirements import require_square_loss
from vhat.variance.weighted_norm import row_curvature

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["FittedLaplace", "LinearizedLaplace"]


@dataclass(frozen=True)
class LinearizedLaplace:
    """One fit, and the posterior ``N(theta_hat, sigma^2/n (J'J/n + lam)^-1)`` of the model linearised about it.

    The variance of a prediction is ``sigma^2 g'(J'J/n + lam)^-1 g / n``, never below the library's own with
    Gauss-Newton curvature: the prior's share is counted as uncertainty, not as bias.

    Outputs that differ in noise, and were trained with equal weight, have no such posterior. Each then has the mean
    square error of its fit, with the truth drawn from a prior in units of its own noise: where outputs share no
    parameter, the interval that each has alone.

    Attributes:
        evidence: Whether the decay of the posterior is tuned after training, to the highest evidence of the linearised
            model, by one factor for all outputs; the predictions stay those of the fit.
        noise: The standard deviation of y; None estimates it from the residuals.

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

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> FittedLaplace:
        """Train once, and tune the decay of the posterior where that is asked for.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``, with the square loss.
            X: Rows.
            y: Responses.
            seed: Seed of the training.

        Raises:
            InputError: When the loss is not the square loss.
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        fitted = fit_once(recipe, X, y, seed)
        require_square_loss(fitted, "LinearizedLaplace")
        factor = best_factor(fitted, scaled_levels(fitted, find_noise(fitted, self.noise))) if self.evidence else 1.0
        return FittedLaplace(self, fitted, factor, fitted.scale_weight_decay(factor) if self.evidence else fitted)


@dataclass(frozen=True, eq=False)
class FittedLaplace:
    """A fitted model and its posterior.

    Attributes:
        options: The options.
        fitted: The fitted model.
        factor: How many times the decay of the fit that of the posterior is.
        posterior: The same parameters under the decay of the posterior.
    """

    options: LinearizedLaplace
    fitted: FittedModel = field(repr=False)
    factor: float
    posterior: FittedModel = field(repr=False)

    @cached_property
    def _bend(self) -> np.ndarray | float:
        """What ``weighted_norm(shortcut=True)`` has multiplied ``g'h`` by."""
        with self.fitted.problem.scope():
            found = row_curvature(self.fitted.problem)
        return float(found[0]) if self.fitted.problem.squeeze else found

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute a credible interval at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Posterior probability outside.
            target: ``"mean"`` for the regression function, ``"observation"`` for a new response.
        """
        delta = check_question("linearised Laplace", delta, target)
        noise = find_noise(self.fitted, self.options.noise)
        norm = self.posterior.weighted_norm(x, curvature="ggn", shortcut=True)
        energy = norm.value / self._bend
        levels = scaled_levels(self.fitted, noise)
        error = met_levels(self.posterior, x, noise) * np.sqrt(energy / self.fitted.problem.n)
        center = self.fitted.predict(x)
        limits = normal_limits(center, error, delta)
        limits = widened(limits, noise, delta) if target == "observation" else limits
        tuned = f", the decay tuned to {self.factor:.3g} times that of training by the evidence" * self.options.evidence
        argument, apart = "the Gaussian posterior", different(levels)
        if apart:
            argument = f"the mean square error, at the noise that each output meets ({apart} in the unit of the loss),"
        elif unlike_rows(self.fitted, noise):
            argument = "the mean square error, at noise that the weights of the rows do not follow,"
        claim = Claim(
            name="linearised Laplace" + ", evidence" * self.options.evidence,
            covers="the regression function, in the belief that the decay expresses as a prior",
            response="a new response, in the belief that the decay expresses as a prior",
            by=f"{argument} of the model linearised about its fit{tuned}",
            assumed=(
                *shortfall(self.fitted, noise, "ggn"),
                "that the truth is a draw from that prior" + ", in units of each output's own noise" * bool(apart),
                f"Gaussian noise, its level {noise.source}",
                "a model that is linear in its parameters over the reach of the posterior",
            ),
        )
        return make_interval(
            claim,
            center,
            limits,
            delta=delta,
            target=target,
            standard_error=error,
            noise=noise,
            x=x,
            curvature="ggn",
            solver=norm.solver,
        )
