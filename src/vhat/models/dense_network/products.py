"""Products of a network's curvature with single vectors, by one forward and one backward pass each.

A move of the parameters by ``(u_l, V_l)`` in biases and weights moves the pre-activations by
``a'_l = h'_{l-1} W_l + h_{l-1} V_l + u_l`` and the values by ``h'_l = phi'(a_l) a'_l``. With ``delta_l`` the gradient
of the loss in ``a_l``, its move is ``delta'_l = (delta'_{l+1} W' + delta_{l+1} V') phi'(a_l) + (delta_{l+1} W')
phi''(a_l) a'_l``, and the gradient in ``W_l`` moves by ``h'_{l-1} delta_l + h_{l-1} delta'_l`` (Pearlmutter 1994).
"""

from __future__ import annotations

import numpy as np

from vhat.models.dense_network.layers import Layer, Pass

__all__ = ["gauss_newton_product", "hessian_product"]


def gauss_newton_product(rows: Pass, move: list[Layer], weights: np.ndarray) -> np.ndarray:
    """Return ``sum_i w_i J_i'J_i v``, (p,).

    Args:
        rows: The forward pass.
        move: The vector v as biases and weights of each layer.
        weights: One a row, (n,).
    """
    moved = _moved(rows, move)[1]
    return rows.gradient(weights[:, None] * moved)


def hessian_product(rows: Pass, move: list[Layer], weights: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return ``(sum_i w_i J_i'J_i + sum_i sum_o last_io hess f_o(x_i)) v``, (p,).

    Args:
        rows: The forward pass.
        move: The vector v as biases and weights of each layer.
        weights: The second derivative of the loss of each row, (n,).
        last: Its first derivatives, (n, K).
    """
    hidden, moved = _moved(rows, move)
    deltas = rows.deltas(last)
    delta_moved = weights[:, None] * moved
    parts: list[np.ndarray] = []
    for layer in reversed(range(len(rows.layers))):
        values, values_moved = rows.hidden[layer], hidden[layer]
        delta = deltas[layer]
        slope = values.T @ delta_moved
        if values_moved is not None:
            slope += values_moved.T @ delta
        parts += [slope.ravel(), delta_moved.sum(axis=0)]
        if layer:
            back = delta_moved @ rows.layers[layer][1].T + delta @ move[layer][1].T
            bend = (delta @ rows.layers[layer][1].T) * rows.second[layer - 1]
            first = rows.first[layer - 1]
            # h' = phi'(a) a', so that phi'' a' needs a' itself
            delta_moved = back * first + bend * _pre_activation(rows, move, hidden, layer - 1)
    return np.concatenate(parts[::-1])


def _moved(rows: Pass, move: list[Layer]) -> tuple[list[np.ndarray | None], np.ndarray]:
    """Return the moves of ``h_0`` (None: inputs stay) to ``h_{D-1}``, and that of the predictions."""
    hidden: list[np.ndarray | None] = [None]
    for layer, first in enumerate(rows.first):
        hidden.append(first * _pre_activation(rows, move, hidden, layer))
    return hidden, _pre_activation(rows, move, hidden, len(rows.first))


def _pre_activation(rows: Pass, move: list[Layer], hidden: list[np.ndarray | None], layer: int) -> np.ndarray:
    """Return the move of the pre-activation of a layer, given those of the values below it."""
    biases, weights = move[layer]
    found: np.ndarray = rows.hidden[layer] @ weights + biases
    below = hidden[layer]
    if below is not None:
        found += below @ rows.layers[layer][1]
    return found
