"""Several predictors, and the interval that their spread gives: the fitted form of all ensemble methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.errors import InputError
from vhat.methods.base.answering import Answer, BaseFitted, Question, noise_of_response
from vhat.methods.base.method import Claim, Limits, Predictor, normal_limits

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["Ensemble", "predictions"]


def predictions(members: Sequence[Predictor], x: Any) -> np.ndarray:
    """Return what each member predicts, (members, points) or (members, points, outputs)."""
    return np.stack([member.predict(x) for member in members])


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble(BaseFitted):
    """A fitted ensemble: mean and standard deviation over the members, and normal limits from these.

    Attributes:
        members: What predicts.
        claim: What the method claims for its intervals.
        base: The fitted model from whose residuals the noise is estimated.
        noise: The noise level that was given, or None.
        center: What predicts the center, or None: the mean over the members.
        spread: ``"population"``: the members' own standard deviation with the normal quantile; ``"sample"``: with one
            degree of freedom less and Student's quantile, for members that are independent draws; ``"draws"``: that
            times ``sqrt(1 + 1/members)``, for draws of a posterior from which the truth is taken to be one more: its
            distance from their mean has their variance and that of the mean.
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
        found = predictions(self.members, asked.x)
        middle = found.mean(axis=0) if self.center is None else self.center.predict(asked.x)
        # One member has no sample standard deviation; for a new response its spread counts as zero.
        sample = self.spread != "population" and len(self) > 1
        error = found.std(axis=0, ddof=1 if sample else 0)
        return Answer(self.claim, middle, self._limits(middle, error, asked.delta, sample), standard_error=error)

    def _limits(self, middle: np.ndarray, error: np.ndarray, delta: float, sample: bool) -> Limits:
        reach = 1.0
        if self.spread == "draws":
            reach = np.sqrt(1 + 1 / len(self))
        df = len(self) - 1 if sample else None
        return normal_limits(middle, reach * error, delta, df=df)

    def _response_noise(self) -> Noise:
        return noise_of_response(self.base, self.noise)

    def __repr__(self) -> str:
        return f"{self.claim.name} of {len(self)} members"
