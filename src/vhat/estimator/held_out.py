"""Rows that were kept apart when an estimator was fitted, and are saved with it to judge it by."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import CalibrationWarning, InputError, outside
from vhat.estimator.log_target import log_of
from vhat.tables.row_names import RowNames
from vhat.variance.repeated_rows import is_more_than_chance, row_digests

if TYPE_CHECKING:
    from vhat.estimator.regressor import NetworkRegressor

__all__ = ["KeptRows", "judging_rows", "keep"]


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Rows of the table that training did not see.

    Attributes:
        X: Their inputs as numbers, (m, columns).
        y: Their responses, in the units of the table.
        names: What they are called.
    """

    X: np.ndarray
    y: Any
    names: RowNames


def keep(network: NetworkRegressor, X: Any, y: Any, names: RowNames) -> None:
    """Keep rows in a fitted estimator, for its report; they are saved with it."""
    network.held_out_ = KeptRows(network._points(X), np.asarray(y, dtype=np.float64), names)


def judging_rows(network: NetworkRegressor, given: KeptRows | None) -> KeptRows | None:
    """Return the rows that may judge the intervals of an estimator: those given, else those that were kept apart.

    Raises:
        InputError: For rows given that calibrate these intervals.

    Warns:
        CalibrationWarning: Of rows kept apart that calibrate these intervals, so that none can judge them.
    """
    rows = network.held_out_ if given is None else given
    if rows is None or not _calibrate(network, rows):
        return rows
    told = "calibrate these intervals, so that their coverage tells nothing"
    if given is not None:
        raise InputError(f"the held-out rows {told}. Give other rows; calibrate() goes back to leave-one-out.")
    warnings.warn(
        f"the rows that were kept apart {told}: the report leaves them out. Give held_out= other rows.",
        CalibrationWarning,
        stacklevel=outside(),
    )
    return None


def _calibrate(network: NetworkRegressor, rows: KeptRows) -> bool:
    """Whether rows are among those that calibrate the intervals, more of them than chance explains."""
    found = network.calibrated_
    if found is None or found.digests is None:
        return False
    problem = network.fitted_.problem
    responses = np.asarray(rows.y, dtype=np.float64).reshape(-1, problem.outputs)
    responses = log_of(responses) if network.log_target else responses
    with problem.scope():
        here = row_digests(problem, problem.inputs(rows.X), responses)
    return here is not None and is_more_than_chance(here, found.digests)
