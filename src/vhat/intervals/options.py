"""The options of an interval, checked where they are made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_choice, check_count, check_delta, check_level, check_nonnegative
from vhat.errors import InputError
from vhat.intervals import sup_t
from vhat.intervals.estimated_tail import EstimatedTail, Redraws
from vhat.intervals.tail import MODERATE, Tail

__all__ = ["BOUNDS", "Options"]

BOUNDS = ("isoperimetric", "tight", "theorem", "sharp", "empirical", "chebyshev", "asymptotic")
_NAMED_TAILS = ("constant", "any")
"""Tails of the isoperimetric bound without parameters: V does not vary, or nothing is assumed."""


@dataclass(frozen=True)
class Options:
    """The options of an interval: see :meth:`vhat.FittedModel.interval`."""

    delta: float = 0.05
    simultaneous: bool | str = False
    bound: str = "isoperimetric"
    tail: Tail | EstimatedTail | Redraws | str | None = None
    target: str = "mean"
    observation_noise: Any = None
    bias: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", check_delta(self.delta))
        check_count("seed", self.seed)
        if isinstance(self.bound, str) and self.bound == "exact":
            raise InputError(
                "bound='exact' cannot be asked for: leave the default, and a model that is linear in its parameters by "
                "structure is answered exactly (from_numpy needs jac=, a function of the inputs alone)."
            )
        check_choice("bound", self.bound, BOUNDS)
        check_choice("target", self.target, ("mean", "observation"))
        self._check_simultaneous()
        if isinstance(self.tail, str) and self.tail == "estimated":
            object.__setattr__(self, "tail", Redraws())
        self._check_tail()
        if self.observation_noise is not None and self.target != "observation":
            raise InputError("observation_noise goes with target='observation'.")
        self._check_added()

    @cached_property
    def joint(self) -> str:
        """The kind of simultaneity: ``""`` for none, ``"union"`` or ``"sup-t"``.

        The simulated quantile of sup-t needs draws beyond it. Where delta is too small for that, the union bound is
        used.
        """
        if self.simultaneous is False:
            return ""
        if self.simultaneous == "sup-t" and sup_t.has_enough_draws(self.delta):
            return "sup-t"
        return "union"

    @cached_property
    def known_tail(self) -> Tail | EstimatedTail | str | None:
        """The tail in use, once it is not to be estimated any more."""
        assert not isinstance(self.tail, Redraws)
        if self.tail is None and self.bound == "isoperimetric":
            return MODERATE
        return self.tail

    def _check_simultaneous(self) -> None:
        if isinstance(self.simultaneous, bool | np.bool_):
            object.__setattr__(self, "simultaneous", bool(self.simultaneous))
        elif not isinstance(self.simultaneous, str) or self.simultaneous not in ("union", "sup-t"):
            raise InputError(f"simultaneous={self.simultaneous!r} is not known. Use False, True ('union') or 'sup-t'.")
        if self.simultaneous == "sup-t" and self.bound != "asymptotic":
            raise InputError(
                f"simultaneous='sup-t' is the quantile of correlated normals: it goes with bound='asymptotic', not "
                f"{self.bound!r}. Use simultaneous=True for the union bound."
            )

    def _check_tail(self) -> None:
        """Refuse a tail that is not known, or that this bound cannot use."""
        named = isinstance(self.tail, str) and self.tail in _NAMED_TAILS
        if self.tail is not None and not named and not isinstance(self.tail, Tail | EstimatedTail | Redraws):
            raise InputError(
                f"tail={self.tail!r} is not known. Use None, 'estimated', 'constant', 'any', vhat.Tail(v, c), "
                "vhat.Tail.relative(v, c) or vhat.Tail.sd(share)."
            )
        moments = isinstance(self.tail, Tail) and self.tail.two_moments
        if (named or moments) and self.bound != "isoperimetric":
            raise InputError(
                f"tail={self.tail!r} goes with bound='isoperimetric', not with {self.bound!r}. Give vhat.Tail(v, c) or "
                "vhat.Tail.relative(v, c)."
            )
        if self.tail is not None and self.bound in ("asymptotic", "chebyshev"):
            raise InputError(f"bound={self.bound!r} takes no tail; leave tail=None.")
        if self.tail is None and self.bound == "empirical":
            raise InputError("bound='empirical' bounds E[V] by the tail of V: give tail=vhat.Tail(v, c).")

    def _check_added(self) -> None:
        """Bring bias and noise of new responses to arrays; their shapes are checked with that of the interval."""
        if isinstance(self.bias, str):
            check_choice("bias", self.bias, ("plug-in",))
        elif self.bias is not None:
            bias = as_numbers("bias", self.bias)
            if not (np.all(np.isfinite(bias)) and np.all(bias >= 0)):
                raise InputError("bias must be 'plug-in', or a bound on |bias|: finite and not negative.")
            check_nonnegative("bias", bias)
            object.__setattr__(self, "bias", bias)
        if self.observation_noise is not None:
            fresh = as_numbers("observation_noise", self.observation_noise)
            check_level("observation_noise", fresh, "a new response")
            object.__setattr__(self, "observation_noise", fresh)
