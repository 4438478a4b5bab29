"""The Gauss-Newton matrix ``sum_i w_i g_i g_i'`` of a fully connected network over many rows.

With one hidden layer and one output the gradient of row i is ``(e_i ⊗ d_i, q_i)``. Here ``e`` are the inputs extended
by a one, ``d = phi'(a) * W_2``, and ``q`` are the hidden values extended by a one. The large block of the matrix is ::

    sum_i w_i (e_ia e_ib) (d_ij d_ik)

It is computed as one matrix product of the distinct pairs ``a <= b`` with the distinct pairs ``j <= k``, which takes
half of the multiplications of ``J'J`` and does not form J.
"""

from __future__ import annotations

import numpy as np

from vhat.models.dense_network.layers import Pass

__all__ = ["gauss_newton", "pair_numbers", "pair_products"]

_BLOCK_ROWS = 1024
"""Rows of one product. Their pairs (4 MB in double precision for 32 units) stay in the cache."""


def gauss_newton(rows: Pass, weights: np.ndarray) -> np.ndarray:
    """Return ``sum_i w_i sum_o g_io g_io'``, (p, p), in the order of the flat vector.

    Args:
        rows: The forward pass.
        weights: One per row, (n,), none of them negative.
    """
    if len(rows.layers) == 2 and rows.outputs == 1:
        return _one_hidden_layer(rows, np.sqrt(weights))
    J = rows.jacobian()
    J *= np.repeat(np.sqrt(weights), rows.outputs)[:, None]
    matrix: np.ndarray = J.T @ J
    return matrix


def pair_products(values: np.ndarray) -> np.ndarray:
    """Return the products of all pairs of rows ``a <= b``, (k, m) to (k (k + 1) / 2, m)."""
    count = len(values)
    products = np.empty((count * (count + 1) // 2, values.shape[1]))
    start = 0
    for row in range(count):
        stop = start + count - row
        np.multiply(values[row:], values[row], out=products[start:stop])
        start = stop
    return products


def pair_numbers(count: int) -> np.ndarray:
    """Return the index of each pair (a, b) in :func:`pair_products`, (k, k), symmetric."""
    numbers = np.zeros((count, count), dtype=np.intp)
    numbers[np.triu_indices(count)] = np.arange(count * (count + 1) // 2)
    return np.maximum(numbers, numbers.T)


def _one_hidden_layer(rows: Pass, roots: np.ndarray) -> np.ndarray:
    """Return the matrix for one hidden layer and one output.

    Args:
        rows: The forward pass.
        roots: The square roots of the weights, (n,).
    """
    # One row per parameter index, so that pairs of rows are contiguous. The weights enter d and q as square roots.
    inputs = _transposed(rows.hidden[0], np.ones(len(roots)))
    slopes = np.ascontiguousarray((rows.first[0] * (roots[:, None] * rows.layers[1][1][:, 0])).T)
    top = _transposed(rows.hidden[1] * roots[:, None], roots)
    columns = len(inputs)
    units = len(slopes)
    lower = columns * units  # parameters of the hidden layer; those of the output layer follow
    pairs = np.zeros((columns * (columns + 1) // 2, units * (units + 1) // 2))
    mixed = np.zeros((lower, units + 1))
    for start in range(0, len(roots), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        e = inputs[:, block]
        d = slopes[:, block]
        pairs += pair_products(e) @ pair_products(d).T
        mixed += (e[:, None, :] * d).reshape(lower, -1) @ top[:, block].T
    matrix = np.empty((lower + units + 1, lower + units + 1))
    # Entry (a, j), (b, k) is that of the pairs (a, b) and (j, k).
    spread = pairs[pair_numbers(columns)[:, None, :, None], pair_numbers(units)[None, :, None, :]]
    matrix[:lower, :lower] = spread.reshape(lower, lower)
    matrix[:lower, lower:] = mixed
    matrix[lower:, :lower] = mixed.T
    matrix[lower:, lower:] = top @ top.T
    return matrix


def _transposed(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return ``first`` as a row above the transpose of ``values``, (1 + columns, n)."""
    stacked = np.empty((values.shape[1] + 1, len(values)))
    stacked[0] = first
    stacked[1:] = values.T
    return stacked
