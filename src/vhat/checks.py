"""Checks of user input: shapes, finiteness, ranges and options."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from vhat.errors import InputError, ModelError, name_rows
from vhat.free_memory import free_memory

__all__ = [
    "LARGEST",
    "Loss",
    "as_numbers",
    "as_real",
    "check_choice",
    "check_count",
    "check_delta",
    "check_finite",
    "check_level",
    "check_loss",
    "check_magnitude",
    "check_memory",
    "check_nonnegative",
    "check_prediction",
    "check_real_prediction",
    "check_targets",
    "check_tolerance",
    "check_weights",
    "column_names",
    "decay_factor",
    "match_columns",
    "refuse_masked",
]

Loss = Literal["half_mse"] | Callable[..., Any]
"""A checked loss: half the squared error summed over outputs, or a callable of one row."""

LARGEST = 1e150
"""Largest magnitude of data and weights: sums of their squares do not overflow in double precision."""
_LARGEST_LEVEL = 1e75
"""Largest noise level, and inverse of the smallest: variances of variances are fourth powers."""
_SMALLEST_DELTA = 1e-300
"""Smallest delta: below it the quantile of Student's t overflows to an infinity of the wrong sign."""
_MOST_MEMORY = 1 << 60
"""Largest memory budget in bytes, more than any machine has."""


def refuse_masked(name: str, value: Any) -> None:
    """Refuse a masked array, or a sequence of them, with masked values: NumPy would silently drop the mask."""
    if not np.ma.is_masked(value):
        parts = value if isinstance(value, list | tuple) else []
    elif np.ndim(value) == 0:
        parts = [value]
    else:
        parts = value
    rows = [row for row, part in enumerate(parts) if np.ma.is_masked(part)]
    if rows:
        raise InputError(f"{name} is masked in {name_rows(rows)}. Remove these rows, or fill them.")


def as_real(name: str, value: Any) -> np.ndarray:
    """Return real numbers as an array of their own dtype.

    Raises:
        InputError: For masked, complex or ragged arrays, and for values that are not numbers.
    """
    refuse_masked(name, value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as one array of numbers: {error}") from error
    if array.dtype.kind == "c":
        raise InputError(f"{name} is complex; give real numbers.")
    if array.dtype.kind not in "fiub" and not _is_floating(array.dtype):
        if array.ndim == 0:
            raise InputError(f"{name}={reprlib.repr(value)} is not a number or an array of numbers.")
        raise InputError(f"{name} has dtype {array.dtype}; give numbers (encode categories and dates first).")
    return array


def _is_floating(dtype: Any) -> bool:
    return "float" in np.dtype(dtype).name  # bfloat16 is of kind V


def as_numbers(name: str, value: Any) -> np.ndarray:
    """Return real numbers as a float64 array, a copy.

    Raises:
        InputError: As :func:`as_real`.
    """
    return as_real(name, value).astype(np.float64)


def column_names(value: Any) -> tuple[Any, ...] | None:
    """Return the names of the columns of a data frame, None for anything else."""
    return tuple(value.columns) if hasattr(value, "columns") and hasattr(value, "iloc") else None


def match_columns(name: str, value: Any, columns: tuple[Any, ...] | None) -> Any:
    """Return a data frame with its columns in the order of the training columns; any other value unchanged.

    Raises:
        InputError: For columns that are missing, unknown or repeated.
    """
    given = column_names(value)
    if columns is None or given is None or given == columns:
        return value
    trained = set(columns)
    counts = Counter(given)
    missing = [column for column in columns if column not in counts]
    unknown = [column for column in given if column not in trained]
    repeated = [column for column in columns if counts[column] > 1]
    if missing:
        fault = f"lacks the columns {missing} of the training data"
    elif unknown:
        fault = f"has the columns {unknown}, which the training data have not"
    elif repeated:
        fault = f"has the columns {repeated} more than once"
    else:
        return value[list(columns)]
    raise InputError(f"{name} {fault}. Give the columns {list(columns)}.")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse an option that is not one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InputError(f"{name}={value!r} is not known. Use one of {listed}.")


def check_count(name: str, value: Any, least: int = 0) -> None:
    """Refuse a value that is not a whole number of at least ``least``."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name}={value!r} is not a whole number of at least {least}.")


def check_tolerance(name: str, value: Any) -> None:
    """Refuse a relative tolerance that is not a number between 0 and 1."""
    if not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{name}={reprlib.repr(value)} is not a number. Give a relative tolerance, such as 1e-8.")
    if not 0.0 < value < 1.0:
        raise InputError(f"{name}={value!r} is not between 0 and 1. It is relative and without unit, such as 1e-8.")


def check_delta(delta: float) -> float:
    """Return a failure probability as a float; refuse values outside (0, 1)."""
    number: Any = None if isinstance(delta, str) or np.ndim(delta) else delta
    try:
        value = float(number)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"delta={reprlib.repr(delta)} is not a number. Give the failure probability, such as 0.05."
        ) from None
    if not 0.0 < value < 1.0:
        raise InputError(
            f"delta={delta!r} is not between 0 and 1. It is the probability of a miss: 0.05 asks for 95% confidence."
        )
    if value < _SMALLEST_DELTA:
        raise InputError(f"delta={delta!r} is too small for double precision. Ask for {_SMALLEST_DELTA:g} or more.")
    return value


def check_finite(name: str, array: np.ndarray, error: type[Exception] = InputError) -> None:
    """Refuse NaN and infinity; the message names the rows (leading axis)."""
    array = np.asarray(array)
    if not np.issubdtype(array.dtype, np.inexact):
        return
    bad = ~np.isfinite(array)
    if bad.any():
        rows = np.flatnonzero(bad.reshape(len(array), -1).any(axis=1)) if array.ndim else [0]
        raise error(f"{name} has NaN or infinite values in {name_rows(rows)}. Remove or repair them.")


def check_magnitude(name: str, array: np.ndarray) -> None:
    """Refuse numbers whose squares overflow in double precision; the message names the rows."""
    bad = np.abs(array) > LARGEST
    if bad.any():
        rows = np.flatnonzero(bad.reshape(len(array), -1).any(axis=1))
        raise InputError(
            f"{name} has values beyond {LARGEST:g} in {name_rows(rows)}, whose squares are not numbers. Give {name} in "
            "another unit, or repair them."
        )


def check_loss(loss: Any, known: tuple[str, ...] = ("half_mse", "mse")) -> None:
    """Refuse a loss that is neither a known name nor callable."""
    if isinstance(loss, str) and loss == "gaussian_nll":
        raise InputError(
            "loss='gaussian_nll' is for from_torch. Here give the mean alone as the prediction, with "
            "loss='half_mse', sample_weight=1/variance, and interval(x, noise=deviation, observation_noise=...), with "
            "the variances that the model predicts."
        )
    if not callable(loss):
        check_choice("loss", loss, known)


def decay_factor(loss: Any, outputs: int) -> float:
    """Return the factor from a decay in the user's objective to lam in ``1/(2n) sum |f - y|^2 + lam/2 |theta|^2``.

    Torch's ``MSELoss`` averages over rows and outputs. Multiplying the objective by ``outputs / 2`` gives half the
    squared error, and turns a decay ``w`` into ``lam = outputs * w / 2``.
    """
    return outputs / 2.0 if isinstance(loss, str) and loss == "mse" else 1.0


def check_memory(memory: float | None) -> int:
    """Return the memory budget in bytes: the given one, or half of the memory that is free for this process."""
    if memory is not None:
        if not isinstance(memory, int | float | np.number) or not 0 < memory < np.inf:
            raise InputError(f"memory={reprlib.repr(memory)} is not a positive number of bytes, such as 2e9.")
        return int(min(memory, _MOST_MEMORY))
    return free_memory() // 2


def check_nonnegative(name: str, array: np.ndarray) -> None:
    """Refuse negative, non-finite and too large numbers, for decay and weights."""
    array = np.asarray(array, dtype=float)
    bad = array[~(np.isfinite(array) & (array >= 0))]
    if bad.size:
        raise InputError(f"{name} must be finite and not negative; found {float(bad[0])!r}.")
    if array.size and array.max() > LARGEST:
        raise InputError(f"{name} has {float(array.max())!r}, whose square is not a number. Give it in another unit.")


def check_level(name: str, array: np.ndarray, meaning: str) -> None:
    """Refuse standard deviations that are not positive, or whose squares overflow or underflow.

    Args:
        name: Name of the argument in messages.
        array: The standard deviations.
        meaning: End of the sentence "It is the standard deviation of".
    """
    bad = array[~(np.isfinite(array) & (array > 0))]
    if bad.size:
        raise InputError(
            f"{name} must be positive and finite; found {float(bad[0])!r}. It is the standard deviation of {meaning}."
        )
    bad = array[(array > _LARGEST_LEVEL) | (array < 1 / _LARGEST_LEVEL)]
    if bad.size:
        raise InputError(
            f"{name}={float(bad[0])!r} is beyond what can be squared in double precision. Give y and its noise in "
            "another unit."
        )


def check_weights(sample_weight: Any, n: int) -> np.ndarray:
    """Return sample weights as (n,) float64; ones for None."""
    if sample_weight is None:
        return np.ones(n)
    weights = as_numbers("sample_weight", sample_weight)
    if weights.shape != (n,):
        raise InputError(f"sample_weight has shape {weights.shape}; there are {n} rows, so give shape ({n},).")
    check_nonnegative("sample_weight", weights)
    if not weights.any():
        raise InputError("sample_weight is zero in every row: no row is left to learn from.")
    if weights.max() < 1 / LARGEST:
        raise InputError(
            f"sample_weight is at most {float(weights.max())!r}, whose square is zero. Give weights of ordinary size."
        )
    return weights


def check_prediction(shape: tuple[int, ...], n: int, remedy: str = "") -> None:
    """Refuse a model whose output for n rows is not (n,) or (n, outputs); ``remedy`` is appended to the message."""
    if len(shape) not in (1, 2) or shape[0] != n or (len(shape) == 2 and shape[1] == 0):
        raise ModelError(
            f"the model returned shape {tuple(shape)} for {n} rows; it must return ({n},) or ({n}, outputs).{remedy}"
        )


def check_real_prediction(dtype: Any) -> None:
    """Refuse a model that returns integers, booleans or complex numbers, which have no real derivative."""
    if not _is_floating(dtype):
        raise ModelError(
            f"the model returned dtype {dtype}, which has no derivative (rounding or a threshold inside?); it must "
            "return real numbers."
        )


def check_targets(y: Any, prediction_shape: tuple[int, ...]) -> np.ndarray:
    """Return the responses as (n, K) float64; their shape must be that of the predictions.

    Raises:
        InputError: When the shapes differ. ``(n, 1)`` against ``(n,)`` is refused too: in most training loops the loss
            is then broadcast to n x n, and the fit is wrong.
    """
    targets = as_numbers("y", y)
    n = prediction_shape[0]
    if targets.shape != tuple(prediction_shape):
        raise InputError(
            f"y has shape {targets.shape} but the model predicts shape {tuple(prediction_shape)}. "
            f"{_shape_remedy(targets.shape, tuple(prediction_shape))}"
        )
    check_finite("y", targets)
    check_magnitude("y", targets)
    return targets.reshape(n, -1)


def _shape_remedy(given: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Return advice for responses of a wrong shape."""
    n = expected[0]
    broadcast = " (If training saw this mismatch, the loss was broadcast to n x n and the fit should be redone.)"
    if given == (n,) and expected == (n, 1):
        return f"Give y[:, None], or squeeze the model's last axis.{broadcast}"
    if given == (n, 1) and expected == (n,):
        return f"Give y[:, 0].{broadcast}"
    if given and given[0] != n:
        return f"X has {n} rows and y has {given[0]}."
    return "Bring them to one shape."
