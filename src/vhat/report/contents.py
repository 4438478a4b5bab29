"""Everything that a page shows, as plain data."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import NoiseError, NotPositiveDefinite, TableWarning, VhatError, calling_rows
from vhat.evidence.audit import Audit
from vhat.evidence.leave_one_out import LeaveOneOut
from vhat.level import level_text
from vhat.report.calibration import MOST_LEFT_OUT, Judged, judge_held_out, judge_left_out
from vhat.report.captured_warnings import heard
from vhat.report.facts import fit_facts, versions
from vhat.report.findings import verdict
from vhat.report.influence import influence
from vhat.report.numbers import plain, sentence
from vhat.report.options import Options, Subject
from vhat.report.points import Group, HeldOut, Shown, ask, held_out_rows, thin
from vhat.report.quality import quality
from vhat.report.slices import Slice, central_row, slices
from vhat.report.table import Table, training_table
from vhat.tables.row_names import RowNames
from vhat.variance.weighted_norm import shown_share, support_threshold

if TYPE_CHECKING:
    from vhat.fit import Curve
    from vhat.fitted.model import FittedModel

__all__ = ["collect"]

_LISTED = 10
_DRAWN_COLUMNS = 40
"""Columns whose values are kept for the rows that are drawn."""


def collect(subject: Subject, options: Options) -> dict[str, Any]:
    """Work out everything that a page shows.

    What the library warns of on the way stands on the page, and is warned of again.

    Returns:
        Dicts, lists, text, numbers and None: what JSON can hold.

    Raises:
        InputError: For options, held-out rows or a model that a report cannot show.
    """
    fitted = subject.fitted
    table = training_table(fitted.problem, subject.columns)
    names = options.responses(fitted.problem.outputs, subject.response)
    rows = subject.rows or RowNames.of(fitted.problem.X, fitted.problem.n)
    held_out: HeldOut | None = None
    with heard() as of_table:
        if options.held_out is not None:
            held_out = held_out_rows(fitted, table, options.held_out, options.held_out_rows)
    with heard() as said:
        warnings.simplefilter("ignore", TableWarning)  # of the same rows again, under other numbers
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
            "trouble": "",
            "called": _called(rows, held_out),
        }
        try:
            page |= _answers(subject, table, options, names, rows, held_out)
        except (NoiseError, NotPositiveDefinite) as error:  # the audit is then what the reader needs most
            page |= {"trouble": str(error), "outputs": [], "guarantee": {}, "notes": []}
    page["warnings"] = [*of_table, *said]
    page["verdict"] = verdict(page["audit"], page["outputs"], page["trouble"])
    return page


def _answers(
    subject: Subject,
    table: Table,
    options: Options,
    names: tuple[str, ...],
    rows: RowNames,
    held_out: HeldOut | None,
) -> dict[str, Any]:
    """Work out what rests on intervals."""
    fitted = subject.fitted
    row = central_row(table)
    lines = slices(table, row, lambda rows: fitted.predict(table.inputs(rows)))
    index = thin(fitted.problem.n, options.seed)
    unseen = None if held_out is None else held_out.take(thin(len(held_out), options.seed))
    shown = ask(fitted, table, options, index, rows.take(index), unseen, lines, subject.calibrated)
    with calling_rows(rows):
        left_out = _left_out(fitted, options)
    if held_out is None:
        with calling_rows(rows):
            judged = judge_left_out(fitted, options, shown.training.mean.df)
    else:
        with calling_rows(held_out.names):
            points = table.inputs(held_out.values)
            judged = judge_held_out(subject, points, held_out, options, shown.unanswered)
    asked = [shown.training.values, *([] if shown.held_out is None else [shown.held_out.values])]
    leaned = influence(fitted, table.inputs, np.concatenate(asked), left_out)
    responses = fitted.problem.targets
    good = quality(subject, table, options, shown, rows, held_out, left_out, judged[0].doubt)
    outputs = [
        _output(name, k, shown, lines, left_out, judged[k], leaned[k], responses[:, k], rows, options)
        | {"quality": good[k]}
        for k, name in enumerate(names)
    ]
    return {
        "outputs": outputs,
        "guarantee": {
            "mean": shown.training.mean.guarantee,
            "observation": "" if shown.training.fresh is None else shown.training.fresh.guarantee,
            "unanswered": shown.unanswered,
        },
        "solved": {"solver": shown.training.mean.solver, "curvature": shown.training.mean.curvature},
        "slice_row": rows[row],
        "max_unsupported": plain(support_threshold(shown.training.mean.usual_unsupported, options.max_unsupported)),
        "inputs": _inputs(table, shown, row),
        "notes": _notes(subject, table, shown, held_out, lines),
    }


def _called(rows: RowNames, held_out: HeldOut | None) -> str:
    """Say how rows are called on the page."""
    if held_out is None or held_out.names.origin == rows.origin:
        return f"Rows are called by {rows.origin}."
    return f"Training rows are called by {rows.origin}; held-out rows by {held_out.names.origin}."


def _left_out(fitted: FittedModel, options: Options) -> LeaveOneOut | None:
    if fitted.problem.n > MOST_LEFT_OUT:
        return None
    try:
        return fitted.leave_one_out(seed=options.seed)
    except VhatError:
        return None


def _output(
    name: str,
    k: int,
    shown: Shown,
    lines: list[Slice],
    left_out: LeaveOneOut | None,
    judged: Judged,
    leaned: dict[str, list[Any]],
    responses: np.ndarray,
    rows: RowNames,
    options: Options,
) -> dict[str, Any]:
    """Everything about one output."""
    training = _named(shown.training, k, options)
    if left_out is not None:
        training["left_out"] = plain(_column(left_out.prediction, k)[shown.index])
        training["leverage"] = plain(left_out.leverage[shown.index])
    held = None if shown.held_out is None else _named(shown.held_out, k, options)
    count = len(shown.training)
    named = sorted({row for most in leaned["row"] for row in most})
    mean = shown.training.mean
    return {
        "name": name,
        "spread": plain(np.std(responses)),
        "noise": plain(_of(mean.noise, k)),
        "noise_source": mean.noise_source,
        "df": plain(_of(mean.df, k)) if mean.df is not None else None,
        "median_half_width": plain(np.nanmedian(_column(mean.half_width, k))),
        "training": training | {"leans_on": {part: values[:count] for part, values in leaned.items()}},
        "held_out": None
        if held is None
        else held | {"leans_on": {part: values[count:] for part, values in leaned.items()}},
        "slices": [
            {"column": line.column, "discrete": line.discrete, "grid": plain(line.grid), **_group(group, k, options)}
            for line, group in zip(lines, shown.slices, strict=True)
        ],
        "calibration": judged.to_plain(options.delta),
        "widest": _widest(training, held),
        "abstained": _abstained(training, held),
        "leaned": {str(row): {"name": rows[row], "response": plain(responses[row])} for row in named},
    }


def _named(group: Group, k: int, options: Options) -> dict[str, Any]:
    """One output of a group of rows, with their names."""
    return {"name": list(group.names), **_group(group, k, options)}


def _group(group: Group, k: int, options: Options) -> dict[str, Any]:
    """One output of a group of points."""
    band = group.mean
    found: dict[str, Any] = {
        "center": plain(_column(band.center, k)),
        "half_width": plain(_column(band.half_width, k)),
        "unsupported": plain(shown_share(_column(band.unsupported, k))),
        "distance": plain(group.nearest),
        "abstain": _column(band.abstain(max_unsupported=options.max_unsupported), k).tolist(),
        "status": _column(band.status, k).astype(str).tolist(),
        "observation": None if group.fresh is None else plain(_column(group.fresh.half_width, k)),
    }
    if group.observed is not None:
        found["observed"] = plain(group.observed[:, k])
    return found


def _listing(kind: str, group: dict[str, Any], at: int) -> dict[str, Any]:
    names = ("name", "observed", "center", "half_width", "unsupported", "distance", "status")
    return {"kind": kind, "at": at} | {name: group[name][at] for name in names}


def _widest(training: dict[str, Any], held: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The widest intervals of the mean among the rows shown, widest first."""
    every = [
        _listing(kind, group, at)
        for kind, group in (("training", training), ("held-out", held))
        if group is not None
        for at in range(len(group["name"]))
        if group["half_width"][at] is not None
    ]
    return sorted(every, key=lambda point: -point["half_width"])[:_LISTED]


def _abstained(training: dict[str, Any], held: dict[str, Any] | None) -> dict[str, Any]:
    """The points whose prediction is not to be relied on: how many, and the least supported of them."""
    groups = [("training", training), *([] if held is None else [("held-out", held)])]
    every = [_listing(kind, group, at) for kind, group in groups for at in np.flatnonzero(group["abstain"]).tolist()]
    first = sorted(every, key=lambda point: -(2.0 if point["half_width"] is None else point["unsupported"]))
    return {"count": len(every), "of": sum(len(group["name"]) for _, group in groups), "points": first[:_LISTED]}


def _inputs(table: Table, shown: Shown, row: int) -> dict[str, Any]:
    """The inputs of the rows that are drawn, in the first columns of the table, and of the row of the slices."""
    width = min(_DRAWN_COLUMNS, len(table.names)) if table.flat else 0
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
    """What the page leaves out."""
    notes = []
    n = subject.fitted.problem.n
    if subject.not_calibrated:
        notes.append(
            f"The intervals of a new response are not calibrated but rest on the bound: {subject.not_calibrated}."
        )
    if len(shown.training) < n:
        notes.append(f"{len(shown.training)} of {n:,} training rows are drawn and listed, at random.")
    if held_out is not None and shown.held_out is not None and len(shown.held_out) < len(held_out):
        notes.append(
            f"{len(shown.held_out)} of {len(held_out):,} held-out rows are drawn and listed, at random; the "
            "calibration counts all of them."
        )
    if not table.flat:
        notes.append("The inputs are not columns of a table: there are no slices along them.")
    elif len(lines) < len(table.varying):
        notes.append(
            f"Slices along {len(lines)} of {len(table.varying)} columns: those along which the prediction moves most."
        )
    return notes


def _audit(audit: Audit, options: Options) -> dict[str, Any]:
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
                "meaning": options.advice(line.meaning),
                "remedy": options.advice(line.remedy),
            }
            for line in audit
        ],
    }


def _curve(subject: Subject) -> dict[str, Any]:
    curve = subject.curve
    if curve is None:
        return {"said": subject.decay, "weight_decay": []}
    names = ("weight_decay", "score", "standard_error")
    return {name: plain(getattr(curve, name)) for name in names} | {
        "status": curve.status.astype(str).tolist(),
        "remark": curve.remark.astype(str).tolist(),
        "measure": curve.measure,
        "unit": subject.score_unit,
        "best": curve.best,
        "said": " ".join(filter(None, [sentence(curve.edge or curve.doubt), *_without_score(curve)])),
    }


def _without_score(curve: Curve) -> list[str]:
    """Say of every weight decay that is missing in the picture why it is."""
    missing = [k for k in range(len(curve)) if not np.isfinite(curve.score[k])]
    return [sentence(f"no score at {curve.weight_decay[k]:.3g}: {curve.remark[k]}") for k in missing]


def _column(values: np.ndarray, k: int) -> np.ndarray:
    return values if values.ndim == 1 else values[:, k]


def _of(values: Any, k: int) -> Any:
    return np.broadcast_to(values, k + 1)[k] if np.ndim(values) == 0 else values[k]
