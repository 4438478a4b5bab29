"""Write the report of an estimator: how it was trained, how columns were read, and its held-out rows."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import calling_rows
from vhat.estimator import calibration
from vhat.estimator.held_out import HeldOutRows, judging_rows
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

    Without held-out rows in the options, those that are stored in the estimator test its intervals.
    """
    given = None
    if options.held_out is not None:
        X, y = map(as_pandas, options.held_out)
        names = options.held_out_rows or RowNames.of(X, (*np.shape(X), 0)[0])
        with calling_rows(names):
            given = HeldOutRows(network._points(X), y, names)
    rows = judging_rows(network, given)
    if rows is not None:
        responses = rows.y
        if network.log_target:
            responses = log_of(np.asarray(rows.y, dtype=np.float64))
        options = replace(options, held_out=(rows.X, responses), held_out_rows=rows.names)
    if network.log_target:
        options = replace(options, response=_logged(options.response or network.target_name_ or "y"))
    return write_report(_subject(network, options), path, options, force=force)


def _logged(response: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Return the name of a target that was fitted as its logarithm: the whole page is about the logarithm."""
    return f"log({response})" if isinstance(response, str) else tuple(f"log({name})" for name in response)


def _subject(network: NetworkRegressor, options: Options) -> Subject:
    calibrated, not_calibrated = calibration.calibration_for_report(network, options.delta, options.noise)
    selection = network.selection_
    names = network.fitted_.problem.columns
    return Subject(
        network.fitted_,
        _training_facts(network),
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


def _training_facts(network: NetworkRegressor) -> tuple[tuple[str, str], ...]:
    """Return how the estimator was trained, as pairs of a label and its value."""
    kind = network.activation if len(network.widths_) > 2 else "linear"
    asked = network.weight_decay
    if not isinstance(asked, str):
        asked = ", ".join(f"{lam:g}" for lam in np.ravel(asked))
    facts = [
        ("Network", f"{' – '.join(map(str, network.widths_))}, {kind}"),
        ("Recipe", network.recipe if isinstance(network.recipe, str) else "a function of the user's"),
        ("Weight decay asked for", asked),
        ("Seed of the fit", f"{network.random_state}"),
        ("Scaling", "standardised inside" + _transformed(network)),
    ]
    if network.log_target:
        facts.append(("Target", "its logarithm; numbers on this page are of log y"))
    return tuple(facts)


def _sources(network: NetworkRegressor) -> tuple[str, ...] | None:
    """Return the column of the table that each input of the network comes from; None for a table of numbers."""
    if network.columns_ is None:
        return None
    return tuple(each.name for each in network.columns_.columns for _ in each.network_inputs)


def _readings(network: NetworkRegressor) -> tuple[tuple[str, str, str], ...]:
    """Return name, kind and details of each column of the table and of its target; none for numbers without gaps."""
    columns = network.columns_
    target = network.target_column_
    if columns is None or (columns.plain and target is None):
        return ()
    readings = []
    for column in columns.columns:
        details = "; ".join(part for part in (column.detail, column.remark) if part)
        readings.append((column.name, "left out" if column.left_out else column.kind, details))
    if target is not None:
        readings.append((target.name, f"target, a {target.kind}", target.detail))
    return tuple(readings)


def _transformed(network: NetworkRegressor) -> str:
    """Name the columns that were transformed; empty where there are none."""
    at = network.scaling_.transformed
    if not len(at):
        return ""
    names = network.fitted_.problem.columns
    called = [f"column {j}" if names is None else str(names[j]) for j in at]
    return f"; skewed, and transformed by Yeo and Johnson's method: {', '.join(called)}"
