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
    """``w_i l(f_i, y_i)``, (n,)."""
    if isinstance(loss, str):
        return half_square_values(to_array(f), to_array(y), to_array(weights))
    return to_array(weights * _each_row(_row_loss(loss, squeeze), f, y))


def loss_derivatives(loss: Loss, f: Any, y: Any, weights: Any, squeeze: bool) -> LossDerivatives:
    """The loss, its first and second derivatives in ``f`` and its mixed ones in ``f`` and ``y``, weighted.

    Args:
        loss: ``"half_mse"``, or a callable of one row: ``l(f_i, y_i)`` with both of shape () if ``squeeze``, else (K,).
        f: Predictions, (n, K).
        y: Responses, (n, K).
        weights: One a row, (n,).
        squeeze: Whether the model returns (n,).

    Raises:
        ModelError: When the loss cannot be differentiated twice.
    """
    if isinstance(loss, str):
        return half_square(to_array(f), to_array(y), to_array(weights))
    value = loss_values(loss, f, y, weights, squeeze)
    w = weights[:, None]
    row = _row_loss(loss, squeeze)
    slope = torch.func.grad(row)
    first = to_array(w * _each_row(slope, f, y))
    second = to_array(w[..., None] * _each_row(torch.func.jacrev(slope, 0), f, y))
    cross = to_array(w[..., None] * _each_row(torch.func.jacrev(slope, 1), f, y))
    location = bool(np.allclose(cross, -second, rtol=1e-9, atol=1e-12 * np.abs(second).max()))
    return LossDerivatives(value, first, diagonal_if_separable(second), diagonal_if_separable(cross), location)


def _row_loss(loss: Callable[..., Any], squeeze: bool) -> Callable[[Any, Any], Any]:
    def row(f: Any, y: Any) -> Any:
        value = loss(f[0], y[0]) if squeeze else loss(f, y)
        if not isinstance(value, torch.Tensor) or tuple(value.shape) not in ((), tuple(f.shape)):
            got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise ModelError(
                f"loss(f_i, y_i) of one row returned {got}; it must return a scalar tensor, or one number per output."
            )
        return value.sum()

    return row


def _each_row(function: Callable[[Any, Any], Any], f: Any, y: Any) -> Any:
    """Map over rows by vmap, so that reductions inside a loss act on one row; one by one where vmap cannot."""
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
