"""Limits of an interval: normal limits, limits for a new response, and the interval made from them.

All methods add the noise of a new response in the same way: its quantile is added in quadrature to the half width,
about the middle of the interval::

    middle +- ( bias + sqrt((half_width - bias)^2 + (q sigma)^2) )

where q is the normal quantile, or Student's if sigma was estimated, and ``bias`` is the part of the half width that
bounds a bias (zero for most methods). For normal predictions without bias the result is exact. With a bias, and
``half_width - bias`` at least q standard deviations, it is conservative.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vhat import bounds
from vhat.errors import ConvergenceWarning, InputError, name_rows, outside
from vhat.intervals.interval import Interval
from vhat.linalg.solvers import Status

if TYPE_CHECKING:
    from vhat.methods.base.guarantee import Claim, Target
    from vhat.variance.noise import Noise

__all__ = ["Limits", "make_interval", "normal_limits", "response_limits", "without_output_axis"]


class Limits(NamedTuple):
    """Lower and upper limits, in the shape of the predictions."""

    lower: np.ndarray
    upper: np.ndarray

    @classmethod
    def symmetric(cls, center: np.ndarray, half_width: np.ndarray) -> Limits:
        """Return ``center +- half_width``."""
        return cls(center - half_width, center + half_width)


def normal_limits(center: np.ndarray, error: np.ndarray, delta: float, *, df: Any = None) -> Limits:
    """Return ``center +- q error`` with q the normal quantile, or Student's with ``df`` degrees of freedom."""
    return Limits.symmetric(center, bounds.asymptotic(1.0, 1, 1.0, delta, df=df) * error)


def response_limits(limits: Limits, noise: Noise, delta: float, *, bias: Any = 0.0) -> Limits:
    """Return limits for a new response, given limits for the mean, by the formula at the top of this module.

    Args:
        limits: Limits for the mean.
        noise: The noise.
        delta: Probability of a miss.
        bias: The part of the half width that bounds a bias, in the shape of the limits.

    Raises:
        InputError: When the training rows have different noise levels.
    """
    if not noise.uniform:
        raise InputError(
            "the training rows have noise of different sizes, so the noise of a new response is not known here. Ask "
            "for target='mean', or use fitted.interval(x, target='observation', observation_noise=...)."
        )
    middle = (limits.lower + limits.upper) / 2
    half = (limits.upper - limits.lower) / 2
    # q sigma, one entry per output: the quantile of the noise in units of y.
    quantile = bounds.asymptotic(1.0, 1, 1.0, delta, df=noise.df) * noise.level
    if middle.ndim == 1:
        quantile = quantile[0]
    return Limits.symmetric(middle, bias + np.hypot(half - bias, quantile))


def without_output_axis(values: np.ndarray, squeeze: bool) -> np.ndarray:
    """Return values (points, outputs) in the shape of y: (points,) if ``squeeze``, for one output."""
    if squeeze:
        return values[:, 0]
    return values


def make_interval(
    claim: Claim,
    center: np.ndarray,
    limits: Limits,
    *,
    delta: float,
    target: Target,
    standard_error: np.ndarray | None = None,
    noise: Noise | None = None,
    x: Any = None,
    curvature: str = "",
    solver: str = "",
    guarantee: str = "",
    simultaneous: bool = False,
    why: str = "",
) -> Interval:
    """Return the limits as a :class:`vhat.Interval`.

    Fields that the method does not compute are NaN (weighted norm, unsupported share, standard error, noise) or empty.
    Predictions whose center or limits are not finite get the status ``"not finite"`` and NaN limits, and a warning
    names their rows.

    Args:
        claim: What the method claims for its intervals.
        center: The prediction, (points,) or (points, outputs).
        limits: The limits, for this target.
        delta: The checked probability of a miss; NaN if the level is not known.
        target: ``"mean"`` or ``"observation"``.
        standard_error: Standard deviation of the prediction, if the method has one.
        noise: The noise, if the limits use it.
        x: The points, kept for plots if they are one numeric array.
        curvature: ``"hessian"`` or ``"ggn"``, if the method uses one.
        solver: Name of the solver, if one was used.
        guarantee: A sentence that replaces the claim's own.
        simultaneous: Whether the limits hold at all points at once.
        why: Text of the warning for points without limits: the likely cause and the remedy.
    """
    center = np.asarray(center, dtype=np.float64)
    good = np.isfinite(center) & np.isfinite(limits.lower) & np.isfinite(limits.upper)
    lower = np.where(good, limits.lower, np.nan)
    upper = np.where(good, limits.upper, np.nan)
    if not good.all():
        _warn_without_limits(good, claim.name, why)
    missing = np.full(center.shape, np.nan)
    error = missing
    if standard_error is not None:
        error = np.asarray(standard_error, dtype=np.float64)
    df = None
    if noise is not None and noise.df is not None:
        df = _scalar_if_single(noise.df)
    return Interval(
        center=center,
        lower=lower,
        upper=upper,
        half_width=(upper - lower) / 2,
        standard_error=error,
        weighted_norm=missing,
        unsupported=missing,
        noise=np.nan if noise is None else _scalar_if_single(noise.level),
        noise_source="not used" if noise is None else noise.source,
        df=df,
        status=np.where(good, Status.CONVERGED.value, Status.NOT_FINITE.value),
        delta=delta,
        bound=claim.name,
        tail=None,
        target=target,
        curvature=curvature,
        solver=solver,
        guarantee=guarantee or claim.sentence(delta, target, noise, simultaneous=simultaneous),
        inputs=_as_array(x),
    )


def _warn_without_limits(good: np.ndarray, method: str, why: str) -> None:
    """Warn of predictions without limits: those where ``good`` is False."""
    rows = np.flatnonzero(~good.reshape(len(good), -1).all(axis=1))
    warnings.warn(
        f"{int((~good).sum())} of {good.size} predictions have no interval by {method} ({name_rows(rows)}) and "
        f"are NaN. {why}".rstrip(),
        ConvergenceWarning,
        stacklevel=outside(),
    )


def _scalar_if_single(values: np.ndarray) -> float | np.ndarray:
    """Return the value of an array of length one as a number, any other array as it is."""
    return float(values[0]) if values.shape == (1,) else values


def _as_array(x: Any) -> np.ndarray | None:
    """Return points as a float array, for plots; None if they are not one numeric array."""
    if x is None:
        return None
    try:
        return np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
