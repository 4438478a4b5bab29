"""What a method says about its intervals, and the sentence that is made of it."""

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
    """What a method says about its intervals, from which the guarantee is made.

    Attributes:
        name: The method's name, which the interval carries as its ``bound``.
        covers: What ``target="mean"`` covers.
        by: The argument that it rests on.
        assumed: What is taken on trust, one clause each.
        checked: What was established.
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

    def sentence(self, delta: float, target: Target, noise: Noise | None = None) -> str:
        """Compose the guarantee; a delta of NaN is a level that nobody can state."""
        covers = self.covers if target == "mean" else self.response
        extra = () if target == "mean" or noise is None else (f"Gaussian noise in a new response, {noise.source}",)
        stated = not math.isnan(delta)
        level = f"{'Nominal ' if self.nominal else ''}{level_text(delta)}" if stated else "No stated level"
        checked = ", ".join(self.checked) or "nothing"
        assumed = ", ".join((*self.assumed, *extra))
        return f"{level} at each point taken alone, for {covers}, by {self.by}; checked: {checked}; assumed: {assumed}."
