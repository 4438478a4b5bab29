"""Several predictors and the interval that their spread gives: what the ensemble methods have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.errors import InputError
from vhat.intervals.interval import Interval
from vhat.methods.base.method import (
    Claim,
    Predictor,
    Target,
    check_question,
    find_noise,
    make_interval,
    normal_limits,
    widened,
)
from vhat.methods.base.requirements import require_residuals

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["Ensemble", "new_seeds", "predictions"]


def predictions(members: Sequence[Predictor], x: Any) -> np.ndarray:
    """Return what each member predicts, (members, points) or (members, points, outputs)."""
    return np.stack([member.predict(x) for member in members])


def new_seeds(seed: int, count: int) -> list[int]:
    """Return ``seed`` and ``count - 1`` others that it determines."""
    rest = np.random.SeedSequence(seed).generate_state(max(count - 1, 0))
    return [seed, *(int(each) for each in rest)]


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble:
    """A fitted ensemble: mean and standard deviation over the members, and normal limits from these.

    Attributes:
        members: What predicts.
        claim: What the method says about its intervals.
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

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute an interval at every point from the spread of the members.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss.
            target: ``"mean"``, or ``"observation"`` for a new response.

        Returns:
            The interval.

        Raises:
            InputError: When one member alone is asked for a spread.
            NoiseError: When the noise of a new response has to be estimated and the fit interpolates.
        """
        delta = check_question(self.claim.name, delta, target)
        if len(self) == 1 and target == "mean":
            raise InputError(
                f"{self.claim.name} with one member has no spread, so no interval for the mean. Ask for 2 members or "
                "more, or for target='observation'."
            )
        with self.base.problem.scope():
            self.base.problem.inputs(x)  # what cannot be used is refused here, whatever the members are
        found = predictions(self.members, x)
        middle = found.mean(axis=0) if self.center is None else self.center.predict(x)
        sample = self.spread != "population" and len(self) > 1
        error = found.std(axis=0, ddof=1 if sample else 0)
        reach = np.sqrt(1 + 1 / len(self)) if self.spread == "draws" else 1.0
        limits = normal_limits(middle, reach * error, delta, df=len(self) - 1 if sample else None)
        noise = None
        if target == "observation":
            require_residuals(self.base, "target='observation'")
            noise = find_noise(self.base, self.noise)
            limits = widened(limits, noise, delta)
        return make_interval(
            self.claim, middle, limits, delta=delta, target=target, standard_error=error, noise=noise, x=x
        )

    def __repr__(self) -> str:
        return f"{self.claim.name} of {len(self)} members"
