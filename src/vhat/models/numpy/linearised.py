"""Dense derivatives of a NumPy model over its training rows, made when first asked for, and kept."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_finite
from vhat.errors import ModelError
from vhat.models.numpy.derivatives import require_settled, residual_part
from vhat.models.numpy.finite_differences import Estimate, Sampled, first_derivatives, settle
from vhat.models.protocols import Curvature, Lazy, Linearised, ModelFacts, Point

if TYPE_CHECKING:
    from vhat.models.numpy.autodiff import NumpyAutodiff

__all__ = ["NumpyLinearised"]

_ROUGH = 1e-10
"""Relative rounding of a model's values above which it is said not to work in float64."""
_DROWNED = 1e-2
"""Largest error of a column of J, as a share of its scale, with which anything is computed."""
_UNSETTLED = 1e-3
"""Largest error of the residual part, as a share of the Hessian, with which anything is computed."""


class NumpyLinearised(Linearised):
    """Derivatives of a NumPy model: see :class:`vhat.models.protocols.Linearised`.

    The steps of all differences, also of those at test points, are found on the training rows together.
    """

    _autodiff: NumpyAutodiff
    _settled: Lazy[tuple[Sampled, np.ndarray]]
    """The function over the training rows with its rounding measured, and the step of each parameter."""
    _jacobian: Lazy[Estimate]
    _residual: Lazy[Estimate]

    def __init__(self, autodiff: NumpyAutodiff, point: Point, before: Linearised | None) -> None:
        super().__init__(autodiff, point)
        earlier = before if isinstance(before, NumpyLinearised) else None
        here = point.shared(earlier, "theta", "X")
        self._settled = here._settled if here else Lazy(partial(_settle, autodiff, point, self.fitted))
        # The Jacobian of a linear model is the same at all parameters.
        alike = point.shared(earlier, "X") if autodiff.linear else here
        self._jacobian = alike._jacobian if alike else Lazy(partial(_jacobian, autodiff, point, self._settled))
        again = point.shared(here, "y", "weights")
        parts = (self._settled, self._jacobian, self.loss)
        self._residual = again._residual if again else Lazy(partial(_residual, autodiff, point, *parts))

    @property
    def autodiff(self) -> NumpyAutodiff:
        """The model, for which the steps that were found here are a start."""
        return replace(self._autodiff, start=self._settled.result[1]) if self._settled.known else self._autodiff

    def facts(self) -> ModelFacts:
        """Return what was seen when the model was given, and the accuracy of its derivatives."""
        seen, first = self._autodiff.seen, self._first_accuracy
        casts, second = seen.narrow_casts, first
        rounding = self._settled.result[0].eps
        if not casts and rounding > _ROUGH:
            casts = (f"values rounded to a relative {rounding:.0e}",)
        with suppress(ModelError):  # the exact Hessian raises it itself; the Gauss-Newton part can still be used
            second += self._second_accuracy
        return replace(seen, narrow_casts=casts, accuracy=max(1e-15, second), first_accuracy=max(1e-15, first))

    def row_gradients(self, inputs: Any, /) -> np.ndarray:
        """Return per-row gradients of every output, (m * K, p); a row's do not depend on the rows beside it."""
        model, theta = self._autodiff.model, self.point.theta
        if model.jac is not None:
            return model.sound_slopes(theta, inputs)
        trained, steps = self._settled.result
        values = self._autodiff.predict(theta, inputs).reshape(-1)
        check_finite("the model's prediction at x", values.reshape(-1, model.outputs), ModelError)
        function = Sampled(partial(model.values, X=inputs), theta, values, eps=trained.eps)
        return require_settled(first_derivatives(function, steps), steps, "the model at x", model.outputs).value

    def objective(self) -> float:
        """Return the loss, not finite where the model or the loss is not."""
        if self.loss.known:
            return super().objective()
        # A trial point of a search may have a loss without derivatives.
        return float(np.mean(self._autodiff.loss_values(self.fitted.result, self.point.y, self.point.weights)))

    def product(self, v: np.ndarray, curvature: Curvature, /) -> np.ndarray:
        """Return ``H v`` or its Gauss-Newton part for each row of v, without decay."""
        _ = self._first_accuracy  # raises where J cannot be trusted
        found: np.ndarray = self.gauss_newton(v)
        if curvature == "ggn":
            return found
        _ = self._second_accuracy  # raises where the residual part cannot be trusted
        return found + v @ self._residual.result.value

    def diagonal(self) -> np.ndarray:
        """Return the diagonal of the Gauss-Newton part, (p,)."""
        return self._weights.reshape(-1) @ self._jacobian.result.value**2 / self.point.n

    def jvp(self, v: np.ndarray, /) -> np.ndarray:
        """Return ``J v`` for each row of v: (k, p) to (k, n, K)."""
        return (v @ self._jacobian.result.value.T).reshape(len(v), *self.point.y.shape)

    def vjp(self, t: np.ndarray, /) -> np.ndarray:
        """Return ``J' t`` for each block of t: (k, n, K) to (k, p)."""
        return np.asarray(t).reshape(len(t), -1) @ self._jacobian.result.value

    # -- accuracy ----------------------------------------------------------------------------
    @property
    def _weights(self) -> np.ndarray:
        """The diagonal of the curvature weights with negative ones as zero, (n, K)."""
        return np.maximum(self.loss.result.own_curvature, 0.0)

    @property
    def _scale(self) -> np.ndarray:
        """``sqrt(diag(J'CJ/n) + lam)``, the inverse unit of each parameter; infinite where it is idle."""
        scale = np.sqrt(self.diagonal() + self.point.decay)
        return np.where(scale > 0, scale, np.inf)

    @cached_property
    def _first_accuracy(self) -> float:
        """The error of the scaled Gauss-Newton part that follows from that of J.

        Raises:
            ModelError: When nothing depends on the parameters, or J is mostly rounding.
        """
        J = self._jacobian.result
        if not J.value.any() and not self._residual.result.value.any():
            raise ModelError(
                "the derivatives of the prediction are zero in every parameter (rounding or a threshold inside, or "
                "parameters that it does not use?). vhat needs a differentiable model."
            )
        weights = np.sqrt(self._weights).reshape(-1, 1)
        with np.errstate(over="ignore"):
            share = np.sqrt(np.sum((weights * J.error / self._scale) ** 2, axis=0) / self.point.n)
        if share.max() > _DROWNED:
            raise ModelError(
                f"the derivative in theta[{share.argmax()}] drowns in the rounding of the model. Give jac, or "
                "take a large constant out of predictions and responses."
            )
        return 2 * float(np.linalg.norm(share))

    @cached_property
    def _second_accuracy(self) -> float:
        """The error of the scaled Hessian that follows from that of the residual part.

        Raises:
            ModelError: When its differences do not settle.
        """
        residual, scale = self._residual.result, self._scale
        unit = scale * scale[:, None]
        error = residual.error / unit
        size = max(1.0, np.max(np.abs(residual.value / unit)))
        if not error.max() <= _UNSETTLED * size:
            i, j = np.unravel_index(np.argmax(error), error.shape)
            raise ModelError(
                f"the second derivative in theta[{i}], theta[{j}] does not settle as the step shrinks: the model "
                "has a kink nearby or is noisy. Give hess or jac, or use curvature='ggn'."
            )
        return float(np.linalg.norm(error) / size)


def _settle(autodiff: NumpyAutodiff, point: Point, fitted: Lazy[np.ndarray]) -> tuple[Sampled, np.ndarray]:
    check_finite("the model's prediction on X", fitted.result, ModelError)
    function = partial(autodiff.model.values, X=point.X)
    return settle(Sampled(function, point.theta, fitted.result.reshape(-1)), autodiff.start)


def _jacobian(autodiff: NumpyAutodiff, point: Point, settled: Lazy[tuple[Sampled, np.ndarray]]) -> Estimate:
    """Return J, (n * K, p)."""
    model = autodiff.model
    if model.jac is not None:
        J = model.sound_slopes(point.theta, point.X)
        return Estimate(J, autodiff.seen.accuracy * np.abs(J), np.zeros((1, 1)))
    function, steps = settled.result
    found = require_settled(first_derivatives(function, steps), steps, "the model", model.outputs)
    return replace(found, rounding=np.zeros((1, 1)))  # judged already; n x p numbers less to keep


def _residual(
    autodiff: NumpyAutodiff,
    point: Point,
    settled: Lazy[tuple[Sampled, np.ndarray]],
    jacobian: Lazy[Estimate],
    loss: Lazy[Any],
) -> Estimate:
    """Return ``1/n sum_i sum_o l'_io hess f_o(x_i)``, (p, p)."""
    c = loss.result.first.reshape(-1) / point.n
    J = jacobian.result.value
    return residual_part(autodiff.model, point.X, c, J, settled=settled.result, memory=point.memory)
