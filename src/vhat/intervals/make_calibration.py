"""Calibrations of a fitted model: by rows that training did not see, or by its training rows, each left out in turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat.checks import as_numbers
from vhat.errors import InputError
from vhat.evidence.leave_one_out import leave_rows_out
from vhat.intervals.ask import checked_inputs, shaped
from vhat.intervals.calibrate import Calibrated, OwnInterval
from vhat.intervals.calibration_guarantee import doubt_of
from vhat.intervals.calibration_scores import (
    common_noise,
    count_validation_rows,
    given_shape,
    held_out_errors,
    left_out_errors,
    refuse_calibration_rows,
    rows_to_score,
    sizes_of,
)
from vhat.intervals.noise_shape import NoiseShape
from vhat.intervals.prepare import at_minimum, require_residuals
from vhat.models.loaders import read_pair
from vhat.variance.repeated_rows import row_digests
from vhat.variance.workspace import Workspace

__all__ = ["calibrate"]


def calibrate(
    work: Workspace,
    base: OwnInterval,
    X_cal: Any,
    y_cal: Any,
    *,
    noise: Any,
    observation_noise: Any,
    noise_shape: NoiseShape | str,
    curvature: str,
    seed: int,
) -> Calibrated:
    """Calibrate observation intervals: see :meth:`vhat.FittedModel.calibrate`.

    Args:
        work: The fitted model.
        base: Its own observation interval, which the scores rescale.
        X_cal: As in :meth:`vhat.FittedModel.calibrate`, like the arguments that follow.
        y_cal: As there.
        noise: As there.
        observation_noise: As there.
        noise_shape: As there.
        curvature: As there.
        seed: As there.

    Raises:
        InputError: For data that cannot be used, or that training has seen.
    """
    if not isinstance(X_cal, str):
        return _by_rows(work, base, X_cal, y_cal, observation_noise, noise_shape)
    if X_cal not in ("loo", "leave_one_out"):
        raise InputError(f"X_cal={X_cal!r} is neither rows, to be given with y_cal, nor 'loo'.")
    if y_cal is not None or observation_noise is not None:
        raise InputError("calibrate('loo') scores the training rows: give neither y_cal nor observation_noise.")
    if noise_shape not in ("constant", "prediction"):
        raise InputError(f"noise_shape={noise_shape!r} is neither 'constant' nor 'prediction'.")
    return _by_training_rows(work, base, noise, curvature, seed, varying=noise_shape == "prediction")


def _by_rows(
    work: Workspace, base: OwnInterval, X_cal: Any, y_cal: Any, observation_noise: Any, noise_shape: NoiseShape | str
) -> Calibrated:
    """Calibrate by rows that training did not see."""
    problem = work.problem
    shape = given_shape(noise_shape, observation_noise)
    X_cal, y_cal = read_pair(problem, X_cal, y_cal, "calibrate(X_cal, y_cal)")
    if y_cal is None:
        raise InputError("calibrate(X_cal, y_cal) needs the responses y_cal; calibrate('loo') needs no rows.")
    inputs = checked_inputs(problem, "X_cal", X_cal)
    errors = held_out_errors(base(X_cal, observation_noise=observation_noise), y_cal, observation_noise)
    relative = 1.0 if shape is None else shape(errors.prediction)
    signed = errors.scores(relative)
    repeated = refuse_calibration_rows(problem, inputs, y_cal)
    reused = count_validation_rows(work, inputs, y_cal)
    common, per_row = common_noise(observation_noise)
    digests = row_digests(problem, inputs, as_numbers("y_cal", y_cal).reshape(-1, problem.outputs))
    return Calibrated(
        "split",
        sizes_of(signed),
        repeated,
        base,
        signed=signed,
        observation_noise=common,
        per_row=per_row,
        reused=reused,
        digests=digests,
        noise_shape=shape,
    )


def _by_training_rows(
    work: Workspace, base: OwnInterval, noise: Any, curvature: str, seed: int, *, varying: bool
) -> Calibrated:
    """Calibrate by the training rows, each predicted without itself.

    Args:
        work: The fitted model.
        base: Its own observation interval.
        noise: As in :meth:`vhat.FittedModel.interval`.
        curvature: As there.
        seed: Draws the rows that are left out, where there are too many.
        varying: Whether the noise may vary with the prediction.
    """
    problem = work.problem
    require_residuals(problem)
    chosen = work.choose_curvature(curvature)
    level = work.noise(noise, chosen.curvature, seed)
    minimum = at_minimum(work, level, chosen, seed).verdict == "holds"
    prepared = work.own_solver(chosen.curvature)
    rows = rows_to_score(problem, prepared.half, seed)
    found = leave_rows_out(problem, prepared, level.values, rows)
    errors = left_out_errors(problem, found, level, rows)

    # Rows that have noise levels of their own keep them: a shape is estimated for equal noise only.
    shape: NoiseShape | None = None
    signed: np.ndarray = errors.scores()
    if varying and level.uniform:
        shape, signed = errors.varying()
    signed = shaped(problem, signed)

    known_everywhere = level.uniform or work.own_factor(level) is not None
    return Calibrated(
        "loo",
        sizes_of(signed),
        0,
        base,
        found.rough,
        per_row=not known_everywhere,
        leverage=found.mean_leverage,
        doubt=doubt_of(found, minimum=minimum, reason=chosen.reason),
        signed=signed,
        noise_shape=shape,
    )
