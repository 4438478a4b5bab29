"""Everything that the page shows, as plain data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import NoiseError, NotPositiveDefinite, SupportWarning, TableWarning, VhatError, calling_rows
from vhat.evidence.audit import Audit
from vhat.evidence.leave_one_out import LeaveOneOut
from vhat.level import level_text
from vhat.report.calibration import MAX_LEFT_OUT, CoverageCurves, coverage_of_held_out, coverage_of_left_out
from vhat.report.captured_warnings import collect_warnings
from vhat.report.facts import fit_facts, versions
from vhat.report.findings import verdict
from vhat.report.influence import influence
from vhat.report.numbers import plain, sentence
from vhat.report.options import Options, Subject
from vhat.report.points import Group, HeldOut, Shown, compute_intervals, held_out_rows, thin
from vhat.report.quality import quality
from vhat.report.slices import Slice, central_row, slices
from vhat.report.table import Table, training_table
from vhat.tables.row_names import RowNames
from vhat.tables.validate import IS_FAR
from vhat.variance.weighted_norm import shown_share, support_threshold

if TYPE_CHECKING:
    from vhat.fit import Curve
    from vhat.fitted.model import FittedModel

__all__ = ["collect"]

_LISTED_POINTS = 10
"""Number of points in each list of points to look at."""
_MAX_COLUMNS = 40
"""Number of columns whose values at the drawn rows are part of the page."""


def collect(subject: Subject, options: Options) -> dict[str, Any]:
    """Compute everything that the page shows.

    Warnings of the library are part of the page, and are issued again.

    Returns:
        Dicts, lists, text, numbers and None, which JSON can hold.

    Raises:
        InputError: For options, held-out rows or a model that a report cannot show.
    """
    fitted = subject.fitted
    table = training_table(fitted.problem, subject.columns)
    names = options.responses(fitted.problem.outputs, subject.response)
    rows = subject.rows or RowNames.of(fitted.problem.X, fitted.problem.n)
    held_out: HeldOut | None = None
    with collect_warnings() as table_warnings:
        if options.held_out is not None:
            held_out = held_out_rows(fitted, table, options.held_out, options.held_out_rows)
    with collect_warnings() as model_warnings:
        # The same warnings about the same rows would come again, with other numbers of rows: the rows are permuted,
        # stacked and thinned from here on.
        warnings.simplefilter("ignore", TableWarning)
        warnings.filterwarnings("ignore", IS_FAR, SupportWarning)
        with calling_rows(rows):
            audit = fitted.audit(noise=options.noise, refits=options.refits, seed=options.seed)
        page = {
            "level": level_text(options.delta),
            "columns": list(table.names),
            "spreads": plain(table.spread),
            "max_unsupported": plain(options.max_unsupported),
            "written": f"{datetime.now(UTC):%Y-%m-%d}",
            "responses": list(names),
            "facts": [list(pair) for pair in fit_facts(subject, table, options)],
            "readings": [list(line) for line in subject.readings],
            "audit": _audit(audit, options),
            "curve": _curve(subject),
            "versions": [list(pair) for pair in versions()],
            "no_intervals": "",
            "row_naming": _row_naming(rows, held_out),
        }
        try:
            page |= _intervals(subject, table, options, names, rows, held_out)
        except (NoiseError, NotPositiveDefinite) as error:  # the audit explains why, so that the page is still of use
            page |= {"no_intervals": str(error), "outputs": [], "guarantee": {}, "notes": []}
    page["warnings"] = [*table_warnings, *model_warnings]
    page["verdict"] = verdict(page["audit"], page["outputs"], page["no_intervals"])
    return page


def _intervals(
    subject: Subject,
    table: Table,
    options: Options,
    names: tuple[str, ...],
    rows: RowNames,
    held_out: HeldOut | None,
) -> dict[str, Any]:
    """Compute the parts of the page that need intervals.

    Args:
        subject: The fitted model.
        table: Its training inputs.
        options: The options.
        names: The names of the outputs.
        rows: The names of the training rows.
        held_out: The held-out rows, or None.
    """
    fitted = subject.fitted
    center = central_row(table)
    lines = slices(table, center, lambda values: fitted.predict(table.inputs(values)))
    index = thin(fitted.problem.n, options.seed)
    held_out_shown = None if held_out is None else held_out.take(thin(len(held_out), options.seed))
    shown = compute_intervals(
        fitted, table, options, index, rows.take(index), held_out_shown, lines, subject.calibrated
    )
    with calling_rows(rows):
        left_out = _left_out(fitted, options)
    if held_out is None:
        with calling_rows(rows):
            coverage = coverage_of_left_out(fitted, options, shown.training.mean.df)
    else:
        with calling_rows(held_out.names):
            points = table.inputs(held_out.values)
            coverage = coverage_of_held_out(subject, points, held_out, options, shown.no_observation_reason)
    values = shown.training.values
    if shown.held_out is not None:
        values = np.concatenate([values, shown.held_out.values])
    influences = influence(fitted, table.inputs, values, left_out)
    tests = quality(subject, table, options, shown, rows, held_out, left_out, coverage[0].doubt)
    outputs = []
    for k, name in enumerate(names):
        output = _Output(name, k, options, rows, shown, lines, left_out, coverage[k], influences[k])
        outputs.append(output.to_plain(fitted.problem.targets[:, k]) | {"quality": tests[k]})
    mean = shown.training.mean
    observation = shown.training.observation
    return {
        "outputs": outputs,
        "guarantee": {
            "mean": mean.guarantee,
            "observation": "" if observation is None else observation.guarantee,
            "no_observation": shown.no_observation_reason,
        },
        "solved": {"solver": mean.solver, "curvature": mean.curvature},
        "slice_row": rows[center],
        "max_unsupported": plain(support_threshold(mean.usual_unsupported, options.max_unsupported)),
        "inputs": _inputs(table, shown, center),
        "notes": _notes(subject, table, shown, held_out, lines),
    }


def _row_naming(rows: RowNames, held_out: HeldOut | None) -> str:
    """Return a sentence on the names of rows on the page."""
    if held_out is None or held_out.names.origin == rows.origin:
        return f"Rows are named by {rows.origin}."
    return f"Training rows are named by {rows.origin}; held-out rows by {held_out.names.origin}."


def _left_out(fitted: FittedModel, options: Options) -> LeaveOneOut | None:
    """Return the training rows left out in turn, or None if there are too many or they cannot be left out."""
    if fitted.problem.n > MAX_LEFT_OUT:
        return None
    try:
        return fitted.leave_one_out(seed=options.seed)
    except VhatError:
        return None


@dataclass(frozen=True, eq=False)
class _Output:
    """One output of the model, on the page.

    Attributes:
        name: Its name.
        k: Its index.
        options: The options.
        rows: The names of the training rows.
        shown: All points on the page.
        lines: The slices.
        left_out: The training rows left out in turn, or None.
        coverage: The coverage of its intervals.
        influence: The most influential training rows of its predictions, as :func:`influence` returned them: training
            rows of the page first, then held-out rows.
    """

    name: str
    k: int
    options: Options
    rows: RowNames
    shown: Shown
    lines: list[Slice]
    left_out: LeaveOneOut | None
    coverage: CoverageCurves
    influence: dict[str, list[Any]]

    def to_plain(self, responses: np.ndarray) -> dict[str, Any]:
        """Return everything about this output as plain data.

        Args:
            responses: Its training responses, (n,).
        """
        k = self.k
        mean = self.shown.training.mean
        count = len(self.shown.training)
        training = self._group(self.shown.training)
        training["name"] = list(self.shown.training.names)
        if self.left_out is not None:
            training["left_out"] = plain(_column(self.left_out.prediction, k)[self.shown.index])
            training["leverage"] = plain(self.left_out.leverage[self.shown.index])
        training["influence"] = {part: values[:count] for part, values in self.influence.items()}
        held_out = None
        if self.shown.held_out is not None:
            held_out = self._group(self.shown.held_out)
            held_out["name"] = list(self.shown.held_out.names)
            held_out["influence"] = {part: values[count:] for part, values in self.influence.items()}
        influential = sorted({row for rows in self.influence["row"] for row in rows})
        return {
            "name": self.name,
            "spread": plain(np.std(responses)),
            "noise": plain(_of(mean.noise, k)),
            "noise_source": mean.noise_source,
            "df": None if mean.df is None else plain(_of(mean.df, k)),
            "median_half_width": plain(np.nanmedian(_column(mean.half_width, k))),
            "training": training,
            "held_out": held_out,
            "slices": [
                {"column": line.column, "discrete": line.discrete, "grid": plain(line.grid), **self._group(group)}
                for line, group in zip(self.lines, self.shown.slices, strict=True)
            ],
            "calibration": self.coverage.to_plain(self.options.delta),
            "widest": _widest(training, held_out),
            "abstained": _abstained(training, held_out),
            "influential_rows": {
                str(row): {"name": self.rows[row], "response": plain(responses[row])} for row in influential
            },
        }

    def _group(self, group: Group) -> dict[str, Any]:
        """Return this output of a group of points as plain data."""
        k = self.k
        band = group.mean
        abstain = band.abstain(max_unsupported=self.options.max_unsupported)
        data: dict[str, Any] = {
            "center": plain(_column(band.center, k)),
            "half_width": plain(_column(band.half_width, k)),
            "unsupported": plain(shown_share(_column(band.unsupported, k))),
            "distance": plain(group.nearest),
            "abstain": _column(abstain, k).tolist(),
            "status": _column(band.status, k).astype(str).tolist(),
            "observation": None if group.observation is None else plain(_column(group.observation.half_width, k)),
        }
        if group.observed is not None:
            data["observed"] = plain(group.observed[:, k])
        return data


def _listing(kind: str, group: dict[str, Any], at: int) -> dict[str, Any]:
    """Return the entry of a point in a list of points to look at."""
    names = ("name", "observed", "center", "half_width", "unsupported", "distance", "status")
    return {"kind": kind, "at": at} | {name: group[name][at] for name in names}


def _kinds(training: dict[str, Any], held_out: dict[str, Any] | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the groups of rows on the page by kind."""
    kinds = [("training", training)]
    if held_out is not None:
        kinds.append(("held-out", held_out))
    return kinds


def _widest(training: dict[str, Any], held_out: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the rows with the widest intervals of the prediction, widest first."""
    listed = []
    for kind, group in _kinds(training, held_out):
        for at, half_width in enumerate(group["half_width"]):
            if half_width is not None:
                listed.append(_listing(kind, group, at))
    return sorted(listed, key=lambda point: -point["half_width"])[:_LISTED_POINTS]


def _abstained(training: dict[str, Any], held_out: dict[str, Any] | None) -> dict[str, Any]:
    """Return the predictions not to rely on: their number, and the least supported of them."""
    kinds = _kinds(training, held_out)
    listed = [_listing(kind, group, at) for kind, group in kinds for at in np.flatnonzero(group["abstain"]).tolist()]

    def unsupported(point: dict[str, Any]) -> float:
        if point["half_width"] is None:  # no interval: before all shares, which are at most 1
            return 2.0
        share: float = point["unsupported"]
        return share

    first = sorted(listed, key=lambda point: -unsupported(point))[:_LISTED_POINTS]
    return {"count": len(listed), "of": sum(len(group["name"]) for _, group in kinds), "points": first}


def _inputs(table: Table, shown: Shown, row: int) -> dict[str, Any]:
    """Return the inputs of the drawn rows, in the first columns of the table, and of the row of the slices."""
    width = min(_MAX_COLUMNS, len(table.names)) if table.flat else 0
    return {
        "training": plain(shown.training.values[:, :width].T),
        "held_out": None if shown.held_out is None else plain(shown.held_out.values[:, :width].T),
        "central": plain(table.values[row, :width]),
    }


def _notes(
    subject: Subject,
    table: Table,
    shown: Shown,
    held_out: HeldOut | None,
    lines: list[Slice],
) -> list[str]:
    """Return sentences on what the page leaves out."""
    notes = []
    n = subject.fitted.problem.n
    if subject.not_calibrated:
        notes.append(f"The intervals of a new response are not calibrated and use the bound: {subject.not_calibrated}.")
    if len(shown.training) < n:
        notes.append(f"{len(shown.training)} of {n:,} training rows are drawn and listed, chosen at random.")
    if held_out is not None and shown.held_out is not None and len(shown.held_out) < len(held_out):
        notes.append(
            f"{len(shown.held_out)} of {len(held_out):,} held-out rows are drawn and listed, chosen at random; "
            "coverage is counted on all of them."
        )
    if not table.flat:
        notes.append("The inputs are not columns of a table: there are no slices along them.")
    elif len(lines) < len(table.varying):
        notes.append(
            f"There are slices along {len(lines)} of {len(table.varying)} columns: those along which the prediction "
            "changes most."
        )
    return notes


def _audit(audit: Audit, options: Options) -> dict[str, Any]:
    """Return the audit as plain data."""
    failed = [line.name for line in audit if line.verdict in ("fails", "undecided")]
    return {
        "holds": audit.holds,
        "failed": failed,
        "lines": [
            {
                "name": line.name,
                "verdict": line.verdict,
                "value": None if isnan(line.value) else plain(line.value),
                "threshold": None if isnan(line.threshold) else plain(line.threshold),
                "digits": line.digits,
                "meaning": options.advice(line.meaning),
                "remedy": options.advice(line.remedy),
            }
            for line in audit
        ],
    }


def _curve(subject: Subject) -> dict[str, Any]:
    """Return the scores of the weight decays that were tried as plain data, with a note."""
    curve = subject.curve
    if curve is None:
        return {"note": subject.decay, "weight_decay": []}
    names = ("weight_decay", "score", "standard_error")
    notes = [sentence(curve.edge or curve.doubt), *_without_score(curve)]
    return {name: plain(getattr(curve, name)) for name in names} | {
        "status": curve.status.astype(str).tolist(),
        "remark": curve.remark.astype(str).tolist(),
        "measure": curve.measure,
        "unit": subject.score_unit,
        "best": curve.best,
        "note": " ".join(filter(None, notes)),
    }


def _without_score(curve: Curve) -> list[str]:
    """Return a sentence on each weight decay without a score, with the reason."""
    missing = [k for k in range(len(curve)) if not np.isfinite(curve.score[k])]
    return [sentence(f"no score at {curve.weight_decay[k]:.3g}: {curve.remark[k]}") for k in missing]


def _column(values: np.ndarray, k: int) -> np.ndarray:
    """Return the values of output k, from an array of shape (points,) or (points, outputs)."""
    return values if values.ndim == 1 else values[:, k]


def _of(values: Any, k: int) -> Any:
    """Return the value of output k, from a number that all outputs share or an array of one number per output."""
    return values if np.ndim(values) == 0 else values[k]
