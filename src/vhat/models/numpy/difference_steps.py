"""Steps of finite differences, found by evaluations of the function."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from vhat.models.numpy.sampled import EPS, Sampled

__all__ = ["START_FRACTION", "SampledSteps", "find_steps", "measure_rounding"]

START_FRACTION = 0.2896
"""First step of the search as a fraction of a parameter's scale. Not a simple fraction, so that the step is unlikely to
be a multiple of the period of a periodic function."""
_NEGLIGIBLE = 1e-100
"""Magnitude, in any unit, below which a parameter is treated as 0 and gives no scale for its step."""
_SEARCH_EVALUATIONS = 40
"""Number of step sizes that the search for a step tries."""


class SampledSteps(NamedTuple):
    """A function with its rounding measured, and the largest difference step of each parameter, (p,)."""

    function: Sampled
    steps: np.ndarray


class _StepQuality(Enum):
    """Behaviour of a function over an interval ``theta[j] +- h``."""

    BELOW_ROUNDING = auto()
    """No value changes by more than its own rounding: the step is too short."""
    FAINT = auto()
    """Close to a parabola, but no change exceeds the rounding of the largest values."""
    PARABOLIC = auto()
    """Close to a parabola."""
    LARGE_CHANGE = auto()
    """Close to a parabola, and some value changes by 5% of the largest value: a longer step is not needed."""
    NOT_PARABOLIC = auto()
    """Not close to a parabola, or not finite: the step is too long."""


def find_steps(function: Sampled, start: np.ndarray | None = None) -> np.ndarray:
    """Return, for each parameter, the largest step over which the function is close to a parabola, (p,).

    Args:
        function: The function. A step must suit all of its values.
        start: Steps from which the search starts, such as those of a neighbouring point. The default is proportional
            to ``|theta|``, or to 1 where theta is 0. A start that is too small costs evaluations, not accuracy.
    """
    size = np.abs(function.theta)
    default = START_FRACTION * np.where(size > _NEGLIGIBLE, size, 1.0)
    first = default if start is None else start
    with np.errstate(all="ignore"):
        return np.array([_find_step(function, j, float(h)) for j, h in enumerate(first)])


def _find_step(function: Sampled, j: int, start: float) -> float:
    """Bracket the longest usable step of parameter j between a usable and a too long one, then bisect to a factor 4."""
    low = 0.0  # longest step found so far that is not too long
    high = np.inf  # shortest step found so far that is too long
    low_quality = _StepQuality.BELOW_ROUNDING
    longest_finite = 0.0  # longest step that is too long, but with finite values
    h = start
    factor = 4.0
    for _ in range(_SEARCH_EVALUATIONS):
        quality, finite = _step_quality(function, j, h)
        if quality is _StepQuality.LARGE_CHANGE:
            return h
        if quality is _StepQuality.NOT_PARABOLIC:
            high = h
            longest_finite = max(longest_finite, h * finite)
        else:
            low = h
            low_quality = quality
        if low > 0 and high < np.inf:
            if high <= 4.01 * low:
                break
            h = float(np.sqrt(low) * np.sqrt(high))
        else:
            h = h * factor if low > 0 else h / factor
            # The factor is squared while nothing is known of the scale, and kept small near usable steps.
            factor = min(factor, 16.0) if quality is _StepQuality.PARABOLIC else min(factor**2, 2.0**16)
            if not 1e-150 < h < 1e150:
                break
    if low_quality in (_StepQuality.PARABOLIC, _StepQuality.FAINT):
        return low
    # No step is usable. Start from the longest one with finite values; the differences may still agree at smaller ones.
    return longest_finite or start


def _step_quality(function: Sampled, j: int, h: float) -> tuple[_StepQuality, bool]:
    """Return how the function behaves over ``theta[j] +- h``, and whether its values are finite there.

    The parabola through the values at -h/2, 0 and h/2 must predict those at -h and h. This test also works where the
    first derivative is zero, and it fails where the step passes over a peak or a sigmoid has saturated. Values that
    change by less than their own rounding are left out of the test.
    """
    up, down, _ = function.both_sides(j, h)
    half_up, half_down, _ = function.both_sides(j, h / 2)
    if not np.all(np.isfinite([up, down, half_up, half_down])):
        return _StepQuality.NOT_PARABOLIC, False
    base = function.base
    change = np.maximum(abs(up - base), abs(down - base))
    rounding = 1e3 * function.rounding_error([j], up, down)
    tested = change > rounding
    if not tested.any():
        return _StepQuality.BELOW_ROUNDING, True
    odd = half_up - half_down
    even = 2 * (half_up - 2 * base + half_down)
    # The parabola predicts base + odd + even at +h and base - odd + even at -h.
    miss = np.maximum(abs(up - base - odd - even), abs(down - base + odd - even))[tested]
    largest = change[tested].max()
    if miss.max() > 0.1 * largest:
        return _StepQuality.NOT_PARABOLIC, True
    if largest <= rounding.max():
        return _StepQuality.FAINT, True
    if largest >= 0.05 * abs(base).max():
        return _StepQuality.LARGE_CHANGE, True
    return _StepQuality.PARABOLIC, True


def measure_rounding(function: Sampled, start: np.ndarray | None = None) -> SampledSteps:
    """Return the function with the measured relative rounding of its values, and the step of each parameter.

    Sixth differences over nine points are taken so close together that they vanish for any smooth function; what is
    left is rounding (Hamming; More and Wild, 2011). This detects a model that computes in float32. The points lie on
    one side of theta, so that a kink at theta itself is not mistaken for rounding.

    Args:
        function: The function.
        start: Steps from which the search for steps starts, see `find_steps`.
    """
    steps = find_steps(function, start)
    signs = np.where(np.arange(len(steps)) % 2, -1.0, 1.0)
    points = [function.theta + k * 2.0**-16 * signs * steps for k in range(1, 10)]
    values = np.array([function.values_with(list(enumerate(point))) for point in points])
    with np.errstate(all="ignore"):
        # The sixth difference of independent errors has (12 choose 6) = 924 times their variance.
        spread = np.sqrt(np.mean(np.diff(values, 6, axis=0) ** 2, axis=0) / 924.0)
        share = (spread / abs(function.base))[abs(function.base) >= 0.1 * np.sqrt(np.mean(function.base**2))]
    share = share[np.isfinite(share)]
    measured = float(np.quantile(share, 0.75)) if share.size else 0.0
    function = replace(function, eps=max(EPS, measured))
    if measured >= 1e3 * EPS:
        # The first search took the rounding for changes of the function.
        steps = find_steps(function, start)
    return SampledSteps(function, steps)
