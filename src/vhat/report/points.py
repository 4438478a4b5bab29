"""The points that a page shows, and the intervals at them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import as_numbers
from vhat.errors import InputError, calling_rows
from vhat.intervals.interval import Interval
from vhat.report.options import Options
from vhat.report.slices import Slice
from vhat.report.table import Table
from vhat.tables.row_names import RowNames
from vhat.variance.repeated_rows import refuse_training_rows

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.intervals.calibrate import Calibrated

__all__ = ["MOST", "Group", "HeldOut", "Shown", "ask", "held_out_rows", "thin"]

_REMEDY = "Give rows that training did not see; or none, and the training rows are left out in turn."
MOST = 500
"""Rows of one kind that are drawn; more are thinned at random."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that training did not see.

    Attributes:
        values: Their inputs, (m, columns).
        observed: Their responses, (m, K).
        names: What they are called.
        repeated: How many of them are copies of training rows, as coarse tables have them.
    """

    values: np.ndarray
    observed: np.ndarray
    names: RowNames
    repeated: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: np.ndarray) -> HeldOut:
        """Return some of them."""
        return HeldOut(self.values[rows], self.observed[rows], self.names.take(rows), self.repeated)


@dataclass(frozen=True, eq=False)
class Group:
    """Points of one kind.

    Attributes:
        names: What they are called.
        values: Their inputs, (m, columns).
        observed: Their responses, (m, K), or None for points that were made up.
        nearest: Distance to the nearest training row other than themselves, in standard deviations of the columns.
        mean: The interval of the mean at them.
        fresh: The interval of a new response, or None where there is none.
    """

    names: RowNames
    values: np.ndarray
    observed: np.ndarray | None
    nearest: np.ndarray
    mean: Interval
    fresh: Interval | None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class Shown:
    """Every point of the page.

    Attributes:
        training: Rows that the fit saw.
        index: Which of its rows these are.
        held_out: Rows that it did not, or None.
        slices: Points of the lines through one row, one group a line.
        unanswered: Why there are no intervals of a new response; empty where there are.
    """

    training: Group
    index: np.ndarray
    held_out: Group | None
    slices: tuple[Group, ...]
    unanswered: str


def thin(count: int, seed: int, most: int = MOST) -> np.ndarray:
    """Return the rows to show of so many, in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, size=most, replace=False))


def held_out_rows(fitted: FittedModel, table: Table, pair: tuple[Any, Any], names: RowNames | None) -> HeldOut:
    """Return held-out rows, after the model's own checks.

    Args:
        fitted: The model.
        table: Its training inputs.
        pair: Inputs and responses, as the user gave them.
        names: What the rows are called; None to ask the inputs.

    Raises:
        InputError: For inputs that the model does not take, responses of another length, and rows that training saw.

    Warns:
        CalibrationWarning: Of a few copies of training rows.
    """
    problem = fitted.problem
    with problem.scope(), calling_rows(names):
        rows = table.rows_of(problem, pair[0])
    y = as_numbers("held_out y", pair[1])
    if not len(rows) or len(y) != len(rows) or y.size != len(rows) * problem.outputs:
        raise InputError(
            f"held_out has {len(rows)} rows of X and y of shape {y.shape}; the model has {problem.outputs} "
            "output(s). Give one response a row and output, and at least one row."
        )
    if not np.all(np.isfinite(y)):
        raise InputError("held_out y has NaN or infinite values. Leave those rows out.")
    called = names or RowNames.of(pair[0], len(rows))
    observed = y.reshape(len(rows), -1)
    with problem.scope(), calling_rows(called):
        inputs = problem.inputs(table.inputs(rows))
        repeated = refuse_training_rows(problem, inputs, observed, kind="held-out", remedy=_REMEDY)
    return HeldOut(rows, observed, called, repeated)


def ask(
    fitted: FittedModel,
    table: Table,
    options: Options,
    index: np.ndarray,
    names: RowNames,
    held_out: HeldOut | None,
    lines: list[Slice],
    calibrated: Calibrated | None = None,
) -> Shown:
    """Ask for every interval of the page, one kind of points at a time: a guarantee speaks of the points asked about.

    Args:
        fitted: The model.
        table: Its training inputs.
        options: The options.
        index: The training rows to show.
        names: What they are called.
        held_out: The held-out rows to show.
        lines: The slices.
        calibrated: What calibrates the intervals of a new response; None for those of the bound.
    """
    asked = _Asked(fitted, table, options, calibrated)
    seen = table.values[index]
    mean, fresh, unanswered = asked.intervals(seen, names)
    training = Group(names, seen, fitted.problem.targets[index], _nearest(table, seen, itself=True), mean, fresh)
    unseen = None
    if held_out is not None:
        values = held_out.values
        mean, fresh, _ = asked.intervals(values, held_out.names)
        unseen = Group(held_out.names, values, held_out.observed, _nearest(table, values), mean, fresh)
    return Shown(training, index, unseen, _along(asked, lines), unanswered)


def _along(asked: _Asked, lines: list[Slice]) -> tuple[Group, ...]:
    """Ask along all slices at once, and part the answers."""
    if not lines:
        return ()
    rows = np.concatenate([line.rows for line in lines])
    labels = [f"{asked.table.names[line.column]} = {value:.4g}" for line in lines for value in line.grid]
    names = RowNames(np.array(labels, dtype=object), "slice")
    mean, fresh, _ = asked.intervals(rows, names)
    nearest, groups, start = _nearest(asked.table, rows), [], 0
    for line in lines:
        here = slice(start, start + len(line.grid))
        part = None if fresh is None else _rows(fresh, here)
        groups.append(Group(names.take(here), line.rows, None, nearest[here], _rows(mean, here), part))
        start = here.stop
    return tuple(groups)


@dataclass(frozen=True, eq=False)
class _Asked:
    """A model, and what is asked of it at every point.

    Attributes:
        fitted: The model.
        table: Its training inputs.
        options: The options.
        calibrated: What calibrates the intervals of a new response; None for those of the bound.
    """

    fitted: FittedModel
    table: Table
    options: Options
    calibrated: Calibrated | None

    def intervals(self, rows: np.ndarray, names: RowNames) -> tuple[Interval, Interval | None, str]:
        """Return the intervals of the mean and of a new response, and why there are none of the second."""
        points = self.table.inputs(rows)
        given: dict[str, Any] = {"noise": self.options.noise, "seed": self.options.seed}
        with calling_rows(names):
            mean = self.fitted.interval(points, self.options.delta, **given)
            try:
                if self.calibrated is not None:
                    return mean, self.calibrated.interval(points, self.options.delta), ""
                fresh = self.fitted.interval(points, self.options.delta, target="observation", **given)
            except InputError as error:  # no residuals, or noise that is known at the training rows alone
                return mean, None, str(error)
        return mean, fresh, ""


def _rows(band: Interval, here: slice) -> Interval:
    """Return some rows of an interval."""
    names = ("center", "lower", "upper", "half_width", "standard_error", "weighted_norm", "unsupported", "status")
    return replace(band, inputs=None, index=None, **{name: getattr(band, name)[here] for name in names})


def _nearest(table: Table, rows: np.ndarray, *, itself: bool = False) -> np.ndarray:
    """Return the distance of rows to the nearest training row; of training rows, to the nearest other."""
    from scipy.spatial import cKDTree

    if not table.varying.size or (itself and len(table.values) == 1):
        return np.full(len(rows), np.nan)
    tree, neighbours = cKDTree(table.standardised(table.values)), 2 if itself else 1
    found = np.asarray(tree.query(table.standardised(rows), k=neighbours)[0])
    return found[:, 1] if itself else found
