"""Derivatives of plain functions by finite differences with automatic steps and an error estimate for every entry.

No step is a constant, because the unit of a parameter is known only through the function. `find_steps` searches, for
each parameter, the largest step over which the function is close to a parabola and changes by more than its rounding.
From there the step is halved repeatedly, central differences are extrapolated to step zero (Ridders), and every entry
keeps the extrapolation that agrees best with its neighbours in the tableau. The derivatives of a row are computed from
the values of that row only; the other rows do not affect them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vhat.errors import VhatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "START_FRACTION",
    "Estimate",
    "Sampled",
    "SampledSteps",
    "find_steps",
    "first_derivatives",
    "measure_rounding",
    "not_converged",
    "second_derivatives",
]

_EPS = float(np.finfo(np.float64).eps)
START_FRACTION = 0.2896
"""First step of the search as a fraction of a parameter's scale. Not a simple fraction, so that the step is unlikely to
be a multiple of the period of a periodic function."""
_MAX_HALVINGS = 26
"""Number of step sizes per derivative."""
_MAX_ORDERS = 8
"""Number of Richardson extrapolations per step size."""
_NEGLIGIBLE = 1e-100
"""Magnitude, in any unit, below which a parameter is treated as 0 and gives no scale for its step."""
_SEARCH_EVALUATIONS = 40
"""Number of step sizes that the search for a step tries."""
_MAX_ERROR = 1e-4
"""Largest error of a derivative, as a share of the size with which it is compared."""
_ROUNDING_FACTOR = 30
"""An error of up to this multiple of the rounding is accepted: it does not indicate a kink or a jump."""


@dataclass(frozen=True)
class Estimate:
    """Derivatives and estimates of their errors.

    Attributes:
        value: The derivatives.
        error: Estimated absolute error of each; infinite where differences at successive steps never agreed.
        rounding: The part of ``error`` that is explained by rounding of the function's values.
    """

    value: np.ndarray
    error: np.ndarray
    rounding: np.ndarray


class _Pair(NamedTuple):
    """Values of a function at both sides of a point, (m,), and the distance between the two arguments."""

    up: np.ndarray
    down: np.ndarray
    width: float


@dataclass(frozen=True)
class Sampled:
    """A function of p parameters with m values, and its values at the point of interest.

    Attributes:
        call: Maps theta (p,) to values (m,).
        theta: The point (p,).
        base: ``call(theta)``, (m,).
        floor: Magnitude added to that of each value when its rounding is estimated, per changed parameter, (p, m).
        eps: Relative rounding of the values: that of float64, or more where `measure_rounding` has measured more.
    """

    call: Callable[[np.ndarray], np.ndarray]
    theta: np.ndarray
    base: np.ndarray
    floor: np.ndarray | None = None
    eps: float = _EPS

    def values_with(self, changes: Sequence[tuple[int, float]]) -> np.ndarray:
        """Return the values with ``theta[j] = t`` for each (j, t) of ``changes``; NaN if the function fails there."""
        theta = self.theta.copy()
        for j, t in changes:
            theta[j] = t
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a step that is too long shows in the values
            try:
                return self.call(theta)
            except (VhatError, MemoryError):
                raise
            except Exception:  # the function has a value at theta, so the step is too long
                return np.full_like(self.base, np.nan)

    def both_sides(self, j: int, h: float) -> _Pair:
        """Return the values at ``theta[j] + h`` and ``theta[j] - h``, and the distance between them after rounding."""
        up = self.theta[j] + h
        down = self.theta[j] - h
        return _Pair(self.values_with([(j, up)]), self.values_with([(j, down)]), up - down)

    def rounding_error(self, changed: Sequence[int], *values: np.ndarray) -> np.ndarray:
        """Return the rounding error of values at which the parameters ``changed`` differ from theta, (m,)."""
        size = np.maximum.reduce([np.abs(self.base), *map(np.abs, values)])
        if self.floor is not None:
            size = size + self.floor[list(changed)].max(axis=0)
        return self.eps * size


class SampledSteps(NamedTuple):
    """A function with its rounding measured, and the largest difference step of each parameter, (p,)."""

    function: Sampled
    steps: np.ndarray


class _Tableau:
    """Richardson extrapolation to step zero of estimates whose error is even in a step that is halved each time.

    Attributes:
        value: The best extrapolation of each entry so far.
        error: Its estimated error.
        rounding: The part of the error that is due to rounding.
        step: The smallest step that entered it.
        finished: Whether smaller steps cannot improve the entry, because their rounding exceeds its error.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.value = np.zeros(shape)
        self.error = np.full(shape, np.inf)
        self.rounding = np.full(shape, np.inf)
        self.step = np.zeros(shape)
        self.finished = np.zeros(shape, dtype=bool)
        self._previous: list[np.ndarray] = []

    def add(
        self, estimate: np.ndarray, rounding: np.ndarray, trusted: np.ndarray | bool = True, step: float = 0.0
    ) -> None:
        """Add the differences at the next step size and update the entries that are not finished.

        Args:
            estimate: Central differences at this step.
            rounding: Their rounding errors.
            trusted: Whether an entry may be updated.
            step: The step size.
        """
        row = [estimate]
        for order, old in enumerate(self._previous[:_MAX_ORDERS]):
            # Halving the step divides the leading error term, of order 2 (order + 1), by 4^(order + 1).
            row.append(row[order] + (row[order] - old) / (4.0 ** (order + 1) - 1))
            error = np.maximum(abs(row[-1] - row[order]), abs(row[-1] - old)) + rounding
            better = (error < self.error) & trusted & ~self.finished  # False for NaN
            self.value = np.where(better, row[-1], self.value)
            self.error = np.where(better, error, self.error)
            self.rounding = np.where(better, rounding, self.rounding)
            self.step = np.where(better, step, self.step)
        self._previous = row
        self.finished |= rounding >= self.error

    def estimate(self) -> Estimate:
        return Estimate(self.value, self.error, self.rounding)


def not_converged(found: Estimate, unit: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return which derivatives have an error that is too large and is not explained by rounding, as booleans.

    Args:
        found: The derivatives.
        unit: The product of the difference steps of each derivative.
        size: Magnitude, in these units, with which an error is compared.
    """
    with np.errstate(invalid="ignore"):
        inaccurate = found.error * unit > _MAX_ERROR * size
    explained = found.error <= _ROUNDING_FACTOR * found.rounding
    return (inaccurate & ~explained) | np.isinf(found.error)


# -- steps ---------------------------------------------------------------------------------------
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
    function = replace(function, eps=max(_EPS, measured))
    if measured >= 1e3 * _EPS:
        # The first search took the rounding for changes of the function.
        steps = find_steps(function, start)
    return SampledSteps(function, steps)


# -- first derivatives ---------------------------------------------------------------------------
def first_derivatives(function: Sampled, steps: np.ndarray) -> Estimate:
    """Return the Jacobian (m, p) by extrapolated central differences.

    Args:
        function: The function.
        steps: Largest step of each parameter, from `find_steps`.
    """
    with np.errstate(all="ignore"):
        columns = [_column(function, j, float(h)) for j, h in enumerate(steps)]
    return Estimate(
        np.stack([column.value for column in columns], 1),
        np.stack([column.error for column in columns], 1),
        np.stack([column.rounding for column in columns], 1),
    )


def _column(function: Sampled, j: int, step: float) -> Estimate:
    """Return the derivatives in parameter j, (m,): halve the step until no entry improves, then validate."""
    tableau = _Tableau(function.base.shape)
    second = np.full_like(function.base, np.inf)
    for h in step * 0.5 ** np.arange(_MAX_HALVINGS):
        pair = function.both_sides(j, h)
        previous = second
        second = abs(pair.up - 2 * function.base + pair.down)
        # Central differences agree with each other, and are wrong, over a kink at theta and where both sides have left
        # a peak. The second difference detects both: for a smooth function it falls to a quarter with each halving.
        rounding = 16 * function.rounding_error([j], pair.up, pair.down)
        smooth = (second <= 0.4 * previous) | (second <= 1e-3 * abs(pair.up - pair.down) + rounding)
        tableau.add(*_central_difference(function, j, pair), smooth, h)
        if tableau.finished.all():
            break
    return _validated(function, j, tableau)


def _central_difference(function: Sampled, j: int, pair: _Pair) -> tuple[np.ndarray, np.ndarray]:
    """Return the central difference in parameter j and its rounding error, including the rounding of ``theta[j]``."""
    slope = (pair.up - pair.down) / pair.width
    rounding = function.rounding_error([j], pair.up, pair.down) + _EPS * abs(function.theta[j] * slope)
    return slope, 2 * rounding / abs(pair.width)


def _validated(function: Sampled, j: int, tableau: _Tableau) -> Estimate:
    """Add to the error the disagreement with differences at a far smaller step.

    A function with many small jumps gives consistent differences at long steps only. A disagreement ``d`` at step
    ``h/64``, beyond rounding and curvature, means values with errors of ``d h/64``, and so a derivative with an error
    of ``d/64`` at the step h from which it was taken.
    """
    excess = np.zeros_like(tableau.value)
    for h in np.unique(tableau.step[np.isfinite(tableau.error)]):
        wide, _ = _central_difference(function, j, function.both_sides(j, h / 32))
        fine, rounding = _central_difference(function, j, function.both_sides(j, h / 64))
        extrapolated = (4 * fine - wide) / 3
        difference = np.minimum(abs(fine - tableau.value), abs(extrapolated - tableau.value)) - 4 * rounding
        excess = np.where(tableau.step == h, np.nan_to_num(np.maximum(difference, 0.0), nan=0.0), excess)
    return Estimate(tableau.value, tableau.error + excess / 64, tableau.rounding)


# -- second derivatives --------------------------------------------------------------------------
def second_derivatives(function: Sampled, steps: np.ndarray, pairs: Sequence[tuple[int, int]]) -> Estimate:
    """Return second derivatives in pairs of parameters, (len(pairs), m).

    Uses ``[f(+,+) + f(-,-) - f(+,0) - f(-,0) - f(0,+) - f(0,-) + 2 f] / (2 h_i h_j)``: two evaluations per pair, and
    those along single parameters, which the pairs share. Pairs whose entries are all finished are not evaluated again.

    Args:
        function: The function.
        steps: Largest step of each parameter, from `find_steps`.
        pairs: Parameter positions (i, j), equal or not.
    """
    tableau = _Tableau((len(pairs), len(function.base)))
    with np.errstate(all="ignore"):
        for halvings in range(_MAX_HALVINGS):
            unfinished = np.flatnonzero(~tableau.finished.all(axis=1))
            if not unfinished.size:
                break
            tableau.add(*_second_differences(function, steps * 0.5**halvings, pairs, unfinished))
    return tableau.estimate()


def _second_differences(
    function: Sampled, h: np.ndarray, pairs: Sequence[tuple[int, int]], wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return second differences at steps ``h`` and their rounding errors, NaN for pairs that are not ``wanted``."""
    parameters = sorted({j for at in wanted for j in pairs[at]})
    axes = {j: function.both_sides(j, float(h[j])) for j in parameters}
    theta = function.theta
    base = function.base
    second, rounding = np.full((2, len(pairs), len(base)), np.nan)
    for at in wanted:
        i, j = pairs[at]
        up, down, width_i = axes[i]
        up_j, down_j, width_j = axes[j]
        area = width_i * width_j / 4
        if i == j:
            second[at] = (up - 2 * base + down) / area
        else:
            plus = function.values_with([(i, theta[i] + h[i]), (j, theta[j] + h[j])])
            minus = function.values_with([(i, theta[i] - h[i]), (j, theta[j] - h[j])])
            second[at] = (plus + minus - (up + down) - (up_j + down_j) + 2 * base) / (2 * area)
        rounding[at] = 4 * function.rounding_error([i, j], up, down, up_j, down_j) / abs(area)
    return second, rounding
