"""A user's NumPy functions: called with copies of the parameters, checked for shape, probed before first use."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import (
    check_finite,
    check_prediction,
    check_real_prediction,
    column_names,
    match_columns,
    refuse_masked,
)
from vhat.errors import InputError, ModelError, VhatError, name_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CurveFit",
    "Design",
    "Model",
    "as_array",
    "as_inputs",
    "as_parameters",
    "match_inputs",
    "probe",
    "take",
    "takes_inputs_alone",
    "unmasked",
    "wrap_errors",
]

_SAME_CALL_TOLERANCE = 1e-12
"""Largest relative difference between two evaluations of the same rows."""
_OTHER_ROWS_TOLERANCE = 1e-9
"""Largest relative difference between a row's predictions in blocks of different sizes, in which sums may be ordered
differently."""


@dataclass(frozen=True, eq=False)
class Model:
    """A user's functions of parameters and inputs.

    Attributes:
        predict: ``predict(theta, X) -> (m,)`` or ``(m, K)``.
        jac: ``jac(theta, X) -> (m, p)`` or ``(m, K, p)``, or None; a `Design` where it does not depend on theta.
        hess: ``hess(theta, X) -> (m, p, p)`` or ``(m, K, p, p)``, or None.
        outputs: K.
        squeeze: Whether predict returns (m,).
    """

    predict: Callable[..., Any]
    jac: Callable[..., Any] | None
    hess: Callable[..., Any] | None
    outputs: int
    squeeze: bool

    @property
    def linear(self) -> bool:
        """Whether the Jacobian is a function of the inputs alone."""
        return isinstance(self.jac, Design)

    def values(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return the predictions of all (row, output) pairs, (m * K,)."""
        output = _real(self.predict(theta.copy(), X))
        expected = (len(X),) if self.squeeze else (len(X), self.outputs)
        if output.shape != expected:
            raise ModelError(f"the model returned shape {output.shape} for {len(X)} rows; it must return {expected}.")
        return output.reshape(-1)

    def jacobian(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return the user's Jacobian, one row per (row, output) pair, (m * K, p)."""
        return self._derivative("jac", theta, X).reshape(-1, len(theta))

    def checked_jacobian(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return the user's Jacobian, (m * K, p); raise if jac fails or the result is not finite."""
        with wrap_errors("jac failed"), np.errstate(all="ignore"):
            found = self._derivative("jac", theta, X)
        check_finite(self._signature("jac"), found, ModelError)
        return found.reshape(-1, len(theta))

    def checked_hessians(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return the user's second derivatives, (m * K, p, p); raise if hess fails or the result is not finite."""
        with wrap_errors("hess failed"), np.errstate(all="ignore"):
            found = self._derivative("hess", theta, X)
        check_finite(self._signature("hess"), found, ModelError)
        return found.reshape(-1, len(theta), len(theta))

    def _derivative(self, name: str, theta: np.ndarray, X: Any) -> np.ndarray:
        """Call jac or hess and check the shape of its result."""
        found = _real(getattr(self, name)(theta.copy(), X))
        m = len(X)
        p = len(theta)
        tail = (p,) if name == "jac" else (p, p)
        allowed = [(m, self.outputs, *tail)] if self.outputs > 1 else [(m, *tail), (m, 1, *tail)]
        if found.shape not in allowed:
            raise InputError(f"{self._signature(name)} returned shape {found.shape}; it must return {allowed[0]}.")
        return found

    def _signature(self, name: str) -> str:
        """Return the call of jac or hess, for messages."""
        return f"{name}(X)" if name == "jac" and self.linear else f"{name}(theta, X)"


@dataclass(frozen=True, eq=False)
class CurveFit:
    """SciPy's ``f(x, *params)`` as ``predict(theta, X)``.

    Attributes:
        f: The user's function.
        rows_last: Whether f takes its rows along the last axis, ``(k, n)``.
    """

    f: Callable[..., Any]
    rows_last: bool

    def __call__(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return predictions, (m,)."""
        output = unmasked(self.f(np.moveaxis(X, 0, -1) if self.rows_last else X, *theta))
        return np.full(len(X), output) if output.ndim == 0 else output


@dataclass(frozen=True, eq=False)
class Design:
    """The Jacobian of a model that is linear in its parameters, ``jac(X)``, as ``jac(theta, X)``."""

    jac: Callable[..., Any]

    def __call__(self, theta: np.ndarray, X: Any) -> Any:
        """Return the Jacobian at these inputs, (m, p) or (m, K, p)."""
        del theta
        return self.jac(X)


def takes_inputs_alone(jac: Callable[..., Any]) -> bool:
    """Return whether a function can be called with one argument and not with two.

    False for a function with an optional second argument, which is ambiguous, and for one without a known signature (a
    builtin): both count as ``jac(theta, X)``.
    """
    try:
        signature = inspect.signature(jac)
        signature.bind(None)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None, None)
    except TypeError:
        return True
    return False


def unmasked(output: Any) -> np.ndarray:
    """Return an array with NaN in place of masked values."""
    if np.ma.is_masked(output):
        return np.ma.filled(np.ma.asarray(output, dtype=np.float64), np.nan)
    return np.asarray(output)


def _real(output: Any) -> np.ndarray:
    """Return a float64 array, with NaN where the imaginary part is not zero, as a real function would have."""
    output = unmasked(output)
    if np.iscomplexobj(output):
        output = np.where(output.imag == 0, output.real, np.nan)
    return output.astype(np.float64)


@contextmanager
def wrap_errors(what: str, kind: type[VhatError] = ModelError) -> Iterator[None]:
    """Raise exceptions of a user's function as ``kind``, with ``what`` before the message."""
    try:
        yield
    except VhatError:
        raise
    except Exception as error:
        raise kind(f"{what}: {type(error).__name__}: {error}") from error


# -- parameters and inputs -----------------------------------------------------------------------
def as_parameters(theta: Any) -> np.ndarray:
    """Return a copy of the parameters, (p,), in their own dtype."""
    array = as_array(theta, "theta").copy()
    if array.ndim != 1 or not array.size or array.dtype.kind not in "fiu":
        raise InputError(
            f"theta has shape {array.shape} and dtype {array.dtype}; give one axis of real numbers, (p,). "
            "(theta.ravel() makes one axis; predict then reshapes it.)"
        )
    check_finite("theta", array)
    return array


def as_inputs(X: Any, name: str = "X") -> Any:
    """Return a copy of the inputs, rows on the leading axis: a pandas object stays one, all else becomes an array.

    Only numeric columns of a pandas object must be finite; the others are left to the user's function.
    """
    if hasattr(X, "iloc"):
        rows = X.copy()
        frame = X if hasattr(X, "columns") else X.to_frame()
        numbers = frame.select_dtypes("number").to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        rows = as_array(X, name).copy()
        numbers = rows
    if not np.ndim(rows) or not len(rows):
        raise InputError(f"{name} has shape {np.shape(rows)}: no rows. Give at least one row on the leading axis.")
    check_finite(name, numbers)
    return rows


def as_array(X: Any, name: str) -> np.ndarray:
    """Return an array of any dtype, because a NumPy model may take any; raise if values are masked."""
    refuse_masked(name, X)
    with wrap_errors(f"{name} is not an array", InputError):
        return np.asarray(X)


def match_inputs(x: Any, X: Any, *, rows_last: bool = False) -> Any:
    """Check test inputs against the training inputs ``X`` and convert them to the same form.

    Args:
        x: Test inputs.
        X: Checked training inputs.
        rows_last: Whether the rows of x are on its last axis.
    """
    if hasattr(X, "columns"):  # a data frame
        if not hasattr(x, "columns"):
            raise InputError(f"the model was trained on a data frame; give x as one, with columns {list(X.columns)}.")
        return as_inputs(match_columns("x", x, column_names(X)), "x")
    if hasattr(X, "iloc") and not hasattr(x, "iloc"):  # a pandas Series
        x = type(X)(as_array(x, "x"), name=X.name)
    array = x if hasattr(X, "iloc") else as_array(x, "x")
    if rows_last and np.ndim(array) == np.ndim(X):
        array = np.moveaxis(array, -1, 0)
    if np.ndim(array) != np.ndim(X) or array.shape[1:] != X.shape[1:]:
        axes = (*X.shape[1:], "m") if rows_last else ("m", *X.shape[1:])
        expected = ", ".join(map(str, axes)) + ("," if len(axes) == 1 else "")
        raise InputError(
            f"x has shape {np.shape(x)}; the training inputs ask for ({expected}), m the number of points. "
            "(One point is one row: x[None].)"
        )
    if not hasattr(X, "iloc") and array.dtype.kind not in X.dtype.kind + "fiub":
        raise InputError(f"x has dtype {array.dtype}; the training inputs have {X.dtype}.")
    return as_inputs(array, "x")


def take(X: Any, rows: Any) -> Any:
    """Return rows of checked inputs."""
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


# -- probes --------------------------------------------------------------------------------------
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
