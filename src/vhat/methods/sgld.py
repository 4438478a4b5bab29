"""Stochastic gradient Langevin dynamics, by blackjax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from vhat.checks import check_count
from vhat.errors import InputError, ModelError
from vhat.linalg.curvature import Operator
from vhat.methods.base.ensemble import Ensemble, predictions
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Claim
from vhat.methods.base.method import check_level, check_noise, find_noise
from vhat.methods.base.posterior import Posterior, as_posterior, log_density, members, posterior_claim
from vhat.methods.base.requirements import require_package

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.jax.compiled import Model
    from vhat.models.problem import Problem
    from vhat.variance.noise import Noise

__all__ = ["SGLD"]

_POWER_STEPS = 30
"""Iterations of the power method for the largest curvature."""
_CURVATURE_MARGIN = 1.05
"""Safety factor on that curvature, which the power method approaches from below."""
_DIAGNOSTIC_ROWS = 64
"""Number of training rows at which the effective number of draws is measured."""
_LARGE_WIDENING = 1.25
"""Factor on the posterior variance above which the guarantee mentions it."""


@dataclass(frozen=True)
class SGLD(BaseMethod[Ensemble]):
    """Draws from the posterior by noisy gradient steps about the fit (Welling and Teh, 2011).

    The chain starts at the fit. Its step size is ``step sigma^2 / (n beta)``, with beta the largest curvature of the
    objective there. Without an accept-reject step, its variance in a direction of curvature ``c`` is too large by the
    factor ``1 / (1 - step c / (2 beta))``. The autocorrelation time in that direction is about ``beta / (step c)``
    steps: if only the decay determines a direction, this may exceed the length of the chain. All outputs must have one
    noise level.

    The gradient of a batch is itself noisy, and would add ``step c n / (2 batch beta)`` to that factor. With a batch,
    each step is therefore split into ``1 + n / batch`` shorter steps of the same total length and cost. The factor is
    then below that of all rows, if the residuals are as large as the noise level. A batch saves memory, but no time.

    The method needs blackjax, and a recipe that gives a JAX model with the square loss.

    Attributes:
        draws: Number of draws kept.
        thin: Steps between two draws that are kept.
        burn_in: Steps before the first draw that is kept.
        step: Step size, as a share of the one at which the steepest direction is crossed in a single step.
        batch: Rows for each gradient, drawn with replacement; None takes all rows.
        noise: Standard deviation of y; None estimates it from the residuals of the fit.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Minimum, Network
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> recipe = Minimum(Network((1, 1)), weight_decay=1e-2)
        >>> fit = SGLD(draws=20, burn_in=100).fit(recipe, x, x[:, 0] + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]]).bound
        'SGLD'
    """

    draws: int = 500
    thin: int = 20
    burn_in: int = 2000
    step: float = 0.2
    batch: int | None = None
    noise: float | None = None

    def __post_init__(self) -> None:
        check_count("draws", self.draws, least=4)
        check_count("thin", self.thin, least=1)
        check_count("burn_in", self.burn_in)
        check_level("step", self.step, zero=False)
        if self.batch is not None:
            check_count("batch", self.batch, least=1)
        check_noise(self.noise)

    def _fit(self, data: Training) -> Ensemble:
        _blackjax()
        fitted = data.fit_once()
        noise = find_noise(fitted, self.noise)
        problem = fitted.problem
        if self.batch is not None and self.batch > problem.n:
            raise InputError(f"batch={self.batch} is more than the {problem.n} rows. Set batch=None to take all.")
        with problem.scope():
            model, posterior = as_posterior(fitted, noise, "SGLD")
            kept = self._chain(model, posterior, problem, jax.random.key(data.seed))
            widening = self._widening(problem, float(posterior.noise))
        if not np.isfinite(kept).all():
            raise ModelError(f"SGLD diverged at step={self.step:g}. Lower step, or raise batch.")
        drawn = members(fitted, kept)
        rows = problem.take(problem.X, 0, min(_DIAGNOSTIC_ROWS, problem.n))
        claim = self._claim(fitted, noise, widening, _effective_draws(predictions(drawn, rows)))
        return Ensemble(drawn, claim, fitted, self.noise)

    def _chain(self, model: Model, posterior: Posterior, problem: Problem, key: Any) -> np.ndarray:
        """Run the chain from the fit, and return the draws that are kept, (draws, p)."""
        substeps = self._substeps(problem.n)
        step_size = self.step * float(posterior.noise) ** 2 / (problem.n * _largest_curvature(problem)) / substeps
        burn_in = max(self.burn_in, 1) * substeps
        start = _run_chain(model, 1, burn_in, self.batch, key, problem.theta, posterior, step_size)[-1]
        next_key = jax.random.fold_in(key, 1)
        thin = self.thin * substeps
        return np.asarray(_run_chain(model, self.draws, thin, self.batch, next_key, start, posterior, step_size))

    def _claim(self, fitted: FittedModel, noise: Noise, widening: float, effective: float) -> Claim:
        batch = ""
        if self.batch is not None:
            batch = f", {self.batch} rows a step"
        excess = ""
        if widening > _LARGE_WIDENING:
            excess = f", WHICH WIDEN ITS VARIANCE UP TO {widening:.2g} TIMES"
        return posterior_claim(
            "SGLD",
            fitted,
            noise,
            by=f"the normal quantile over {self.draws} draws from a Langevin chain{batch}, worth about {effective:.0f} "
            "independent ones on the training rows",
            assumed=(
                "a chain that has been everywhere the posterior is",
                f"steps short enough not to widen it (step={self.step:g}){excess}",
            ),
        )

    def _substeps(self, n: int) -> int:
        """Return the number of shorter steps that one step is split into."""
        if self.batch is None:
            return 1
        return 1 + math.ceil(n / self.batch)

    def _widening(self, problem: Problem, noise: float) -> float:
        """Return the factor on the variance in the steepest direction, ``(1 + e G / 2) / (1 - e C / 2)``.

        e is the step size, C the curvature of the log density, and G the variance of its gradient from a batch. G is
        ``n / batch`` times C if the mean squared residual is ``noise^2``, and larger in proportion to it if it is more.
        """
        step = self.step / self._substeps(problem.n)  # e C
        gradient_noise = 0.0  # G / C
        if self.batch is not None:
            residual = problem.targets - problem.fitted_values
            misfit = np.mean(problem.loss_derivatives.curvature * residual**2) / noise**2
            gradient_noise = problem.n / self.batch * max(1.0, float(misfit))
        return (1 + step * gradient_noise / 2) / (1 - step / 2)


def _blackjax() -> Any:
    """Import and return blackjax."""
    return require_package(
        "blackjax",
        'SGLD is by blackjax, which is not installed. Install it: pip install "vhat[methods]", or pip install '
        "blackjax.",
    )


def _effective_draws(values: np.ndarray) -> float:
    """Return the effective sample size of draws (draws, rows, ...), at the row where it is smallest."""
    chains = values.reshape(1, len(values), -1)
    return float(np.min(_blackjax().diagnostics.effective_sample_size(chains)))


def _largest_curvature(problem: Problem) -> float:
    """Return an upper estimate of the largest eigenvalue of the Gauss-Newton matrix plus decay, by the power method."""
    operator = Operator(problem, "ggn")
    direction = np.random.default_rng(0).standard_normal((1, problem.p))
    for _ in range(_POWER_STEPS):
        direction = problem.numpy(operator(problem.native(direction / np.linalg.norm(direction))))
    return _CURVATURE_MARGIN * float(np.linalg.norm(direction))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _run_chain(
    model: Model, draws: int, thin: int, batch: int | None, key: Any, theta: Any, posterior: Posterior, step_size: Any
) -> Any:
    """Return every ``thin``-th position of a chain that starts at ``theta``, (draws, p)."""
    gradient = jax.grad(log_density, argnums=1)
    chain = _blackjax().sgld(lambda position, rows: gradient(model, position, posterior, rows))

    def step(position: Any, key: Any) -> tuple[Any, None]:
        first, second = jax.random.split(key)
        rows = None
        if batch is not None:
            rows = jax.random.randint(first, (batch,), 0, len(posterior.y))
        return chain.step(second, position, rows, step_size), None

    def next_draw(position: Any, key: Any) -> tuple[Any, Any]:
        position = jax.lax.scan(step, position, jax.random.split(key, thin))[0]
        return position, position

    return jnp.asarray(jax.lax.scan(next_draw, theta, jax.random.split(key, draws))[1])
