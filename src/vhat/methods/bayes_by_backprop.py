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
from vhat.fit.many_fits import Recipe
from vhat.fit.recipe import check_positive
from vhat.linalg.curvature import scale
from vhat.methods.base.ensemble import Ensemble
from vhat.methods.base.method import Claim, check_noise, find_noise, fit_once
from vhat.methods.base.posterior import Posterior, as_posterior, log_density, members, noise_clause

if TYPE_CHECKING:
    from vhat.models.jax.compiled import Model

__all__ = ["BayesByBackprop"]

_STREAM = 23
_FIRST_SPREAD = 0.1
"""Standard deviations start at this share of those that the diagonal of the Gauss-Newton matrix would give."""
_ROUNDING = 1e-2
"""Slopes are of the order of one in these units. Far below, Adam would make its full steps of their rounding."""


@dataclass(frozen=True)
class BayesByBackprop:
    """The independent normal parameters ``N(m_j, s_j^2)`` nearest to the posterior (Blundell et al., 2015).

    Nearest in ``KL(q || p)``: means and standard deviations maximise the evidence's lower bound, its gradient taken
    through draws ``m + s eps`` in pairs ``+-eps``, by Adam with a cosine schedule from the fit on. The unit of each
    parameter is ``sigma / sqrt(n (diag(J'J/n) + lam))``. For a linear model that is the very answer, ``s_j^2`` being
    one over the diagonal of the posterior's precision: never more than the posterior variance of the parameter, and
    less where parameters trade off. All outputs have one noise level.

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

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> Ensemble:
        """Train once, and fit means and standard deviations about it.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``: a JAX model with the square loss.
            X: Rows.
            y: Responses.
            seed: Determines the training and all draws.

        Raises:
            InputError: When the model is not one of JAX, its loss not the square loss, or its outputs differ in noise.
            ModelError: When the means or standard deviations are no longer finite.
            NotPositiveDefinite: When a parameter has neither influence nor decay, and so no posterior.
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        fitted = fit_once(recipe, X, y, seed)
        noise = find_noise(fitted, self.noise)
        problem = fitted.problem
        with problem.scope():
            model, posterior = as_posterior(fitted, noise, "BayesByBackprop")
            unit = float(posterior.noise) / (np.sqrt(problem.n) * scale(problem))
            keys = jax.random.split(jax.random.key(seed), self.steps)
            rate = jnp.asarray(self.learning_rate)
            moved, spread = _maximise(model, self.steps, self.pairs, keys, problem.theta, unit, posterior, rate)
            mean, deviation = (np.asarray(each) for each in (problem.theta + unit * moved, unit * jnp.exp(spread)))
        if not (np.isfinite(mean).all() and np.isfinite(deviation).all()):
            raise ModelError(f"Bayes by Backprop diverged at learning_rate={self.learning_rate:g}. Lower it.")
        eps = np.random.default_rng([seed, _STREAM]).standard_normal((self.draws, problem.p))
        claim = Claim(
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
        return Ensemble(members(fitted, mean + deviation * eps), claim, fitted, self.noise, spread="draws")


@partial(jax.jit, static_argnums=(0, 1, 2))
def _maximise(
    model: Model, steps: int, pairs: int, keys: Any, theta: Any, unit: Any, posterior: Posterior, rate: Any
) -> tuple[Any, Any]:
    """Return means, as moves from ``theta``, and logarithms of standard deviations, both in ``unit``, (p,)."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps), eps=_ROUNDING)

    def negative_bound(params: tuple[Any, Any], eps: Any) -> Any:
        moved, spread = params
        drawn = theta + unit * (moved + jnp.exp(spread) * jnp.concatenate([eps, -eps]))
        return -jnp.mean(jax.vmap(lambda each: log_density(model, each, posterior))(drawn)) - jnp.sum(spread)

    def step(state: tuple[Any, Any], key: Any) -> tuple[tuple[Any, Any], None]:
        params, memory = state
        eps = jax.random.normal(key, (pairs, len(theta)), theta.dtype)
        updates, memory = optimizer.update(jax.grad(negative_bound)(params, eps), memory)
        return (optax.apply_updates(params, updates), memory), None

    start = (jnp.zeros_like(theta), jnp.full_like(theta, np.log(_FIRST_SPREAD)))
    found: tuple[Any, Any] = jax.lax.scan(step, (start, optimizer.init(start)), keys)[0][0]
    return found
