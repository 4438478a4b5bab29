"""What a method claims for its intervals, and the guarantee sentence composed from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vhat.level import level_text

if TYPE_CHECKING:
    from vhat.variance.noise import Noise

__all__ = ["Claim", "Target"]

Target = Literal["mean", "observation"]


@dataclass(frozen=True)
class Claim:
    """What a method claims for its intervals; the guarantee is composed from it.

    Attributes:
        name: The method's name, which the interval carries as its ``bound``.
        covers: What ``target="mean"`` covers.
        by: The argument for it.
        assumed: Assumptions that were not checked, one clause each.
        checked: Assumptions that were checked.
        response: What ``target="observation"`` covers.
        nominal: Whether the level is only a nominal one; False where the argument proves it.
    """

    name: str
    covers: str
    by: str
    assumed: tuple[str, ...]
    checked: tuple[str, ...] = ()
    response: str = "a new response, if the model has no bias"
    nominal: bool = True

    def sentence(self, delta: float, target: Target, noise: Noise | None = None, *, simultaneous: bool = False) -> str:
        """Compose the guarantee.

        Args:
            delta: The probability of a miss; NaN where the level is not known.
            target: What the interval is of.
            noise: The noise, where a new response was given some.
            simultaneous: Whether the level is that of all points at once.
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
