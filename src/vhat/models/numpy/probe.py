"""Checks of a NumPy model before its first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_finite, check_prediction, check_real_prediction
from vhat.errors import ModelError, name_rows
from vhat.models.numpy.inputs import take
from vhat.models.numpy.model import unmasked, wrap_errors

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["probe"]

_SAME_CALL_TOLERANCE = 1e-12
"""Largest relative difference between two evaluations of the same rows."""
_OTHER_ROWS_TOLERANCE = 1e-9
"""Largest relative difference between a row's predictions in blocks of different sizes, in which sums may be ordered
differently."""


def probe(predict: Callable[..., Any], theta: np.ndarray, X: Any) -> tuple[np.ndarray, bool]:
    """Evaluate the model on all rows, twice, and on a few rows alone.

    Returns:
        Its predictions in its own shape and dtype, and whether both evaluations agree to the last bit.

    Raises:
        ModelError: For a model that fails, is random, writes into its arguments, mixes rows or is not finite.
    """
    output = _call_with_copies(predict, theta, X)
    check_prediction(output.shape, len(X))
    check_real_prediction(output.dtype)
    check_finite("the model's prediction on X", output, ModelError)
    again = _call_with_copies(predict, theta, X)
    if again.shape != output.shape or not _agree(again, output, _SAME_CALL_TOLERANCE):
        raise ModelError(
            "two evaluations of the model on the same rows differ. Fix its random state: the interval of a "
            "random function is not defined."
        )
    _refuse_mixed_rows(predict, theta, X, output)
    return output, bool(np.array_equal(again, output))


def _call_with_copies(predict: Callable[..., Any], theta: np.ndarray, X: Any) -> np.ndarray:
    """Call the model with copies of its arguments, and raise if it writes into them."""
    own_theta = theta.copy()
    own_X = X.copy()
    with wrap_errors(f"predict failed on {len(X)} rows"), np.errstate(all="ignore"):
        output = np.array(unmasked(predict(own_theta, own_X)))
    same_X = own_X.equals(X) if hasattr(X, "iloc") else np.array_equal(own_X, X)
    if not np.array_equal(own_theta, theta) or not same_X:
        changed = "theta" if same_X else "X"
        raise ModelError(f"predict writes into {changed}. Work on a copy inside it: {changed} = {changed}.copy().")
    return output


def _refuse_mixed_rows(predict: Callable[..., Any], theta: np.ndarray, X: Any, output: np.ndarray) -> None:
    """Raise if the prediction for a row depends on the rows in the same call.

    Args:
        predict: The user's function.
        theta: The parameters, (p,).
        X: Checked inputs.
        output: The predictions for all rows.
    """
    n = len(X)
    single = [[row] for row in sorted({0, n // 2, n - 1})]
    halves = [list(range((n + 1) // 2)), list(range(n // 2, n))]
    for rows in single + halves:
        alone = _call_with_copies(predict, theta, take(X, rows))
        check_prediction(alone.shape, len(rows))
        same_shape = alone.shape[1:] == output.shape[1:]
        if not same_shape or not _agree(alone, output[rows], _OTHER_ROWS_TOLERANCE, output):
            raise ModelError(
                f"the prediction for {name_rows(rows, 3)} depends on the other rows of the call. Make predict treat "
                "each row alone: compute statistics such as X.max(), and times such as t[0], outside it."
            )


def _agree(a: np.ndarray, b: np.ndarray, tolerance: float, scale: np.ndarray | None = None) -> bool:
    """Return whether predictions agree, each output relative to its largest magnitude in ``scale`` (default b)."""
    size = np.max(np.abs(b if scale is None else scale), axis=0)
    return bool(np.all(np.abs(a - b) <= tolerance * size))
