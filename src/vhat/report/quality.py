"""How good a fit is, by rows that judge it: accuracy beside baselines, coverage by part, importance of the columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.level import level_text
from vhat.report.accuracy import Baselines, accuracy, baselines
from vhat.report.calibration import CALIBRATED
from vhat.report.coverage_parts import count, parts
from vhat.report.findings import findings
from vhat.report.importance import Importance, importance
from vhat.report.judged_rows import JudgedRows, held_out_judges, left_out_judges
from vhat.report.numbers import plain
from vhat.report.options import Options, Subject
from vhat.report.points import thin
from vhat.report.table import Table
from vhat.tables.row_names import RowNames

if TYPE_CHECKING:
    from vhat.evidence.leave_one_out import LeaveOneOut
    from vhat.report.points import HeldOut, Shown

__all__ = ["quality"]

_LISTED = 15
"""Columns whose importance is drawn."""


def quality(
    subject: Subject,
    table: Table,
    options: Options,
    shown: Shown,
    rows: RowNames,
    held_out: HeldOut | None,
    left_out: LeaveOneOut | None,
    doubt: str,
) -> list[dict[str, Any]]:
    """Judge a fit by its held-out rows, or by its training rows left out in turn.

    Args:
        subject: The fit.
        table: Its training inputs.
        options: The options.
        shown: The points of the page with their intervals.
        rows: What the training rows are called.
        held_out: Rows that training did not see, or None.
        left_out: The training rows left out in turn, or None.
        doubt: Why these are not to be relied on; empty where they are.

    Returns:
        Plain data, one dict an output; ``source`` is ``"none"`` where nothing could be judged.
    """
    problem = subject.fitted.problem
    judges: JudgedRows | None = None
    if held_out is not None and problem.loss_derivatives.location:
        judges = held_out_judges(subject, table, options, shown, held_out)
    elif held_out is None and left_out is not None:
        judges = left_out_judges(subject, table, options, shown, left_out, rows, doubt)
    if judges is None:
        return [_nothing() for _ in range(problem.outputs)]
    others = baselines(problem, table.values, judges, options.seed)
    sources = subject.sources or table.names
    moved = _importance(subject, table, sources, judges, options.seed)
    return [_output(judges, others, moved, table, sources, options, problem.n, k) for k in range(problem.outputs)]


def _nothing() -> dict[str, Any]:
    return {
        "source": "none",
        "doubt": "",
        "accuracy": None,
        "baseline": "",
        "coverage": None,
        "parts": [],
        "importance": None,
        "residuals": None,
        "findings": [],
    }


def _importance(
    subject: Subject, table: Table, sources: tuple[str, ...], judges: JudgedRows, seed: int
) -> Importance | None:
    """Shuffle columns of held-out rows, or of training rows: the model without a row cannot be asked elsewhere."""
    if not table.flat:
        return None
    fitted = subject.fitted
    columns: dict[str, list[int]] = {}
    for column in table.varying:
        columns.setdefault(sources[column], []).append(int(column))
    blocks = {name: np.array(each) for name, each in columns.items()}

    def predict(values: np.ndarray) -> np.ndarray:
        return fitted.predict(table.inputs(values)).reshape(len(values), -1)

    return importance(predict, judges.values, judges.observed, blocks, parameters=fitted.problem.p, seed=seed)


def _output(
    judges: JudgedRows,
    others: Baselines,
    moved: Importance | None,
    table: Table,
    sources: tuple[str, ...],
    options: Options,
    training_rows: int,
    k: int,
) -> dict[str, Any]:
    """Judge one output."""
    level = 1 - options.delta
    found = accuracy(judges, others, training_rows, k)
    total = None
    counted = []
    if judges.answered:
        total = count(judges.inside[:, k], judges.coverage[k], aimed=judges.aimed)
        ranked = table.varying if moved is None else moved.order(k)
        spread = float(np.std(judges.observed[:, k]))
        counted = parts(judges, table, sources, ranked if table.flat else ranked[:0], k, spread)
    return {
        "source": judges.source,
        "doubt": judges.doubt,
        "accuracy": None if found is None else found.to_plain(),
        "baseline": others.said,
        "coverage": None
        if total is None
        else total.to_plain()
        | {
            "level": plain(level),
            "bound": CALIBRATED.get(judges.bound, judges.bound),
            "circular": judges.circular,
        },
        "parts": [part.to_plain() for part in counted],
        "importance": None if moved is None else moved.to_plain(k, _LISTED),
        "residuals": _residuals(judges, k, options.seed),
        "findings": findings(judges, found, total, counted, level_text(options.delta)),
    }


def _residuals(judges: JudgedRows, k: int, seed: int) -> dict[str, Any]:
    """Return response minus prediction of the rows that are drawn, and the ends of their intervals likewise."""
    index = thin(len(judges), seed)
    prediction = judges.prediction[index, k]
    return {
        "name": list(judges.names.take(index)),
        "prediction": plain(prediction),
        "residual": plain(judges.observed[index, k] - prediction),
        "low": plain(judges.lower[index, k] - prediction) if judges.answered else None,
        "high": plain(judges.upper[index, k] - prediction) if judges.answered else None,
    }
