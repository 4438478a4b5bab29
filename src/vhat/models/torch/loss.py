"""The loss of each training row and its derivatives at the fitted values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vhat.checks import Loss
from vhat.errors import ModelError
from vhat.models.loss import LossDerivatives, diagonal_if_separable, half_square, half_square_values
from vhat.models.torch.arrays import to_array
from vhat.models.torch.describe import describe

__all__ = ["loss_derivatives", "loss_values"]


def loss_values(loss: Loss, f: Any, y: Any, weights: Any, squeeze: bool) -> np.ndarray:
    """Return ``w_i l(f_i, y_i)``, (n,)."""
    if isinstance(loss, str):
        return half_square_values(to_array(f), to_array(y), to_array(weights))
    return to_array(weights * _map_rows(_row_loss(loss, squeeze), f, y))


def loss_derivatives(loss: Loss, f: Any, y: Any, weights: Any, squeeze: bool) -> LossDerivatives:
    """Return the weighted loss of each row, its first and second derivatives in ``f``, and the mixed ones in f and y.

    Args:
        loss: ``"half_mse"``, or a callable of one row: ``l(f_i, y_i)`` with both of shape () if ``squeeze``, else (K,).
        f: Predictions, (n, K).
        y: Responses, (n, K).
        weights: One per row, (n,).
        squeeze: Whether the model returns (n,).

    Raises:
        ModelError: When the loss cannot be differentiated twice.
    """
    if isinstance(loss, str):
        return half_square(to_array(f), to_array(y), to_array(weights))
    value = loss_values(loss, f, y, weights, squeeze)
    w = weights[:, None]
    gradient = torch.func.grad(_row_loss(loss, squeeze))
    first = to_array(w * _map_rows(gradient, f, y))
    second = to_array(w[..., None] * _map_rows(torch.func.jacrev(gradient, 0), f, y))
    cross = to_array(w[..., None] * _map_rows(torch.func.jacrev(gradient, 1), f, y))
    # A loss of f - y has the cross derivative -second; other losses seldom have, at the fitted values of all rows.
    location = bool(np.allclose(cross, -second, rtol=1e-9, atol=1e-12 * np.abs(second).max()))
    return LossDerivatives(value, first, diagonal_if_separable(second), diagonal_if_separable(cross), location)


def _row_loss(loss: Callable[..., Any], squeeze: bool) -> Callable[[Any, Any], Any]:
    """Return the user's loss as a function of f and y, (K,), of one row, with a check of its result."""

    def row(f: Any, y: Any) -> Any:
        value = loss(f[0], y[0]) if squeeze else loss(f, y)
        if not isinstance(value, torch.Tensor) or tuple(value.shape) not in ((), tuple(f.shape)):
            got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise ModelError(
                f"loss(f_i, y_i) of one row returned {got}; it must return a scalar tensor, or one number per output."
            )
        return value.sum()

    return row


def _map_rows(function: Callable[[Any, Any], Any], f: Any, y: Any) -> Any:
    """Map over rows by vmap, so that a reduction inside a loss applies to one row; in a loop where vmap fails."""
    with torch.inference_mode(False), torch.enable_grad():
        try:
            return torch.vmap(function)(f, y).detach()
        except ModelError:
            raise
        except Exception:
            try:
                return torch.stack([function(a, b) for a, b in zip(f, y, strict=True)]).detach()
            except Exception as error:
                raise ModelError(f"differentiating the loss twice failed: {describe(error)}") from error
