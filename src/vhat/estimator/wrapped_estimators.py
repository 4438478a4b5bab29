"""Intervals of an estimator inside another one of scikit-learn: a pipeline, a search, a transformed target.

A pipeline and a search leave the target as it is: the interval is that of the last step or of the best estimator. For a
transformed target ``g(y)``, the limits are mapped back by the inverse of g. If it increases, an interval that contains
``g(y)`` becomes one that contains y with the same probability; if it decreases, the limits are exchanged. Any other
inverse has no interval of the same level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError
from vhat.estimator.regressor import NetworkRegressor
from vhat.tables.frames import as_pandas

if TYPE_CHECKING:
    from vhat.intervals.interval import Interval

__all__ = ["interval_of"]

_GRID = 257
"""Values between the smallest and the largest limit at which the inverse is checked for monotony."""
_TAKEN = "a NetworkRegressor; a Pipeline, a search (GridSearchCV and others) or a TransformedTargetRegressor around one"


def interval_of(model: Any, X: Any, delta: float | None = None, **options: Any) -> Interval:
    """Compute intervals for the predictions of a fitted pipeline, search or regressor of a transformed target.

    Args:
        model: A fitted estimator of scikit-learn that ends in a :class:`vhat.NetworkRegressor`: the regressor itself, a
            ``Pipeline`` whose last step it is, a search such as ``GridSearchCV``, a ``TransformedTargetRegressor``, and
            these nested in each other.
        X: Points, as for ``model.predict``.
        delta: As in :meth:`vhat.NetworkRegressor.predict_interval`.
        options: Other options of that method: ``confidence_level``, ``target``, ``bound``, ``simultaneous``, ``noise``,
            ``observation_noise``; the last two in the unit of the transformed target.

    Returns:
        The interval, in the units of y. Where the target was transformed, limits and prediction are mapped back, so
        that the prediction is no longer in the middle.

    Raises:
        InputError: For an estimator of another kind or without intervals, and for a transformation of the target that
            is not monotone between the limits.

    Examples:
        >>> import numpy as np, vhat
        >>> from sklearn.compose import TransformedTargetRegressor
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 2, size=(60, 1))
        >>> y = np.exp(X[:, 0] + 0.1 * rng.normal(size=60))
        >>> network = make_pipeline(StandardScaler(), vhat.NetworkRegressor((4,), weight_decay=1e-3))
        >>> model = TransformedTargetRegressor(network, func=np.log, inverse_func=np.exp).fit(X, y)
        >>> band = vhat.interval_of(model, [[1.0]], confidence_level=0.9, target="observation")
        >>> bool(0 < band.lower[0] < band.center[0] < band.upper[0] < 4)
        True
    """
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model)
    if isinstance(model, NetworkRegressor):
        return model.predict_interval(X, delta, **options)
    if isinstance(model, Pipeline):
        inside = interval_of(model[-1], model[:-1].transform(X) if len(model) > 1 else X, delta, **options)
        return _indexed(inside, X)
    if isinstance(model, TransformedTargetRegressor):
        return _mapped_back(interval_of(model.regressor_, X, delta, **options), model.transformer_)
    if hasattr(model, "best_estimator_"):
        return interval_of(model.best_estimator_, X, delta, **options)
    if hasattr(model, "cv_results_"):
        raise InputError("this search kept no best estimator (refit=False). Fit it with refit=True.")
    raise InputError(f"{type(model).__name__} has no intervals. Give a fitted model of another kind: {_TAKEN}.")


def _indexed(band: Interval, X: Any) -> Interval:
    """Return an interval with the index of the table, which a step of a pipeline may have lost."""
    if band.index is not None or not hasattr(X, "iloc"):
        return band
    return replace(band, index=as_pandas(X).index)


def _mapped_back(band: Interval, transformer: Any) -> Interval:
    """Return the interval of y from that of its transformation.

    Raises:
        InputError: For several outputs, and where the inverse is not strictly monotone between the limits.
    """
    if band.center.ndim != 1:
        raise InputError(
            "the transformed target has several outputs, and their transformation may mix them. Fit one regressor an "
            "output, or transform y yourself before the fit."
        )

    def inverse(values: np.ndarray) -> np.ndarray:
        return np.asarray(transformer.inverse_transform(values.reshape(-1, 1)), dtype=np.float64).reshape(-1)

    decreases = _direction(inverse, band, transformer) < 0
    lower = inverse(band.lower)
    upper = inverse(band.upper)
    if decreases:
        lower, upper = upper, lower
    # Half the image of one standard error on either side: the standard error to first order.
    standard_error = np.abs(inverse(band.center + band.standard_error) - inverse(band.center - band.standard_error)) / 2
    return replace(
        band,
        center=inverse(band.center),
        lower=lower,
        upper=upper,
        half_width=(upper - lower) / 2,
        standard_error=standard_error,
        noise_source=f"{band.noise_source}, in the unit of the transformed target",
        observation_noise=None,
        guarantee=f"{band.guarantee} {_meaning(band)}",
    )


def _meaning(band: Interval) -> str:
    """Return what the limits are about after they were mapped back."""
    what = "a new response" if band.target == "observation" else "the mean of the transformed response, mapped back"
    return f"Limits were mapped back through the transformation of the target: they are about {what}."


def _direction(inverse: Callable[[np.ndarray], np.ndarray], band: Interval, transformer: Any) -> float:
    """Return 1 if the inverse increases between the limits, and -1 if it decreases.

    Raises:
        InputError: For an inverse that does neither, or is not finite.
    """
    ends = np.concatenate([band.lower, band.center, band.upper])
    known = ends[np.isfinite(ends)]
    if not known.size:
        return 1.0
    tried = np.unique(np.concatenate([known, np.linspace(known.min(), known.max(), _GRID)]))
    # Neighbours that differ by rounding only may have the same image.
    apart = tried[np.concatenate([[True], np.diff(tried) > 1e-9 * np.ptp(tried)])]
    values = inverse(apart)
    steps = np.diff(values)
    if not np.all(np.isfinite(values)) or not (np.all(steps > 0) or np.all(steps < 0)):
        raise InputError(
            f"the inverse of {type(transformer).__name__} is not strictly monotone and finite between "
            f"{known.min():.4g} and {known.max():.4g}, where the limits lie, so that they cannot be mapped back. Use a "
            "transformation such as a logarithm, StandardScaler or PowerTransformer; or ask for another level."
        )
    return 1.0 if steps.size == 0 or steps[0] > 0 else -1.0
