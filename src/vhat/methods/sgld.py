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
from vhat.errors import InputError, MissingPackage, ModelError
from vhat.linalg.curvature import Operator
from vhat.methods.base.ensemble import Ensemble, predictions
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.method import Claim, check_level, check_noise, find_noise
from vhat.methods.base.posterior import Posterior, as_posterior, log_density, members, noise_clause

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.jax.compiled import Model
    from vhat.models.problem import Problem
    from vhat.variance.noise import Noise

__all__ = ["SGLD"]

_POWER_STEPS = 30
"""Iterations of the power method for the largest curvature."""
_MARGIN = 1.05
"""Safety factor on that curvature, which the power method approaches from below."""
_FEW_ROWS = 64
"""Training rows at which the effective number of draws is measured."""
_WIDE = 1.25
"""Factor on the variance above which the guarantee says that it is too large."""


@dataclass(frozen=True)
class SGLD(BaseMethod[Ensemble]):
    """Draws from the posterior by noisy gradient steps about the fit (Welling and Teh, 2011).

    The chain starts at the fit and steps by ``step sigma^2 / (n beta)``, beta the largest curvature of the objective
    there; without an accept-reject step its variance along a direction of curvature ``c`` is too large by a factor
    ``1 / (1 - step c / (2 beta))``. It forgets a direction in about ``beta / (step c)`` steps: where the decay alone
    holds a direction that may be more than is run. All outputs have one noise level.

    The gradient of a batch is itself noisy, and would add ``step c n / (2 batch beta)`` to that factor. So with a batch
    a step is taken in ``1 + n / batch`` shorter ones, together as long and no cheaper: the factor stays below that of
    all rows, where residuals are of the size that the noise level says. A batch saves memory, and no time.

    It needs blackjax and a JAX model with the square loss.

    Attributes:
        draws: How many draws are kept.
        thin: Steps from one to the next, each in shorter ones where there are batches.
        burn_in: Steps before the first.
        step: The step, as a share of the one at which the steepest direction would be crossed in one stride.
        batch: Rows, drawn with replacement, for each gradient; None takes all, without the shorter steps.
        noise: The standard deviation of y; None estimates it from the residuals of the fit.

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
        few = problem.take(problem.X, 0, min(_FEW_ROWS, problem.n))
        claim = self._claim(fitted, noise, widening, _effective_draws(predictions(drawn, few)))
        return Ensemble(drawn, claim, fitted, self.noise)

    def _chain(self, model: Model, posterior: Posterior, problem: Problem, key: Any) -> np.ndarray:
        """Run the chain from the fit, and return what is kept of it, (draws, p)."""
        pieces = self._pieces(problem.n)
        stride = self.step * float(posterior.noise) ** 2 / (problem.n * _largest_curvature(problem)) / pieces
        burned = max(self.burn_in, 1) * pieces
        start = _walk(model, 1, burned, self.batch, key, problem.theta, posterior, stride)[-1]
        rest = jax.random.fold_in(key, 1)
        thin = self.thin * pieces
        return np.asarray(_walk(model, self.draws, thin, self.batch, rest, start, posterior, stride))

    def _claim(self, fitted: FittedModel, noise: Noise, widening: float, effective: float) -> Claim:
        batch = ""
        if self.batch is not None:
            batch = f", {self.batch} rows a step"
        excess = ""
        if widening > _WIDE:
            excess = f", WHICH WIDEN ITS VARIANCE UP TO {widening:.2g} TIMES"
        return Claim(
            name="SGLD",
            covers="the regression function, in the belief that the decay expresses as a prior",
            response="a new response, in the belief that the decay expresses as a prior",
            by=f"the normal quantile over {self.draws} draws from a Langevin chain{batch}, worth about {effective:.0f} "
            "independent ones on the training rows",
            assumed=(
                "that the truth is a draw from that prior",
                noise_clause(fitted, noise),
                "a chain that has been everywhere the posterior is",
                f"steps short enough not to widen it (step={self.step:g}){excess}",
            ),
        )

    def _pieces(self, n: int) -> int:
        """Return the number of shorter steps that one step is taken in."""
        if self.batch is None:
            return 1
        return 1 + math.ceil(n / self.batch)

    def _widening(self, problem: Problem, noise: float) -> float:
        """Return the factor on the variance along the steepest direction, (1 + e G / 2) / (1 - e C / 2).

        e is the length of a step, C the curvature of the log density, and G the variance of its slope from a batch:
        ``n / batch`` times C where the squared residuals are ``noise^2`` in the mean, in proportion where they are not.
        """
        share = self.step / self._pieces(problem.n)
        slope = 0.0
        if self.batch is not None:
            residual = problem.targets - problem.fitted_values
            misfit = np.mean(problem.loss_derivatives.curvature * residual**2) / noise**2
            slope = problem.n / self.batch * max(1.0, float(misfit))
        return (1 + share * slope / 2) / (1 - share / 2)


def _blackjax() -> Any:
    """Import blackjax, or say how to install it."""
    try:
        import blackjax
    except ImportError as error:
        raise MissingPackage(
            'SGLD is by blackjax, which is not installed. Install it: pip install "vhat[methods]", or pip install '
            "blackjax."
        ) from error
    return blackjax


def _effective_draws(values: np.ndarray) -> float:
    """Return the number of independent draws that the draws (draws, rows, ...) are worth, at the worst row."""
    chains = values.reshape(1, len(values), -1)
    return float(np.min(_blackjax().diagnostics.effective_sample_size(chains)))


def _largest_curvature(problem: Problem) -> float:
    """Return the largest eigenvalue of the Gauss-Newton matrix with decay, by the power method."""
    operator = Operator(problem, "ggn")
    direction = np.random.default_rng(0).standard_normal((1, problem.p))
    for _ in range(_POWER_STEPS):
        direction = problem.numpy(operator(problem.native(direction / np.linalg.norm(direction))))
    return _MARGIN * float(np.linalg.norm(direction))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _walk(
    model: Model, draws: int, thin: int, batch: int | None, key: Any, theta: Any, posterior: Posterior, stride: Any
) -> Any:
    """Return every ``thin``-th position of a chain, (draws, p)."""
    slope = jax.grad(log_density, argnums=1)
    chain = _blackjax().sgld(lambda position, rows: slope(model, position, posterior, rows))

    def step(position: Any, key: Any) -> tuple[Any, None]:
        first, second = jax.random.split(key)
        rows = None
        if batch is not None:
            rows = jax.random.randint(first, (batch,), 0, len(posterior.y))
        return chain.step(second, position, rows, stride), None

    def stretch(position: Any, key: Any) -> tuple[Any, Any]:
        position = jax.lax.scan(step, position, jax.random.split(key, thin))[0]
        return position, position

    return jnp.asarray(jax.lax.scan(stretch, theta, jax.random.split(key, draws))[1])
