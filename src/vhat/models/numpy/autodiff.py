"""A NumPy model and its loss as functions of a parameter vector."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.models.kinks import NO_KINKS, UNKNOWN_KINKS, KinkedOperations
from vhat.models.loss import LossDerivatives
from vhat.models.numpy import loss as losses
from vhat.models.numpy import model as door
from vhat.models.numpy.arrays import NumpyArrays
from vhat.models.numpy.derivatives import require_settled
from vhat.models.numpy.finite_differences import Sampled, first_derivatives, settle
from vhat.models.numpy.linearised import NumpyLinearised
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
        p: How many parameters they take.
        custom_loss: The user's loss of one row; None for half the squared error.
        seen: What was seen of the model when it was given.
        start: The steps from which the search for steps of differences starts, (p,); None for its own start. They
            decide the last digits of differences, and are those of the point that this one was reached from.
    """

    model: door.Model
    p: int
    custom_loss: Callable[..., Any] | None
    seen: ModelFacts
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
        """Whether the predictions are an affine function of theta: jac is given as a function of the inputs alone."""
        return self.model.linear

    @property
    def kinks(self) -> KinkedOperations:
        """Nothing is known of what happens inside a NumPy function."""
        return NO_KINKS if self.model.linear else UNKNOWN_KINKS

    @property
    def rows_last(self) -> bool:
        """Whether the user gives rows along the last axis, as SciPy's ``curve_fit`` takes them."""
        return isinstance(self.model.predict, door.CurveFit) and self.model.predict.rows_last

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """One array of parameters."""
        return ((self.p,),)

    def check(self, x: Any, X: Any, /) -> Any:
        """Check test inputs against the training inputs."""
        return door.match_inputs(x, X, rows_last=self.rows_last)

    def count(self, inputs: Any, /) -> int:
        """Return how many rows checked inputs hold."""
        return len(inputs)

    def take(self, inputs: Any, index: Any, /) -> Any:
        """Return some rows of checked inputs."""
        return door.take(inputs, index)

    def predict(self, theta: np.ndarray, inputs: Any, /) -> np.ndarray:
        """Return predictions at checked inputs, (m, K)."""
        with door.blame("predict failed at x"), np.errstate(all="ignore"):
            return self.model.values(theta, inputs).reshape(len(inputs), self.model.outputs)

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        """Return the loss of each row and its derivatives."""
        return losses.loss_derivatives(self.custom_loss, f, y, weights, self.squeeze)

    def loss_values(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> np.ndarray:
        """Return the loss of each row, NaN where it has none, (n,)."""
        return losses.loss_values(self.custom_loss, f, y, weights, self.squeeze)

    def params(self, theta: np.ndarray, /) -> np.ndarray:
        """Return a copy of the parameters, (p,)."""
        return theta.copy()

    def functional(self, theta: np.ndarray, q: Callable[[Any], Any], /) -> Functional:
        """Return value and gradient of ``q(theta)``."""

        def call(theta: np.ndarray) -> np.ndarray:
            return np.atleast_1d(door.unmasked(q(theta.copy())).astype(np.float64))

        with door.blame("the functional failed"):
            value = door.unmasked(q(theta.copy())).astype(np.float64)
            again = call(theta)
        refuse_functional(value, again.reshape(value.shape))
        function, steps = settle(Sampled(call, theta, again))
        gradient = require_settled(first_derivatives(function, steps), steps, "q").value
        refuse_flat_functional(gradient)
        return Functional(value, gradient)

    def linearise(self, point: Point, before: Linearised | None, /) -> NumpyLinearised:
        """Return the derivatives at a point, dense; none is computed yet."""
        return NumpyLinearised(self, point, before)
