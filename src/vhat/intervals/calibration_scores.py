"""Errors of rows that a fit has not seen, and the scores of a calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_finite
from vhat.errors import InputError
from vhat.evidence.factored_rows import is_worthwhile
from vhat.evidence.leave_one_out import LeftOut, warn_of_rows
from vhat.intervals.interval import Interval
from vhat.intervals.noise_shape import NoiseShape, estimate_noise_shape, spread_of
from vhat.linalg.solvers import Status
from vhat.models.problem import Problem
from vhat.variance.noise import Noise
from vhat.variance.repeated_rows import refuse_training_rows, repeated_rows
from vhat.variance.workspace import Workspace

__all__ = [
    "MOST_SOLVED",
    "HeldOutErrors",
    "common_noise",
    "count_validation_rows",
    "given_shape",
    "held_out_errors",
    "left_out_errors",
    "refuse_calibration_rows",
    "rows_to_score",
    "sizes_of",
]

MOST_SOLVED = 5000
"""Largest number of training rows that leave-one-out scores where each takes a solve. The coverage of their 95%
quantile is known to 0.3 points."""


@dataclass(frozen=True, eq=False)
class HeldOutErrors:
    """Errors of rows that the model has not seen, and the spread that it predicts for them.

    Attributes:
        prediction: The predictions, (m,) or (m, outputs).
        error: ``y - f``, of the same shape; NaN where a row has none.
        standard_error: Standard errors of the predictions, of the same shape.
        noise: Standard deviation of the response around its mean; broadcasts to that shape.
    """

    prediction: np.ndarray
    error: np.ndarray
    standard_error: np.ndarray
    noise: np.ndarray

    def scores(self, relative: Any = 1.0) -> np.ndarray:
        """Return the errors in units of the spread, with their sign.

        Args:
            relative: The noise at each row relative to ``noise``.
        """
        found: np.ndarray = self.error / spread_of(self.standard_error, self.noise, relative)
        return found

    def varying(self, groups: np.ndarray | None = None) -> tuple[NoiseShape | None, np.ndarray]:
        """Return how the noise varies with the prediction, None where it does not, and the scores under that noise.

        Args:
            groups: A number for each row; rows with one number are copies of each other. None to take rows for copies
                that have the same prediction and error.
        """
        if groups is None:
            groups = self._alike()
        shape, relative = estimate_noise_shape(self.prediction, self.scores(), groups)
        return shape, self.scores(relative)

    def _alike(self) -> np.ndarray:
        """Number the rows so that those of the same prediction and error, to nine digits, have one number, (m,)."""
        m = len(self.error)
        columns = np.column_stack([self.prediction.reshape(m, -1), self.error.reshape(m, -1)])
        size = np.nanmax(np.abs(columns), axis=0, initial=np.finfo(float).tiny)
        _, group = np.unique(np.round(columns / size, 9), axis=0, return_inverse=True)
        return np.asarray(group).reshape(-1)


def sizes_of(signed: np.ndarray) -> np.ndarray:
    """Return the absolute values of signed scores; infinite where a row has none."""
    return np.where(np.isnan(signed), np.inf, np.abs(signed))


def common_noise(observation_noise: Any) -> tuple[np.ndarray | None, bool]:
    """Return the noise level that all calibration rows share, None without one, and whether each row has its own."""
    if observation_noise is None:
        return None, False
    levels = as_numbers("observation_noise", observation_noise)
    if levels.ndim > 0 and len(levels) > 1:
        return None, True
    return levels, False


def given_shape(noise_shape: NoiseShape | str, observation_noise: Any) -> NoiseShape | None:
    """Return how the noise of calibration rows varies with the prediction; None for constant noise.

    Raises:
        InputError: For anything but ``"constant"`` and a shape that was estimated before, and for a shape beside a
            noise level of the responses.
    """
    if isinstance(noise_shape, NoiseShape):
        if observation_noise is not None:
            raise InputError("noise_shape and observation_noise both say how noisy a response is. Give one of them.")
        return noise_shape
    if noise_shape != "constant":
        raise InputError(
            f"noise_shape={noise_shape!r} beside calibration rows must be 'constant' or a shape estimated without "
            "them, such as fitted.calibrate('loo', noise_shape='prediction').noise_shape."
        )
    return None


def held_out_errors(band: Interval, y: Any, observation_noise: Any) -> HeldOutErrors:
    """Compare responses with the model's own observation interval at their inputs.

    Raises:
        InputError: For responses of another shape, or that are not finite.
    """
    responses = as_numbers("y_cal", y)
    if responses.shape != band.center.shape:
        raise InputError(
            f"y_cal has shape {responses.shape}; the model predicts shape {band.center.shape} at X_cal. Bring them to "
            "one shape, one row a calibration point."
        )
    check_finite("y_cal", responses)
    noise: Any = band.noise if band.observation_noise is None else band.observation_noise
    if observation_noise is not None:
        noise = as_numbers("observation_noise", observation_noise)
    error = np.where(band.status == Status.CONVERGED, responses - band.center, np.nan)
    return HeldOutErrors(band.center, error, band.standard_error, np.asarray(noise))


def rows_to_score(problem: Problem, half: Any, seed: int) -> np.ndarray | None:
    """Return the training rows that leave-one-out scores; None for all of them.

    Args:
        problem: The training problem.
        half: The factorisation of the solver, or None where it has none: each row is then a solve.
        seed: Draws the rows.
    """
    if problem.n <= MOST_SOLVED or is_worthwhile(problem, half):
        return None
    return np.sort(np.random.default_rng(seed).choice(problem.n, size=MOST_SOLVED, replace=False))


def left_out_errors(problem: Problem, found: LeftOut, noise: Noise, rows: np.ndarray | None = None) -> HeldOutErrors:
    """Return the errors of the training rows with a part in the loss, each by the model without it; (rows, K)."""
    warn_of_rows(found)
    index = np.arange(problem.n) if rows is None else rows
    seen = np.any(problem.loss_derivatives.cross.reshape(problem.n, -1)[index] != 0, axis=1)
    error = problem.targets[index] - found.prediction
    standard_error = np.sqrt(found.variance / problem.n)
    return HeldOutErrors(found.prediction[seen], error[seen], standard_error[seen], noise.values[index][seen])


def refuse_calibration_rows(problem: Problem, inputs: Any, y: Any) -> int:
    """Return how many calibration rows are training rows too: see :func:`refuse_training_rows`."""
    responses = as_numbers("y_cal", y).reshape(-1, problem.outputs)
    remedy = "Give rows that training did not see, or use calibrate('loo')."
    return refuse_training_rows(problem, inputs, responses, kind="calibration", remedy=remedy)


def count_validation_rows(work: Workspace, inputs: Any, y: Any) -> int:
    """Return how many calibration rows, input and response, are validation rows of the model too."""
    rows = work.validation
    if rows is None:
        return 0
    responses = as_numbers("y_cal", y).reshape(-1, work.problem.outputs)
    return len(repeated_rows(work.problem, inputs, responses, (rows.inputs, rows.targets)))
