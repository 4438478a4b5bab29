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
from vhat.methods.base.guarantee import Claim
from vhat.methods.base.method import check_noise, find_noise
from vhat.methods.base.posterior import Posterior, as_posterior, log_density, members, posterior_claim

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.jax.compiled import Model
    from vhat.variance.noise import Noise

__all__ = ["BayesByBackprop"]

_STREAM = 23
"""Number of this method's stream of random numbers."""
_FIRST_SPREAD = 0.1
"""Initial standard deviations, in units of those given by the diagonal of the Gauss-Newton matrix."""
_ADAM_EPS = 1e-2
"""Adam's eps. Gradients are of order one in these units; with a much smaller eps Adam would take full steps along
rounding errors."""


@dataclass(frozen=True)
class BayesByBackprop(BaseMethod[Ensemble]):
    """Mean-field variational inference: the closest posterior with independent parameters (Blundell et al., 2015).

    The approximation ``N(m_j, s_j^2)`` minimises ``KL(q || p)``: means and standard deviations maximise the evidence
    lower bound. Adam with a cosine schedule starts at the fit. Gradients pass through draws ``m + s eps``, in pairs
    ``+-eps``. The unit of each parameter is ``sigma / sqrt(n (diag(J'J/n) + lam))``. For a linear model this is the
    exact ``s_j``: ``s_j^2`` is one over the diagonal of the posterior precision. It is never more than the posterior
    variance of the parameter, and less if parameters are correlated. All outputs must have one noise level.

    The recipe must give a JAX model with the square loss. Every parameter must influence a prediction or have decay:
    otherwise the posterior is improper.

    Attributes:
        steps: Number of Adam steps.
        learning_rate: Initial learning rate, in the unit above.
        pairs: Pairs of draws per step.
        draws: Number of parameter vectors drawn for prediction.
        noise: Standard deviation of y; None estimates it from the residuals of the fit.

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
            shift, log_spread = _maximise(model, self.steps, self.pairs, keys, problem.theta, unit, posterior, rate)
            mean = np.asarray(problem.theta + unit * shift)
            deviation = np.asarray(unit * jnp.exp(log_spread))
        if not (np.isfinite(mean).all() and np.isfinite(deviation).all()):
            raise ModelError(f"Bayes by Backprop diverged at learning_rate={self.learning_rate:g}. Lower it.")
        eps = data.random(_STREAM).standard_normal((self.draws, problem.p))
        drawn = members(fitted, mean + deviation * eps)
        return Ensemble(drawn, self._claim(fitted, noise), fitted, self.noise, spread="draws")

    def _claim(self, fitted: FittedModel, noise: Noise) -> Claim:
        return posterior_claim(
            "Bayes by Backprop",
            fitted,
            noise,
            by=f"Student's t over {self.draws} draws from the nearest posterior with independent parameters",
            assumed=(
                "independent parameters, which makes the spread of parameters that trade off too small",
                f"{self.steps} steps enough to find that posterior",
            ),
        )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _maximise(
    model: Model, steps: int, pairs: int, keys: Any, theta: Any, unit: Any, posterior: Posterior, rate: Any
) -> tuple[Any, Any]:
    """Return the means less ``theta`` and the logarithms of the standard deviations, both in ``unit``, (p,) each."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps), eps=_ADAM_EPS)

    def negative_bound(params: tuple[Any, Any], eps: Any) -> Any:
        shift, log_spread = params
        drawn = theta + unit * (shift + jnp.exp(log_spread) * jnp.concatenate([eps, -eps]))
        expected = jnp.mean(jax.vmap(lambda each: log_density(model, each, posterior))(drawn))
        # The entropy of independent normals is the sum of their log standard deviations, up to a constant.
        return -expected - jnp.sum(log_spread)

    def step(state: tuple[Any, Any], key: Any) -> tuple[tuple[Any, Any], None]:
        params, moments = state
        eps = jax.random.normal(key, (pairs, len(theta)), theta.dtype)
        updates, moments = optimizer.update(jax.grad(negative_bound)(params, eps), moments)
        return (optax.apply_updates(params, updates), moments), None

    start = (jnp.zeros_like(theta), jnp.full_like(theta, np.log(_FIRST_SPREAD)))
    params: tuple[Any, Any] = jax.lax.scan(step, (start, optimizer.init(start)), keys)[0][0]
    return params
