"""Coverage of the intervals of a new response at many levels: on held-out rows, or else on left-out training rows."""

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

__all__ = ["CALIBRATED", "LEVELS", "MAX_LEFT_OUT", "CoverageCurves", "coverage_of_held_out", "coverage_of_left_out"]

LEVELS = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01)
"""Values of delta at which coverage is counted, beside the one of the report."""
_APART = 0.02
"""Least relative difference between the delta of the report and the others that are shown."""
CALIBRATED = {"loo": "calibrated, leave-one-out", "cv": "calibrated, five folds", "split": "calibrated, held-out rows"}
"""Names of calibrated intervals on the page, by the source of the calibration."""
MAX_LEFT_OUT = 5000
"""Largest number of training rows for leave-one-out. Each row costs a solve, and larger tables can hold rows out."""


@dataclass(frozen=True)
class CoverageCurves:
    """Coverage of the intervals of a new response, for one output.

    Attributes:
        source: ``"held-out"``, ``"left-out"`` or ``"none"``.
        method: What was counted, or why nothing could be.
        curves: Coverage at each level, that of the report included, by the name of the bound.
        rms: Root mean square error of the predictions.
        rows: The number of rows.
        doubt: Why first-order leave-one-out is unreliable for this fit; empty if it is not.
    """

    source: str
    method: str
    curves: dict[str, metrics.Calibration]
    rms: float = float("nan")
    rows: int = 0
    doubt: str = ""

    def to_plain(self, delta: float) -> dict[str, Any]:
        """Return the curves as plain data.

        Args:
            delta: The delta of the report, whose position among the levels is given.
        """
        curves = [
            {
                "bound": bound,
                "asked": curve.delta.tolist().index(delta),
                "nominal": [level_text(each) for each in curve.delta],
                "level": plain(1 - curve.delta),
                "coverage": plain(curve.coverage),
                "error": plain(curve.error),
            }
            for bound, curve in self.curves.items()
        ]
        return {
            "source": self.source,
            "method": self.method,
            "rows": self.rows,
            "rms": plain(self.rms),
            "curves": curves,
        }


def coverage_of_held_out(
    subject: Subject, points: Any, held_out: HeldOut, options: Options, no_observation_reason: str
) -> list[CoverageCurves]:
    """Return the coverage on held-out rows, one result per output.

    Args:
        subject: The model.
        points: The inputs of the rows, in the form that the model takes.
        held_out: The rows.
        options: The options of the report.
        no_observation_reason: Why there are no intervals of a new response; empty if there are.
    """
    observed = held_out.observed
    copies = "none of them a training row"
    if held_out.repeated:
        copies = f"of which {held_out.repeated} equal a training row"
    method = f"{len(observed)} held-out rows, {copies}, input and response alike. {no_observation_reason}".rstrip()
    center = subject.fitted.predict(points).reshape(observed.shape)
    rms = np.sqrt(np.mean((observed - center) ** 2, axis=0))
    bands = {} if no_observation_reason else _bands_by_level(subject, points, options)
    results = []
    for k in range(observed.shape[1]):
        curves = {bound: _curve(by_delta, observed, k) for bound, by_delta in bands.items()}
        results.append(CoverageCurves("held-out", method, curves, float(rms[k]), len(observed)))
    return results


def _bands_by_level(subject: Subject, points: Any, options: Options) -> dict[str, dict[float, Any]]:
    """Return intervals of a new response by the name of their bound and by delta."""
    levels = _levels(options.delta)
    bands: dict[str, dict[float, Any]] = {}
    bound_names: tuple[str, ...] = ("isoperimetric", "asymptotic")
    if subject.calibrated is not None:
        calibrated = subject.calibrated
        # A calibration of few rows has no intervals for a small delta.
        possible = [delta for delta in levels if delta >= calibrated.finest]
        bands[CALIBRATED[calibrated.source]] = {delta: calibrated.interval(points, delta) for delta in possible}
        bound_names = ("isoperimetric",)
    for bound in bound_names:
        by_delta = {
            delta: subject.fitted.interval(
                points, delta, bound=bound, target="observation", noise=options.noise, seed=options.seed
            )
            for delta in levels
        }
        # A model that is linear by structure has "exact" intervals, whichever bound was requested.
        name = by_delta[levels[0]].bound
        bands[name] = by_delta
    return bands


def _curve(bands: dict[float, Any], observed: np.ndarray, k: int) -> metrics.Calibration:
    """Return the coverage of output k at each delta."""

    def limits(delta: float) -> Any:
        band = bands[delta]
        return SimpleNamespace(
            lower=band.lower.reshape(observed.shape)[:, k], upper=band.upper.reshape(observed.shape)[:, k]
        )

    return metrics.calibration(limits, observed[:, k], tuple(bands))


def coverage_of_left_out(fitted: FittedModel, options: Options, df: Any) -> list[CoverageCurves]:
    """Return the coverage on the training rows, each against the model without it, to first order.

    Args:
        fitted: The model.
        options: The options of the report.
        df: Degrees of freedom of the noise level, or None if it is known.
    """
    outputs = fitted.problem.outputs
    if fitted.problem.n > MAX_LEFT_OUT:
        reason = (
            f"{fitted.problem.n} training rows are too many to leave out in turn for a report. Give held_out=(X, y): "
            "rows that training did not see."
        )
        return [CoverageCurves("none", reason, {})] * outputs
    try:
        calibrated = fitted.calibrate("loo", noise=options.noise, seed=options.seed)
    except VhatError as error:
        return [CoverageCurves("none", str(error), {})] * outputs
    residual = fitted.leave_one_out(seed=options.seed).residual
    scores = calibrated.scores.reshape(len(calibrated.scores), -1)
    levels = _levels(options.delta)
    df_per_output = None if df is None else np.broadcast_to(df, outputs)
    method = (
        f"no held-out rows were given: these are the {len(scores)} training rows, each predicted by the model without "
        "it, to first order and without refitting."
    )
    results = []
    for k in range(outputs):
        df_k = None if df_per_output is None else df_per_output[k]

        # A score is a left-out error in standard errors. It lies inside the interval if it is at most the quantile.
        def limits(delta: float, df_k: Any = df_k) -> Any:
            quantile = bounds.asymptotic(1.0, 1, 1.0, delta, df=df_k)
            return SimpleNamespace(lower=np.full(len(scores), -quantile), upper=np.full(len(scores), quantile))

        errors = np.array([np.nan])
        if residual is not None:
            errors = np.asarray(residual).reshape(len(residual), -1)[:, k]
        rms = float(np.sqrt(np.nanmean(errors**2)))
        curve = metrics.calibration(limits, scores[:, k], levels)
        results.append(CoverageCurves("left-out", method, {"asymptotic": curve}, rms, len(scores), calibrated.doubt))
    return results


def _levels(delta: float) -> tuple[float, ...]:
    """Return the delta of the report and the usual ones that differ from it, largest first."""
    others = [usual for usual in LEVELS if abs(usual - delta) > _APART * delta]
    return tuple(sorted([delta, *others], reverse=True))
