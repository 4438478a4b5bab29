"""Metrics of a set of intervals: coverage, width, interval score and calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError, name_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Calibration", "Width", "calibration", "coverage", "width", "winkler"]


def coverage(lower: ArrayLike, upper: ArrayLike, truth: ArrayLike) -> float:
    """Return the share of points whose interval contains the truth.

    ::

        mean of 1{lower <= truth <= upper}

    An interval with a NaN bound counts as not covered, so that missing intervals never raise the coverage.

    Args:
        lower: Lower ends, (points,) or (points, outputs).
        upper: Upper ends, the same shape.
        truth: The values to be covered, the same shape: the true mean, or new responses.

    Returns:
        A number between 0 and 1.

    Raises:
        InputError: For shapes that differ, no point at all, an upper end below its lower end or a NaN truth.

    Examples:
        >>> coverage([0.0, 0.0, float("nan")], [1.0, 1.0, 1.0], [0.5, 2.0, 0.5]) == 1 / 3
        True
    """
    low, high = _ends(lower, upper)
    inside = _responses("truth", truth, low.shape)
    return float(np.mean((low <= inside) & (inside <= high)))


@dataclass(frozen=True)
class Width:
    """Widths of a set of intervals.

    Attributes:
        mean: Mean of upper - lower.
        median: Median of upper - lower.
        median_half: Median of (upper - lower) / 2.
        kept: Number of points that count.
        total: Number of points.
    """

    mean: float
    median: float
    median_half: float
    kept: int
    total: int


def width(
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    X_test: ArrayLike | None = None,
    X_train: ArrayLike | None = None,
    quantile: float = 0.99,
) -> Width:
    """Return a summary of the widths, over all points or over those near the training data.

    If the inputs are given, only test points that are nearest to some training row count, without distant rows::

        dist_i = min_j |X_train_i - X_test_j|,        eps = the quantile of dist_1, ..., dist_n
        kept   = { argmin_j |X_train_i - X_test_j| : dist_i <= eps }

    Each test point counts once. This is the published filter, which compares widths where there are data.

    Args:
        lower: Lower ends, (points,) or (points, outputs).
        upper: Upper ends, the same shape.
        X_test: Test inputs, (points, d) or (points,); with X_train, or neither.
        X_train: Training inputs, (n, d) or (n,).
        quantile: Share of training rows whose nearest test point counts, in (0, 1].

    Returns:
        Mean, median, median half width, and the number of points that count.

    Raises:
        InputError: For shapes that do not fit, an upper end below its lower end, a NaN bound at a point that counts
            (without it the method would look better than it is), or a quantile outside (0, 1].

    Examples:
        >>> width([0.0, 0.0, 0.0], [1.0, 2.0, 6.0])
        Width(mean=3.0, median=2.0, median_half=1.0, kept=3, total=3)
        >>> x, x_train = [0.0, 1.0, 9.0], [0.1, 0.2, 1.1]
        >>> width([0.0, 0.0, 0.0], [1.0, 2.0, 6.0], X_test=x, X_train=x_train, quantile=1.0)
        Width(mean=1.5, median=1.5, median_half=0.75, kept=2, total=3)
    """
    low, high = _ends(lower, upper)
    rows = np.arange(len(low))
    if (X_test is None) != (X_train is None):
        raise InputError("width: give X_test and X_train together, or neither.")
    if X_test is not None and X_train is not None:
        rows = _near(_inputs("X_test", X_test, len(low)), _inputs("X_train", X_train), quantile)
    _require_intervals("width", low, high, rows)
    widths = high[rows] - low[rows]
    median = float(np.median(widths))
    return Width(float(np.mean(widths)), median, median / 2, kept=len(rows), total=len(low))


def winkler(lower: ArrayLike, upper: ArrayLike, y: ArrayLike, delta: float) -> float:
    """Return Winkler's mean interval score. Smaller is better, and the true quantiles have the smallest expected score.

    ::

        mean of (upper - lower) + (2/delta) max(0, lower - y) + (2/delta) max(0, y - upper)

    Args:
        lower: Lower ends, (points,) or (points, outputs).
        upper: Upper ends, the same shape.
        y: Observed responses, the same shape.
        delta: One minus the nominal level of the intervals, in (0, 1).

    Returns:
        The mean score, in units of y.

    Raises:
        InputError: For shapes that differ, an upper end below its lower end, NaN bounds (missing intervals have no
            score; the rows are named), NaN responses or delta outside (0, 1).

    Examples:
        >>> winkler([0.0, 0.0], [1.0, 1.0], [0.5, 1.25], delta=0.5)
        1.5
    """
    low, high = _ends(lower, upper)
    responses = _responses("y", y, low.shape)
    if not 0.0 < float(delta) < 1.0:
        raise InputError(f"delta={delta!r} is not between 0 and 1. It is one minus the level of the intervals.")
    _require_intervals("winkler", low, high, np.arange(len(low)))
    outside = np.maximum(0.0, low - responses) + np.maximum(0.0, responses - high)
    return float(np.mean(high - low + (2.0 / float(delta)) * outside))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Coverage at several levels.

    Attributes:
        delta: Nominal probabilities of a miss, (levels,).
        coverage: Coverage at each level, (levels,).
        error: Binomial standard errors of the coverage at the nominal levels, (levels,).
        points: Number of points.
    """

    delta: np.ndarray
    coverage: np.ndarray
    error: np.ndarray
    points: int

    @property
    def worst(self) -> float:
        """The largest shortfall of coverage below ``1 - delta``; 0 if there is none."""
        return float(max(np.max(1.0 - self.delta - self.coverage), 0.0))


def calibration(
    interval: Callable[[float], Any], truth: ArrayLike, deltas: ArrayLike = (0.5, 0.2, 0.1, 0.05, 0.01)
) -> Calibration:
    """Return the coverage of intervals at several levels.

    Args:
        interval: Function from delta to intervals with ``lower`` and ``upper``, such as
            ``lambda delta: fitted.interval(x, delta, target="observation")``.
        truth: The values to be covered: the true mean, or new responses.
        deltas: Probabilities of a miss, in (0, 1).

    Returns:
        The coverage at each level.

    Raises:
        InputError: For levels outside (0, 1), and as :func:`coverage`.

    Examples:
        >>> from types import SimpleNamespace
        >>> x = np.linspace(0.0, 1.0, 101)
        >>> half = lambda delta: SimpleNamespace(lower=np.zeros(101), upper=np.full(101, 1 - delta))
        >>> calibration(half, x, [0.5, 0.1]).coverage.round(2)
        array([0.5, 0.9])
    """
    levels = np.atleast_1d(np.asarray(deltas, dtype=float))
    if levels.ndim != 1 or not np.all((levels > 0) & (levels < 1)):
        raise InputError(f"deltas={deltas!r} are not numbers between 0 and 1. They are probabilities of a miss.")
    bands = [interval(float(delta)) for delta in levels]
    shares = np.array([coverage(band.lower, band.upper, truth) for band in bands])
    points = int(np.size(truth))
    return Calibration(levels, shares, np.sqrt(levels * (1 - levels) / points), points)


def _near(test: np.ndarray, train: np.ndarray, quantile: float) -> np.ndarray:
    """Return the rows of ``test`` nearest to some row of ``train``, leaving out the most distant rows of ``train``."""
    from scipy.spatial import cKDTree

    if test.shape[1] != train.shape[1]:
        raise InputError(f"X_test has {test.shape[1]} columns and X_train {train.shape[1]}; they must agree.")
    if not 0.0 < quantile <= 1.0:
        raise InputError(f"quantile={quantile!r} is not in (0, 1]; the published filter takes 0.99.")
    found = cKDTree(test).query(train)
    distance = np.asarray(found[0])
    nearest = np.asarray(found[1])
    return np.unique(nearest[distance <= np.quantile(distance, quantile)])


def _ends(lower: ArrayLike, upper: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends as float64, checked."""
    low = np.asarray(lower, dtype=float)
    high = np.asarray(upper, dtype=float)
    if low.shape != high.shape or low.ndim not in (1, 2) or low.size == 0:
        raise InputError(f"lower has shape {low.shape} and upper {high.shape}; give (points,) or (points, outputs).")
    crossed = _rows(high < low)
    if crossed.size:
        raise InputError(f"upper is below lower in {name_rows(crossed)}. Give the lower ends first.")
    return low, high


def _responses(name: str, values: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """Return true values or responses as float64, checked."""
    array = np.asarray(values, dtype=float)
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}; the intervals have {shape}. They must agree.")
    missing = _rows(np.isnan(array))
    if missing.size:
        raise InputError(f"{name} is NaN in {name_rows(missing)}. Remove those points.")
    return array


def _inputs(name: str, values: ArrayLike, points: int | None = None) -> np.ndarray:
    """Return inputs as (rows, d) float64, checked."""
    array = np.asarray(values, dtype=float)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.size == 0 or (points is not None and len(array) != points):
        wanted = "rows" if points is None else f"{points} rows, one an interval"
        raise InputError(f"{name} has shape {array.shape}; give {wanted}, as (rows, d).")
    bad = _rows(~np.isfinite(array))
    if bad.size:
        raise InputError(f"{name} has NaN or infinite values in {name_rows(bad)}. Remove or repair them.")
    return array


def _require_intervals(metric: str, low: np.ndarray, high: np.ndarray, rows: np.ndarray) -> None:
    """Refuse NaN ends, and two infinite ends of the same sign, among ``rows``."""
    bad = np.isnan(low) | np.isnan(high) | (np.isinf(low) & (low == high))
    missing = np.intersect1d(_rows(bad), rows)
    if missing.size:
        raise InputError(f"{metric}: no interval in {name_rows(missing)}. Solve those points first, or leave them out.")


def _rows(mask: np.ndarray) -> np.ndarray:
    """Return the rows in which the mask is True somewhere."""
    return np.flatnonzero(mask.reshape(len(mask), -1).any(axis=1))
