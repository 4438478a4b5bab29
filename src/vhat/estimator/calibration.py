"""Calibrate the intervals of an estimator for new responses; fall back to the bound where that is impossible."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_choice, check_delta
from vhat.errors import CalibrationWarning, InputError, LeverageWarning, VhatError, VhatWarning, calling_rows, outside
from vhat.estimator.calibration_by_refits import LEVERAGE, by_folds, copied_rows
from vhat.estimator.log_target import log_of
from vhat.estimator.sketch_of import sketch_of
from vhat.intervals.calibrate import Calibrated, OwnInterval
from vhat.intervals.fingerprint import fingerprint
from vhat.tables import validate
from vhat.tables.frames import as_pandas
from vhat.tables.row_names import RowNames

if TYPE_CHECKING:
    from vhat.estimator.regressor import NetworkRegressor
    from vhat.intervals.interval import Interval
    from vhat.intervals.noise_shape import NoiseShape

__all__ = [
    "BOUND",
    "BY_ROWS",
    "VARYING",
    "calibrate",
    "calibration_for_report",
    "describe",
    "ensure_calibration",
    "observation_interval",
    "restore",
]

BOUND = "isoperimetric"
"""The bound of intervals that are not calibrated."""
_COPIES = 0.05
"""Share of training rows that are copies of others above which leave-one-out is replaced: the copies of a row that is
left out stay in the fit, so that its error is too small."""
VARYING = "prediction"
"""Value of ``noise_shape`` for noise that may vary with the prediction: see :mod:`vhat.intervals.noise_shape`."""
BY_ROWS = "network.calibrate(X_held_out, y_held_out) calibrates by rows that training did not see"
"""The remedy for an estimator that its training rows cannot calibrate."""


def calibrate(
    network: NetworkRegressor, X: Any, y: Any, names: RowNames | None = None, *, noise_shape: str = VARYING
) -> None:
    """Calibrate by held-out rows or, without any, by leave-one-out: see :meth:`vhat.NetworkRegressor.calibrate`."""
    check_choice("noise_shape", noise_shape, (VARYING, "constant"))
    if (X is None) != (y is None):
        raise InputError("calibrate(X, y) needs inputs and responses of held-out rows; calibrate() needs neither.")
    if X is not None:
        network.calibrated_ = _by_held_out_rows(network, X, y, names, noise_shape)
        network.not_calibrated_ = ""
        return
    network.calibrated_, network.not_calibrated_ = _by_training_rows(network, noise_shape=noise_shape)
    if network.not_calibrated_:
        warnings.warn(
            f"leave-one-out cannot calibrate this fit: {network.not_calibrated_}. {BY_ROWS}.",
            CalibrationWarning,
            stacklevel=outside(),
        )


def _by_held_out_rows(
    network: NetworkRegressor, X: Any, y: Any, names: RowNames | None, noise_shape: str
) -> Calibrated:
    """Return the calibration by rows that training did not see."""
    X = as_pandas(X)
    y = as_pandas(y)
    validate.refuse_responses(y)
    responses = np.asarray(y, dtype=np.float64)
    if responses.ndim == 2 and responses.shape[1] == 1:
        responses = responses[:, 0]
    with calling_rows(names or RowNames.of(X, (*np.shape(X), 0)[0])):
        if network.log_target:
            responses = log_of(responses)
        # The shape of the noise comes from training rows alone: a shape that depended on the calibration rows would
        # cost split conformal its guarantee.
        shape = _shape_of_training_rows(network) if noise_shape == VARYING else None
        return network.fitted_.calibrate(network._points(X), responses, noise_shape=shape or "constant")


def _shape_of_training_rows(network: NetworkRegressor) -> NoiseShape | None:
    """Return how the noise varies with the prediction, by the training rows; None where it is constant or unknown."""
    kept = network.calibrated_
    # A calibration without a shape may have been asked for constant noise: then the training rows have to be asked.
    if (kept is None or kept.noise_shape is None) and sketch_of(network) is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VhatWarning)  # this calibration is used for its shape only
            kept, _ = _by_training_rows(network)
    return None if kept is None else kept.noise_shape


def _by_training_rows(
    network: NetworkRegressor, noise: Any = None, *, noise_shape: str = VARYING
) -> tuple[Calibrated | None, str]:
    """Calibrate by leave-one-out; by five refits where leaving single rows out to first order is too rough.

    Args:
        network: The estimator.
        noise: As in :meth:`vhat.FittedModel.interval`.
        noise_shape: :data:`VARYING` or ``"constant"``.

    Returns:
        The calibration and an empty text; or None and the reason why the training rows cannot calibrate this fit.
    """
    fitted = network.fitted_
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always", LeverageWarning)
        try:
            found = fitted.calibrate("loo", noise=noise, noise_shape=noise_shape)
        except VhatError as error:
            return None, f"{error}".rstrip(".")
    copies = copied_rows(fitted.problem)
    many_copies = copies > _COPIES * fitted.problem.n
    folds = None
    if not found.per_row and (found.leverage > LEVERAGE or many_copies):
        folds = by_folds(network, noise, found.leverage, varying=noise_shape == VARYING)
    for each in recorded:
        # If leave-one-out is not used in the end, its warnings of high leverage say nothing that the reason does not.
        if isinstance(each.message, LeverageWarning) and (folds or found.doubt):
            continue
        warnings.warn(each.message, stacklevel=outside())
    if folds is not None:
        if folds.doubt:
            warnings.warn(
                f"the intervals of new responses are not to be relied on: {folds.doubt}. {BY_ROWS}.",
                CalibrationWarning,
                stacklevel=outside(),
            )
        return folds, ""
    if many_copies:
        return None, f"{copies:,} training rows are copies of others, which still tell a row that is left out alone"
    if found.doubt:
        return None, found.doubt
    return found, ""


def observation_interval(
    network: NetworkRegressor,
    points: np.ndarray,
    delta: float,
    *,
    simultaneous: bool | str,
    noise: Any,
    observation_noise: Any,
) -> Interval:
    """Return calibrated intervals for new responses; intervals by the bound, with a warning, where there are none.

    Raises:
        InputError: For a noise level, where the calibration is by held-out rows and was made without one.

    Warns:
        CalibrationWarning: Where the intervals are those of the bound, with the reason and the call that helps.
    """
    check_delta(delta)
    found, reason = ensure_calibration(network, noise)
    if found is not None and not reason:
        reason = _unanswerable(found, len(points), delta, simultaneous, observation_noise)
    if found is not None and not reason:
        return found.interval(points, delta, simultaneous=bool(simultaneous), observation_noise=observation_noise)
    band = network.fitted_.interval(
        points,
        delta,
        target="observation",
        bound=BOUND,
        simultaneous=simultaneous,
        noise=noise,
        observation_noise=observation_noise,
    )
    warnings.warn(
        f"these intervals for new responses are not calibrated but rest on the {BOUND} bound: {reason}. {BY_ROWS}; "
        f'bound="{BOUND}" asks for the bound without this warning.',
        CalibrationWarning,
        stacklevel=outside(),
    )
    return band


def ensure_calibration(network: NetworkRegressor, noise: Any) -> tuple[Calibrated | None, str]:
    """Return the calibration of an estimator under some noise; make it on the first request and keep it.

    It is kept in ``calibrated_`` and ``not_calibrated_``; under a given noise level, in a cache of the fitted model.

    Returns:
        The calibration and an empty text; or None and the reason why there is none.

    Raises:
        InputError: For a noise level, where the calibration is by held-out rows and was made without one.
    """
    kept = network.calibrated_
    if noise is None:
        if kept is None and not network.not_calibrated_:
            network.calibrated_, network.not_calibrated_ = _by_training_rows(network)
        return network.calibrated_, network.not_calibrated_
    if kept is not None and kept.source == "split":
        raise InputError(
            "noise= was given, and this model was calibrated by held-out rows without it. Leave noise= out; "
            f'or ask for bound="{BOUND}"; or calibrate with it, network.fitted_.calibrate(X, y, noise=...).interval(X).'
        )
    if sketch_of(network) is not None:
        return None, "noise= was given, and a sketch has no training rows to calibrate by under another noise"
    key = noise.encode() if isinstance(noise, str) else fingerprint(noise)
    if key is None:
        return _by_training_rows(network, noise)
    # A table that is read in chunks asks once per chunk.
    return network.fitted_.workspace.remember(("calibrated", key), lambda: _by_training_rows(network, noise))


def _unanswerable(
    found: Calibrated, points: int, delta: float, simultaneous: bool | str, observation_noise: Any
) -> str:
    """Return why a calibration cannot give the intervals that are asked for; empty where it can."""
    if isinstance(simultaneous, str):
        return f"simultaneous={simultaneous!r} is a band of the mean, and calibration knows the union bound alone"
    if observation_noise is not None and not found.per_row:
        return "observation_noise= says that new responses have other noise than the rows that calibrate"
    share = delta
    if simultaneous:  # the union bound shares delta among all values
        outputs = 1 if found.scores.ndim == 1 else found.scores.shape[1]
        share = delta / (points * outputs)
    try:
        found.quantile(share)
    except InputError:
        return (
            f"{len(found.scores)} scores are too few for delta={share:.3g}, and the smallest that they allow is "
            f"{found.finest:.3g}"
        )
    return ""


def calibration_for_report(network: NetworkRegressor, delta: float, noise: Any) -> tuple[Calibrated | None, str]:
    """Return the calibration for the intervals of a report at one level; or None and the reason why there is none."""
    if noise is not None and network.calibrated_ is not None and network.calibrated_.source == "split":
        return None, "the noise level was given, and the calibration by held-out rows was made without"
    found, reason = ensure_calibration(network, noise)
    if found is None:
        return None, reason
    if found.per_row:
        return None, "the training rows have noise of different sizes, so that the noise of a new response is not known"
    reason = _unanswerable(found, 1, delta, simultaneous=False, observation_noise=None)
    return (None, reason) if reason else (found, "")


def describe(network: NetworkRegressor) -> dict[str, Any]:
    """Return the calibration as plain data, for :func:`restore`."""
    found = network.calibrated_
    return {"found": None if found is None else found.record(), "not_calibrated": network.not_calibrated_}


def restore(network: NetworkRegressor, saved: dict[str, Any] | None) -> None:
    """Set the calibration of an estimator to the one that was saved with it; to none if it was saved without."""
    network.calibrated_ = None
    network.not_calibrated_ = ""
    if saved is None:
        return
    network.not_calibrated_ = saved["not_calibrated"]
    if saved["found"] is not None:
        base = OwnInterval(network.fitted_, {"noise": None})
        network.calibrated_ = Calibrated.restored(saved["found"], base)
