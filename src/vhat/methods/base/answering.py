"""The base class of fitted methods: from a question to an interval.

A fitted method implements ``_answer(asked)``, which returns limits for the mean and the claim that goes with them. The
base class checks the question, adds the noise of a new response, composes the guarantee, and marks points without
limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vhat.intervals.interval import Interval
from vhat.methods.base.guarantee import Claim, Target
from vhat.methods.base.limits import Limits, make_interval, response_limits
from vhat.methods.base.method import check_question, find_noise
from vhat.methods.base.requirements import require_residuals

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["Answer", "BaseFitted", "FittedToModel", "Question", "noise_of_response"]


class Question(NamedTuple):
    """The checked arguments of ``interval``.

    Attributes:
        x: Test inputs, as given by the user.
        delta: Probability of a miss.
        target: ``"mean"`` or ``"observation"``.
    """

    x: Any
    delta: float
    target: Target


@dataclass(frozen=True, eq=False)
class Answer:
    """What a method computes; the base class turns it into an interval.

    Attributes:
        claim: What the method claims for its intervals.
        center: The prediction, (points,) or (points, outputs).
        limits: The limits, in the shape of the prediction.
        standard_error: Standard deviation of the prediction, if the method has one.
        noise: The noise used for the limits; None if they use none. The base class then finds the noise of a new
            response.
        bias: The part of the half width that bounds a bias, in the shape of the limits; it is not added in quadrature.
        of: The target of the limits: ``"observation"`` if they already are limits for a new response.
        simultaneous: Whether limits for the mean hold at all points at once.
        delta: The level, if it differs from the requested one: NaN if it is not known.
        curvature: ``"hessian"`` or ``"ggn"``, if the method uses one.
        solver: Name of the solver, if one was used.
        guarantee: A sentence that replaces the claim's own.
        why: Text of the warning for points without limits: the likely cause and the remedy.
        points: Test inputs as an array, if the method has converted them.
    """

    claim: Claim
    center: np.ndarray
    limits: Limits
    standard_error: np.ndarray | None = None
    noise: Noise | None = None
    bias: np.ndarray | float = 0.0
    of: Target = "mean"
    simultaneous: bool = False
    delta: float | None = None
    curvature: str = ""
    solver: str = ""
    guarantee: str = ""
    why: str = ""
    points: np.ndarray | None = None


class BaseFitted(ABC):
    """A method after training. Implement :meth:`_answer`, inherit :meth:`interval`."""

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute an interval at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss; for Bayesian methods, the posterior probability outside.
            target: ``"mean"`` for the quantity named in the guarantee, ``"observation"`` for a new response.

        Returns:
            The interval, with the method's own sentence in ``guarantee``.

        Raises:
            InputError: When the points cannot be used, or the method does not support this target.
            NoiseError: When the noise must be estimated and the fit interpolates.
            NotPositiveDefinite: When a matrix that the method inverts is singular or indefinite for these data.
        """
        asked = Question(x, self._check(delta, target), target)
        with self._scope():
            answer = self._answer(asked)
        noise = answer.noise
        limits = answer.limits
        if target == "observation" and answer.of == "mean":
            if noise is None:
                noise = self._response_noise()
            limits = response_limits(limits, noise, asked.delta, bias=answer.bias)
        level = asked.delta
        if answer.delta is not None:
            level = answer.delta
        points = x
        if answer.points is not None:
            points = answer.points
        return make_interval(
            answer.claim,
            answer.center,
            limits,
            delta=level,
            target=target,
            standard_error=answer.standard_error,
            noise=noise,
            x=points,
            curvature=answer.curvature,
            solver=answer.solver,
            guarantee=answer.guarantee,
            simultaneous=answer.simultaneous and target == "mean",
            why=answer.why,
        )

    @abstractmethod
    def _answer(self, asked: Question) -> Answer:
        """Compute limits for the mean, and the claim that goes with them."""

    def _check(self, delta: float, target: Target) -> float:
        """Return delta after checking it and the target; override this to refuse a target."""
        return check_question(type(self).__name__, delta, target)

    def _scope(self) -> AbstractContextManager[Any]:
        """Return the framework state in which ``_answer`` runs."""
        return nullcontext()

    def _response_noise(self) -> Noise:
        """Return the noise of a new response, for methods whose limits for the mean use none."""
        raise NotImplementedError(f"{type(self).__name__} has to give the noise in its Answer, or _response_noise().")


class FittedToModel(BaseFitted):
    """A method that computes its intervals from one fitted model.

    Attributes:
        options: The options; a field ``noise`` is the noise level of a new response.
        fitted: The fitted model. ``_answer`` runs in the framework state of its problem.
    """

    options: Any
    fitted: FittedModel

    def _scope(self) -> AbstractContextManager[Any]:
        return self.fitted.problem.scope()

    def _response_noise(self) -> Noise:
        return noise_of_response(self.fitted, getattr(self.options, "noise", None))


def noise_of_response(fitted: FittedModel, noise: float | None) -> Noise:
    """Return the noise of a new response: the given level, or an estimate from the residuals.

    Raises:
        InputError: When the loss is not a function of ``f - y``.
        NoiseError: When the noise must be estimated and the fit interpolates.
    """
    require_residuals(fitted, "target='observation'")
    return find_noise(fitted, noise)
