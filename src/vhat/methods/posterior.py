"""The posterior that a penalised square loss stands for, and predictors drawn from it.

With Gaussian noise of standard deviation sigma, and a prior of variance ``sigma^2 / (n lam_j)`` for parameter j::

    log p(theta | y) = -(n / sigma^2) (L(theta) + 1/2 sum_j lam_j theta_j^2) + constant
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vhat.errors import InputError
from vhat.methods.requirements import require_square_loss

if TYPE_CHECKING:
    from vhat.fitted import FittedModel
    from vhat.frontends.jax.kernels import Model
    from vhat.problem import Problem

__all__ = ["Drawn", "Posterior", "as_posterior", "log_density", "members"]


class Posterior(NamedTuple):
    """What the log density depends on beside the model and theta.

    Attributes:
        fixed: The parameters that were not trained.
        X: Rows.
        y: Responses, (n, K).
        weights: One weight a row.
        decay: One lam a parameter.
        precision: ``1 / sigma^2``.
    """

    fixed: Any
    X: Any
    y: Any
    weights: Any
    decay: Any
    precision: Any


def as_posterior(fitted: FittedModel, noise: float, method: str) -> tuple[Model, Posterior]:
    """Return the model and the posterior of a fitted JAX model, inside its float64 scope.

    Raises:
        InputError: When the model is not a JAX function, or its loss not the square loss.
    """
    from vhat.frontends.jax.problem import JaxProblem

    problem = fitted.problem
    if not isinstance(problem, JaxProblem):
        raise InputError(
            f"{method} needs a model that JAX can differentiate inside a compiled loop. Use a recipe of vhat.fit, or "
            "one that ends in vhat.from_jax."
        )
    require_square_loss(fitted, method)
    arrays = (jnp.asarray(problem.targets), jnp.asarray(problem.weights), problem.decay, jnp.asarray(noise**-2))
    return problem.model, Posterior(problem.fixed, jax.tree.map(jnp.asarray, problem.X), *arrays)


def log_density(model: Model, theta: Any, posterior: Posterior, batch: Any = None) -> Any:
    """Return the log density of the posterior; from some rows alone, an unbiased estimate of it."""
    X, y, weights = posterior.X, posterior.y, posterior.weights
    n = len(y)
    if batch is not None:
        X, y, weights = jax.tree.map(lambda leaf: leaf[batch], (X, y, weights))
    loss = model.total(posterior.fixed, theta, X, y, weights) * (n / len(y))
    return -posterior.precision * (loss + 0.5 * n * jnp.sum(posterior.decay * theta**2))


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
