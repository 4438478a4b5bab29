"""The penalised square loss of a network and its gradient, inside compiled functions.

The arithmetic here determines the last digits of every trained network: float32 results of the study depend on the
order of its operations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vhat.models.networks import Network, Params

__all__ = ["Fit", "half_mse", "inner", "penalised", "value_and_gradient", "vectorise_fits"]

_BLOCK_ROWS = 500
"""Rows per block in the sum of loss and gradient.

Milliseconds per step of AdamW with 1024 ReLU units in float32 on one core (AMD EPYC), by rows per block:

======  ======  =====  ====  ====  ====  ====  =====
d       n       whole  128   250   500   667   1000
======  ======  =====  ====  ====  ====  ====  =====
10      1,000   1.5    1.5   1.6   1.55  1.5
10      2,000   4.4          3.2   3.1
10      5,000   12.4         7.4   7.4
10      10,000  32.1   15.8  15.2  14.4  14.9  16.8
100     1,000   10.1   9.1   9.5   9.7   9.9
100     10,000  119    90    86    91    98    93
======  ======  =====  ====  ====  ====  ====  =====

The hidden values of 500 rows take 2 MB. Those of 10,000 rows take 41 MB, which does not fit into the cache between the
forward and the backward pass.
"""
_WHOLE_ROWS = 1000
"""Largest number of rows for which loss and gradient are computed without blocks: blocks gain nothing there (see the
table above)."""


class Fit(NamedTuple):
    """The data of one fit inside a compiled function.

    Attributes:
        X: Rows, (n, inputs).
        y: Targets, (n, K).
        weights: Row weights, (n,).
        decay: lam.
    """

    X: Any
    y: Any
    weights: Any
    decay: Any


def half_mse(network: Network, params: Params, fit: Fit) -> Any:
    """Return ``L = 1/(2n) sum_i w_i |f(x_i) - y_i|^2``."""
    residual = network(params, fit.X).reshape(fit.y.shape) - fit.y
    return jnp.sum(fit.weights[:, None] * residual**2) / (2 * len(fit.y))


def penalised(network: Network, params: Params, fit: Fit) -> Any:
    """Return ``L_lam = L + lam/2 |theta|^2``."""
    return half_mse(network, params, fit) + fit.decay / 2 * inner(params, params)


def value_and_gradient(network: Network, params: Params, fit: Fit, *, penalty: bool) -> tuple[Any, Params]:
    """Return the value and the gradient of ``L``, or of ``L_lam`` if ``penalty``, at ``params``.

    On a CPU many rows are summed in blocks. The blocks depend only on the number of rows, so that the last digits do
    not depend on the machine. Accelerators are faster with large products and take all rows at once.
    """
    if len(fit.y) <= _WHOLE_ROWS or vectorise_fits():
        objective = penalised if penalty else half_mse
        return jax.value_and_grad(objective, argnums=1)(network, params, fit)
    value, slope = _loss_in_blocks(network, params, fit)
    if penalty:
        value = value + fit.decay / 2 * inner(params, params)
        slope = jax.tree.map(lambda g, theta: g + fit.decay * theta, slope, params)
    return value, slope


def _loss_in_blocks(network: Network, params: Params, fit: Fit) -> tuple[Any, Params]:
    """Return ``L`` and its gradient, summed over blocks of at most ``_BLOCK_ROWS`` rows."""
    n = len(fit.y)
    blocks = -(-n // _BLOCK_ROWS)
    rows = -(-n // blocks)  # equal blocks, with fewer rows of padding than there are blocks

    def split(array: Any) -> Any:
        # The padding is zero, so that padded rows have weight zero.
        padding = [(0, blocks * rows - n)] + [(0, 0)] * (array.ndim - 1)
        return jnp.pad(array, padding).reshape(blocks, rows, *array.shape[1:])

    def add(total: tuple[Any, Params], block: tuple[Any, Any, Any]) -> tuple[tuple[Any, Params], None]:
        part = jax.value_and_grad(half_mse, argnums=1)(network, params, Fit(*block, fit.decay))
        return jax.tree.map(jnp.add, total, part), None

    zero = (jnp.zeros((), fit.y.dtype), jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(add, zero, (split(fit.X), split(fit.y), split(fit.weights)))
    # half_mse has divided each block by its own number of rows, and L divides by n.
    value, slope = jax.tree.map(lambda leaf: leaf * (rows / n), total)
    return value, slope


def inner(a: Params, b: Params) -> Any:
    """Return the inner product of two parameter trees."""
    return sum(jnp.sum(u * v) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def vectorise_fits() -> bool:
    """Return whether the fits are computed as one vectorised batch, rather than one after the other.

    On a CPU a vectorised batch of ten fits (d = 10, 1024 units) took 1.2 to 1.5 times as long at n = 100 and 1.5 to 1.9
    times at n = 1000, because it does not fit into the cache. Accelerators are faster with the batch.
    """
    return jax.default_backend() != "cpu"
