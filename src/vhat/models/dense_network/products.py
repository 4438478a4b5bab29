"""Products of a network's curvature with single vectors, by one forward and one backward pass each.

All quantities are differentiated in the direction ``(u_l, V_l)`` of biases and weights (Pearlmutter 1994). A dot is the
directional derivative, ``delta_l`` the gradient of the loss in ``a_l``, and ``W'`` the transpose of ``W_{l+1}``:

- pre-activations: ``a._l = h._{l-1} W_l + h_{l-1} V_l + u_l``;
- values: ``h._l = phi'(a_l) a._l``;
- gradients: ``delta._l = (delta._{l+1} W' + delta_{l+1} V') phi'(a_l) + (delta_{l+1} W') phi''(a_l) a._l``;
- the gradient in ``W_l`` changes by ``h._{l-1} delta_l + h_{l-1} delta._l``, which gives the product.
"""

from __future__ import annotations

import numpy as np

from vhat.models.dense_network.layers import Layer, Pass

__all__ = ["gauss_newton_product", "hessian_product"]


def gauss_newton_product(rows: Pass, direction: list[Layer], weights: np.ndarray) -> np.ndarray:
    """Return ``sum_i w_i J_i'J_i v``, (p,).

    Args:
        rows: The forward pass.
        direction: The vector v as biases and weights of each layer.
        weights: One per row, (n,).
    """
    _, output_dot = _forward_dot(rows, direction)
    return rows.gradient(weights[:, None] * output_dot)


def hessian_product(rows: Pass, direction: list[Layer], weights: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return ``(sum_i w_i J_i'J_i + sum_i sum_o last_io hess f_o(x_i)) v``, (p,).

    Args:
        rows: The forward pass.
        direction: The vector v as biases and weights of each layer.
        weights: The second derivative of the loss of each row, (n,).
        last: Its first derivatives, (n, K).
    """
    hidden_dot, output_dot = _forward_dot(rows, direction)
    deltas = rows.deltas(last)
    delta_dot = weights[:, None] * output_dot
    parts: list[np.ndarray] = []  # from the last layer to the first, weights before biases
    for layer in reversed(range(len(rows.layers))):
        delta = deltas[layer]
        weights_dot = rows.hidden[layer].T @ delta_dot
        below_dot = hidden_dot[layer]
        if below_dot is not None:
            weights_dot += below_dot.T @ delta
        parts += [weights_dot.ravel(), delta_dot.sum(axis=0)]
        if layer:
            _, W = rows.layers[layer]
            _, V = direction[layer]
            back_dot = delta_dot @ W.T + delta @ V.T
            second = (delta @ W.T) * rows.second[layer - 1]
            a_dot = _pre_activation_dot(rows, direction, hidden_dot, layer - 1)
            delta_dot = back_dot * rows.first[layer - 1] + second * a_dot
    return np.concatenate(parts[::-1])


def _forward_dot(rows: Pass, direction: list[Layer]) -> tuple[list[np.ndarray | None], np.ndarray]:
    """Return the directional derivatives of ``h_0`` (None for zero) to ``h_{D-1}``, and of the predictions."""
    hidden_dot: list[np.ndarray | None] = [None]  # the inputs do not depend on the parameters
    for layer, first in enumerate(rows.first):
        hidden_dot.append(first * _pre_activation_dot(rows, direction, hidden_dot, layer))
    return hidden_dot, _pre_activation_dot(rows, direction, hidden_dot, len(rows.first))


def _pre_activation_dot(
    rows: Pass, direction: list[Layer], hidden_dot: list[np.ndarray | None], layer: int
) -> np.ndarray:
    """Return the directional derivative of the pre-activation of a layer, given those of the values below it."""
    biases, weights = direction[layer]
    a_dot: np.ndarray = rows.hidden[layer] @ weights + biases
    below_dot = hidden_dot[layer]
    if below_dot is not None:
        a_dot += below_dot @ rows.layers[layer][1]
    return a_dot
