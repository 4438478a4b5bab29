"""A NumPy model and its data as a problem with dense derivatives."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_finite
from vhat.errors import ModelError
from vhat.models.numpy import model as door
from vhat.models.numpy.derivatives import require_settled, residual_part
from vhat.models.numpy.finite_differences import Estimate, Sampled, first_derivatives, settle
from vhat.models.numpy.loss import loss_derivatives, loss_values
from vhat.models.problem import Curvature, Functional, LossDerivatives, ModelFacts
from vhat.models.validate import refuse_flat_functional, refuse_functional

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NumpyProblem"]

_ROUGH = 1e-10  # a model whose values are rounded more coarsely than this does not work in float64


@dataclass(frozen=True, eq=False)
class NumpyProblem:
    """A NumPy model and its training data at one parameter vector: see :class:`vhat.models.problem.Problem`.

    The Jacobian and the residual part of the Hessian are dense, made when first asked for, and kept.
    """

    model: door.Model
    theta: np.ndarray
    decay: np.ndarray
    X: Any = field(repr=False)
    targets: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    loss: Callable[..., Any] | None
    memory: int
    seen: ModelFacts
    columns: bool = False
    start: np.ndarray | None = field(default=None, repr=False)

    # -- sizes -----------------------------------------------------------------------------
    @property
    def n(self) -> int:
        """How many training rows there are."""
        return len(self.targets)

    @property
    def outputs(self) -> int:
        """How many outputs the model has."""
        return self.model.outputs

    @property
    def p(self) -> int:
        """How many parameters there are."""
        return len(self.theta)

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """One array of parameters."""
        return (self.theta.shape,)

    @property
    def squeeze(self) -> bool:
        """Whether the model returns (n,)."""
        return self.model.squeeze

    @property
    def linear(self) -> bool:
        """Whether the predictions are an affine function of theta: jac is given as a function of the inputs alone."""
        return self.model.linear

    # -- the fitted model --------------------------------------------------------------------
    @property
    def params(self) -> np.ndarray:
        """A copy of the parameters, (p,)."""
        return self.theta.copy()

    @cached_property
    def fitted_values(self) -> np.ndarray:
        """Predictions on the training rows, (n, K)."""
        with np.errstate(all="ignore"):
            return self.model.values(self.theta, self.X).reshape(self.n, self.outputs)

    @cached_property
    def loss_derivatives(self) -> LossDerivatives:
        """The loss and its derivatives on the training rows."""
        return loss_derivatives(self.loss, self.fitted_values, self.targets, self.weights, self.squeeze)

    def facts(self) -> ModelFacts:
        """What was seen at the door, and the accuracy of the derivatives."""
        casts, first = self.seen.narrow_casts, self._first_accuracy
        second = first
        if not casts and self._settled[0].eps > _ROUGH:
            casts = (f"values rounded to a relative {self._settled[0].eps:.0e}",)
        with suppress(ModelError):  # the exact Hessian raises it itself; the Gauss-Newton part can still be used
            second += self._second_accuracy
        return replace(self.seen, narrow_casts=casts, accuracy=max(1e-15, second), first_accuracy=max(1e-15, first))

    def at(self, theta: np.ndarray) -> NumpyProblem:
        """Return the same problem at other parameters, sharing the data."""
        start = self._settled[1] if "_settled" in self.__dict__ else self.start
        moved = replace(self, theta=np.array(theta, dtype=np.float64), start=start)
        if self.linear and "_jacobian" in self.__dict__:
            moved.__dict__["_jacobian"] = self._jacobian
        return moved

    def with_targets(self, y: np.ndarray) -> NumpyProblem:
        """Return the same problem with other responses, sharing what does not depend on them."""
        moved = replace(self, targets=np.array(y, dtype=np.float64).reshape(self.targets.shape))
        shared = ("fitted_values", "_settled", "_jacobian")
        moved.__dict__.update({name: self.__dict__[name] for name in shared if name in self.__dict__})
        return moved

    def with_decay(self, decay: np.ndarray) -> NumpyProblem:
        """Return the same problem under another decay, (p,)."""
        return replace(self, decay=np.array(decay, dtype=np.float64))

    def rows(self, index: np.ndarray) -> NumpyProblem:
        """Return the problem of some training rows alone."""
        start = self._settled[1] if "_settled" in self.__dict__ else self.start
        X = door.take(self.X, index)
        return replace(self, X=X, targets=self.targets[index], weights=self.weights[index], start=start)

    # -- test points -------------------------------------------------------------------------
    def inputs(self, x: Any) -> Any:
        """Check test inputs against the training inputs."""
        return door.match_inputs(x, self.X, columns=self.columns)

    def count(self, inputs: Any) -> int:
        """Return how many rows checked inputs hold."""
        return len(inputs)

    def take(self, inputs: Any, start: int, stop: int) -> Any:
        """Return rows of checked inputs."""
        return door.take(inputs, slice(start, stop))

    def predict(self, inputs: Any) -> np.ndarray:
        """Predictions at checked inputs, (m, K)."""
        with door.blame("predict failed at x"), np.errstate(all="ignore"):
            values = self.model.values(self.theta, inputs).reshape(len(inputs), self.outputs)
        check_finite("the model's prediction at x", values, ModelError)
        return values

    def gradients(self, inputs: Any) -> np.ndarray:
        """Per-row gradients of every output, (m * K, p); a row's do not depend on the rows beside it."""
        if self.model.jac is not None:
            return self.model.sound_slopes(self.theta, inputs)
        trained, steps = self._settled
        values = self.predict(inputs).reshape(-1)
        function = Sampled(partial(self.model.values, X=inputs), self.theta, values, eps=trained.eps)
        return require_settled(first_derivatives(function, steps), steps, "the model at x", self.outputs).value

    def factors(self, inputs: Any) -> list[tuple[np.ndarray, ...]]:
        """The same: there is one leaf."""
        return [(self.gradients(inputs),)]

    @property
    def outer_leaves(self) -> frozenset[int]:
        """None: there is one vector of parameters."""
        return frozenset()

    @property
    def factor_numbers(self) -> int:
        """How many numbers ``factors`` gives for each output of a row."""
        return self.p

    def functional(self, q: Callable[[Any], Any]) -> Functional:
        """Value and gradient of ``q(theta)``."""

        def call(theta: np.ndarray) -> np.ndarray:
            return np.atleast_1d(np.asarray(q(theta.copy()), dtype=np.float64))

        with door.blame("the functional failed"):
            value, again = np.asarray(q(self.theta.copy()), dtype=np.float64), call(self.theta)
        refuse_functional(value, again.reshape(value.shape))
        function, steps = settle(Sampled(call, self.theta, again))
        gradient = require_settled(first_derivatives(function, steps), steps, "q").value
        refuse_flat_functional(gradient)
        return Functional(value, gradient)

    # -- derivatives over the training rows ------------------------------------------------------
    @cached_property
    def _settled(self) -> tuple[Sampled, np.ndarray]:
        """The model over the training rows with its rounding measured, and the step of each parameter."""
        check_finite("the model's prediction on X", self.fitted_values, ModelError)
        values = self.fitted_values.reshape(-1)
        return settle(Sampled(partial(self.model.values, X=self.X), self.theta, values), self.start)

    @cached_property
    def _jacobian(self) -> Estimate:
        """``J``, (n * K, p)."""
        if self.model.jac is not None:
            J = self.model.sound_slopes(self.theta, self.X)
            return Estimate(J, self.seen.accuracy * np.abs(J), np.zeros((1, 1)))
        function, steps = self._settled
        found = require_settled(first_derivatives(function, steps), steps, "the model", self.outputs)
        return replace(found, rounding=np.zeros((1, 1)))  # judged already; n x p numbers less to keep

    @cached_property
    def _scale(self) -> np.ndarray:
        """``sqrt(diag(J'CJ/n) + lam)``, the inverse unit of each parameter; infinite where it is idle."""
        scale = np.sqrt(self.diagonal() + self.decay)
        return np.where(scale > 0, scale, np.inf)

    @cached_property
    def _first_accuracy(self) -> float:
        """Error of the scaled Gauss-Newton part from that of J."""
        if not self._jacobian.value.any() and not self._residual.value.any():
            raise ModelError(
                "the derivatives of the prediction are zero in every parameter (rounding or a threshold inside, or "
                "parameters that it does not use?). vhat needs a differentiable model."
            )
        weights = np.sqrt(self._weights).reshape(-1, 1)
        with np.errstate(over="ignore"):
            share = np.sqrt(np.sum((weights * self._jacobian.error / self._scale) ** 2, axis=0) / self.n)
        if share.max() > 1e-2:
            raise ModelError(
                f"the derivative in theta[{share.argmax()}] drowns in the rounding of the model. Give jac, or "
                "take a large constant out of predictions and responses."
            )
        return 2 * float(np.linalg.norm(share))

    @cached_property
    def _residual(self) -> Estimate:
        """``R = 1/n sum_i sum_o l'_io hess f_o(x_i)``, (p, p)."""
        c = self.loss_derivatives.first.reshape(-1) / self.n
        J = self._jacobian.value
        return residual_part(self.model, self.X, c, J, settled=self._settled, memory=self.memory)

    @cached_property
    def _second_accuracy(self) -> float:
        """Error of the scaled Hessian from that of R."""
        unit = self._scale * self._scale[:, None]
        error, size = self._residual.error / unit, max(1.0, np.max(np.abs(self._residual.value / unit)))
        if not error.max() <= 1e-3 * size:
            i, j = np.unravel_index(np.argmax(error), error.shape)
            raise ModelError(
                f"the second derivative in theta[{i}], theta[{j}] does not settle as the step shrinks: the model "
                "has a kink nearby or is noisy. Give hess or jac, or use curvature='ggn'."
            )
        return float(np.linalg.norm(error) / size)

    @property
    def _weights(self) -> np.ndarray:
        """The diagonal of the curvature weights with negative ones as zero, (n, K)."""
        C = self.loss_derivatives.curvature
        return np.maximum(C if C.ndim == 2 else np.einsum("ijj->ij", C), 0.0)

    def objective(self) -> float:
        """The loss, without the penalty; not finite where the model or the loss is not."""
        if "loss_derivatives" in self.__dict__:
            return float(np.mean(self.loss_derivatives.value))
        return float(np.mean(loss_values(self.loss, self.fitted_values, self.targets, self.weights, self.squeeze)))

    def gradient(self) -> np.ndarray:
        """The gradient of the loss, without the penalty, (p,)."""
        return self.vjp(self.loss_derivatives.first[None])[0] / self.n

    def product(self, v: np.ndarray, curvature: Curvature) -> np.ndarray:
        """``H v`` or its Gauss-Newton part for each row of v, without decay."""
        _ = self._first_accuracy  # raises where J cannot be trusted
        C, t = self.loss_derivatives.curvature, self.jvp(v)
        result = self.vjp(C * t if C.ndim == 2 else np.einsum("iab,kib->kia", C, t)) / self.n
        if curvature == "ggn":
            return result
        _ = self._second_accuracy  # raises where R cannot be trusted
        return result + v @ self._residual.value

    def residual_product(self, _: np.ndarray, /) -> np.ndarray | None:
        """Nothing faster than ``product`` is known."""
        return None

    def diagonal(self) -> np.ndarray:
        """The diagonal of the Gauss-Newton part, (p,)."""
        return self._weights.reshape(-1) @ self._jacobian.value**2 / self.n

    def jvp(self, v: np.ndarray) -> np.ndarray:
        """``J v`` for each row of v: (k, p) to (k, n, K)."""
        return (v @ self._jacobian.value.T).reshape(len(v), self.n, self.outputs)

    def vjp(self, t: np.ndarray) -> np.ndarray:
        """``J' t`` for each block of t: (k, n, K) to (k, p)."""
        return np.asarray(t).reshape(len(t), -1) @ self._jacobian.value

    # -- arrays ------------------------------------------------------------------------------
    def scope(self) -> AbstractContextManager[Any]:
        """NumPy needs no state."""
        return nullcontext()

    def native(self, a: np.ndarray) -> np.ndarray:
        """Return the array as float64."""
        return np.asarray(a, dtype=np.float64)

    def numpy(self, a: Any) -> np.ndarray:
        """Return the array as float64."""
        return np.asarray(a, dtype=np.float64)

    def padded(self, k: int) -> int:
        """Nothing is compiled, so nothing is padded."""
        return k

    def compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function itself."""
        return step
