"""Dense derivatives of a network in NumPy over its training rows, made when first asked for, and kept."""

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
"""Relative accuracy of derivatives in closed form: some dozens of roundings."""
_FEW_VECTORS = 8
"""Products with the curvature at one parameter vector that are made without its matrix. A pass over the rows takes
about a tenth of the time that the matrix takes, and checks along a line ask for one product at each of many points."""


class NetworkLinearised(Linearised):
    """Derivatives of a network in closed form: see :class:`vhat.models.protocols.Linearised`.

    The Jacobian and both curvature matrices are formed: networks of this kind are small
    (:func:`vhat.models.dense_network.is_small`), and one product of matrices is faster than many of vectors.
    """

    _autodiff: NetworkAutodiff
    _pass: Lazy[Pass]
    _jacobian: Lazy[np.ndarray]
    _gauss_newton: Lazy[np.ndarray]
    _residual: Lazy[np.ndarray]
    _vectors: int

    def __init__(self, autodiff: NetworkAutodiff, point: Point, before: Linearised | None) -> None:
        earlier = before if isinstance(before, NetworkLinearised) else None
        here = point.shared(earlier, "theta", "X")
        self._pass = here._pass if here else Lazy(partial(forward, autodiff.network, point.theta, point.X))
        super().__init__(autodiff, point)
        # The Jacobian of a linear model is the same at all parameters.
        alike = point.shared(earlier, "X") if autodiff.linear else here
        self._jacobian = alike._jacobian if alike else Lazy(partial(_jacobian, self._pass))
        again = point.shared(alike, "weights")
        self._gauss_newton = again._gauss_newton if again else Lazy(partial(_matrix, self._pass, point.weights))
        same = point.shared(here, "weights", "y")
        self._residual = same._residual if same else Lazy(partial(_residual, self._pass, self.loss, point.n))
        self._vectors = 0

    def facts(self) -> ModelFacts:
        """Return what is known of NumPy's networks."""
        return ModelFacts("numpy", self._autodiff.dtype, True, (), _ACCURACY, _ACCURACY)

    # -- gradients of single predictions ------------------------------------------------------
    def row_gradients(self, inputs: np.ndarray, /) -> np.ndarray:
        """Return per-row gradients of every output, (m * K, p)."""
        return forward(self._autodiff.network, self.point.theta, inputs).jacobian()

    def row_factors(self, inputs: np.ndarray, /) -> Sequence[tuple[np.ndarray, ...]]:
        """Return the same leaf by leaf, weights as the two factors of each outer product."""
        return forward(self._autodiff.network, self.point.theta, inputs).factors()

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The numbers of the leaves that are weights."""
        return frozenset(range(1, 2 * len(self._autodiff.network.widths) - 2, 2))

    @property
    def rows_are_new(self) -> bool:
        """Return True: every call of ``row_gradients`` makes its rows."""
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
        if self._costs_less_than_matrices(len(v), curvature):
            return np.stack([self._single_product(each, curvature) for each in v])
        found: np.ndarray = v @ self._gauss_newton.result
        return found if curvature == "ggn" else found + v @ self._residual.result

    def _costs_less_than_matrices(self, vectors: int, curvature: Curvature) -> bool:
        """Count vectors, and return whether so few were asked for that passes over the rows cost less than matrices."""
        if self._gauss_newton.known and (curvature == "ggn" or self._residual.known):
            return False
        self._vectors += vectors
        return self._vectors <= _FEW_VECTORS

    def _single_product(self, v: np.ndarray, curvature: Curvature) -> np.ndarray:
        move, n = unflatten(self._autodiff.network, v), self.point.n
        with np.errstate(all="ignore"):
            if curvature == "ggn":
                return gauss_newton_product(self._pass.result, move, self.point.weights / n)
            return hessian_product(self._pass.result, move, self.point.weights / n, self.loss.result.first / n)


def _jacobian(rows: Lazy[Pass]) -> np.ndarray:
    found = rows.result.jacobian()
    check_finite("the gradient of the model's prediction on X", found, ModelError)
    return found


def _matrix(rows: Lazy[Pass], weights: np.ndarray) -> np.ndarray:
    """Return ``J'WJ/n``, (p, p)."""
    found = gauss_newton(rows.result, weights / len(weights))
    check_finite("the gradient of the model's prediction on X", found, ModelError)
    return found


def _residual(rows: Lazy[Pass], loss: Lazy[LossDerivatives], n: int) -> np.ndarray:
    """Return ``1/n sum_i sum_o l'_io hess f_o(x_i)``, (p, p)."""
    return residual_part(rows.result, loss.result.first / n)
