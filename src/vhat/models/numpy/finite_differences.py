"""Derivatives of plain functions by finite differences with automatic steps and an error estimate for every entry.

No step is a constant, because the unit of a parameter is known only through the function. For each parameter,
:mod:`vhat.models.numpy.difference_steps` finds the largest step over which the function is close to a parabola and
changes by more than its rounding. From there the step is halved repeatedly, central differences are extrapolated to
step zero (Ridders), and every entry keeps the extrapolation that agrees best with its neighbours in the tableau. The
derivatives of a row are computed from the values of that row only; the other rows do not affect them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vhat.models.numpy.sampled import EPS, Pair, Sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Estimate", "first_derivatives", "not_converged", "second_derivatives"]

_MAX_HALVINGS = 26
"""Number of step sizes per derivative."""
_MAX_ORDERS = 8
"""Number of Richardson extrapolations per step size."""
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


def _central_difference(function: Sampled, j: int, pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Return the central difference in parameter j and its rounding error, including the rounding of ``theta[j]``."""
    slope = (pair.up - pair.down) / pair.width
    rounding = function.rounding_error([j], pair.up, pair.down) + EPS * abs(function.theta[j] * slope)
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
