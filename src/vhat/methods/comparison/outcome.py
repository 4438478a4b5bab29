"""One method on one split: what it answered, and what that cost."""

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

# The statuses of an outcome; the docstring of Outcome says what they mean.
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
        method: The method's name.
        split: The number of the split.
        seed: The seed that the method was given, by which its cell can be had alone.
        status: ``"answered"``; ``"incomplete"`` where some points have no limits, which then count as misses and leave
            widths and score NaN; ``"refused"`` where the method said that it cannot; ``"failed"`` where it, or the
            recipe, broke off with an error that is no sentence of this library.
        reason: What it said; of a failure the kind of error and its message.
        coverage: Share of test points whose interval holds the truth, or the held-out response.
        mean_width: Mean width.
        median_width: Median width.
        winkler: Mean interval score at delta: width plus what misses cost; smaller is better.
        fit_seconds: Wall time of training. Whoever trains a kind of network first also compiles it.
        interval_seconds: Wall time of the intervals.
        cpu_seconds: Time that all threads of the process worked, training and intervals together: other work on the
            machine lengthens it little.
        peak_megabytes: Most memory that was resident above what there was at the start; NaN where the system does not
            tell. What the process had set free before is not counted again: the first method pays for it.
        interval: The intervals themselves.
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
        except Exception as error:  # whatever breaks one method, the others' work is not lost
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
    status: str
    reason: str
    coverage: float
    mean_width: float = np.nan
    median_width: float = np.nan
    winkler: float = np.nan


def _judge(band: Interval, judge: np.ndarray, delta: float) -> _Judgement:
    """Compare intervals with what they should hold."""
    shape = np.shape(band.center)
    if judge.size != np.size(band.center):
        raise InputError(f"it answered with shape {shape} where {judge.shape} was asked for.")
    judge = judge.reshape(shape)
    covered = metrics.coverage(band.lower, band.upper, judge)
    missing = np.isnan(band.lower) | np.isnan(band.upper)
    if missing.any():
        reason = f"{int(missing.sum())} of {missing.size} predictions have no interval, and count as misses."
        return _Judgement(INCOMPLETE, reason, covered)
    width = metrics.width(band.lower, band.upper)
    score = metrics.winkler(band.lower, band.upper, judge, delta)
    return _Judgement(ANSWERED, "", covered, width.mean, width.median, score)
