"""Adam with dropout on the hidden layers of a network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from vhat.fit import training
from vhat.fit.adam_steps import CosineAdam, cosine_schedule
from vhat.fit.data import check_fits
from vhat.fit.objective import Fit, inner
from vhat.fit.training import run
from vhat.models.networks import ACTIVATIONS, Network, Params

__all__ = ["train_with_dropout"]

_STREAM = 15
"""Number of the stream of random numbers for dropout."""


class DropoutState(NamedTuple):
    """The state of a training with dropout.

    Attributes:
        params: The parameters.
        moments: Adam's two moments.
        key: Random key of the next draw.
        kept: Probability that a unit is kept.
    """

    params: Params
    moments: Any
    key: Any
    kept: Any


@dataclass(frozen=True)
class DropoutRule:
    """Adam's step on the loss of a network with dropout, drawn separately for each row.

    Attributes:
        decoupled: Whether the decay is decoupled from Adam's scaling, as in AdamW.
        rate: Probability that a unit is dropped.
        seed: Seed of the draws.
    """

    decoupled: bool
    # Only ``init`` reads these two. Without them in comparisons, all rates and seeds share one compilation.
    rate: float = field(compare=False)
    seed: int = field(compare=False)

    def init(self, params: Params) -> DropoutState:
        """Return the first state, with moments of zero."""
        key = jax.random.fold_in(jax.random.PRNGKey(self.seed % 2**32), _STREAM)
        return DropoutState(params, optax.adamw(0.0).init(params), key, jnp.asarray(1 - self.rate))

    def prepare(self, network: Network, fit: Fit, state: DropoutState) -> DropoutState:  # noqa: ARG002
        """Return the state unchanged."""
        return state

    def step(self, network: Network, fit: Fit, state: DropoutState, rate: Any) -> DropoutState:
        """Take one step with learning rate ``rate``."""
        key, draw = jax.random.split(state.key)

        def objective(params: Params) -> Any:
            residual = _predict(network, params, fit.X, draw, state.kept) - fit.y
            loss = jnp.sum(fit.weights[:, None] * residual**2) / (2 * len(fit.y))
            if self.decoupled:
                return loss
            return loss + fit.decay / 2 * inner(params, params)

        # AdamW adds the decay to the step; Adam has it in the objective above.
        decay = fit.decay if self.decoupled else 0.0
        method = optax.adamw(rate, weight_decay=decay)
        updates, moments = method.update(jax.grad(objective)(state.params), state.moments, state.params)
        return DropoutState(optax.apply_updates(state.params, updates), moments, key, state.kept)


def _predict(network: Network, params: Params, X: Any, key: Any, kept: Any) -> Any:
    """Return predictions, (n, K), with hidden units dropped and the others scaled up."""
    hidden = X
    for layer, each in zip(params[:-1], jax.random.split(key, len(params) - 1), strict=True):
        hidden = ACTIVATIONS[network.activation](jnp.matmul(hidden, layer["w"]) + layer["b"])
        hidden = hidden * jax.random.bernoulli(each, kept, hidden.shape) / kept
    return jnp.matmul(hidden, params[-1]["w"]) + params[-1]["b"]


def train_with_dropout(recipe: CosineAdam, rate: float, X: Any, y: Any, seed: int) -> Params:
    """Return parameters trained with dropout under the options of an Adam recipe.

    Args:
        recipe: :class:`vhat.fit.Adam` or :class:`vhat.fit.AdamW`.
        rate: Probability that a hidden unit is dropped in a step.
        X: Rows, (n, inputs).
        y: Responses.
        seed: Seed of the first parameters and of the dropout.

    Raises:
        InputError: When the data cannot be used.
        ModelError: When training diverges.
    """
    return run(
        recipe.network,
        DropoutRule(recipe._decoupled, rate, seed),
        check_fits(recipe.network, X, y, seeds=[seed]),
        [cosine_schedule(recipe.learning_rate, recipe.steps)],
        decay=recipe.weight_decay,
        dtype=recipe.dtype,
        label="dropout",
        chunks=-(-recipe.steps // training.CHUNK),
    )[0].params
