"""What new responses said of the intervals: held-out rows where there are any, else the training rows left out."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat import bounds, metrics
from vhat.errors import VhatError
from vhat.level import level_text
from vhat.report.numbers import plain
from vhat.report.options import Options, Subject

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.report.points import HeldOut

__all__ = ["CALIBRATED", "LEVELS", "MOST_LEFT_OUT", "Judged", "judge_held_out", "judge_left_out"]

LEVELS = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01)
_APART = 0.02
"""Relative difference of two deltas that are shown beside each other."""
CALIBRATED = {"loo": "calibrated, leave-one-out", "cv": "calibrated, five folds", "split": "calibrated, held-out rows"}
"""What the page calls intervals by the source of their level."""
MOST_LEFT_OUT = 5000
"""Training rows that are left out in turn; more take as many solves, and are to be judged by rows held out."""


@dataclass(frozen=True)
class Judged:
    """Coverage of intervals of a new response, of one output.

    Attributes:
        source: ``"held-out"``, ``"left-out"`` or ``"none"``.
        said: What was done, or why nothing could be.
        curves: Coverage at each of the levels, the one that was asked for among them, by the bound's name.
        rms: Root mean square of what was missed by the predictions.
        rows: How many rows were judged.
        doubt: Why leaving rows out to first order is not to be relied on for this fit; empty where it is.
    """

    source: str
    said: str
    curves: dict[str, metrics.Calibration]
    rms: float = float("nan")
    rows: int = 0
    doubt: str = ""

    def to_plain(self, delta: float) -> dict[str, Any]:
        """Return it as plain data, in which the level that was asked for is known."""
        curves = [
            {
                "bound": bound,
                "asked": found.delta.tolist().index(delta),
                "claimed": [level_text(each) for each in found.delta],
                "level": plain(1 - found.delta),
                "coverage": plain(found.coverage),
                "error": plain(found.error),
            }
            for bound, found in self.curves.items()
        ]
        return {"source": self.source, "said": self.said, "rows": self.rows, "rms": plain(self.rms), "curves": curves}


def judge_held_out(subject: Subject, points: Any, held_out: HeldOut, options: Options, unanswered: str) -> list[Judged]:
    """Judge the intervals by rows that training did not see; one judgement an output."""
    fitted = subject.fitted
    observed = held_out.observed
    seen = f"of which {held_out.repeated} equal a training row" if held_out.repeated else "none of them a training row"
    said = f"{len(observed)} held-out rows, {seen}, input and response alike."
    center = fitted.predict(points).reshape(observed.shape)
    rms = np.sqrt(np.mean((observed - center) ** 2, axis=0))
    levels = _levels(options.delta)
    bands: dict[str, list[Any]] = {}
    curves_of: dict[str, tuple[float, ...]] = {}
    if not unanswered and subject.calibrated is not None:
        by = CALIBRATED[subject.calibrated.source]
        curves_of[by] = tuple(delta for delta in levels if delta >= subject.calibrated.finest)
        bands[by] = [subject.calibrated.interval(points, delta) for delta in curves_of[by]]
    if not unanswered:
        for bound in ("isoperimetric",) if subject.calibrated is not None else ("isoperimetric", "asymptotic"):
            found = [
                fitted.interval(
                    points, delta, bound=bound, target="observation", noise=options.noise, seed=options.seed
                )
                for delta in levels
            ]
            bands[found[0].bound] = found  # a model that is linear by structure has "exact" intervals instead
            curves_of[found[0].bound] = levels
    judged = []
    for k in range(observed.shape[1]):
        curves = {bound: _coverage(each, curves_of[bound], observed, k) for bound, each in bands.items()}
        judged.append(Judged("held-out", said + (f" {unanswered}"), curves, float(rms[k]), len(observed)))
    return judged


def _coverage(bands: list[Any], levels: tuple[float, ...], observed: np.ndarray, k: int) -> metrics.Calibration:
    asked = dict(zip(levels, bands, strict=True))

    def ends(delta: float) -> Any:
        band = asked[delta]
        return SimpleNamespace(
            lower=band.lower.reshape(observed.shape)[:, k], upper=band.upper.reshape(observed.shape)[:, k]
        )

    return metrics.calibration(ends, observed[:, k], levels)


def judge_left_out(fitted: FittedModel, options: Options, df: Any) -> list[Judged]:
    """Judge the intervals by the training rows, each against the model that had not seen it, to first order.

    Args:
        fitted: The model.
        options: The options.
        df: Degrees of freedom of the noise level, or None where it is known.
    """
    outputs = fitted.problem.outputs
    if fitted.problem.n > MOST_LEFT_OUT:
        said = (
            f"{fitted.problem.n} training rows are too many to leave out in turn for a report. Give held_out=(X, y): "
            "rows that training did not see."
        )
        return [Judged("none", said, {})] * outputs
    try:
        calibrated = fitted.calibrate("loo", noise=options.noise, seed=options.seed)
    except VhatError as error:
        return [Judged("none", str(error), {})] * outputs
    residual = fitted.leave_one_out(seed=options.seed).residual
    scores, levels = calibrated.scores.reshape(len(calibrated.scores), -1), _levels(options.delta)
    freedom = None if df is None else np.broadcast_to(df, outputs)
    said = (
        f"no held-out rows were given: these are the {len(scores)} training rows, each predicted by the model that had "
        "not seen it, to first order and without refitting."
    )
    judged = []
    for k in range(outputs):

        def ends(delta: float, k: int = k) -> Any:
            most = bounds.asymptotic(1.0, 1, 1.0, delta, df=None if freedom is None else freedom[k])
            return SimpleNamespace(lower=np.full(len(scores), -most), upper=np.full(len(scores), most))

        missed = np.asarray(residual).reshape(len(residual), -1)[:, k] if residual is not None else np.array([np.nan])
        rms = float(np.sqrt(np.nanmean(missed**2)))
        curve = metrics.calibration(ends, scores[:, k], levels)
        judged.append(Judged("left-out", said, {"asymptotic": curve}, rms, len(scores), calibrated.doubt))
    return judged


def _levels(delta: float) -> tuple[float, ...]:
    """The delta that was asked for, and the usual ones that are not nearly the same."""
    others = [usual for usual in LEVELS if abs(usual - delta) > _APART * delta]
    return tuple(sorted([delta, *others], reverse=True))
