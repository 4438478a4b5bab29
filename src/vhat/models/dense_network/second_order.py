"""Second derivatives of a fully connected network, summed over rows: the residuals' share of the Hessian.

A parameter of layer l acts on the pre-activation ``a_l`` alone. With ``s = sum_o c_o f_o`` of one row, ``P_lr`` the
derivative of ``a_r`` in ``a_l`` (units of l, units of r) and ``delta_l = ds/da_l``, perturbations of ``a_l`` and
``a_m`` have the mixed derivative ::

    E_lm = sum_{r >= max(l, m), r < D} P_lr diag(phi''(a_r) * W_{r+1} delta_{r+1}) P_mr'

because every hidden layer above both bends once. For weights of layers l <= m, with ``h`` extended by a one for the
bias, ::

    d2s / dW_l[a, j] dW_m[b, k] = h_{l-1}[a] (h_{m-1}[b] E_lm[j, k] + Q_lm[j, b] delta_m[k])

where ``Q_lm = P_l,m-1 diag(phi'(a_{m-1}))`` is the derivative of ``h_{m-1}`` in ``a_l``, zero for l = m and for the
bias. ``P_ll`` is the identity, so that the terms which hold it are diagonal: all terms of one hidden layer are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vhat.models.dense_network.gauss_newton import pair_numbers, pair_products
from vhat.models.dense_network.layers import Pass

__all__ = ["residual_part"]

_BLOCK_BYTES = 2**22
"""Memory of one block of per-row matrices, which then stays near the processor."""


def residual_part(rows: Pass, last: np.ndarray) -> np.ndarray:
    """Return ``sum_i sum_o last_io hess f_o(x_i)``, (p, p), in the order of the flat vector.

    Args:
        rows: The forward pass.
        last: The weight of each prediction, (n, K).
    """
    sizes = [biases.size + weights.size for biases, weights in rows.layers]
    ends = np.cumsum([0, *sizes])
    found = np.zeros((ends[-1], ends[-1]))
    for block, weights in _blocks(rows, last):
        deltas = block.deltas(weights)
        extended = [np.column_stack([np.ones(len(hidden)), hidden]) for hidden in block.hidden]
        bends = [
            second * (deltas[r + 1] @ block.layers[r + 1][1].T) for r, second in enumerate(block.second)
        ]  # phi''(a_r) * W delta
        for low in range(len(sizes) - 1):
            chain = _chain(block, low)
            for high in range(low, len(sizes)):
                part = _pair(block, extended, deltas, bends, chain, low, high)
                rows_at, columns_at = slice(*ends[low : low + 2]), slice(*ends[high : high + 2])
                found[rows_at, columns_at] += part
                if high > low:
                    found[columns_at, rows_at] += part.T
    return found


def _blocks(rows: Pass, last: np.ndarray) -> Iterator[tuple[Pass, np.ndarray]]:
    """Cut the rows so that per-row matrices of two layers, extended by the inputs of one, fit a block."""
    widths = [weights.shape for _, weights in rows.layers]
    numbers = max(a * b for a, b in widths) * max(b for _, b in widths) if len(widths) > 2 else sum(map(sum, widths))
    size = max(1, _BLOCK_BYTES // (8 * max(numbers, widths[0][0] ** 2)))
    for start in range(0, len(last), size):
        cut = slice(start, start + size)
        hidden, first, second = ([array[cut] for array in arrays] for arrays in (rows.hidden, rows.first, rows.second))
        yield Pass(rows.layers, hidden, first, second, rows.output[cut]), last[cut]


def _chain(rows: Pass, low: int) -> list[np.ndarray | None]:
    """Return ``P_lr`` for every hidden layer r, (n, units of l, units of r); None for the identity ``P_ll``."""
    found: list[np.ndarray | None] = [None] * len(rows.first)
    for r in range(low + 1, len(rows.first)):
        weights, slope = rows.layers[r][1], rows.first[r - 1]
        before = found[r - 1]
        found[r] = slope[:, :, None] * weights if before is None else (before * slope[:, None, :]) @ weights
    return found


def _pair(
    rows: Pass,
    extended: list[np.ndarray],
    deltas: list[np.ndarray],
    bends: list[np.ndarray],
    chain: list[np.ndarray | None],
    low: int,
    high: int,
) -> np.ndarray:
    """Return the block of layers ``low`` and ``high``, (parameters of low, parameters of high)."""
    inner, outer = extended[low], extended[high]
    units, width = deltas[low].shape[1], deltas[high].shape[1]
    found = np.zeros((inner.shape[1], units, outer.shape[1], width))
    full = _full_bend(rows, bends, chain, high)
    if full is not None:  # h_{l-1}[a] h_{m-1}[b] E[j, k]
        spread = (outer[:, None, :, None] * full[:, :, None, :]).reshape(len(outer), -1)
        found += (inner.T @ spread).reshape(found.shape)
    if low == high:  # the term of E with both identities: diagonal in the units
        pairs = pair_products(np.ascontiguousarray(inner.T))
        diagonal = (pairs @ bends[low])[pair_numbers(inner.shape[1])]
        found[:, np.arange(units), :, np.arange(units)] += diagonal.transpose(2, 0, 1)
    else:
        through = chain[high - 1]
        slope = rows.first[high - 1]
        if through is None:  # Q is diagonal: unit j of the lower layer is input j of the higher one
            spread = (slope[:, :, None] * deltas[high][:, None, :]).reshape(len(inner), -1)
            crossed = (inner.T @ spread).reshape(inner.shape[1], units, width)
            found[:, np.arange(units), np.arange(units) + 1, :] += crossed
        else:
            moved = through * slope[:, None, :]
            spread = (moved[:, :, :, None] * deltas[high][:, None, None, :]).reshape(len(inner), -1)
            found[:, :, 1:, :] += (inner.T @ spread).reshape(inner.shape[1], units, -1, width)
    return found.reshape(inner.shape[1] * units, -1)


def _full_bend(rows: Pass, bends: list[np.ndarray], chain: list[np.ndarray | None], high: int) -> np.ndarray | None:
    """Return ``E_lm`` without the term that is diagonal, (n, units of l, units of m); None where nothing is left."""
    if high >= len(bends):
        return None
    above = _chain(rows, high)
    total = None
    for r in range(high, len(bends)):
        left, right = chain[r], above[r]
        if left is None:  # l = m = r
            continue
        weighted = left * bends[r][:, None, :]
        term = weighted if right is None else weighted @ right.transpose(0, 2, 1)
        total = term if total is None else total + term
    return total
