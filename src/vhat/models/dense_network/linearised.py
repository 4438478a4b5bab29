"""Dense derivatives of a network in NumPy over its training rows, computed on first use and cached."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from vhat.checks import check_finite
from vhat.errors import ModelError
from vhat.models.dense_network.gauss_newton import gauss_newton
from vhat.models.dense_network.layers import Pass, forward, unflatten
from vhat.models.dense_network.products import gauss_newton_product, hessian_product
from vhat.models.dense_network.second_order import residual_part
from vhat.models.loss import LossDerivatives
from vhat.models.protocols import Curvature, Lazy, Linearised, ModelFacts, Point

if TYPE_CHECKING:
    from vhat.models.dense_network.autodiff import NetworkAutodiff

__all__ = ["NetworkLinearised"]

_ACCURACY = 1e-14
"""Relative accuracy of derivatives in closed form, some dozens of roundings."""
_MAX_PRODUCTS_BY_ROWS = 8
"""Number of curvature products at one parameter vector that are computed by passes over the rows before the matrix is
formed. One pass takes about a tenth of the time of the matrix. Line searches need only one product at each of many
points."""


class NetworkLinearised(Linearised):
    """Derivatives of a network in closed form: see :class:`vhat.models.protocols.Linearised`.

    The Jacobian and both curvature matrices are formed: these networks are small
    (:func:`vhat.models.dense_network.is_small`), and one matrix product is faster than many products with vectors.
    """

    _autodiff: NetworkAutodiff
    _pass: Lazy[Pass]
    _jacobian: Lazy[np.ndarray]
    _gauss_newton: Lazy[np.ndarray]
    _residual: Lazy[np.ndarray]
    _products: int
    """Number of right-hand sides multiplied so far."""

    def __init__(self, autodiff: NetworkAutodiff, point: Point, before: Linearised | None) -> None:
        earlier = before if isinstance(before, NetworkLinearised) else None
        same_fit = point.shared(earlier, "theta", "X")
        self._pass = same_fit._pass if same_fit else Lazy(partial(forward, autodiff.network, point.theta, point.X))
        super().__init__(autodiff, point)
        # The Jacobian of a linear model is the same at all parameters.
        same_J = point.shared(earlier, "X") if autodiff.linear else same_fit
        self._jacobian = same_J._jacobian if same_J else Lazy(partial(_jacobian, self._pass))
        same_ggn = point.shared(same_J, "weights")
        self._gauss_newton = (
            same_ggn._gauss_newton if same_ggn else Lazy(partial(_gauss_newton, self._pass, point.weights))
        )
        same_loss = point.shared(same_fit, "weights", "y")
        self._residual = same_loss._residual if same_loss else Lazy(partial(_residual, self._pass, self.loss, point.n))
        self._products = 0

    def facts(self) -> ModelFacts:
        """Return the properties of a network in NumPy: deterministic, float64, derivatives in closed form."""
        return ModelFacts("numpy", self._autodiff.dtype, True, (), _ACCURACY, _ACCURACY)

    # -- gradients of single predictions ------------------------------------------------------
    def row_gradients(self, inputs: np.ndarray, /) -> np.ndarray:
        """Return per-row gradients of every output, (m * K, p)."""
        return forward(self._autodiff.network, self.point.theta, inputs).jacobian()

    def row_factors(self, inputs: np.ndarray, /) -> Sequence[tuple[np.ndarray, ...]]:
        """Return these gradients split by leaf, for weights the two factors of each outer product."""
        return forward(self._autodiff.network, self.point.theta, inputs).factors()

    @property
    def outer_leaves(self) -> frozenset[int]:
        """Indices of the leaves that are weights: the odd ones, since each layer has biases, then weights."""
        return frozenset(range(1, 2 * len(self._autodiff.network.widths) - 2, 2))

    @property
    def rows_are_new(self) -> bool:
        """True: every call of ``row_gradients`` returns a new array."""
        return True

    # -- sums over the training rows ----------------------------------------------------------
    def gradient(self) -> np.ndarray:
        """Return ``grad L``, (p,), by one backward pass."""
        with np.errstate(all="ignore"):
            return self._pass.result.gradient(self.loss.result.first / self.point.n)

    def jvp(self, v: np.ndarray, /) -> np.ndarray:
        """Return ``J v`` for each row of v: (k, p) to (k, n, K)."""
        return (v @ self._jacobian.result.T).reshape(len(v), *self.point.y.shape)

    def vjp(self, t: np.ndarray, /) -> np.ndarray:
        """Return ``J' t`` for each block of t: (k, n, K) to (k, p)."""
        return np.asarray(t).reshape(len(t), -1) @ self._jacobian.result

    def product(self, v: np.ndarray, curvature: Curvature, /) -> np.ndarray:
        """Return ``H v`` or its Gauss-Newton part for each row of v, without decay."""
        if self._by_rows(len(v), curvature):
            return np.stack([self._product_by_rows(each, curvature) for each in v])
        image: np.ndarray = v @ self._gauss_newton.result
        if curvature == "ggn":
            return image
        return image + v @ self._residual.result

    def _by_rows(self, vectors: int, curvature: Curvature) -> bool:
        """Count right-hand sides, and return whether passes over the rows cost less than forming the matrices."""
        if self._gauss_newton.known and (curvature == "ggn" or self._residual.known):
            return False
        self._products += vectors
        return self._products <= _MAX_PRODUCTS_BY_ROWS

    def _product_by_rows(self, v: np.ndarray, curvature: Curvature) -> np.ndarray:
        """Return the product with one vector, (p,), by a forward and a backward pass."""
        direction = unflatten(self._autodiff.network, v)
        n = self.point.n
        with np.errstate(all="ignore"):
            if curvature == "ggn":
                return gauss_newton_product(self._pass.result, direction, self.point.weights / n)
            return hessian_product(self._pass.result, direction, self.point.weights / n, self.loss.result.first / n)


def _jacobian(rows: Lazy[Pass]) -> np.ndarray:
    """Return J, (n * K, p)."""
    J = rows.result.jacobian()
    check_finite("the gradient of the model's prediction on X", J, ModelError)
    return J


def _gauss_newton(rows: Lazy[Pass], weights: np.ndarray) -> np.ndarray:
    """Return ``J'WJ/n``, (p, p)."""
    matrix = gauss_newton(rows.result, weights / len(weights))
    check_finite("the gradient of the model's prediction on X", matrix, ModelError)
    return matrix


def _residual(rows: Lazy[Pass], loss: Lazy[LossDerivatives], n: int) -> np.ndarray:
    """Return ``1/n sum_i sum_o l'_io hess f_o(x_i)``, (p, p)."""
    return residual_part(rows.result, loss.result.first / n)
