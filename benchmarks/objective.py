"""The loss of a trained network in plain JAX, and its derivatives as well as they can be had: what rivals are given.

Nothing here uses vhat. Data go in chunks of about a thousand rows, which stay in cache; the linearisation of the
gradient is kept from one product to the next or made anew, whichever is quicker on the problem at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from benchmarks.problems import Trained
from benchmarks.timing import Stopwatch


@dataclass(frozen=True, eq=False)
class Objective:
    """``L + lam/2 |theta|^2`` of one trained network, float64; all calls inside :func:`jax.enable_x64`.

    Attributes:
        trained: The network and its data.
        chunk: Rows a chunk; the padding has weight zero.
    """

    trained: Trained
    chunk: int = 1000

    @cached_property
    def _raveled(self) -> tuple[jax.Array, Callable[[Any], Any]]:
        return ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), self.trained.params))

    @property
    def theta(self) -> jax.Array:
        """The parameters, (p,)."""
        return self._raveled[0]

    @property
    def n(self) -> int:
        """How many rows there are."""
        return len(self.trained.y)

    @cached_property
    def data(self) -> tuple[jax.Array, ...]:
        """Rows, responses and weights in chunks."""
        chunks = -(-self.n // self.chunk)
        rows = -(-self.n // chunks)
        short = chunks * rows - self.n
        columns = (self.trained.X, self.trained.y, np.ones(self.n))
        padded = [np.concatenate([column, np.zeros((short, *column.shape[1:]))]) for column in columns]
        return tuple(jnp.asarray(column.reshape(chunks, rows, *column.shape[1:])) for column in padded)

    def predict(self, theta: Any, X: Any) -> Any:
        """Predictions (rows,)."""
        return self.trained.network(self._raveled[1](theta), X)

    def gradient(self, theta: Any, data: Any) -> Any:
        """``grad L_lam``, (p,)."""

        def loss(t: Any, X: Any, y: Any, w: Any) -> Any:
            return 0.5 * jnp.sum(w * (self.predict(t, X) - y) ** 2) / self.n

        def body(total: Any, part: Any) -> Any:
            return total + jax.grad(loss)(theta, *part), None

        return jax.lax.scan(body, self.trained.setting.lam * theta, data)[0]

    def gradient_of_prediction(self, theta: Any, x: Any) -> Any:
        """``grad f(x)`` for one point (d,)."""
        return jax.grad(lambda t: self.predict(t, x[None])[0])(theta)

    def hessian(self, theta: Any, data: Any, *, keep: bool) -> Callable[[Any], Any]:
        """The product with ``H + lam``, linearised once (``keep``) or forward over reverse at every call."""
        gradient = partial(self.gradient, data=data)
        if keep:
            return jax.linearize(gradient, theta)[1]
        return lambda v: jax.jvp(gradient, (theta,), (v,))[1]

    def norm(self, theta: Any, data: Any, h: Any) -> Any:
        """``V = |J h|^2 / n``."""

        def image(part: Any) -> Any:
            return part[2] * jax.jvp(lambda t: self.predict(t, part[0]), (theta,), (h,))[1]

        return jnp.sum(jax.lax.map(image, data) ** 2) / self.n


def gradient_of_loss(trained: Trained, watch: Stopwatch) -> Callable[[int], Any]:
    """One gradient of the loss, whole or in chunks, whichever is quickest: the unit of cost."""

    def ready(objective: Objective) -> Callable[[], Any]:
        with jax.enable_x64(True):
            compiled = jax.jit(objective.gradient)
            theta, data = objective.theta, objective.data

        def run() -> Any:
            with jax.enable_x64(True):
                return jax.block_until_ready(compiled(theta, data))

        return run

    sizes = sorted({min(rows, len(trained.y)) for rows in (250, 500, 1000, 2000, len(trained.y))})
    ways = {f"gradient, {rows} rows at once": ready(Objective(trained, rows)) for rows in sizes}
    best = ways[watch.fastest(ways)]
    return lambda _: best()
