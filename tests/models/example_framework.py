"""A minimal framework as an example for contributors: second-order forward mode in NumPy, with the three protocols.

It uses ``vhat.models.protocols`` only. Its arrays are stricter than those of any real framework: they have a type of
their own, and can only be created inside of their scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.models.kinks import UNKNOWN_KINKS
from vhat.models.loss import LossDerivatives, half_square
from vhat.models.problem import Problem
from vhat.models.protocols import Curvature, Functional, Lazy, Linearised, ModelFacts, Point


# -- the framework itself: one value per row, with its derivatives in p parameters -----------------
@dataclass(frozen=True)
class Jet:
    """A value (m,), its gradient (m, p) and its Hessian (m, p, p)."""

    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray

    __array_ufunc__ = None  # ``array * jet`` is ours, not NumPy's

    def __add__(self, other: Any) -> Jet:
        if isinstance(other, Jet):
            return Jet(self.value + other.value, self.gradient + other.gradient, self.hessian + other.hessian)
        return Jet(self.value + other, self.gradient, self.hessian)

    def __mul__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            other = np.broadcast_to(other, self.value.shape)
            return Jet(self.value * other, self.gradient * other[:, None], self.hessian * other[:, None, None])
        a, b = self, other
        crossed = a.gradient[:, :, None] * b.gradient[:, None, :]
        hessian = a.hessian * b.value[:, None, None] + b.hessian * a.value[:, None, None]
        hessian = hessian + crossed + crossed.transpose(0, 2, 1)
        return Jet(a.value * b.value, a.gradient * b.value[:, None] + b.gradient * a.value[:, None], hessian)

    __radd__, __rmul__ = __add__, __mul__


def tanh(x: Jet) -> Jet:
    """Return the hyperbolic tangent of a jet, by the chain rule."""
    t = np.tanh(x.value)
    first, second = 1 - t**2, -2 * t * (1 - t**2)
    outer = x.gradient[:, :, None] * x.gradient[:, None, :]
    return Jet(t, first[:, None] * x.gradient, first[:, None, None] * x.hessian + second[:, None, None] * outer)


def variables(theta: np.ndarray, rows: int) -> list[Jet]:
    """Return the parameters as jets, the same in every row."""
    p = len(theta)
    flat = np.zeros((rows, p, p))
    return [Jet(np.full(rows, theta[j]), np.tile(np.eye(p)[j], (rows, 1)), flat) for j in range(p)]


# -- Arrays ---------------------------------------------------------------------------------------
class Boxed(np.ndarray):
    """An array of the framework."""


_open_scopes = 0


class JetArrays:
    """Creation and conversion of arrays, only inside of the scope."""

    @contextmanager
    def scope(self) -> Iterator[None]:
        global _open_scopes  # noqa: PLW0603
        _open_scopes += 1
        try:
            yield
        finally:
            _open_scopes -= 1

    def native(self, a: Any, /) -> Boxed:
        assert _open_scopes > 0, "an array was created outside of the scope of its framework"
        return np.array(a, dtype=np.float64).view(Boxed)

    def numpy(self, a: Any, /) -> np.ndarray:
        return np.asarray(a, dtype=np.float64).view(np.ndarray)

    def width(self, k: int, /) -> int:
        return -(-k // 3) * 3  # not a power of two

    def compiled(self, step: Callable[..., Any], /) -> Callable[..., Any]:
        return step


# -- Autodiff -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class JetAutodiff:
    """A function ``f(parameters, x) -> Jet`` of a list of p jets and of inputs (m, d)."""

    function: Callable[[list[Jet], np.ndarray], Jet]
    p: int

    framework = "jets"
    arrays = JetArrays()
    squeeze = True
    linear = False
    kinks = UNKNOWN_KINKS
    columns = None

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        return ((self.p,),)

    def check(self, x: Any, X: np.ndarray, /) -> np.ndarray:
        rows = np.asarray(x, dtype=np.float64)
        assert rows.shape[1:] == X.shape[1:]
        return rows

    def count(self, inputs: np.ndarray, /) -> int:
        return len(inputs)

    def take(self, inputs: np.ndarray, index: Any, /) -> np.ndarray:
        return inputs[index]

    def jet(self, theta: Any, inputs: np.ndarray) -> Jet:
        return self.function(variables(self.arrays.numpy(theta), len(inputs)), inputs)

    def predict(self, theta: Any, inputs: np.ndarray, /) -> np.ndarray:
        return self.jet(theta, inputs).value[:, None]

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        return half_square(f, y, weights)

    def params(self, theta: Any, /) -> np.ndarray:
        return self.arrays.numpy(theta).copy()

    def functional(self, theta: Any, q: Callable[[Any], Any], /) -> Functional:
        found = q(variables(self.arrays.numpy(theta), 1))
        return Functional(found.value[0], self.arrays.native(found.gradient))

    def linearise(self, point: Point, before: Linearised | None, /) -> JetLinearised:
        return JetLinearised(self, point, before)


# -- Linearised -----------------------------------------------------------------------------------
class JetLinearised(Linearised):
    """Derivatives from the jets of the training rows: the five methods that a framework must implement."""

    def __init__(self, autodiff: JetAutodiff, point: Point, before: Linearised | None) -> None:
        super().__init__(autodiff, point)
        self._model = autodiff
        # The jets of the training rows do not depend on responses, weights and decay.
        same = point.shared(before if isinstance(before, JetLinearised) else None, "theta", "X")
        self._rows = same._rows if same else Lazy(lambda: autodiff.jet(point.theta, point.X))

    def facts(self) -> ModelFacts:
        return ModelFacts("jets", "float64", True, (), 1e-15, 1e-15)

    def row_gradients(self, inputs: np.ndarray, /) -> Boxed:
        return self._model.arrays.native(self._model.jet(self.point.theta, inputs).gradient)

    def jvp(self, v: Boxed, /) -> np.ndarray:
        return (self._model.arrays.numpy(v) @ self._rows.result.gradient.T)[:, :, None]

    def vjp(self, t: np.ndarray, /) -> Boxed:
        return self._model.arrays.native(t[:, :, 0] @ self._rows.result.gradient)

    def product(self, v: Boxed, curvature: Curvature, /) -> Boxed:
        found = self.gauss_newton(v)
        if curvature == "ggn":
            return found
        first = self.loss.result.first[:, 0] / self.point.n
        residual_part = np.einsum("i,ipq->pq", first, self._rows.result.hessian)
        return found + self._model.arrays.native(self._model.arrays.numpy(v) @ residual_part)


# -- the function that a user calls ----------------------------------------------------------------------------
def jet_problem(
    function: Callable[[list[Jet], np.ndarray], Jet], theta: Any, X: Any, y: Any, *, weight_decay: float
) -> Problem:
    """Return the problem of a function of jets. (A real framework would check all arguments.)"""
    autodiff = JetAutodiff(function, len(theta))
    with autodiff.arrays.scope():
        return Problem(
            autodiff=autodiff,
            theta=autodiff.arrays.native(theta),
            decay=autodiff.arrays.native(np.full(len(theta), weight_decay)),
            X=np.array(X, dtype=np.float64),
            targets=np.array(y, dtype=np.float64).reshape(len(X), 1),
            weights=np.ones(len(X)),
            memory=10**8,
        )
