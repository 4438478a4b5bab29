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
    return write_report(_subject(network, options), path, options, force=force)


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
        ("Scaling", "standardised inside"),
    )
    names = getattr(network, "feature_names_in_", None)
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
    )
