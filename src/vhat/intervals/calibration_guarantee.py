"""The guarantee of a calibration, and the messages of its refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vhat.evidence.leave_one_out import ROUGH, LeftOut

if TYPE_CHECKING:
    from vhat.intervals.calibrate import Calibrated

__all__ = ["NOISE_AT_INTERVAL_ALONE", "NOISE_AT_SCORES_ALONE", "Source", "calibration_sentence", "doubt_of"]

Source = Literal["split", "loo", "cv"]
_OPTIMISTIC = 0.2
"""Mean leverage of a model that is not linear above which left-out errors are too small. Measured on networks of 8 and
16 units: 90% intervals cover 89% at a mean leverage of 0.19, 86 to 88% at 0.28 and 82 to 87% at 0.32."""

NOISE_AT_INTERVAL_ALONE: dict[Source, str] = {
    "split": (
        "observation_noise was given to interval() and not to calibrate(): the scores are in units of the fit's noise, "
        "and would be read in other units here. Give it to both, fitted.calibrate(X_cal, y_cal, "
        "observation_noise=...).interval(x, observation_noise=...), or to neither."
    ),
    "loo": (
        "observation_noise was given to interval(), and the scores of calibrate('loo') are in units of the fit's "
        "noise, which is the same in all rows. Leave it out; or calibrate with noise=, one number per training row, "
        "where the noise differs between rows."
    ),
    "cv": (
        "observation_noise was given to interval(), and the scores of a calibration by folds are in units of the fit's "
        "noise, which is the same in all rows. Leave it out; or calibrate with noise=, one number per training row, "
        "where the noise differs between rows."
    ),
}
"""Noise of new responses that was given for the interval and not for the scores."""
NOISE_AT_SCORES_ALONE: dict[Source, str] = {
    "split": (
        "calibrate() was given one observation_noise per calibration row, which says nothing of new responses. Give "
        "interval(x, observation_noise=...): the standard deviation of a new response, a number or one per row of x."
    ),
    "loo": (
        "the training rows have noise of different sizes, so the noise of a new response is not known. Give "
        "interval(x, observation_noise=...): the standard deviation of a new response, a number or one per row of x."
    ),
    "cv": (
        "the training rows have noise of different sizes, so the noise of a new response is not known. Give "
        "interval(x, observation_noise=...): the standard deviation of a new response, a number or one per row of x."
    ),
}
"""Noise that each scored row had of its own, and that is not given for the interval."""


def doubt_of(found: LeftOut, *, minimum: bool, reason: str) -> str:
    """Return why first-order leave-one-out is unreliable for a fit; empty where it is reliable.

    Args:
        found: The rows left out.
        minimum: Whether the parameters are a certified minimum.
        reason: Why the Gauss-Newton matrix took the place of the exact Hessian; empty where it did not.
    """
    if not minimum:
        return "the parameters are not a minimum, and a fit without a row is not told from them"
    if reason:
        return "the exact Hessian cannot be used, and leverages by the Gauss-Newton matrix are too small"
    if found.mean_leverage > _OPTIMISTIC:
        return (
            f"the fit spends {found.mean_leverage:.2g} degrees of freedom on each row, and predicts new rows worse "
            "than a first-order step tells"
        )
    if found.unreliable:
        return f"{found.rough} of {len(found.leverage)} training rows have leverage above {ROUGH}"
    return ""


def calibration_sentence(found: Calibrated, level: str, miss: str) -> str:
    """Return the guarantee of an interval of this calibration, one sentence.

    Args:
        found: The calibration.
        level: The level in words.
        miss: The probability of a miss in words.
    """
    m = len(found.scores)
    each = " (each output alone)" if found.scores.ndim == 2 else ""
    varying = _varying(found)
    if found.source == "loo":
        beware = f", BUT {found.rough} OF THEM HAVE LEVERAGE ABOVE {ROUGH}" if found.rough else ""
        if found.doubt:
            beware += f"; NOT TO BE RELIED ON: {found.doubt}"
        return (
            f"Nominal {level} for a new response at one point{each}, bias included, from {m} training rows, each "
            f"left out in turn to first order{varying}; there is no finite-sample guarantee (jackknife+ with exact "
            f"refits would miss with probability at most 2 x {miss}); assumed: the new row and the training rows "
            f"exchangeable, and a fit that hardly depends on any one row{beware}."
        )
    if found.source == "cv":
        unsure = f"; NOT TO BE RELIED ON: {found.doubt}" if found.doubt else ""
        return (
            f"Nominal {level} for a new response at one point{each}, bias included, from {m} training rows, each "
            f"predicted by a refit without a fifth of the rows, its own among them{varying}; there is no finite-sample "
            f"guarantee (cross-conformal prediction would miss with probability at most 2 x {miss} and a little more); "
            f"assumed: the new row and the training rows exchangeable, and refits that err as the fit does{unsure}."
        )
    known = f", BUT {found.repeated} OF THEM ARE TRAINING ROWS TOO" if found.repeated else ""
    doubt = f"; beware: {found.doubt}" if found.doubt else ""
    if found.reused:
        doubt += (
            f"; beware: {found.reused} OF THEM ARE VALIDATION ROWS, which told the noise and may have chosen lam, so "
            "that this probability is not promised (give other rows)"
        )
    return (
        f"A new response at one point{each} is missed with probability at most {miss}, bias included, in the mean over "
        f"draws of the {m} calibration rows and of the new one together, not for each x nor for these {m} rows given "
        f"(split conformal){varying}{doubt}; assumed: calibration rows and the new row exchangeable (the same "
        "population, no shift), and model, noise level and weight decay fixed before these rows were seen, not chosen "
        f"with them{known}; nothing is assumed of the model, its minimum or its noise."
    )


def _varying(found: Calibrated) -> str:
    """Return the clause on noise that varies with the prediction; empty for constant noise."""
    if found.noise_shape is None:
        return ""
    least, most = found.noise_shape.extremes
    return (
        f"; widths follow noise that varies with the prediction, {least:.2g} to {most:.2g} times its root mean square "
        "(estimated from training rows)"
    )
