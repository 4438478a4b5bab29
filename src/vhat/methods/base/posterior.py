"""The posterior that a penalised square loss stands for, and predictors drawn from it.

With Gaussian noise of standard deviation sigma, in the unit in which the loss of a row is half its square, and a prior
of variance ``sigma^2 / (n lam_j)`` for parameter j::

    log p(theta | y) = -(n / sigma^2) (L(theta) + 1/2 sum_j lam_j theta_j^2) + constant
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vhat.errors import InputError
from vhat.methods.base.noise_levels import different, one_level, scaled_levels, unlike_rows
from vhat.methods.base.requirements import require_square_loss

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.jax.compiled import Model
    from vhat.models.problem import Problem
    from vhat.variance.noise import Noise

__all__ = ["Drawn", "Posterior", "as_posterior", "log_density", "members", "noise_clause"]


class Posterior(NamedTuple):
    """What the log density depends on beside the model and theta.

    Attributes:
        fixed: The parameters that were not trained.
        X: Rows.
        y: Responses, (n, K).
        weights: One weight a row.
        decay: One lam a parameter.
        noise: sigma, in the loss's own unit.
        shift: ``decay`` times the prior mean, (p,); None where that is zero.
    """

    fixed: Any
    X: Any
    y: Any
    weights: Any
    decay: Any
    noise: Any
    shift: Any = None


def as_posterior(fitted: FittedModel, noise: Noise, method: str) -> tuple[Model, Posterior]:
    """Return the model and the posterior of a fitted JAX model, inside its float64 scope.

    Raises:
        InputError: When the model is not a JAX function, its loss not the square loss, or its outputs differ in noise.
    """
    from vhat.models.jax.autodiff import JaxAutodiff

    problem = fitted.problem
    autodiff = problem.autodiff
    if not isinstance(autodiff, JaxAutodiff) or problem.scaling is not None:
        raise InputError(
            f"{method} needs a model that JAX can differentiate inside a compiled loop. Use a recipe of vhat.fit, or "
            "one that ends in vhat.from_jax."
        )
    require_square_loss(fitted, method)
    level = jnp.asarray(one_level(fitted, noise, method))
    arrays = (jnp.asarray(problem.targets), jnp.asarray(problem.weights), problem.decay, level, problem.shift)
    return autodiff.model, Posterior(autodiff.fixed, jax.tree.map(jnp.asarray, problem.X), *arrays)


def log_density(model: Model, theta: Any, posterior: Posterior, batch: Any = None) -> Any:
    """Return the log density of the posterior; from some rows alone, an unbiased estimate of it."""
    X = posterior.X
    y = posterior.y
    weights = posterior.weights
    n = len(y)
    if batch is not None:
        X, y, weights = jax.tree.map(lambda leaf: leaf[batch], (X, y, weights))
    loss = model.total(posterior.fixed, theta, X, y, weights) * (n / len(y))
    penalty = 0.5 * n * jnp.sum(posterior.decay * theta**2)
    if posterior.shift is not None:
        penalty = penalty - n * jnp.sum(posterior.shift * theta)
    return -(posterior.noise**-2) * (loss + penalty)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A model at parameters that were drawn.

    Attributes:
        problem: The training problem.
        theta: The parameters, (p,).
    """

    problem: Problem = field(repr=False)
    theta: np.ndarray = field(repr=False)

    def predict(self, x: Any) -> np.ndarray:
        """Return predictions, (points,) or (points, outputs)."""
        problem = self.problem
        with problem.scope():
            found = problem.at(problem.native(self.theta)).predict(problem.inputs(x))
        return found[:, 0] if problem.squeeze else found


def members(fitted: FittedModel, draws: np.ndarray) -> tuple[Drawn, ...]:
    """Return a predictor for each row of ``draws``."""
    return tuple(Drawn(fitted.problem, theta) for theta in draws)


def noise_clause(fitted: FittedModel, noise: Noise) -> str:
    """Return what a guarantee says of the noise in the likelihood."""
    apart = different(scaled_levels(fitted, noise))
    outputs = ""
    if fitted.problem.outputs > 1:
        outputs = " of one level for all outputs"
    if apart:
        outputs += f", WHICH DIFFER ({apart} in the unit of the loss)"
    if unlike_rows(fitted, noise):
        outputs += ", IN ROWS WHOSE WEIGHTS DO NOT FOLLOW IT"
    return f"Gaussian noise{outputs}, its level {noise.source}"
