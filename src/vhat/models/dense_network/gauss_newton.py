"""The Gauss-Newton matrix ``sum_i w_i g_i g_i'`` of a fully connected network over many rows.

With one hidden layer and one output the gradient of row i is ``(e_i ⊗ d_i, q_i)``: ``e`` the inputs extended by a one,
``d = phi'(a) * W_2`` and ``q`` the hidden values extended by a one. The large block of the matrix is then ::

    sum_i w_i (e_ia e_ib) (d_ij d_ik)

which is one product of the distinct pairs ``a <= b`` with the distinct pairs ``j <= k``: half of the multiplications
that ``J'J`` takes, and J is not formed.
"""

from __future__ import annotations

import numpy as np

from vhat.models.dense_network.layers import Pass

__all__ = ["gauss_newton", "pair_numbers", "pair_products"]

_ROWS_TOGETHER = 1024
"""Rows of one product: their pairs (4 MB in double precision for 32 units) stay near the processor."""


def gauss_newton(rows: Pass, weights: np.ndarray) -> np.ndarray:
    """Return ``sum_i w_i sum_o g_io g_io'``, (p, p), in the order of the flat vector.

    Args:
        rows: The forward pass.
        weights: One a row, (n,), none of them negative.
    """
    if len(rows.layers) == 2 and rows.outputs == 1:
        return _one_hidden_layer(rows, np.sqrt(weights))
    J = rows.jacobian()
    J *= np.repeat(np.sqrt(weights), rows.outputs)[:, None]
    found: np.ndarray = J.T @ J
    return found


def pair_products(values: np.ndarray) -> np.ndarray:
    """Return the products of all pairs of rows ``a <= b``, (k, m) to (k (k + 1) / 2, m)."""
    count = len(values)
    found = np.empty((count * (count + 1) // 2, values.shape[1]))
    at = 0
    for number in range(count):
        end = at + count - number
        np.multiply(values[number:], values[number], out=found[at:end])
        at = end
    return found


def pair_numbers(count: int) -> np.ndarray:
    """Return where the product of each pair stands in :func:`pair_products`, (k, k), symmetric."""
    found = np.zeros((count, count), dtype=np.intp)
    found[np.triu_indices(count)] = np.arange(count * (count + 1) // 2)
    return np.maximum(found, found.T)


def _one_hidden_layer(rows: Pass, roots: np.ndarray) -> np.ndarray:
    """Return the matrix by products of pairs; ``roots`` are the square roots of the weights."""
    inputs = _transposed(rows.hidden[0], np.ones(len(roots)))
    slopes = np.ascontiguousarray((rows.first[0] * (roots[:, None] * rows.layers[1][1][:, 0])).T)
    top = _transposed(rows.hidden[1] * roots[:, None], roots)
    columns, units = len(inputs), len(slopes)
    first = columns * units
    pairs = np.zeros((columns * (columns + 1) // 2, units * (units + 1) // 2))
    between = np.zeros((first, units + 1))
    for start in range(0, len(roots), _ROWS_TOGETHER):
        cut = slice(start, start + _ROWS_TOGETHER)
        e, d = inputs[:, cut], slopes[:, cut]
        pairs += pair_products(e) @ pair_products(d).T
        between += (e[:, None, :] * d).reshape(first, -1) @ top[:, cut].T
    found = np.empty((first + units + 1, first + units + 1))
    spread = pairs[pair_numbers(columns)[:, None, :, None], pair_numbers(units)[None, :, None, :]]
    found[:first, :first] = spread.reshape(first, first)
    found[:first, first:] = between
    found[first:, :first] = between.T
    found[first:, first:] = top @ top.T
    return found


def _transposed(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the columns of ``values`` below the row ``first``, (1 + columns, n)."""
    found = np.empty((values.shape[1] + 1, len(values)))
    found[0] = first
    found[1:] = values.T
    return found
