"""What is assumed about the tail of the weighted norm V over the noise."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["MODERATE", "Tail"]


@dataclass(frozen=True, repr=False)
class Tail:
    """A sub-gamma pair for the weighted norm: how far V may stray above its mean.

    ::

        ln E exp(a (V - E V)) <= a^2 v^2 / (2 (1 - c a))        for 0 < a < 1/c

    so that v is at least V's standard deviation and c a scale, both in units of V. If 0 <= V <= B for all
    noise, then ``Tail(v=B / 2, c=0)``. `Tail.relative` gives the pair as multiples of V(x) at each point
    instead; V(x) is itself random, so a relative tail is an assumption about proportions and not a number
    known beforehand. `Tail.sd` gives a standard deviation of V in place of the pair.

    Args:
        v: Square root of the variance factor; finite, not negative.
        c: Scale; finite, not negative.
        per_norm: Whether v and c are multiples of V(x); set by `Tail.relative`.
        two_moments: Whether v is a standard deviation of V and no more is assumed; set by `Tail.sd`.

    Raises:
        InputError: For a v or c that is negative or not a finite number.

    Examples:
        >>> Tail(v=0.5, c=0.1)
        Tail(v=0.5, c=0.1)
        >>> Tail.relative(v=0.3, c=0.0).pair([1.0, 2.0])
        (array([0.3, 0.6]), array([0., 0.]))
    """

    v: float
    c: float
    _: KW_ONLY
    per_norm: bool = False
    two_moments: bool = False

    def __post_init__(self) -> None:
        for name in ("v", "c"):
            value = getattr(self, name)
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise InputError(f"Tail: {name}={value!r} is not a number.") from None
            if not (np.isfinite(number) and number >= 0):
                raise InputError(f"Tail: {name}={value!r} must be finite and not negative.")
            object.__setattr__(self, name, number)

    @classmethod
    def relative(cls, v: float, c: float) -> Tail:
        """Return the tail whose pair at x is ``(v V(x), c V(x))``.

        Args:
            v: Relative standard deviation of V; small networks at a minimum showed 0.2 to 0.4.
            c: Relative scale of V.

        Returns:
            A tail in units of V(x).

        Raises:
            InputError: For a v or c that is negative or not a finite number.

        Examples:
            >>> Tail.relative(0.3, 0.1)
            Tail.relative(v=0.3, c=0.1)
        """
        return cls(v, c, per_norm=True)

    @classmethod
    def sd(cls, share: float) -> Tail:
        """Return the tail of a V with the standard deviation ``share V(x)``, for the isoperimetric bound.

        Args:
            share: Standard deviation of V over its mean.

        Returns:
            A tail in units of V(x).

        Raises:
            InputError: For a share that is negative or not a finite number.

        Examples:
            >>> Tail.sd(0.3)
            Tail.sd(0.3)
        """
        return cls(share, 0.0, per_norm=True, two_moments=True)

    def pair(self, norm: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return (v, c) in units of V at each point.

        Args:
            norm: V(x), any shape.

        Returns:
            Two arrays of the shape of ``norm``; NaN stays NaN in a relative tail.

        Examples:
            >>> Tail(0.5, 0.1).pair([1.0, 2.0])
            (array([0.5, 0.5]), array([0.1, 0.1]))
        """
        values = np.asarray(norm, dtype=float)
        unit = values if self.per_norm else np.ones(values.shape)
        return np.asarray(self.v * unit), np.asarray(self.c * unit)

    def __repr__(self) -> str:
        if self.two_moments:
            return f"Tail.sd({self.v!r})"
        return f"Tail{'.relative' if self.per_norm else ''}(v={self.v!r}, c={self.c!r})"


MODERATE = Tail.relative(0.5, 0.25)
"""The tail that the isoperimetric bound assumes where none is given: that of a chi-square with eight degrees of freedom
over eight. V's relative standard deviation at certified minima was 0.18 to 0.36 in the median."""
