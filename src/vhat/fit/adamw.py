"""The paper's recipe: AdamW on the whole data set with a cosine schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vhat.checks import check_choice, check_finite, check_targets, check_weights
from vhat.errors import InputError, ModelError
from vhat.fit.networks import Network, Params
from vhat.progress import bar

if TYPE_CHECKING:
    from vhat.fitted import FittedModel

__all__ = ["AdamW", "cosine", "train"]

CHUNK = 500
"""Steps in one compiled call: between two of them progress is shown and divergence is found."""


@dataclass(frozen=True)
class AdamW:
    """Train a network with AdamW, a cosine schedule and full batches.

    The decay is decoupled, ``theta -= rate (adam(grad L) + weight_decay theta)``: it does not pass through
    Adam's scaling, so the end point is in general *not* a minimum of ``L + weight_decay/2 |theta|^2``.
    ``fitted.audit()`` measures that, ``fitted.polish()`` moves to a minimum.

    Attributes:
        network: What is trained.
        weight_decay: The decay, also the lam of the fitted model.
        steps: Passes over the data.
        learning_rate: The first rate; it falls to 0 along half a cosine.
        dtype: ``"float32"``, as in the paper, or ``"float64"``.

    Examples:
        >>> from vhat.fit import Network
        >>> AdamW(Network((1, 8, 1)), weight_decay=1e-3, steps=2_000).learning_rate
        0.001
    """

    network: Network
    weight_decay: float
    steps: int = 10_000
    learning_rate: float = 1e-3
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        if not isinstance(self.network, Network):
            raise InputError(f"network={self.network!r} is not a vhat.fit.Network.")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay={self.weight_decay!r} is not a finite number of at least 0.")
        if not (isinstance(self.steps, int | np.integer) and self.steps > 0):
            raise InputError(f"steps={self.steps!r} is not a positive whole number.")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate={self.learning_rate!r} is not a finite number above 0.")
        check_choice("dtype", self.dtype, ("float32", "float64"))

    def __call__(self, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
        """Train from the parameters that ``seed`` draws.

        Args:
            X: Rows, (n, inputs).
            y: Responses, (n,) or (n, outputs) as the network predicts.
            seed: Draws the first parameters; nothing else is random.
            sample_weight: One weight a row, or None.

        Returns:
            The fitted model, ``loss="half_mse"``.
        """
        from vhat.construct import from_jax

        params = train(self, self.network.init(seed), X, y, sample_weight=sample_weight)
        return from_jax(self.network, params, X, y, weight_decay=self.weight_decay, sample_weight=sample_weight)


def cosine(learning_rate: float, steps: int) -> np.ndarray:
    """Return the rate of each step, ``learning_rate (1 + cos(pi t / steps)) / 2`` for t = 0 .. steps - 1."""
    return learning_rate * (1.0 + np.cos(np.pi * np.arange(steps) / steps)) / 2.0


def train(options: AdamW, params: Params, X: Any, y: Any, *, sample_weight: Any = None) -> Params:
    """Return the parameters after ``options.steps`` steps from ``params``.

    The objective is ``L = 1/(2n) sum_i w_i |f(x_i) - y_i|^2``; compiled functions are shared by every call
    with the same network and shapes, whatever the decay and the rate.

    Args:
        options: Network, decay, schedule and precision.
        params: Where to start, as ``network.init`` draws them.
        X: Rows, (n, inputs).
        y: Responses, (n,) or (n, outputs).
        sample_weight: One weight a row, or None.

    Returns:
        NumPy arrays of ``options.dtype`` in the structure of ``params``.

    Raises:
        InputError: When the data are empty, not finite or of another shape.
        ModelError: When the loss is no longer finite.
    """
    rows, targets, weights = _checked_data(options.network, X, y, sample_weight)
    # The flag is scoped, and set both ways: a caller's global x64 does not change a float32 fit.
    with jax.enable_x64(options.dtype == "float64"):
        cast = partial(jnp.asarray, dtype=options.dtype)
        data = (cast(rows), cast(targets), cast(weights))
        rates = cosine(options.learning_rate, options.steps)
        params = jax.tree.map(cast, params)
        state = (params, optax.adamw(options.learning_rate).init(params))
        with bar("AdamW", -(-options.steps // CHUNK)) as advance:
            for start in range(0, options.steps, CHUNK):
                chunk = cast(rates[start : start + CHUNK])
                state, loss = _advance(options.network, state, data, chunk, cast(options.weight_decay))
                if not math.isfinite(loss):
                    raise ModelError(
                        f"the loss was {float(loss)} after {start + len(chunk)} steps of AdamW. Lower "
                        f"learning_rate={options.learning_rate!r}, or standardise X and y."
                    )
                advance(f"loss {float(loss):.3e}")
        trained: Params = jax.tree.map(np.array, state[0])
        return trained


def half_mse(network: Network, params: Params, data: tuple[Any, Any, Any]) -> Any:
    """``1/(2n) sum_i w_i |f(x_i) - y_i|^2`` over the rows, targets (n, K) and weights in ``data``."""
    X, y, weights = data
    residual = network(params, X).reshape(y.shape) - y
    return jnp.sum(weights[:, None] * residual**2) / (2 * len(y))


@partial(jax.jit, static_argnums=0)
def _advance(network: Network, start: tuple[Params, Any], data: Any, rates: Any, decay: Any) -> Any:
    """Take one step for each of ``rates``; return parameters with moments, and the last loss seen."""

    def step(carry: Any, rate: Any) -> Any:
        params, moments = carry
        loss, gradient = jax.value_and_grad(half_mse, argnums=1)(network, params, data)
        updates, moments = optax.adamw(rate, weight_decay=decay).update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    end, losses = jax.lax.scan(step, start, rates)
    return end, losses[-1]


def _checked_data(network: Network, X: Any, y: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, targets (n, K) and weights as float64, so that nothing trains on NaN or on a broadcast."""
    rows = np.asarray(X, dtype=np.float64)
    inputs, outputs = network.widths[0], network.widths[-1]
    if rows.ndim != 2 or rows.shape[1] != inputs:
        remedy = " Give X[:, None]." if rows.ndim == 1 and inputs == 1 else ""
        raise InputError(f"X has shape {rows.shape}; this network takes (rows, {inputs}).{remedy}")
    if not len(rows):
        raise InputError("X has no rows: there is nothing to train on.")
    check_finite("X", rows)
    shape = (len(rows),) if outputs == 1 else (len(rows), outputs)
    return rows, check_targets(y, shape), check_weights(sample_weight, len(rows))
