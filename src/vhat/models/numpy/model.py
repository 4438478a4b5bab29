"""A user's NumPy functions, called with copies of the parameters and checked for the shape of their results."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_finite
from vhat.errors import InputError, ModelError, VhatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CurveFit", "Design", "Model", "takes_inputs_alone", "unmasked", "wrap_errors"]


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
