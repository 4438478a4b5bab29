"""Tests of a fit on evaluation rows: accuracy beside baselines, coverage by part, importance of the columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.level import level_text
from vhat.report.accuracy import Baselines, accuracy, baselines
from vhat.report.calibration import CALIBRATED
from vhat.report.coverage_parts import count, parts
from vhat.report.evaluation_rows import EvaluationRows, evaluate_held_out, evaluate_left_out
from vhat.report.findings import findings
from vhat.report.importance import Importance, importance
from vhat.report.numbers import plain
from vhat.report.options import Options, Subject
from vhat.report.points import thin
from vhat.report.table import Table
from vhat.tables.row_names import RowNames

if TYPE_CHECKING:
    from vhat.evidence.leave_one_out import LeaveOneOut
    from vhat.report.points import HeldOut, Shown

__all__ = ["quality"]

_MAX_COLUMNS = 15
"""Number of columns whose importance is drawn."""


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
    """Test a fit on its held-out rows, or on its training rows left out in turn.

    Args:
        subject: The fit.
        table: Its training inputs.
        options: The options.
        shown: The points on the page with their intervals.
        rows: The names of the training rows.
        held_out: Rows that were not used in training, or None.
        left_out: The training rows left out in turn, or None.
        doubt: Why leave-one-out is unreliable for this fit; empty if it is not.

    Returns:
        Plain data, one dict per output. Its ``source`` is ``"none"`` if there are no rows to test on.
    """
    problem = subject.fitted.problem
    evaluation: EvaluationRows | None = None
    # Predictions are compared with responses, so that both must be on one scale: ``location``.
    if held_out is not None and problem.loss_derivatives.location:
        evaluation = evaluate_held_out(subject, table, options, shown, held_out)
    elif held_out is None and left_out is not None:
        evaluation = evaluate_left_out(subject, table, options, shown, left_out, rows, doubt)
    if evaluation is None:
        return [_not_tested() for _ in range(problem.outputs)]
    others = baselines(problem, table.values, evaluation, options.seed)
    sources = subject.sources or table.names
    importances = _importances(subject, table, sources, evaluation, options.seed)
    return [
        _output(evaluation, others, importances, table, sources, options, problem.n, k) for k in range(problem.outputs)
    ]


def _not_tested() -> dict[str, Any]:
    """Return the result of an output without evaluation rows."""
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


def _importances(
    subject: Subject, table: Table, sources: tuple[str, ...], evaluation: EvaluationRows, seed: int
) -> Importance | None:
    """Return the importance of each column of the user's table on held-out or training rows.

    For left-out rows, the model of all rows is used: leave-one-out predicts a row at its own inputs only.
    """
    if not table.flat:
        return None
    fitted = subject.fitted
    columns: dict[str, list[int]] = {}
    for column in table.varying:
        columns.setdefault(sources[column], []).append(int(column))
    blocks = {name: np.array(each) for name, each in columns.items()}

    def predict(values: np.ndarray) -> np.ndarray:
        return fitted.predict(table.inputs(values)).reshape(len(values), -1)

    return importance(predict, evaluation.values, evaluation.observed, blocks, parameters=fitted.problem.p, seed=seed)


def _output(
    evaluation: EvaluationRows,
    others: Baselines,
    importances: Importance | None,
    table: Table,
    sources: tuple[str, ...],
    options: Options,
    training_rows: int,
    k: int,
) -> dict[str, Any]:
    """Test one output.

    Args:
        evaluation: The rows.
        others: Predictions of simple models at these rows.
        importances: The importance of the columns, or None.
        table: The training inputs.
        sources: The column of the user's table from which each column was made.
        options: The options.
        training_rows: The number of training rows.
        k: The output.
    """
    errors = accuracy(evaluation, others, training_rows, k)
    total = None
    tested = []
    coverage = None
    if evaluation.has_intervals:
        total = count(evaluation.inside[:, k], evaluation.coverage[k], two_sided=evaluation.two_sided)
        ranked = table.varying if importances is None else importances.order(k)
        if not table.flat:  # single numbers of an image are no groups
            ranked = ranked[:0]
        spread = float(np.std(evaluation.observed[:, k]))
        tested = parts(evaluation, table, sources, ranked, k, spread)
        coverage = total.to_plain() | {
            "level": plain(1 - options.delta),
            "bound": CALIBRATED.get(evaluation.bound, evaluation.bound),
            "circular": evaluation.circular,
        }
    return {
        "source": evaluation.source,
        "doubt": evaluation.doubt,
        "accuracy": None if errors is None else errors.to_plain(),
        "baseline": others.trees_note,
        "coverage": coverage,
        "parts": [part.to_plain() for part in tested],
        "importance": None if importances is None else importances.to_plain(k, _MAX_COLUMNS),
        "residuals": _residuals(evaluation, k, options.seed),
        "findings": findings(evaluation, errors, total, tested, level_text(options.delta)),
    }


def _residuals(evaluation: EvaluationRows, k: int, seed: int) -> dict[str, Any]:
    """Return residuals of the rows that are drawn, and the limits of their intervals minus the prediction."""
    index = thin(len(evaluation), seed)
    prediction = evaluation.prediction[index, k]
    return {
        "name": list(evaluation.names.take(index)),
        "prediction": plain(prediction),
        "residual": plain(evaluation.observed[index, k] - prediction),
        "low": plain(evaluation.lower[index, k] - prediction) if evaluation.has_intervals else None,
        "high": plain(evaluation.upper[index, k] - prediction) if evaluation.has_intervals else None,
    }
