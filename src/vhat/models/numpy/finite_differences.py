"""Derivatives of plain functions by differences that find their own steps, with an error for every entry.

A parameter has a unit, and only the function knows it. So no step is a constant: `find_steps` walks up and
down until the function neither drowns in rounding nor leaves its local parabola. From there the step is halved,
central differences are extrapolated to step zero (Ridders), and every entry keeps the extrapolation whose
neighbours in the tableau agree best. An entry depends on its own row only, not on the company it is computed in.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import VhatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Estimate", "Sampled", "find_steps", "first_derivatives", "second_derivatives", "settle"]

_EPS = float(np.finfo(np.float64).eps)
_GENERIC = 0.2896  # a start that is no simple fraction of theta: a periodic function must not be met at its period
_RUNGS = 26
_ORDERS = 8
_NEGLIGIBLE = 1e-100  # a parameter below this, in any unit, says nothing of its own scale: it is as good as 0
_AMPLE, _TAME, _FAINT, _UNRESOLVED, _WILD = "ample", "tame", "faint", "unresolved", "wild"


@dataclass(frozen=True)
class Estimate:
    """Derivatives and what is known of their error.

    Attributes:
        value: The derivatives.
        error: Estimated absolute error of each, infinite where the differences never agreed.
        rounding: The part of ``error`` that rounding of the function explains.
    """

    value: np.ndarray
    error: np.ndarray
    rounding: np.ndarray


@dataclass(frozen=True)
class Sampled:
    """A function of parameters with m values, and its value at the point of interest.

    Attributes:
        call: Maps theta (p,) to values (m,).
        theta: The point (p,).
        base: ``call(theta)``, (m,).
        floor: Magnitude whose rounding each value carries beyond its own when a parameter moves, (p, m).
        eps: Relative rounding of the values: that of float64, or more where `settle` has found more.
    """

    call: Callable[[np.ndarray], np.ndarray]
    theta: np.ndarray
    base: np.ndarray
    floor: np.ndarray | None = None
    eps: float = _EPS

    def moved(self, shifts: Sequence[tuple[int, float]]) -> np.ndarray:
        """Return the values with ``theta[j] = t`` for each (j, t); NaN where the function has none there."""
        theta = self.theta.copy()
        for j, t in shifts:
            theta[j] = t
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a step too far is told by its value, not by a warning to the user
            try:
                return self.call(theta)
            except (VhatError, MemoryError):
                raise
            except Exception:  # it had a value at theta: a step that has none is merely too long
                return np.full_like(self.base, np.nan)

    def around(self, j: int, h: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the values at ``theta[j] + h`` and ``theta[j] - h`` and the distance really stepped."""
        up, down = self.theta[j] + h, self.theta[j] - h
        return self.moved([(j, up)]), self.moved([(j, down)]), up - down

    def noise(self, moved: Sequence[int], *values: np.ndarray) -> np.ndarray:
        """Return the rounding that values carry in which these parameters have moved, (m,)."""
        size = np.maximum.reduce([np.abs(self.base), *map(np.abs, values)])
        return self.eps * (size if self.floor is None else size + self.floor[list(moved)].max(axis=0))


class _Tableau:
    """Extrapolation to step zero of estimates whose error is even in a step that is halved each time."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.value = np.zeros(shape)
        self.error = np.full(shape, np.inf)
        self.rounding = np.full(shape, np.inf)
        self.step = np.zeros(shape)
        self.done = np.zeros(shape, dtype=bool)
        self._previous: list[np.ndarray] = []

    def add(
        self, estimate: np.ndarray, noise: np.ndarray, trusted: np.ndarray | bool = True, step: float = 0.0
    ) -> None:
        """Take the next rung; entries that a smaller step cannot improve are left alone from then on."""
        row = [estimate]
        for order, old in enumerate(self._previous[:_ORDERS]):
            row.append(row[order] + (row[order] - old) / (4.0 ** (order + 1) - 1))
            error = np.maximum(abs(row[-1] - row[order]), abs(row[-1] - old)) + noise
            better = (error < self.error) & trusted & ~self.done  # False for NaN
            self.value = np.where(better, row[-1], self.value)
            self.error = np.where(better, error, self.error)
            self.rounding = np.where(better, noise, self.rounding)
            self.step = np.where(better, step, self.step)
        self._previous = row
        self.done |= noise >= self.error

    def estimate(self) -> Estimate:
        return Estimate(self.value, self.error, self.rounding)


def find_steps(function: Sampled, start: np.ndarray | None = None) -> np.ndarray:
    """Return, for each parameter, the largest step over which the function is close to a parabola, (p,).

    Args:
        function: The function; all its values are watched together.
        start: Steps to start from, such as those of a neighbouring point; by default from ``|theta|``, or from one
            where that is no scale at all. A start that is too small costs evaluations, no accuracy.
    """
    size = np.abs(function.theta)
    default = _GENERIC * np.where(size > _NEGLIGIBLE, size, 1.0)
    first = default if start is None else start
    with np.errstate(all="ignore"):
        return np.array([_find_step(function, j, float(h)) for j, h in enumerate(first)])


def _find_step(function: Sampled, j: int, start: float) -> float:
    """Bracket the edge between tame (or unresolved) and wild steps, then bisect it to a factor of four."""
    low, high, widest, low_kind, h, stride = 0.0, np.inf, 0.0, _UNRESOLVED, start, 4.0
    for _ in range(40):
        kind, finite = _classify(function, j, h)
        if kind == _AMPLE:
            return h
        if kind == _WILD:
            high, widest = h, max(widest, h * finite)
        else:
            low, low_kind = h, kind
        if low > 0 and high < np.inf:
            if high <= 4.01 * low:
                break
            h = float(np.sqrt(low) * np.sqrt(high))
        else:
            h = h * stride if low > 0 else h / stride
            stride = min(stride, 16.0) if kind == _TAME else min(stride**2, 2.0**16)
            if not 1e-150 < h < 1e150:
                break
    if low_kind in (_TAME, _FAINT):
        return low
    return widest or start  # nowhere tame: descend from afar and see whether anything settles


def _classify(function: Sampled, j: int, h: float) -> tuple[str, bool]:
    """Say what the function does over +-h, and whether it is finite there.

    The parabola through -h/2, 0, h/2 must foretell -h and h. That holds for functions flat to first order too,
    and fails where a peak has been stepped over or a sigmoid has saturated. Only values that rise above their own
    rounding are asked; while that of the largest would still hide them all, they are faint.
    """
    up, down, _ = function.around(j, h)
    half_up, half_down, _ = function.around(j, h / 2)
    if not np.all(np.isfinite([up, down, half_up, half_down])):
        return _WILD, False
    base = function.base
    change = np.maximum(abs(up - base), abs(down - base))
    noise = 1e3 * function.noise([j], up, down)
    seen = change > noise
    if not seen.any():
        return _UNRESOLVED, True
    odd, even = half_up - half_down, 2 * (half_up - 2 * base + half_down)
    miss = np.maximum(abs(up - base - odd - even), abs(down - base + odd - even))[seen]
    largest = change[seen].max()
    if miss.max() > 0.1 * largest:
        return _WILD, True
    if largest <= noise.max():
        return _FAINT, True
    return (_AMPLE if largest >= 0.05 * abs(base).max() else _TAME), True


def settle(function: Sampled, start: np.ndarray | None = None) -> tuple[Sampled, np.ndarray]:
    """Return the function with its own rounding measured, and its steps.

    Sixth differences at nine points so close together that no smooth function shows any leave only rounding
    (Hamming; More and Wild, 2011). A model that works in float32 inside is found by it. The points lie on one side
    of theta, so that a kink at theta itself is not taken for rounding.
    """
    steps = find_steps(function, start)
    signs = np.where(np.arange(len(steps)) % 2, -1.0, 1.0)
    points = [function.theta + k * 2.0**-16 * signs * steps for k in range(1, 10)]
    values = np.array([function.moved(list(enumerate(point))) for point in points])
    with np.errstate(all="ignore"):
        spread = np.sqrt(np.mean(np.diff(values, 6, axis=0) ** 2, axis=0) / 924.0)  # 12!/(6!)^2 = 924
        share = (spread / abs(function.base))[abs(function.base) >= 0.1 * np.sqrt(np.mean(function.base**2))]
    share = share[np.isfinite(share)]
    measured = float(np.quantile(share, 0.75)) if share.size else 0.0
    function = replace(function, eps=max(_EPS, measured))
    return function, steps if measured < 1e3 * _EPS else find_steps(function, start)


def first_derivatives(function: Sampled, steps: np.ndarray) -> Estimate:
    """Return the Jacobian (m, p) by extrapolated central differences.

    Args:
        function: The function.
        steps: Largest step of each parameter, from `find_steps`.
    """
    with np.errstate(all="ignore"):
        columns = [_column(function, j, float(h)) for j, h in enumerate(steps)]
    return Estimate(*(np.stack([getattr(c, name) for c in columns], 1) for name in ("value", "error", "rounding")))


def _column(function: Sampled, j: int, step: float) -> Estimate:
    """Halve the step until no row gains by it, and check the outcome at a step far smaller."""
    tableau = _Tableau(function.base.shape)
    bend = np.full_like(function.base, np.inf)
    for h in step * 0.5 ** np.arange(_RUNGS):
        up, down, width = function.around(j, h)
        before, bend = bend, abs(up - 2 * function.base + down)
        # Over a kink at theta itself, or where both sides have left a peak, slopes agree with each other and
        # are wrong; the second difference, which must fall fourfold, tells.
        smooth = (bend <= 0.4 * before) | (bend <= 1e-3 * abs(up - down) + 16 * function.noise([j], up, down))
        tableau.add(*_slope(function, j, up, down, width), smooth, h)
        if tableau.done.all():
            break
    return _validated(function, j, tableau)


def _slope(function: Sampled, j: int, up: np.ndarray, down: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the central difference and its rounding, that of ``theta[j]`` included."""
    slope = (up - down) / width
    return slope, 2 * (function.noise([j], up, down) + _EPS * abs(function.theta[j] * slope)) / abs(width)


def _validated(function: Sampled, j: int, tableau: _Tableau) -> Estimate:
    """Add to the error what a far smaller step disagrees: a jumpy function agrees with itself only from afar.

    A disagreement ``d`` at step ``h/64``, beyond rounding and curvature, means values that are off by ``d h/64``,
    and so a derivative that is off by ``d/64`` at the step h it was taken from.
    """
    excess = np.zeros_like(tableau.value)
    for h in np.unique(tableau.step[np.isfinite(tableau.error)]):
        (wide, _), (fine, noise) = (_slope(function, j, *function.around(j, h / part)) for part in (32, 64))
        off = np.minimum(abs(fine - tableau.value), abs((4 * fine - wide) / 3 - tableau.value)) - 4 * noise
        excess = np.where(tableau.step == h, np.nan_to_num(np.maximum(off, 0.0), nan=0.0), excess)
    return Estimate(tableau.value, tableau.error + excess / 64, tableau.rounding)


def second_derivatives(function: Sampled, steps: np.ndarray, pairs: Sequence[tuple[int, int]]) -> Estimate:
    """Return second derivatives in pairs of parameters, (len(pairs), m).

    Uses ``[f(+,+) + f(-,-) - f(+,0) - f(-,0) - f(0,+) - f(0,-) + 2 f] / (2 h_i h_j)``: two evaluations a pair,
    the others shared. Pairs whose every entry has settled are not evaluated again.

    Args:
        function: The function.
        steps: Largest step of each parameter, from `find_steps`.
        pairs: Parameter positions (i, j), equal or not.
    """
    tableau = _Tableau((len(pairs), len(function.base)))
    with np.errstate(all="ignore"):
        for rung in range(_RUNGS):
            open_pairs = np.flatnonzero(~tableau.done.all(axis=1))
            if not open_pairs.size:
                break
            tableau.add(*_rung(function, steps * 0.5**rung, pairs, open_pairs))
    return tableau.estimate()


def _rung(
    function: Sampled, h: np.ndarray, pairs: Sequence[tuple[int, int]], wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return second differences at steps ``h`` and their rounding, NaN for pairs not wanted."""
    axes = {j: function.around(j, float(h[j])) for j in sorted({j for at in wanted for j in pairs[at]})}
    theta, base = function.theta, function.base
    second, noise = np.full((2, len(pairs), len(base)), np.nan)
    for at in wanted:
        i, j = pairs[at]
        (up, down, width_i), (up_j, down_j, width_j) = axes[i], axes[j]
        area = width_i * width_j / 4
        if i == j:
            second[at] = (up - 2 * base + down) / area
        else:
            plus = function.moved([(i, theta[i] + h[i]), (j, theta[j] + h[j])])
            minus = function.moved([(i, theta[i] - h[i]), (j, theta[j] - h[j])])
            second[at] = (plus + minus - (up + down) - (up_j + down_j) + 2 * base) / (2 * area)
        noise[at] = 4 * function.noise([i, j], up, down, up_j, down_j) / abs(area)
    return second, noise
