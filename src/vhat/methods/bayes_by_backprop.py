"""Bayes by Backprop: a Gaussian posterior with independent parameters, fitted by stochastic gradients (optax)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vhat.checks import check_count
from vhat.errors import ModelError
from vhat.fit.recipe import check_positive
from vhat.linalg.curvature import scale
from vhat.methods.base.ensemble import Ensemble
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.method import Claim, check_noise, find_noise
from vhat.methods.base.posterior import Posterior, as_posterior, log_density, members, noise_clause

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.jax.compiled import Model
    from vhat.variance.noise import Noise

__all__ = ["BayesByBackprop"]

_STREAM = 23
"""Number of this method's stream of random numbers, different for each method."""
_FIRST_SPREAD = 0.1
"""Standard deviations start at this share of those that the diagonal of the Gauss-Newton matrix would give."""
_ROUNDING = 1e-2
"""Adam's eps. Gradients are of order one in these units; far below that Adam would take full steps along rounding."""


@dataclass(frozen=True)
class BayesByBackprop(BaseMethod[Ensemble]):
    """The independent normal parameters ``N(m_j, s_j^2)`` nearest to the posterior (Blundell et al., 2015).

    Nearest in ``KL(q || p)``: means and standard deviations maximise the evidence's lower bound, its gradient taken
    through draws ``m + s eps`` in pairs ``+-eps``, by Adam with a cosine schedule, started at the fit. The unit of each
    parameter is ``sigma / sqrt(n (diag(J'J/n) + lam))``. For a linear model the unit is the exact ``s_j``: ``s_j^2`` is
    one over the diagonal of the posterior's precision, never more than the posterior variance of the parameter, and
    less where parameters trade off. All outputs have one noise level.

    It needs a JAX model with the square loss, and every parameter influence or decay: without either it has no
    posterior.

    Attributes:
        steps: Steps of Adam.
        learning_rate: The first, in units of the above.
        pairs: Pairs of draws a step.
        draws: Members that are drawn for prediction.
        noise: The standard deviation of y; None estimates it from the residuals of the fit.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Minimum, Network
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> recipe = Minimum(Network((1, 1)), weight_decay=1e-2)
        >>> fit = BayesByBackprop(steps=200, draws=20).fit(recipe, x, x[:, 0] + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]]).bound
        'Bayes by Backprop'
    """

    steps: int = 2000
    learning_rate: float = 0.02
    pairs: int = 4
    draws: int = 200
    noise: float | None = None

    def __post_init__(self) -> None:
        check_count("steps", self.steps, least=1)
        check_positive("learning_rate", self.learning_rate)
        check_count("pairs", self.pairs, least=1)
        check_count("draws", self.draws, least=2)
        check_noise(self.noise)

    def _fit(self, data: Training) -> Ensemble:
        fitted = data.fit_once()
        noise = find_noise(fitted, self.noise)
        problem = fitted.problem
        with problem.scope():
            model, posterior = as_posterior(fitted, noise, "BayesByBackprop")
            unit = float(posterior.noise) / (np.sqrt(problem.n) * scale(problem))
            keys = jax.random.split(jax.random.key(data.seed), self.steps)
            rate = jnp.asarray(self.learning_rate)
            moved, spread = _maximise(model, self.steps, self.pairs, keys, problem.theta, unit, posterior, rate)
            mean = np.asarray(problem.theta + unit * moved)
            deviation = np.asarray(unit * jnp.exp(spread))
        if not (np.isfinite(mean).all() and np.isfinite(deviation).all()):
            raise ModelError(f"Bayes by Backprop diverged at learning_rate={self.learning_rate:g}. Lower it.")
        eps = data.random(_STREAM).standard_normal((self.draws, problem.p))
        drawn = members(fitted, mean + deviation * eps)
        return Ensemble(drawn, self._claim(fitted, noise), fitted, self.noise, spread="draws")

    def _claim(self, fitted: FittedModel, noise: Noise) -> Claim:
        return Claim(
            name="Bayes by Backprop",
            covers="the regression function, in the belief that the decay expresses as a prior",
            response="a new response, in the belief that the decay expresses as a prior",
            by=f"Student's t over {self.draws} draws from the nearest posterior with independent parameters",
            assumed=(
                "that the truth is a draw from that prior",
                noise_clause(fitted, noise),
                "independent parameters, which makes the spread of parameters that trade off too small",
                f"{self.steps} steps enough to find that posterior",
            ),
        )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _maximise(
    model: Model, steps: int, pairs: int, keys: Any, theta: Any, unit: Any, posterior: Posterior, rate: Any
) -> tuple[Any, Any]:
    """Return means, as moves from ``theta``, and logarithms of standard deviations, both in ``unit``, (p,)."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps), eps=_ROUNDING)

    def negative_bound(params: tuple[Any, Any], eps: Any) -> Any:
        moved, spread = params
        drawn = theta + unit * (moved + jnp.exp(spread) * jnp.concatenate([eps, -eps]))
        fit = jnp.mean(jax.vmap(lambda each: log_density(model, each, posterior))(drawn))
        # The entropy of the normal laws is the sum of their log deviations, up to a constant.
        return -fit - jnp.sum(spread)

    def step(state: tuple[Any, Any], key: Any) -> tuple[tuple[Any, Any], None]:
        params, memory = state
        eps = jax.random.normal(key, (pairs, len(theta)), theta.dtype)
        updates, memory = optimizer.update(jax.grad(negative_bound)(params, eps), memory)
        return (optax.apply_updates(params, updates), memory), None

    start = (jnp.zeros_like(theta), jnp.full_like(theta, np.log(_FIRST_SPREAD)))
    found: tuple[Any, Any] = jax.lax.scan(step, (start, optimizer.init(start)), keys)[0][0]
    return found
