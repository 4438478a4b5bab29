"""A report on an estimator: what it says of how the estimator was trained, and of rows that were kept apart."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import calling_rows
from vhat.estimator import calibration
from vhat.estimator.held_out import KeptRows, judging_rows
from vhat.estimator.log_target import log_of
from vhat.report import Options, Subject
from vhat.report import write as write_report
from vhat.tables.frames import as_pandas
from vhat.tables.row_names import RowNames

if TYPE_CHECKING:
    from vhat.estimator.regressor import NetworkRegressor

__all__ = ["write"]


def write(network: NetworkRegressor, path: str | os.PathLike[str], options: Options, *, force: bool) -> Path:
    """Write a report on a fitted estimator: see :func:`vhat.report.write`.

    Without held-out rows in the options, those that were kept apart when it was fitted judge its intervals.
    """
    given = None
    if options.held_out is not None:
        X, y = map(as_pandas, options.held_out)
        names = options.held_out_rows or RowNames.of(X, (*np.shape(X), 0)[0])
        with calling_rows(names):
            given = KeptRows(network._points(X), y, names)
    rows = judging_rows(network, given)
    if rows is not None:
        options = replace(options, held_out=(rows.X, rows.y), held_out_rows=rows.names)
    if rows is not None and network.log_target:
        logs = log_of(np.asarray(rows.y, dtype=np.float64))
        options = replace(options, held_out=(rows.X, logs))
    if network.log_target:
        options = replace(options, response=_logged(options.response or network.target_name_ or "y"))
    return write_report(_subject(network, options), path, options, force=force)


def _logged(response: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """What a page calls a target that was fitted as its logarithm: everything on it is about that."""
    return f"log({response})" if isinstance(response, str) else tuple(f"log({name})" for name in response)


def _subject(network: NetworkRegressor, options: Options) -> Subject:
    calibrated, not_calibrated = calibration.for_report(network, options.delta, options.noise)
    selection, asked = network.selection_, network.weight_decay
    kind = network.activation if len(network.widths_) > 2 else "linear"
    training = (
        ("Network", f"{' – '.join(map(str, network.widths_))}, {kind}"),
        ("Recipe", network.recipe if isinstance(network.recipe, str) else "a function of the user's"),
        (
            "Weight decay asked for",
            asked if isinstance(asked, str) else ", ".join(f"{lam:g}" for lam in np.ravel(asked)),
        ),
        ("Seed of the fit", f"{network.random_state}"),
        ("Scaling", "standardised inside" + _transformed(network)),
        *([("Target", "its logarithm; numbers on this page are of log y")] if network.log_target else []),
    )
    names = network.fitted_.problem.columns
    return Subject(
        network.fitted_,
        training,
        columns=None if names is None else tuple(map(str, names)),
        response=network.target_name_,
        curve=None if selection is None else selection.curve,
        score_unit="standard deviations of the response",
        decay=f"The weight decay was set to {network.weight_decay_:.4g}; no others were tried.",
        rows=network.row_names_,
        calibrated=calibrated,
        not_calibrated=not_calibrated,
        sources=_sources(network),
        readings=_readings(network),
    )


def _sources(network: NetworkRegressor) -> tuple[str, ...] | None:
    """Return the column of the table that each column of the model comes from; None where the table was numbers."""
    if network.columns_ is None:
        return None
    return tuple(each.name for each in network.columns_.columns for _ in each.outputs)


def _readings(network: NetworkRegressor) -> tuple[tuple[str, str, str], ...]:
    """How each column of the table was read, and its target; nothing where all are numbers without gaps."""
    columns, target = network.columns_, network.target_column_
    if columns is None or (columns.plain and target is None):
        return ()
    told = [
        (each.name, each.kind if each.outputs else "left out", "; ".join(filter(None, (each.detail, each.remark))))
        for each in columns.columns
    ]
    return (*told, *([] if target is None else [(target.name, f"target, a {target.kind}", target.detail)]))


def _transformed(network: NetworkRegressor) -> str:
    """Name the columns that were transformed; empty where there are none."""
    at = network.scaling_.transformed
    if not len(at):
        return ""
    names = network.fitted_.problem.columns
    called = [f"column {j}" if names is None else str(names[j]) for j in at]
    return f"; skewed, and transformed by Yeo and Johnson's method: {', '.join(called)}"
