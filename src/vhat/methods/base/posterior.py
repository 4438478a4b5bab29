"""The posterior that corresponds to a penalised square loss, and predictors drawn from it.

Let the noise be Gaussian with standard deviation sigma, in the unit in which the loss of a row is half its square, and
let parameter j have a Gaussian prior of variance ``sigma^2 / (n lam_j)``. Then::

    log p(theta | y) = -(n / sigma^2) (L(theta) + 1/2 sum_j lam_j theta_j^2) + constant
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vhat.errors import InputError
from vhat.methods.base.guarantee import PRIOR_MEAN, PRIOR_RESPONSE, Claim
from vhat.methods.base.limits import without_output_axis
from vhat.methods.base.noise_levels import level_range, one_level, scaled_levels, weights_contradict_noise
from vhat.methods.base.requirements import require_square_loss

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.jax.compiled import Model
    from vhat.models.problem import Problem
    from vhat.variance.noise import Noise

__all__ = ["Drawn", "Posterior", "as_posterior", "log_density", "members", "posterior_claim"]


class Posterior(NamedTuple):
    """The data and hyperparameters of the log density.

    Attributes:
        fixed: The parameters that were not trained.
        X: Rows.
        y: Responses, (n, K).
        weights: Row weights, (n,).
        decay: lam of each parameter, (p,).
        noise: sigma, in the unit of the loss.
        shift: ``decay`` times the prior mean, (p,); None for a prior mean of zero.
    """

    fixed: Any
    X: Any
    y: Any
    weights: Any
    decay: Any
    noise: Any
    shift: Any = None


def as_posterior(fitted: FittedModel, noise: Noise, method: str) -> tuple[Model, Posterior]:
    """Return the model and the posterior of a fitted JAX model; call this inside its float64 scope.

    Args:
        fitted: The fitted model.
        noise: The noise.
        method: The method's name, for messages.

    Raises:
        InputError: When the model is not a JAX function, the loss is not the square loss, or the outputs differ in
            noise.
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
    """Return the log density of the posterior up to a constant, or an unbiased estimate of it from a batch.

    Args:
        model: The model.
        theta: The parameters, (p,).
        posterior: Data and hyperparameters.
        batch: Row numbers of the batch; None for all rows.
    """
    X = posterior.X
    y = posterior.y
    weights = posterior.weights
    n = len(y)
    if batch is not None:
        X, y, weights = jax.tree.map(lambda leaf: leaf[batch], (X, y, weights))
    # The mean loss of a batch is unbiased for that of all rows; the penalty does not depend on the batch.
    loss = model.total(posterior.fixed, theta, X, y, weights) * (n / len(y))
    penalty = 0.5 * n * jnp.sum(posterior.decay * theta**2)
    if posterior.shift is not None:
        penalty = penalty - n * jnp.sum(posterior.shift * theta)
    return -(posterior.noise**-2) * (loss + penalty)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A model at parameters drawn from the posterior.

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
            predicted = problem.at(problem.native(self.theta)).predict(problem.inputs(x))
        return without_output_axis(predicted, problem.squeeze)


def members(fitted: FittedModel, draws: np.ndarray) -> tuple[Drawn, ...]:
    """Return a predictor for each row of ``draws``."""
    return tuple(Drawn(fitted.problem, theta) for theta in draws)


def posterior_claim(name: str, fitted: FittedModel, noise: Noise, *, by: str, assumed: tuple[str, ...]) -> Claim:
    """Return the claim of a method whose members are drawn from this posterior.

    Args:
        name: Name of the method.
        fitted: The fitted model.
        noise: The noise in the likelihood.
        by: The argument for the level.
        assumed: What the method assumes beside the prior and the noise.
    """
    return Claim(
        name=name,
        covers=PRIOR_MEAN,
        response=PRIOR_RESPONSE,
        by=by,
        assumed=("that the truth is a draw from that prior", _noise_clause(fitted, noise), *assumed),
    )


def _noise_clause(fitted: FittedModel, noise: Noise) -> str:
    """Return the assumption of the likelihood about the noise, with its violations in capitals."""
    levels = level_range(scaled_levels(fitted, noise))
    outputs = ""
    if fitted.problem.outputs > 1:
        outputs = " of one level for all outputs"
    if levels:
        outputs += f", WHICH DIFFER ({levels} in the unit of the loss)"
    if weights_contradict_noise(fitted, noise):
        outputs += ", IN ROWS WHOSE WEIGHTS DO NOT FOLLOW IT"
    return f"Gaussian noise{outputs}, its level {noise.source}"
