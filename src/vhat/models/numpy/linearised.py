"""Dense derivatives of a NumPy model over its training rows, computed on first use and cached."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_finite
from vhat.errors import ModelError
from vhat.models.numpy.derivatives import require_convergence, residual_part
from vhat.models.numpy.difference_steps import SampledSteps, measure_rounding
from vhat.models.numpy.finite_differences import Estimate, first_derivatives
from vhat.models.numpy.sampled import Sampled
from vhat.models.protocols import Curvature, Lazy, Linearised, ModelFacts, Point

if TYPE_CHECKING:
    from vhat.models.numpy.autodiff import NumpyAutodiff

__all__ = ["NumpyLinearised"]

_FLOAT64_ROUNDING = 1e-10
"""Relative rounding of a model's values above which the model is reported not to compute in float64."""
_MAX_FIRST_ERROR = 1e-2
"""Largest accepted error of a column of J, relative to the square root of the curvature's diagonal."""
_MAX_SECOND_ERROR = 1e-3
"""Largest accepted error of the residual part, as a share of the Hessian."""


class NumpyLinearised(Linearised):
    """Derivatives of a NumPy model: see :class:`vhat.models.protocols.Linearised`.

    The difference steps, also for test points, are determined on all training rows together.
    """

    _autodiff: NumpyAutodiff
    _sampled: Lazy[SampledSteps]
    """The function over the training rows with its rounding measured, and the step of each parameter."""
    _jacobian: Lazy[Estimate]
    _residual: Lazy[Estimate]

    def __init__(self, autodiff: NumpyAutodiff, point: Point, before: Linearised | None) -> None:
        super().__init__(autodiff, point)
        earlier = before if isinstance(before, NumpyLinearised) else None
        same_fit = point.shared(earlier, "theta", "X")
        self._sampled = same_fit._sampled if same_fit else Lazy(partial(_sampled, autodiff, point, self.fitted))
        # The Jacobian of a linear model is the same at all parameters.
        same_J = point.shared(earlier, "X") if autodiff.linear else same_fit
        self._jacobian = same_J._jacobian if same_J else Lazy(partial(_jacobian, autodiff, point, self._sampled))
        same_loss = point.shared(same_fit, "y", "weights")
        parts = (self._sampled, self._jacobian, self.loss)
        self._residual = same_loss._residual if same_loss else Lazy(partial(_residual, autodiff, point, *parts))

    @property
    def autodiff(self) -> NumpyAutodiff:
        """The model, with the steps of this point as the start of the next search for steps."""
        if not self._sampled.known:
            return self._autodiff
        return replace(self._autodiff, start=self._sampled.result.steps)

    def facts(self) -> ModelFacts:
        """Return the properties found when the model was probed, and the accuracy of its derivatives."""
        facts = self._autodiff.facts
        casts = facts.narrow_casts
        first = self._first_accuracy
        second = first
        rounding = self._sampled.result.function.eps
        if not casts and rounding > _FLOAT64_ROUNDING:
            casts = (f"values rounded to a relative {rounding:.0e}",)
        # Products with the exact Hessian raise this error themselves; the Gauss-Newton part can still be used.
        with suppress(ModelError):
            second += self._second_accuracy
        return replace(facts, narrow_casts=casts, accuracy=max(1e-15, second), first_accuracy=max(1e-15, first))

    def row_gradients(self, inputs: Any, /) -> np.ndarray:
        """Return per-row gradients of every output, (m * K, p). Those of a row do not depend on the other rows."""
        model = self._autodiff.model
        theta = self.point.theta
        if model.jac is not None:
            return model.checked_jacobian(theta, inputs)
        trained, steps = self._sampled.result
        values = self._autodiff.predict(theta, inputs).reshape(-1)
        check_finite("the model's prediction at x", values.reshape(-1, model.outputs), ModelError)
        function = Sampled(partial(model.values, X=inputs), theta, values, eps=trained.eps)
        return require_convergence(first_derivatives(function, steps), steps, "the model at x", model.outputs).value

    def objective(self) -> float:
        """Return the loss; not finite if the model or the loss is not finite in some row."""
        if self.loss.known:
            return super().objective()
        # A trial point of a line search may have a loss without derivatives, so only values are computed.
        return float(np.mean(self._autodiff.loss_values(self.fitted.result, self.point.y, self.point.weights)))

    def product(self, v: np.ndarray, curvature: Curvature, /) -> np.ndarray:
        """Return ``H v`` or its Gauss-Newton part for each row of v, without decay."""
        _ = self._first_accuracy  # raises where J is too inaccurate
        image: np.ndarray = self.gauss_newton(v)
        if curvature == "ggn":
            return image
        _ = self._second_accuracy  # raises where the residual part is too inaccurate
        return image + v @ self._residual.result.value

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
        """Diagonal of the loss's second derivatives, negative ones set to zero, (n, K)."""
        return np.maximum(self.loss.result.own_curvature, 0.0)

    @property
    def _scale(self) -> np.ndarray:
        """``sqrt(diag(J'CJ/n) + lam)``, the inverse unit of each parameter; infinite where this is zero."""
        scale = np.sqrt(self.diagonal() + self.point.decay)
        return np.where(scale > 0, scale, np.inf)

    @cached_property
    def _first_accuracy(self) -> float:
        """Relative error of the scaled Gauss-Newton part, from the error of J.

        Raises:
            ModelError: When no prediction depends on the parameters, or J is mostly rounding.
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
        if share.max() > _MAX_FIRST_ERROR:
            raise ModelError(
                f"the derivative in theta[{share.argmax()}] is dominated by the rounding of the model. Give jac, or "
                "take a large constant out of predictions and responses."
            )
        return 2 * float(np.linalg.norm(share))  # J enters J'CJ twice

    @cached_property
    def _second_accuracy(self) -> float:
        """Relative error of the scaled Hessian, from the error of the residual part.

        Raises:
            ModelError: When the second differences do not converge.
        """
        residual = self._residual.result
        scale = self._scale
        unit = scale * scale[:, None]
        error = residual.error / unit
        size = max(1.0, np.max(np.abs(residual.value / unit)))
        if not error.max() <= _MAX_SECOND_ERROR * size:  # true for NaN
            i, j = np.unravel_index(np.argmax(error), error.shape)
            raise ModelError(
                f"the second derivative in theta[{i}], theta[{j}] does not converge as the step shrinks: the model "
                "has a kink nearby or is noisy. Give hess or jac, or use curvature='ggn'."
            )
        return float(np.linalg.norm(error) / size)


def _sampled(autodiff: NumpyAutodiff, point: Point, fitted: Lazy[np.ndarray]) -> SampledSteps:
    """Return the model over the training rows with its rounding measured, and the step of each parameter."""
    check_finite("the model's prediction on X", fitted.result, ModelError)
    function = partial(autodiff.model.values, X=point.X)
    return measure_rounding(Sampled(function, point.theta, fitted.result.reshape(-1)), autodiff.start)


def _jacobian(autodiff: NumpyAutodiff, point: Point, sampled: Lazy[SampledSteps]) -> Estimate:
    """Return J, (n * K, p)."""
    model = autodiff.model
    if model.jac is not None:
        J = model.checked_jacobian(point.theta, point.X)
        return Estimate(J, autodiff.facts.accuracy * np.abs(J), np.zeros((1, 1)))
    function, steps = sampled.result
    found = require_convergence(first_derivatives(function, steps), steps, "the model", model.outputs)
    # The rounding was needed for this check only; dropping it saves n K p numbers.
    return replace(found, rounding=np.zeros((1, 1)))


def _residual(
    autodiff: NumpyAutodiff,
    point: Point,
    sampled: Lazy[SampledSteps],
    jacobian: Lazy[Estimate],
    loss: Lazy[Any],
) -> Estimate:
    """Return ``1/n sum_i sum_o l'_io hess f_o(x_i)``, (p, p)."""
    c = loss.result.first.reshape(-1) / point.n
    J = jacobian.result.value
    return residual_part(autodiff.model, point.X, c, J, sampled=sampled.result, memory=point.memory)
