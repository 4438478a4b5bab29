"""A user's NumPy functions behind one door: called with copies, checked for shape, probed before first use."""

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
    "blame",
    "match_inputs",
    "probe",
    "take",
    "takes_inputs_alone",
    "unmasked",
]


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
        """Return predictions as one row a (row, output) pair, (m * K,)."""
        output = _real(self.predict(theta.copy(), X))
        wanted = (len(X),) if self.squeeze else (len(X), self.outputs)
        if output.shape != wanted:
            raise ModelError(f"the model returned shape {output.shape} for {len(X)} rows; it must return {wanted}.")
        return output.reshape(-1)

    def slopes(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return the user's Jacobian as rows, (m * K, p)."""
        return self._derivative("jac", theta, X).reshape(-1, len(theta))

    def sound_slopes(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return the user's Jacobian as rows, (m * K, p), or say what is wrong with it."""
        with blame("jac failed"), np.errstate(all="ignore"):
            found = self._derivative("jac", theta, X)
        check_finite(self._call("jac"), found, ModelError)
        return found.reshape(-1, len(theta))

    def sound_bends(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return the user's second derivatives as rows, (m * K, p, p), or say what is wrong with them."""
        with blame("hess failed"), np.errstate(all="ignore"):
            found = self._derivative("hess", theta, X)
        check_finite(self._call("hess"), found, ModelError)
        return found.reshape(-1, len(theta), len(theta))

    def _derivative(self, name: str, theta: np.ndarray, X: Any) -> np.ndarray:
        found = _real(getattr(self, name)(theta.copy(), X))
        m, tail = len(X), (len(theta),) * (1 if name == "jac" else 2)
        allowed = [(m, self.outputs, *tail)] if self.outputs > 1 else [(m, *tail), (m, 1, *tail)]
        if found.shape not in allowed:
            raise InputError(f"{self._call(name)} returned shape {found.shape}; it must return {allowed[0]}.")
        return found

    def _call(self, name: str) -> str:
        """Return what messages call a derivative."""
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

    A function with a second, optional argument may be meant either way, and one whose signature is not known (a
    builtin) is not asked: both count as ``jac(theta, X)``.
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
    """Return an array, NaN where it is masked: a value that is hidden is none."""
    if np.ma.is_masked(output):
        return np.ma.filled(np.ma.asarray(output, dtype=np.float64), np.nan)
    return np.asarray(output)


def _real(output: Any) -> np.ndarray:
    """Return a float64 array; what has an imaginary part becomes NaN, as a real function would."""
    output = unmasked(output)
    if np.iscomplexobj(output):
        output = np.where(output.imag == 0, output.real, np.nan)
    return output.astype(np.float64)


@contextmanager
def blame(what: str, kind: type[VhatError] = ModelError) -> Iterator[None]:
    """Turn whatever a user's function or data raise into an error that says where."""
    try:
        yield
    except VhatError:
        raise
    except Exception as error:
        raise kind(f"{what}: {type(error).__name__}: {error}") from error


# -- parameters and inputs -----------------------------------------------------------------------
def as_parameters(theta: Any) -> np.ndarray:
    """Return a copy of the parameters, (p,), in the dtype in which they came."""
    array = as_array(theta, "theta").copy()
    if array.ndim != 1 or not array.size or array.dtype.kind not in "fiu":
        raise InputError(
            f"theta has shape {array.shape} and dtype {array.dtype}; give one axis of real numbers, (p,). "
            "(theta.ravel() makes one axis; predict then reshapes it.)"
        )
    check_finite("theta", array)
    return array


def as_inputs(X: Any, name: str = "X") -> Any:
    """Return a copy of the inputs with rows on the leading axis: a pandas object as it is, else an array."""
    if hasattr(X, "iloc"):
        rows, frame = X.copy(), X if hasattr(X, "columns") else X.to_frame()
        numbers = frame.select_dtypes("number").to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        rows = numbers = as_array(X, name).copy()
    if not np.ndim(rows) or not len(rows):
        raise InputError(f"{name} has shape {np.shape(rows)}: no rows. Give at least one row on the leading axis.")
    check_finite(name, numbers)
    return rows


def as_array(X: Any, name: str) -> np.ndarray:
    """Return an array of any dtype, for a NumPy model may take what it likes, but whole."""
    refuse_masked(name, X)
    with blame(f"{name} is not an array", InputError):
        return np.asarray(X)


def match_inputs(x: Any, X: Any, *, rows_last: bool = False) -> Any:
    """Check test inputs against the training inputs ``X`` and bring them to the same form.

    Args:
        x: Test inputs.
        X: Checked training inputs.
        rows_last: Whether the rows of x stand along its last axis.
    """
    if hasattr(X, "columns"):
        if not hasattr(x, "columns"):
            raise InputError(f"the model was trained on a data frame; give x as one, with columns {list(X.columns)}.")
        return as_inputs(match_columns("x", x, column_names(X)), "x")
    if hasattr(X, "iloc") and not hasattr(x, "iloc"):
        x = type(X)(as_array(x, "x"), name=X.name)
    array = x if hasattr(X, "iloc") else as_array(x, "x")
    if rows_last and np.ndim(array) == np.ndim(X):
        array = np.moveaxis(array, -1, 0)
    if np.ndim(array) != np.ndim(X) or array.shape[1:] != X.shape[1:]:
        axes = (*X.shape[1:], "m") if rows_last else ("m", *X.shape[1:])
        wanted = "(" + ", ".join(map(str, axes)) + ("," if len(axes) == 1 else "") + ")"
        raise InputError(
            f"x has shape {np.shape(x)}; the training inputs ask for {wanted}, m the number of points. "
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
    """Run the model on all rows, twice, and a few rows alone.

    Returns:
        Its predictions in its own shape and dtype, and whether both runs agree to the last bit.

    Raises:
        ModelError: For a model that fails, is random, writes into its arguments, mixes rows or is not finite.
    """
    output = _careful(predict, theta, X)
    check_prediction(output.shape, len(X))
    check_real_prediction(output.dtype)
    check_finite("the model's prediction on X", output, ModelError)
    again = _careful(predict, theta, X)
    if again.shape != output.shape or not _agree(again, output, 1e-12):
        raise ModelError(
            "two evaluations of the model on the same rows differ. Fix its random state: the interval of a "
            "random function is not defined."
        )
    _refuse_mixed_rows(predict, theta, X, output)
    return output, bool(np.array_equal(again, output))


def _careful(predict: Callable[..., Any], theta: np.ndarray, X: Any) -> np.ndarray:
    """Call the model with copies and refuse it when it writes into them."""
    own_theta, own_X = theta.copy(), X.copy()
    with blame(f"predict failed on {len(X)} rows"), np.errstate(all="ignore"):
        output = np.array(unmasked(predict(own_theta, own_X)))
    same = own_X.equals(X) if hasattr(X, "iloc") else np.array_equal(own_X, X)
    if not np.array_equal(own_theta, theta) or not same:
        changed = "X" if not same else "theta"
        raise ModelError(f"predict writes into {changed}. Work on a copy inside it: {changed} = {changed}.copy().")
    return output


def _refuse_mixed_rows(predict: Callable[..., Any], theta: np.ndarray, X: Any, output: np.ndarray) -> None:
    n = len(X)
    halves = [list(range((n + 1) // 2)), list(range(n // 2, n))]
    for rows in [[row] for row in sorted({0, n // 2, n - 1})] + halves:
        alone = _careful(predict, theta, take(X, rows))
        check_prediction(alone.shape, len(rows))
        if alone.shape[1:] != output.shape[1:] or not _agree(alone, output[rows], 1e-9, output):
            raise ModelError(
                f"the prediction for {name_rows(rows, 3)} changes with the rows beside it. Make predict treat "
                "each row alone: compute statistics such as X.max(), and times such as t[0], outside it."
            )


def _agree(a: np.ndarray, b: np.ndarray, tolerance: float, scale: np.ndarray | None = None) -> bool:
    """Compare predictions, each output at its own scale."""
    size = np.max(np.abs(b if scale is None else scale), axis=0)
    return bool(np.all(np.abs(a - b) <= tolerance * size))
