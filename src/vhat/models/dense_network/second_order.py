"""Second derivatives of a fully connected network, summed over rows: the residual part of the Hessian.

A parameter of layer l affects the predictions only through the pre-activation ``a_l``. For one row let
``s = sum_o c_o f_o``, ``P_lr`` the derivative of ``a_r`` in ``a_l`` (units of l, units of r), and
``delta_l = ds/da_l``. The mixed second derivative of s in ``a_l`` and ``a_m`` is ::

    E_lm = sum_{r >= max(l, m), r < D} P_lr diag(phi''(a_r) * W_{r+1} delta_{r+1}) P_mr'

with one term for every hidden layer r above both. For the weights of layers l <= m, with ``h`` extended by a one for
the bias, ::

    d2s / dW_l[a, j] dW_m[b, k] = h_{l-1}[a] (h_{m-1}[b] E_lm[j, k] + Q_lm[j, b] delta_m[k])

where ``Q_lm = P_l,m-1 diag(phi'(a_{m-1}))`` is the derivative of ``h_{m-1}`` in ``a_l``, zero for l = m and for the
bias. ``P_ll`` is the identity. Terms with two identities are diagonal and are computed without per-row matrices; in a
network with one hidden layer these are all terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vhat.models.dense_network.gauss_newton import pair_numbers, pair_products
from vhat.models.dense_network.layers import Pass

__all__ = ["residual_part"]

_BLOCK_BYTES = 2**22
"""Memory of one block of per-row matrices, in bytes, small enough for the cache."""


def residual_part(rows: Pass, last: np.ndarray) -> np.ndarray:
    """Return ``sum_i sum_o last_io hess f_o(x_i)``, (p, p), in the order of the flat vector.

    Args:
        rows: The forward pass.
        last: The weight of each prediction, (n, K).
    """
    sizes = [biases.size + weights.size for biases, weights in rows.layers]
    ends = np.cumsum([0, *sizes])
    matrix = np.zeros((ends[-1], ends[-1]))
    for block in _blocks(rows, last):
        for low in range(len(sizes) - 1):
            chain = _chain(block.rows, low)
            at_low = slice(*ends[low : low + 2])
            for high in range(low, len(sizes)):
                at_high = slice(*ends[high : high + 2])
                part = _layer_pair(block, chain, low, high)
                matrix[at_low, at_high] += part
                if high > low:
                    matrix[at_high, at_low] += part.T
    return matrix


class _Block(NamedTuple):
    """A block of rows and what all pairs of layers need of it.

    Attributes:
        rows: The forward pass.
        deltas: ``delta_1`` to ``delta_D``, (rows, units) each.
        extended: ``h_0`` to ``h_{D-1}``, extended by a one for the bias.
        second: ``phi''(a_r) * W_{r+1} delta_{r+1}`` of the hidden layers r.
    """

    rows: Pass
    deltas: list[np.ndarray]
    extended: list[np.ndarray]
    second: list[np.ndarray]


def _blocks(rows: Pass, last: np.ndarray) -> Iterator[_Block]:
    """Split the rows so that per-row matrices of two layers, extended by the inputs of one, fit ``_BLOCK_BYTES``."""
    shapes = [weights.shape for _, weights in rows.layers]
    if len(shapes) > 2:
        numbers = max(inputs * outputs for inputs, outputs in shapes) * max(outputs for _, outputs in shapes)
    else:  # all terms are diagonal
        numbers = sum(map(sum, shapes))
    size = max(1, _BLOCK_BYTES // (8 * max(numbers, shapes[0][0] ** 2)))
    for start in range(0, len(last), size):
        index = slice(start, start + size)
        block = rows.take(index)
        deltas = block.deltas(last[index])
        extended = [np.column_stack([np.ones(len(hidden)), hidden]) for hidden in block.hidden]
        second = []
        for r, bend in enumerate(block.second):
            _, weights = block.layers[r + 1]
            second.append(bend * (deltas[r + 1] @ weights.T))
        yield _Block(block, deltas, extended, second)


def _chain(rows: Pass, low: int) -> list[np.ndarray | None]:
    """Return ``P_lr`` for every hidden layer r, (n, units of l, units of r); None for the identity ``P_ll``."""
    chain: list[np.ndarray | None] = [None] * len(rows.first)
    for r in range(low + 1, len(rows.first)):
        # P_lr = P_l,r-1 diag(phi'(a_{r-1})) W_r
        _, weights = rows.layers[r]
        slope = rows.first[r - 1]
        before = chain[r - 1]
        chain[r] = slope[:, :, None] * weights if before is None else (before * slope[:, None, :]) @ weights
    return chain


def _layer_pair(block: _Block, chain: list[np.ndarray | None], low: int, high: int) -> np.ndarray:
    """Return the block of layers l = ``low`` and m = ``high``, (parameters of l, parameters of m).

    Args:
        block: A block of rows.
        chain: ``P_lr`` of the lower layer.
        low: The lower layer.
        high: The higher layer, or the same one.
    """
    inner = block.extended[low]  # h_{l-1}
    outer = block.extended[high]  # h_{m-1}
    delta = block.deltas[high]
    units = block.deltas[low].shape[1]
    width = delta.shape[1]
    found = np.zeros((inner.shape[1], units, outer.shape[1], width))  # indexed by a, j, b, k
    E = _mixed_derivative(block, chain, high)
    if E is not None:  # h_{l-1}[a] h_{m-1}[b] E[j, k]
        spread = (outer[:, None, :, None] * E[:, :, None, :]).reshape(len(outer), -1)
        found += (inner.T @ spread).reshape(found.shape)
    if low == high:  # the term of E with two identities, diagonal in the units: j = k
        pairs = pair_products(np.ascontiguousarray(inner.T))
        diagonal = (pairs @ block.second[low])[pair_numbers(inner.shape[1])]
        found[:, np.arange(units), :, np.arange(units)] += diagonal.transpose(2, 0, 1)
    else:  # h_{l-1}[a] Q[j, b] delta_m[k]; b = 0 is the bias, where Q is zero
        P = chain[high - 1]
        slope = block.rows.first[high - 1]
        if P is None:  # Q is diagonal: unit j of layer l is input b = j + 1 of layer m
            spread = (slope[:, :, None] * delta[:, None, :]).reshape(len(inner), -1)
            part = (inner.T @ spread).reshape(inner.shape[1], units, width)
            found[:, np.arange(units), np.arange(units) + 1, :] += part
        else:
            Q = P * slope[:, None, :]
            spread = (Q[:, :, :, None] * delta[:, None, None, :]).reshape(len(inner), -1)
            found[:, :, 1:, :] += (inner.T @ spread).reshape(inner.shape[1], units, -1, width)
    return found.reshape(inner.shape[1] * units, -1)


def _mixed_derivative(block: _Block, chain: list[np.ndarray | None], high: int) -> np.ndarray | None:
    """Return ``E_lm`` without its diagonal term, (n, units of l, units of m); None where no other term exists."""
    if high >= len(block.second):  # the last layer is linear
        return None
    chain_high = _chain(block.rows, high)
    total = None
    for r in range(high, len(block.second)):
        P_low = chain[r]
        P_high = chain_high[r]
        if P_low is None:  # l = m = r, the diagonal term
            continue
        weighted = P_low * block.second[r][:, None, :]
        term = weighted if P_high is None else weighted @ P_high.transpose(0, 2, 1)
        total = term if total is None else total + term
    return total
