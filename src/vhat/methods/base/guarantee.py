"""What a method claims for its intervals, and the guarantee sentence composed from the claim."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vhat.level import level_text

if TYPE_CHECKING:
    from vhat.variance.noise import Noise

__all__ = ["PRIOR_MEAN", "PRIOR_RESPONSE", "Claim", "Target", "gaussian_noise"]

Target = Literal["mean", "observation"]

PRIOR_MEAN = "the regression function, in the belief that the decay expresses as a prior"
"""What Bayesian methods with the weight decay as the prior cover for ``target="mean"``."""
PRIOR_RESPONSE = "a new response, in the belief that the decay expresses as a prior"
"""What they cover for ``target="observation"``."""


@dataclass(frozen=True)
class Claim:
    """What a method claims for its intervals.

    Attributes:
        name: Name of the method, which the interval carries as its ``bound``.
        covers: What ``target="mean"`` covers.
        by: The argument for the level.
        assumed: Assumptions that were not checked, one clause each.
        checked: Assumptions that were checked.
        response: What ``target="observation"`` covers.
        nominal: Whether the level is only nominal; False if the argument proves it.
    """

    name: str
    covers: str
    by: str
    assumed: tuple[str, ...]
    checked: tuple[str, ...] = ()
    response: str = "a new response, if the model has no bias"
    nominal: bool = True

    def sentence(self, delta: float, target: Target, noise: Noise | None = None, *, simultaneous: bool = False) -> str:
        """Compose the guarantee sentence.

        Args:
            delta: Probability of a miss; NaN if the level is not known.
            target: ``"mean"`` or ``"observation"``.
            noise: The noise added for a new response, if any.
            simultaneous: Whether the level holds at all points at once.
        """
        covers = self.covers
        assumed = self.assumed
        if target == "observation":
            covers = self.response
            if noise is not None:
                assumed = (*assumed, f"Gaussian noise in a new response, {noise.source}")
        where = "at all points at once" if simultaneous else "at each point taken alone"
        checked = ", ".join(self.checked) or "nothing"
        return (
            f"{self._level(delta)} {where}, for {covers}, by {self.by}; checked: {checked}; assumed: "
            f"{', '.join(assumed)}."
        )

    def _level(self, delta: float) -> str:
        if math.isnan(delta):
            return "No stated level"
        if self.nominal:
            return f"Nominal {level_text(delta)}"
        return level_text(delta)


def gaussian_noise(noise: Noise) -> str:
    """Return the assumption of Gaussian noise as a clause that names where its level comes from."""
    return f"Gaussian noise, its level {noise.source}"
