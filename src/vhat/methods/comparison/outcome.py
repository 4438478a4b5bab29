"""The result of one method on one split: its intervals, their measures and their cost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vhat import metrics
from vhat.errors import InputError, VhatError
from vhat.linalg.memory import Peak
from vhat.methods.comparison.splits import Split

if TYPE_CHECKING:
    from vhat.fit import Recipe
    from vhat.intervals.interval import Interval
    from vhat.methods import Method

__all__ = ["ANSWERED", "FAILED", "INCOMPLETE", "MEASURES", "REFUSED", "Job", "Outcome"]

# The statuses of an outcome; see the docstring of Outcome.
ANSWERED = "answered"
INCOMPLETE = "incomplete"
REFUSED = "refused"
FAILED = "failed"

MEASURES = (
    "coverage",
    "mean_width",
    "median_width",
    "winkler",
    "fit_seconds",
    "interval_seconds",
    "cpu_seconds",
    "peak_megabytes",
)


@dataclass(frozen=True)
class Outcome:
    """One method on one split.

    Attributes:
        method: Name of the method.
        split: Number of the split.
        seed: Seed passed to the method; with it the outcome can be computed again alone.
        status: ``"answered"``; ``"incomplete"`` if some points have no limits: these count as misses, and the widths
            and the score are NaN; ``"refused"`` if the method raised an error of this library; ``"failed"`` if the
            method or the recipe raised another error.
        reason: Message of the error; for a failure with the type of the error.
        coverage: Share of test points whose interval contains the truth, or the held-out response.
        mean_width: Mean width.
        median_width: Median width.
        winkler: Mean interval score at delta: width plus a penalty for misses; smaller is better.
        fit_seconds: Wall time of training. It includes compilation for the first method that trains a kind of network.
        interval_seconds: Wall time of the intervals.
        cpu_seconds: CPU time of all threads of the process, for training and intervals together: it depends little on
            other work on the machine.
        peak_megabytes: Largest resident memory above that at the start, in megabytes; NaN if the system does not
            report it. Memory that the process has freed before is reused without being counted: the first method
            looks more expensive than the others.
        interval: The intervals.
    """

    method: str
    split: int
    seed: int
    status: str = REFUSED
    reason: str = ""
    coverage: float = np.nan
    mean_width: float = np.nan
    median_width: float = np.nan
    winkler: float = np.nan
    fit_seconds: float = np.nan
    interval_seconds: float = np.nan
    cpu_seconds: float = np.nan
    peak_megabytes: float = np.nan
    interval: Interval | None = field(default=None, repr=False, compare=False)


class Job(NamedTuple):
    """One method on one split, still to be done."""

    name: str
    method: Method
    split: int
    recipe: Recipe
    rows: Split
    delta: float
    target: str
    seed: int

    def __call__(self) -> Outcome:
        """Train, compute intervals, and measure them."""
        rows = self.rows.copied()
        peak = Peak()
        began = time.perf_counter()
        worked_before = time.process_time()
        try:
            fitted = self.method.fit(self.recipe, rows.X_train, rows.y_train, seed=self.seed)
            trained = time.perf_counter()
            band = fitted.interval(rows.X_test, self.delta, target=self.target)  # type: ignore[arg-type]
            done = time.perf_counter()
            worked = time.process_time() - worked_before
            judgement = _judge(band, self.rows.judge, self.delta)
        except VhatError as error:
            return Outcome(self.name, self.split, self.seed, REFUSED, str(error))
        except Exception as error:  # an error in one method must not lose the results of the others
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            return Outcome(self.name, self.split, self.seed, FAILED, reason)
        return Outcome(
            self.name,
            self.split,
            self.seed,
            **judgement._asdict(),
            fit_seconds=trained - began,
            interval_seconds=done - trained,
            cpu_seconds=worked,
            peak_megabytes=peak.megabytes(),
            interval=band,
        )


class _Judgement(NamedTuple):
    """The status and measures of an :class:`Outcome`; see there."""

    status: str
    reason: str
    coverage: float
    mean_width: float = np.nan
    median_width: float = np.nan
    winkler: float = np.nan


def _judge(band: Interval, judge: np.ndarray, delta: float) -> _Judgement:
    """Compare intervals with the values that they should contain.

    Args:
        band: The intervals.
        judge: The truth or the responses, in the size of the predictions.
        delta: Probability of a miss that the intervals claim.

    Raises:
        InputError: When the number of predictions differs from that of the values.
    """
    shape = np.shape(band.center)
    if judge.size != np.size(band.center):
        raise InputError(f"its predictions have shape {shape}, not {judge.shape}.")
    judge = judge.reshape(shape)
    covered = metrics.coverage(band.lower, band.upper, judge)
    missing = np.isnan(band.lower) | np.isnan(band.upper)
    if missing.any():
        reason = f"{int(missing.sum())} of {missing.size} predictions have no interval, and count as misses."
        return _Judgement(INCOMPLETE, reason, covered)
    width = metrics.width(band.lower, band.upper)
    score = metrics.winkler(band.lower, band.upper, judge, delta)
    return _Judgement(ANSWERED, "", covered, width.mean, width.median, score)
