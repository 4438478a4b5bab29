"""The points on the page, and their intervals."""

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

__all__ = ["MAX_SHOWN", "Group", "HeldOut", "Shown", "compute_intervals", "held_out_rows", "thin"]

_REMEDY = "Give rows that training did not see; or none, and the training rows are left out in turn."
MAX_SHOWN = 500
"""Largest number of rows of one kind that are drawn. Of more rows, this many are chosen at random."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that were not used in training.

    Attributes:
        values: Their inputs, (m, columns).
        observed: Their responses, (m, outputs).
        names: Their names in messages.
        repeated: The number of copies of training rows among them. Tables of coarse values have some.
    """

    values: np.ndarray
    observed: np.ndarray
    names: RowNames
    repeated: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: np.ndarray) -> HeldOut:
        """Return some of the rows."""
        return HeldOut(self.values[rows], self.observed[rows], self.names.take(rows), self.repeated)


@dataclass(frozen=True, eq=False)
class Group:
    """Points of one kind.

    Attributes:
        names: Their names in messages.
        values: Their inputs, (m, columns).
        observed: Their responses, (m, outputs); None for the points of slices.
        nearest: Distance to the nearest other training row, in standard deviations of the columns, (m,).
        mean: The intervals of the prediction.
        observation: The intervals of a new response, or None if there are none.
    """

    names: RowNames
    values: np.ndarray
    observed: np.ndarray | None
    nearest: np.ndarray
    mean: Interval
    observation: Interval | None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class Shown:
    """All points on the page.

    Attributes:
        training: Training rows.
        index: The indices of these rows among all training rows.
        held_out: Held-out rows, or None.
        slices: Points of the slices, one group per slice.
        no_observation_reason: Why there are no intervals of a new response; empty if there are.
    """

    training: Group
    index: np.ndarray
    held_out: Group | None
    slices: tuple[Group, ...]
    no_observation_reason: str


def thin(count: int, seed: int, most: int = MAX_SHOWN) -> np.ndarray:
    """Return the indices of at most ``most`` of ``count`` rows, chosen at random, in increasing order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, size=most, replace=False))


def held_out_rows(fitted: FittedModel, table: Table, pair: tuple[Any, Any], names: RowNames | None) -> HeldOut:
    """Check held-out rows, and return them.

    Args:
        fitted: The model.
        table: Its training inputs.
        pair: Inputs and responses, as the user gave them.
        names: The names of the rows; None for those of the inputs.

    Raises:
        InputError: For inputs that the model does not accept, responses of another length, and training rows.

    Warns:
        CalibrationWarning: If a few rows are copies of training rows.
    """
    problem = fitted.problem
    with problem.scope(), calling_rows(names):
        rows = table.rows_of(problem, pair[0])
    y = as_numbers("held_out y", pair[1])
    if len(rows) == 0 or len(y) != len(rows) or y.size != len(rows) * problem.outputs:
        raise InputError(
            f"held_out has {len(rows)} rows of X and y of shape {y.shape}; the model has {problem.outputs} "
            "output(s). Give one response a row and output, and at least one row."
        )
    if not np.all(np.isfinite(y)):
        raise InputError("held_out y has NaN or infinite values. Leave those rows out.")
    row_names = names or RowNames.of(pair[0], len(rows))
    observed = y.reshape(len(rows), -1)
    with problem.scope(), calling_rows(row_names):
        inputs = problem.inputs(table.inputs(rows))
        repeated = refuse_training_rows(problem, inputs, observed, kind="held-out", remedy=_REMEDY)
    return HeldOut(rows, observed, row_names, repeated)


def compute_intervals(
    fitted: FittedModel,
    table: Table,
    options: Options,
    index: np.ndarray,
    names: RowNames,
    held_out: HeldOut | None,
    lines: list[Slice],
    calibrated: Calibrated | None = None,
) -> Shown:
    """Compute all intervals of the page.

    Each kind of points is one call, because the guarantee of an interval is a sentence about the points of its call.

    Args:
        fitted: The model.
        table: Its training inputs.
        options: The options.
        index: The indices of the training rows to show.
        names: The names of these rows.
        held_out: The held-out rows to show.
        lines: The slices.
        calibrated: The calibration of the intervals of a new response; None for intervals by a bound.
    """
    computation = _Computation(fitted, table, options, calibrated)
    values = table.values[index]
    mean, observation, reason = computation.intervals(values, names)
    nearest = _nearest(table, values, itself=True)
    training = Group(names, values, fitted.problem.targets[index], nearest, mean, observation)
    unseen = None
    if held_out is not None:
        values = held_out.values
        mean, observation, _ = computation.intervals(values, held_out.names)
        unseen = Group(held_out.names, values, held_out.observed, _nearest(table, values), mean, observation)
    return Shown(training, index, unseen, _slice_groups(computation, lines), reason)


def _slice_groups(computation: _Computation, lines: list[Slice]) -> tuple[Group, ...]:
    """Compute the intervals along all slices in one call, and return one group per slice."""
    if not lines:
        return ()
    table = computation.table
    rows = np.concatenate([line.rows for line in lines])
    labels = [f"{table.names[line.column]} = {value:.4g}" for line in lines for value in line.grid]
    names = RowNames(np.array(labels, dtype=object), "slice")
    mean, observation, _ = computation.intervals(rows, names)
    nearest = _nearest(table, rows)
    groups = []
    start = 0
    for line in lines:
        part = slice(start, start + len(line.grid))
        observation_part = None if observation is None else _rows(observation, part)
        groups.append(Group(names.take(part), line.rows, None, nearest[part], _rows(mean, part), observation_part))
        start = part.stop
    return tuple(groups)


@dataclass(frozen=True, eq=False)
class _Computation:
    """The computation of the intervals on the page.

    Attributes:
        fitted: The model.
        table: Its training inputs.
        options: The options.
        calibrated: The calibration of the intervals of a new response; None for intervals by a bound.
    """

    fitted: FittedModel
    table: Table
    options: Options
    calibrated: Calibrated | None

    def intervals(self, rows: np.ndarray, names: RowNames) -> tuple[Interval, Interval | None, str]:
        """Return the intervals of the prediction and of a new response, and the reason if the latter do not exist."""
        points = self.table.inputs(rows)
        given: dict[str, Any] = {"noise": self.options.noise, "seed": self.options.seed}
        with calling_rows(names):
            mean = self.fitted.interval(points, self.options.delta, **given)
            try:
                if self.calibrated is not None:
                    return mean, self.calibrated.interval(points, self.options.delta), ""
                observation = self.fitted.interval(points, self.options.delta, target="observation", **given)
            except InputError as error:  # there are no residuals, or the noise is known at the training rows only
                return mean, None, str(error)
        return mean, observation, ""


def _rows(band: Interval, part: slice) -> Interval:
    """Return some rows of an interval."""
    names = ("center", "lower", "upper", "half_width", "standard_error", "weighted_norm", "unsupported", "status")
    return replace(band, inputs=None, index=None, **{name: getattr(band, name)[part] for name in names})


def _nearest(table: Table, rows: np.ndarray, *, itself: bool = False) -> np.ndarray:
    """Return the distance of each row to the nearest training row, in standard deviations of the columns.

    Args:
        table: The training rows.
        rows: The rows, (m, columns).
        itself: Whether the rows are training rows. The distance is then to the nearest other one.
    """
    from scipy.spatial import cKDTree

    if not table.varying.size or (itself and len(table.values) == 1):
        return np.full(len(rows), np.nan)
    tree = cKDTree(table.standardised(table.values))
    neighbours = 2 if itself else 1  # the nearest neighbour of a training row is the row itself
    distances = np.asarray(tree.query(table.standardised(rows), k=neighbours)[0])
    return distances[:, 1] if itself else distances
