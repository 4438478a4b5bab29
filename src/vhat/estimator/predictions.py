"""Predictions in the forms of other libraries: standard deviations, quantiles, the table of statsmodels."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import as_numbers, check_delta
from vhat.errors import CalibrationWarning, InputError, outside
from vhat.estimator import calibration
from vhat.intervals.noise_shape import spread_of
from vhat.tables.frames import in_library_of

if TYPE_CHECKING:
    import pandas as pd

    from vhat.estimator.regressor import NetworkRegressor
    from vhat.intervals.interval import Interval

__all__ = ["check_level", "quantiles", "standard_deviation", "summary_frame"]

DELTA = 0.05
"""Default probability of a miss."""


def check_level(delta: float | None, confidence_level: float | None) -> float:
    """Return the probability of a miss, given itself or as ``1 - confidence_level``.

    Raises:
        InputError: If both are given, and for numbers outside (0, 1).
    """
    if confidence_level is None:
        return check_delta(DELTA if delta is None else delta)
    if delta is not None:
        raise InputError(
            f"delta={delta!r} and confidence_level={confidence_level!r} were both given, and one is 1 minus the other. "
            "Give one of them."
        )
    level: Any = None if isinstance(confidence_level, str) or np.ndim(confidence_level) else confidence_level
    if not isinstance(level, int | float | np.number) or not 0 < level < 1:
        raise InputError(
            f"confidence_level={reprlib.repr(confidence_level)} is not between 0 and 1: 0.95 asks for intervals that "
            "hold 95%."
        )
    # In binary, 1 - 0.95 is above 0.05 by rounding, which would need one more calibration score.
    return check_delta(float(np.round(1 - float(level), 15)))


def standard_deviation(network: NetworkRegressor, points: np.ndarray) -> np.ndarray:
    """Return the standard deviation of a new response at each point, from noise and prediction together."""
    band = network.fitted_.interval(points, DELTA, bound="asymptotic", target="observation")
    # Warnings of the calibration are not suppressed: it is kept, so that they would never appear.
    found, _ = calibration.ensure_calibration(network, None)
    relative: Any = 1.0
    if found is not None and found.noise_shape is not None:
        relative = found.noise_shape(band.center)
    return spread_of(band.standard_error, band.noise, relative)


def quantiles(network: NetworkRegressor, points: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Return quantiles of a new response: see :meth:`vhat.NetworkRegressor.predict_quantiles`."""
    asked = as_numbers("quantiles", levels)
    if asked.ndim != 1 or not asked.size or not np.all((asked > 0) & (asked < 1)):
        raise InputError(f"quantiles={levels!r} must be a list of numbers between 0 and 1, such as [0.05, 0.5, 0.95].")
    found, reason = calibration.ensure_calibration(network, None)
    if found is not None:
        try:
            return found.quantiles(points, asked)
        except InputError as error:
            reason = f"{error}".split(". ")[0]
    per_level = [_textbook_quantile(network, points, level) for level in asked.tolist()]
    warnings.warn(
        f"these quantiles are not calibrated but those of Student's distribution around the prediction: {reason}. "
        f"{calibration.BY_ROWS}.",
        CalibrationWarning,
        stacklevel=outside(),
    )
    return np.stack(per_level, axis=-1)


def _textbook_quantile(network: NetworkRegressor, points: np.ndarray, level: float) -> np.ndarray:
    """Return a quantile of a new response: a limit of the two-sided interval with the same probability on each side.

    The interval, and not its factor, is computed: it allows for a V that a sketch has estimated by probes.
    """
    if level == 0.5:
        return np.asarray(network.fitted_.predict(points))
    delta = 2 * min(level, 1 - level)
    band = network.fitted_.interval(points, delta, bound="asymptotic", target="observation")
    return band.upper if level > 0.5 else band.lower


def summary_frame(network: NetworkRegressor, X: Any, alpha: float, options: dict[str, Any]) -> Any:
    """Return means and intervals of both kinds: see :meth:`vhat.NetworkRegressor.summary_frame`."""
    if network.log_target:
        raise InputError(
            "summary_frame with log_target: the target was fitted as its logarithm, and exp of the mean of that is not "
            "the mean of the target, as the columns would say. Use predict_interval(X), which says what it is."
        )
    mean = network.predict_interval(X, alpha, **options)
    observed = network.predict_interval(X, alpha, target="observation", **options)
    frame = _columns(mean, observed)
    return in_library_of(X, frame)


def _columns(mean: Interval, observed: Interval) -> pd.DataFrame:
    """Return both intervals in the columns of statsmodels."""
    first, second = mean.to_pandas(), observed.to_pandas()
    table = first[["center", "standard_error", "lower", "upper"]].copy()
    table.columns = ["mean", "mean_se", "mean_ci_lower", "mean_ci_upper"]
    table["obs_ci_lower"] = second["lower"].to_numpy()
    table["obs_ci_upper"] = second["upper"].to_numpy()
    return table
