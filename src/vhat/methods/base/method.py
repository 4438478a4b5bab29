"""The interface of methods, and the steps that all of them share.

A method answers for the *mean* (what its own argument covers, which its guarantee says) or for an *observation*, a new
response. The noise of a new response is added in the same way for all methods: the quantile of the noise is added in
quadrature to half the width, about the middle of the interval::

    middle +- ( bias + sqrt((half_width - bias)^2 + (q sigma)^2) )

with q the normal quantile, or Student's where sigma was estimated, and ``bias`` the share of the half width that bounds
an error that is not random (none for most methods). For normal predictions that is exact; with a bias in it, and
``half_width - bias`` at least q standard deviations, it errs wide.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from vhat import bounds
from vhat.checks import as_numbers, check_choice, check_count, check_delta, check_finite
from vhat.errors import ConvergenceWarning, InputError, name_rows, outside
from vhat.fit.many_fits import Recipe, check_recipe, fit_one
from vhat.intervals.interval import Interval
from vhat.linalg.solvers import Status
from vhat.methods.base.guarantee import Claim, Target
from vhat.variance.noise import Noise, given_noise

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = [
    "Claim",
    "FittedMethod",
    "Limits",
    "Method",
    "Predictor",
    "Target",
    "check_data",
    "check_level",
    "check_noise",
    "check_question",
    "find_noise",
    "fit_once",
    "make_interval",
    "normal_limits",
    "residuals",
    "responses",
    "widened",
]


class Predictor(Protocol):
    """Anything that predicts: a fitted model, or a member of an ensemble."""

    def predict(self, x: Any) -> np.ndarray:
        """Return predictions, (points,) or (points, outputs)."""


class FittedMethod(Protocol):
    """A method after training."""

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Return an interval for every point, each on its own."""


class Method(Protocol):
    """A way from data to intervals: frozen options, and a ``fit``."""

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> FittedMethod:
        """Train whatever the method needs by ``recipe``; the same seed gives the same intervals."""


class Limits(NamedTuple):
    """Lower and upper limits, in the shape of the predictions."""

    lower: np.ndarray
    upper: np.ndarray


# -- checks of arguments --------------------------------------------------------------------


def check_question(method: str, delta: float, target: Target, *, only: Target | None = None, why: str = "") -> float:
    """Return delta; refuse a delta outside (0, 1), an unknown target, and a target that the method cannot answer for.

    Args:
        method: The method's name.
        delta: The probability of a miss.
        target: What is asked.
        only: The one target that the method has; None where it has both.
        why: The reason for that, and what to use instead.
    """
    check_choice("target", target, ("mean", "observation"))
    if only is not None and target != only:
        raise InputError(f"{method} gives no interval for target={target!r}, only for {only!r}. {why}".strip())
    return check_delta(delta)


def check_noise(noise: Any) -> None:
    """Refuse a noise level that is neither None nor a positive number."""
    number = isinstance(noise, int | float | np.integer | np.floating) and not isinstance(noise, bool)
    if noise is not None and not (number and 0 < noise < math.inf):
        raise InputError(
            f"noise={noise!r} is neither None (estimate it) nor a positive number, the standard deviation of y."
        )


def check_level(name: str, value: Any, *, zero: bool = True) -> None:
    """Refuse a share that is not in [0, 1), or in (0, 1) where ``zero`` is False."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not (0 <= value < 1) or (value == 0 and not zero):
        bracket = "[" if zero else "("
        raise InputError(f"{name}={value!r} is not a number in {bracket}0, 1).")


def responses(y: Any) -> np.ndarray:
    """Return the responses as numbers, (n,) or (n, outputs)."""
    array = as_numbers("y", y)
    if array.ndim not in (1, 2) or not len(array):
        raise InputError(f"y has shape {array.shape}; give (rows,) or (rows, outputs).")
    check_finite("y", array)
    return array


def check_data(X: Any, y: Any) -> None:
    """Refuse responses that are not finite numbers, or not as many as rows, before a recipe meets them."""
    n = len(responses(y))
    shape = tuple(getattr(X, "shape", ()))
    if shape and shape[0] != n:
        raise InputError(f"X has {shape[0]} rows and y has {n}.")


# -- training and noise ---------------------------------------------------------------------


def fit_once(recipe: Recipe, X: Any, y: Any, seed: int) -> FittedModel:
    """Train once on all rows.

    Raises:
        InputError: When the recipe is none, the data cannot be used, or no fitted model of these rows comes back.
    """
    check_count("seed", seed)
    check_recipe(recipe)
    check_data(X, y)
    return fit_one(recipe, X, y, seed=int(seed))


def find_noise(fitted: FittedModel, noise: float | None, seed: int = 0) -> Noise:
    """Return the noise that was given, or its estimate from the residuals of a fitted model.

    Raises:
        NoiseError: When it has to be estimated and the fit interpolates.
    """
    if noise is not None:
        return given_noise(noise, fitted.problem)
    with fitted.problem.scope():
        chosen = fitted.workspace.choose_curvature("auto", quiet=True)
        return fitted.workspace.noise(None, chosen.curvature, seed)


def residuals(fitted: FittedModel) -> np.ndarray:
    """Return ``y - f`` on the training rows, (n, K), in float64."""
    problem = fitted.problem
    with problem.scope():
        return problem.targets - problem.fitted_values


# -- limits -----------------------------------------------------------------------------------


def normal_limits(center: np.ndarray, error: np.ndarray, delta: float, *, df: Any = None) -> Limits:
    """Return ``center +- q error`` with q the normal quantile, or Student's with ``df`` degrees of freedom."""
    half = bounds.asymptotic(1.0, 1, 1.0, delta, df=df) * error
    return Limits(center - half, center + half)


def widened(limits: Limits, noise: Noise, delta: float, *, bias: Any = 0.0) -> Limits:
    """Return limits for a new response, given limits for the mean; the formula is at the head of this module.

    Args:
        limits: Limits for the mean.
        noise: The noise.
        delta: The probability of a miss.
        bias: The share of the half width that bounds a bias, in the shape of the limits.

    Raises:
        InputError: When the training rows have noise of different sizes.
    """
    if not noise.uniform:
        raise InputError(
            "the training rows have noise of different sizes, so the noise of a new response is not known here. Ask "
            "for target='mean', or use fitted.interval(x, target='observation', observation_noise=...)."
        )
    middle = (limits.lower + limits.upper) / 2
    half = (limits.upper - limits.lower) / 2
    q = bounds.asymptotic(1.0, 1, 1.0, delta, df=noise.df) * noise.level  # one an output
    if middle.ndim == 1:
        q = q[0]
    half = bias + np.hypot(half - bias, q)
    return Limits(middle - half, middle + half)


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
    A value that is not finite has the status ``"not finite"``, no limits, and a warning that names its row.

    Args:
        claim: What the method claims for its intervals.
        center: The prediction, (points,) or (points, outputs).
        limits: The limits, for this target.
        delta: The checked probability of a miss; NaN where the level is not known.
        target: The target.
        standard_error: The standard deviation of the prediction, where the method has one.
        noise: The noise level, where it was used.
        x: The points, kept for plots where they are one array.
        curvature: ``"hessian"`` or ``"ggn"``, where the method rests on one.
        solver: The solver's name, where there was one.
        guarantee: A sentence in place of the claim's own.
        simultaneous: Whether the limits hold at all points at once.
        why: What the warning says of points without limits: the likely cause and the remedy.
    """
    center = np.asarray(center, dtype=np.float64)
    good = np.isfinite(center) & np.isfinite(limits.lower) & np.isfinite(limits.upper)
    lower = np.where(good, limits.lower, np.nan)
    upper = np.where(good, limits.upper, np.nan)
    if not good.all():
        rows = np.flatnonzero(~good.reshape(len(good), -1).all(axis=1))
        warnings.warn(
            f"{int((~good).sum())} of {good.size} predictions have no interval by {claim.name} ({name_rows(rows)}) and "
            f"are NaN. {why}".rstrip(),
            ConvergenceWarning,
            stacklevel=outside(),
        )
    missing = np.full(center.shape, np.nan)
    error = missing
    if standard_error is not None:
        error = np.asarray(standard_error, dtype=np.float64)
    return Interval(
        center=center,
        lower=lower,
        upper=upper,
        half_width=(upper - lower) / 2,
        standard_error=error,
        weighted_norm=missing,
        unsupported=missing,
        noise=np.nan if noise is None else _plain(noise.level),
        noise_source="not used" if noise is None else noise.source,
        df=None if noise is None or noise.df is None else _plain(noise.df),
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


def _plain(values: np.ndarray) -> float | np.ndarray:
    """Return a number where there is one output."""
    return float(values[0]) if values.shape == (1,) else values


def _as_array(x: Any) -> np.ndarray | None:
    """Return points as an array, for plots; None where they are not one numeric array."""
    if x is None:
        return None
    try:
        return np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
