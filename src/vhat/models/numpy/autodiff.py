"""A user's NumPy model and its loss as functions of a parameter vector."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.models.kinks import NO_KINKS, UNKNOWN_KINKS, KinkedOperations
from vhat.models.loss import LossDerivatives
from vhat.models.numpy.arrays import NumpyArrays
from vhat.models.numpy.derivatives import require_convergence
from vhat.models.numpy.difference_steps import measure_rounding
from vhat.models.numpy.finite_differences import first_derivatives
from vhat.models.numpy.inputs import match_inputs, take
from vhat.models.numpy.linearised import NumpyLinearised
from vhat.models.numpy.loss import loss_derivatives, loss_values
from vhat.models.numpy.model import CurveFit, Model, unmasked, wrap_errors
from vhat.models.numpy.sampled import Sampled
from vhat.models.protocols import Functional, Linearised, ModelFacts, Point
from vhat.models.validate import refuse_flat_functional, refuse_functional

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NumpyAutodiff"]


@dataclass(frozen=True, eq=False)
class NumpyAutodiff:
    """A user's NumPy functions: see :class:`vhat.models.protocols.Autodiff`.

    Attributes:
        model: The functions.
        p: Number of parameters.
        custom_loss: The user's loss of one row; None for half the squared error.
        facts: Properties of the model, found when it was probed.
        start: Steps from which the search for difference steps starts, (p,), such as those of a nearby point; None for
            the default. They affect the last digits of differences, so they are saved with a model.
    """

    model: Model
    p: int
    custom_loss: Callable[..., Any] | None
    facts: ModelFacts
    start: np.ndarray | None = field(default=None, repr=False)

    framework = "numpy"
    arrays = NumpyArrays()
    columns = None

    @property
    def squeeze(self) -> bool:
        """Whether the model returns (n,)."""
        return self.model.squeeze

    @property
    def linear(self) -> bool:
        """Whether the predictions are an affine function of theta: true if jac takes the inputs alone."""
        return self.model.linear

    @property
    def linear_by_test(self) -> bool:
        """Whether ``linear`` rests on the user's jac and a test at distant parameters, and not on traced operations."""
        return self.model.linear

    @property
    def kinks(self) -> KinkedOperations:
        """Unknown, because the operations of a NumPy function cannot be traced; none for a linear model."""
        return NO_KINKS if self.model.linear else UNKNOWN_KINKS

    @property
    def rows_last(self) -> bool:
        """Whether the user's inputs have rows on the last axis, as SciPy's ``curve_fit`` takes them."""
        return isinstance(self.model.predict, CurveFit) and self.model.predict.rows_last

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The shape of the only array of parameters."""
        return ((self.p,),)

    def check(self, x: Any, X: Any, /) -> Any:
        """Check test inputs against the training inputs."""
        return match_inputs(x, X, rows_last=self.rows_last)

    def count(self, inputs: Any, /) -> int:
        """Return the number of rows in checked inputs."""
        return len(inputs)

    def take(self, inputs: Any, index: Any, /) -> Any:
        """Return some rows of checked inputs."""
        return take(inputs, index)

    def predict(self, theta: np.ndarray, inputs: Any, /) -> np.ndarray:
        """Return predictions at checked inputs, (m, K)."""
        with wrap_errors("predict failed at x"), np.errstate(all="ignore"):
            return self.model.values(theta, inputs).reshape(len(inputs), self.model.outputs)

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        """Return the loss of each row and its derivatives."""
        return loss_derivatives(self.custom_loss, f, y, weights, self.squeeze)

    def loss_values(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> np.ndarray:
        """Return the loss of each row, (n,); NaN where the loss fails."""
        return loss_values(self.custom_loss, f, y, weights, self.squeeze)

    def params(self, theta: np.ndarray, /) -> np.ndarray:
        """Return a copy of the parameters, (p,)."""
        return theta.copy()

    def functional(self, theta: np.ndarray, q: Callable[[Any], Any], /) -> Functional:
        """Return value and gradient of ``q(theta)``."""

        def call(theta: np.ndarray) -> np.ndarray:
            return np.atleast_1d(unmasked(q(theta.copy())).astype(np.float64))

        with wrap_errors("the functional failed"):
            value = unmasked(q(theta.copy())).astype(np.float64)
            again = call(theta)
        refuse_functional(value, again.reshape(value.shape))
        function, steps = measure_rounding(Sampled(call, theta, again))
        gradient = require_convergence(first_derivatives(function, steps), steps, "q").value
        refuse_flat_functional(gradient)
        return Functional(value, gradient)

    def linearise(self, point: Point, before: Linearised | None, /) -> NumpyLinearised:
        """Return the dense derivatives at a point; none is computed yet."""
        return NumpyLinearised(self, point, before)
