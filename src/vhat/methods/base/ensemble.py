"""Intervals from the spread of several predictors: the fitted form of all ensemble methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.errors import InputError
from vhat.methods.base.answering import Answer, BaseFitted, Question, noise_of_response
from vhat.methods.base.guarantee import Claim
from vhat.methods.base.limits import Limits, normal_limits
from vhat.methods.base.method import Predictor

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["Ensemble", "predictions"]


def predictions(members: Sequence[Predictor], x: Any) -> np.ndarray:
    """Return the predictions of all members, (members, points) or (members, points, outputs)."""
    return np.stack([member.predict(x) for member in members])


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble(BaseFitted):
    """A fitted ensemble: mean and standard deviation over the members, with normal or Student's limits.

    Attributes:
        members: The predictors.
        claim: What the method claims for its intervals.
        base: The fitted model whose residuals estimate the noise.
        noise: The given noise level; None estimates it.
        center: The predictor of the center; None takes the mean over the members.
        spread: ``"population"``: standard deviation over the members, with the normal quantile. ``"sample"``: sample
            standard deviation with Student's quantile, for members that are independent draws. ``"draws"``: the same
            times ``sqrt(1 + 1/members)``, for draws from a posterior. The truth is then taken to be one more draw: the
            variance of its distance from the mean is that of one draw plus that of the mean.
    """

    members: tuple[Predictor, ...]
    claim: Claim
    base: FittedModel
    noise: float | None
    center: Predictor | None = field(default=None)
    spread: Literal["population", "sample", "draws"] = "population"

    def __len__(self) -> int:
        return len(self.members)

    def _answer(self, asked: Question) -> Answer:
        """Compute limits from the spread of the members."""
        if len(self) == 1 and asked.target == "mean":
            raise InputError(
                f"{self.claim.name} with one member has no spread, so no interval for the mean. Ask for 2 members or "
                "more, or for target='observation'."
            )
        with self.base.problem.scope():
            self.base.problem.inputs(asked.x)  # refuses unusable points, whatever the members would accept
        predicted = predictions(self.members, asked.x)
        center = predicted.mean(axis=0) if self.center is None else self.center.predict(asked.x)
        # One member has no sample standard deviation; for a new response its spread counts as zero.
        sample = self.spread != "population" and len(self) > 1
        error = predicted.std(axis=0, ddof=1 if sample else 0)
        return Answer(self.claim, center, self._limits(center, error, asked.delta, sample), standard_error=error)

    def _limits(self, center: np.ndarray, error: np.ndarray, delta: float, sample: bool) -> Limits:
        """Return limits from the standard deviation over the members; ``sample`` if it is the sample's."""
        factor = 1.0
        if self.spread == "draws":
            factor = np.sqrt(1 + 1 / len(self))
        df = len(self) - 1 if sample else None
        return normal_limits(center, factor * error, delta, df=df)

    def _response_noise(self) -> Noise:
        return noise_of_response(self.base, self.noise)

    def __repr__(self) -> str:
        return f"{self.claim.name} of {len(self)} members"
