"""The base class of fitted methods: from a question to an interval.

A fitted method implements ``_answer(asked)``, which returns limits for the mean and what can be claimed for them. The
base class checks the question, widens the limits where a new response is asked for, composes the guarantee, and marks
points without limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vhat.intervals.interval import Interval
from vhat.methods.base.guarantee import Claim, Target
from vhat.methods.base.method import Limits, check_question, find_noise, make_interval, widened
from vhat.methods.base.requirements import require_residuals

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["Answer", "BaseFitted", "FittedToModel", "Question", "noise_of_response"]


class Question(NamedTuple):
    """What a fitted method is asked, already checked.

    Attributes:
        x: Test inputs, as they were given.
        delta: The probability of a miss.
        target: ``"mean"`` or ``"observation"``.
    """

    x: Any
    delta: float
    target: Target


@dataclass(frozen=True, eq=False)
class Answer:
    """What a method computes; the base class makes an interval of it.

    Attributes:
        claim: What the method says about its intervals.
        center: The prediction, (points,) or (points, outputs).
        limits: The limits.
        standard_error: The standard deviation of the prediction, where the method has one.
        noise: The noise that the limits rest on; None where they rest on none. For a new response the base class then
            finds the noise.
        bias: The share of the half width that bounds a bias, in the shape of the limits; it is not added in quadrature.
        of: What the limits are of: ``"observation"`` where they already are those of a new response.
        simultaneous: Whether limits for the mean hold at all points at once.
        delta: The level where it is not the one that was asked for: NaN where it is not known.
        curvature: ``"hessian"`` or ``"ggn"``, where the method rests on one.
        solver: The solver's name, where there was one.
        guarantee: A sentence in place of the claim's own.
        why: What the warning says of points without limits: the likely cause and the remedy.
        points: Test inputs as an array, where the method has made one of them.
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
            delta: Probability of a miss; for methods that rest on a prior, posterior probability outside.
            target: ``"mean"`` for what the guarantee says that the method covers, ``"observation"`` for a new response.

        Returns:
            The interval, with the method's own sentence in ``guarantee``.

        Raises:
            InputError: When the points cannot be used, or the method has no interval for this target.
            NoiseError: When the noise has to be estimated and the fit interpolates.
            NotPositiveDefinite: When the method rests on a matrix that is singular or indefinite for these data.
        """
        asked = Question(x, self._check(delta, target), target)
        with self._scope():
            answer = self._answer(asked)
        noise = answer.noise
        limits = answer.limits
        if target == "observation" and answer.of == "mean":
            if noise is None:
                noise = self._response_noise()
            limits = widened(limits, noise, asked.delta, bias=answer.bias)
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
        """Compute limits for the mean, and say what is claimed for them."""

    def _check(self, delta: float, target: Target) -> float:
        """Return delta after checking it and the target; override to refuse a target."""
        return check_question(type(self).__name__, delta, target)

    def _scope(self) -> AbstractContextManager[Any]:
        """Return the framework state in which ``_answer`` runs."""
        return nullcontext()

    def _response_noise(self) -> Noise:
        """Return the noise of a new response, for methods whose limits of the mean rest on none."""
        raise NotImplementedError(f"{type(self).__name__} has to give the noise in its Answer, or _response_noise().")


class FittedToModel(BaseFitted):
    """A method that answers from one fitted model, ``fitted``, under ``options`` that may give a noise level."""

    options: Any
    fitted: FittedModel

    def _scope(self) -> AbstractContextManager[Any]:
        return self.fitted.problem.scope()

    def _response_noise(self) -> Noise:
        return noise_of_response(self.fitted, getattr(self.options, "noise", None))


def noise_of_response(fitted: FittedModel, noise: float | None) -> Noise:
    """Return the noise that was given, or its estimate from residuals, for a new response.

    Raises:
        InputError: When the loss is not a function of ``f - y``.
        NoiseError: When the noise has to be estimated and the fit interpolates.
    """
    require_residuals(fitted, "target='observation'")
    return find_noise(fitted, noise)
