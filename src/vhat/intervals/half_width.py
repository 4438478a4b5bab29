"""Half widths of intervals: a bound applied to V, the noise level and the tail of V."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from vhat import bounds
from vhat.intervals.estimated_tail import EstimatedTail
from vhat.intervals.sampled_variance import delta_of_sampled
from vhat.intervals.tail import Tail

__all__ = ["Values", "half_widths"]

_TABLE = 24
"""Number of levels at which a bound is tabulated for sampled V."""
_SLOW_TABLE = 10
"""The same for the isoperimetric bound, one level of which takes 0.2 seconds."""
_TABLE_PROBES = 256
"""Number of probes from which these tables are long enough."""
_LEAST = 1.1e-9
"""Smallest delta for which the isoperimetric bound has tables, also with an estimated noise level."""


@dataclass(frozen=True, eq=False)
class Values:
    """The values to which a bound is applied. Arrays have the shape of the interval.

    Attributes:
        norm: V.
        n: Number of training rows.
        noise: The noise level in whose unit V is expressed.
        fresh: Standard deviation of a new response; None where the interval is for the mean.
        df: Degrees of freedom of an estimated noise level; None where it is known.
        probes: Number of random probes from which V was estimated; None where it was computed.
    """

    norm: np.ndarray
    n: int
    noise: np.ndarray
    fresh: np.ndarray | None
    df: np.ndarray | None
    probes: int | None = None

    @property
    def standard_error(self) -> np.ndarray:
        """``sigma sqrt(V / n)``: the first-order standard deviation of the prediction."""
        return np.asarray(self.noise * np.sqrt(self.norm / self.n))

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviation of the target: of the prediction, or of a new response about it."""
        return self.standard_error if self.fresh is None else np.hypot(self.standard_error, self.fresh)


def half_widths(values: Values, bound: str, tail: Tail | EstimatedTail | str | None, delta: Any) -> np.ndarray:
    """Return the half width of every value at probability ``delta`` of a miss, before bias.

    Args:
        values: The values to which the bound is applied.
        bound: A bound of :data:`vhat.intervals.options.BOUNDS`, or ``"exact"`` for a normal prediction.
        tail: The tail of V, where the bound uses one.
        delta: Probability of a miss, a number; where V was computed also one per value.
    """
    if values.probes is not None:
        delta = _delta_of_sampled(values, bound, tail, delta)
    if bound in ("exact", "asymptotic"):
        # Both are a quantile of the normal law or of Student's t. They differ in their guarantees only.
        return np.asarray(bounds.asymptotic(1.0, 1, 1.0, delta, df=values.df) * values.deviation)
    if isinstance(tail, EstimatedTail) and bound != "empirical":
        # E[V] is replaced by an upper limit for the mean of V over the redraws, which costs a share of delta, and so
        # does the limit for its standard deviation. A value whose own solve failed has no interval in any case.
        share = tail.delta_share * delta
        mean = tail.mean_limit(share)
        values = replace(values, norm=np.where(np.isnan(values.norm), np.nan, mean))
        delta = delta - 2 * share
        if bound == "isoperimetric":
            return _isoperimetric(values, delta, sd=tail.sd_limit(share))
    if bound == "isoperimetric":
        return _isoperimetric(values, delta, **_tail_arguments(tail, values.norm))

    def width_of_mean(part: float) -> np.ndarray:
        return _by_name(values, bound, tail, part)

    if values.fresh is None:
        return width_of_mean(delta)
    return bounds.observation(width_of_mean, values.fresh, delta, df=values.df)


def _delta_of_sampled(values: Values, bound: str, tail: Tail | EstimatedTail | str | None, delta: float) -> float:
    """Return the smaller delta that allows for the error of a V estimated by probes.

    See :mod:`vhat.intervals.sampled_variance`. It uses widths in standard errors, which must not depend on V: a tail is
    then a multiple of V.
    """
    assert values.probes is not None
    freedoms = [None] if values.df is None else np.unique(values.df).tolist()
    return min(_sampled(bound, tail, df, values.probes, delta) for df in freedoms)


@lru_cache(maxsize=64)
def _sampled(bound: str, tail: Tail | EstimatedTail | str | None, df: float | None, probes: int, delta: float) -> float:
    def multiplier(levels: np.ndarray) -> np.ndarray:
        one = np.ones_like(levels)
        unit = Values(norm=one, n=1, noise=one, fresh=None, df=None if df is None else df * one)
        return half_widths(unit, bound, tail, levels)

    # V from fewer probes varies more, so that a longer range of levels is tabulated.
    longer = max(1, round(np.sqrt(_TABLE_PROBES / probes)))
    if bound == "isoperimetric":
        return delta_of_sampled(multiplier, probes, delta, table=longer * _SLOW_TABLE, least=_LEAST)
    return delta_of_sampled(multiplier, probes, delta, table=longer * _TABLE)


def _isoperimetric(values: Values, delta: float, **tail: Any) -> np.ndarray:
    """Apply the isoperimetric bound to the prediction, or to a new response about it."""
    fresh = 0.0 if values.fresh is None else values.fresh
    return bounds.isoperimetric(
        values.norm, values.n, values.noise, delta, observation_noise=fresh, df=values.df, **tail
    )


def _tail_arguments(tail: Tail | str | EstimatedTail | None, norm: np.ndarray) -> dict[str, Any]:
    """Return the arguments of the isoperimetric bound for the tail of V."""
    if tail == "any":
        return {"v": np.inf}
    if tail == "constant":
        return {}
    assert isinstance(tail, Tail)
    v, c = tail.pair(norm)
    return {"sd": v} if tail.two_moments else {"v": v, "c": c}


def _by_name(values: Values, bound: str, tail: Tail | EstimatedTail | str | None, delta: float) -> np.ndarray:
    """Apply one of the bounds that are for the mean only."""
    if bound == "chebyshev":
        return bounds.chebyshev(values.norm, values.n, values.noise, delta, df=values.df)
    assert not isinstance(tail, str)  # refused by Options
    v, c = (0.0, 0.0) if tail is None else tail.pair(values.norm)
    formula = getattr(bounds, bound)
    width: np.ndarray = formula(values.norm, values.n, values.noise, delta, v=v, c=c, df=values.df)
    return width
