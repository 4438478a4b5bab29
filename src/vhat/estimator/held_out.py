"""Held-out rows that are saved with an estimator, to test its intervals in a report."""

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

__all__ = ["HeldOutRows", "judging_rows", "keep"]


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Rows of the table that training did not see.

    Attributes:
        X: The inputs of the network, (m, columns).
        y: The responses, in the units of the table.
        names: The names of the rows.
    """

    X: np.ndarray
    y: Any
    names: RowNames


def keep(network: NetworkRegressor, X: Any, y: Any, names: RowNames) -> None:
    """Store held-out rows in a fitted estimator, for its report; they are saved with it."""
    network.held_out_ = HeldOutRows(network._points(X), np.asarray(y, dtype=np.float64), names)


def judging_rows(network: NetworkRegressor, given: HeldOutRows | None) -> HeldOutRows | None:
    """Return the rows that may test the intervals of an estimator: the given ones, else the stored ones.

    Raises:
        InputError: For given rows that calibrate these intervals.

    Warns:
        CalibrationWarning: Of stored rows that calibrate these intervals, which then cannot test them.
    """
    rows = network.held_out_ if given is None else given
    if rows is None or not _calibrate(network, rows):
        return rows
    reason = "calibrate these intervals, so that their coverage tells nothing"
    if given is not None:
        raise InputError(f"the held-out rows {reason}. Give other rows; calibrate() goes back to leave-one-out.")
    warnings.warn(
        f"the rows that were kept apart {reason}: the report leaves them out. Give held_out= other rows.",
        CalibrationWarning,
        stacklevel=outside(),
    )
    return None


def _calibrate(network: NetworkRegressor, rows: HeldOutRows) -> bool:
    """Return whether rows are among those that calibrate the intervals, more of them than chance explains."""
    found = network.calibrated_
    if found is None or found.digests is None:
        return False
    problem = network.fitted_.problem
    responses = np.asarray(rows.y, dtype=np.float64).reshape(-1, problem.outputs)
    if network.log_target:
        responses = log_of(responses)
    with problem.scope():
        digests = row_digests(problem, problem.inputs(rows.X), responses)
    return digests is not None and is_more_than_chance(digests, found.digests)
