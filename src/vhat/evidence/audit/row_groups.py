"""Groups of training rows along their predictions and along each input column, with the words that name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import rankdata

from vhat.evidence.audit.input_columns import input_columns

if TYPE_CHECKING:
    from vhat.evidence.audit.standardised_residuals import Residuals
    from vhat.models.problem import Problem

__all__ = ["Groups", "group_rows"]

_FIFTHS = 5
"""Number of groups along a column."""
_LEAST_IN_GROUP = 8
"""Smallest number of rows in a group. They determine a noise level to a quarter (one standard error)."""
_FEW_VALUES = 5
"""Number of distinct values up to which a column is grouped by value."""
_MISSING = " is missing"
"""End of the name of a column that marks the filled cells of another: see :mod:`vhat.tables.columns.kinds`."""
_PARTS = {2: "half", 3: "third", 4: "quarter", 5: "fifth"}
_PLACES = {
    2: ("lower", "upper"),
    3: ("lowest", "middle", "top"),
    4: ("lowest", "second", "third", "top"),
    5: ("lowest", "second", "middle", "fourth", "top"),
}


@dataclass(frozen=True)
class _Grouping:
    """Rows in groups along one column.

    Attributes:
        group: The group of each row, (m,); -1 for rows in none.
        words: Name of the rows of each group.
        ranked: Whether the groups are fifths (or fewer parts, for few rows) and not the values of the column.
    """

    group: np.ndarray
    words: tuple[str, ...]
    ranked: bool


@dataclass(frozen=True)
class Groups:
    """Every group of rows, in one matrix.

    Attributes:
        members: Which rows are in which group, (m, groups) of 0 and 1.
        words: Name of the rows of each group, such as "rows with column bmi in its top fifth".
        output: The output whose predictions define the group, -1 for groups of every output, (groups,).
        column: Number of the column along which the group was made, (groups,).
        redrawn: For each output whose predictions were ranked and move with the noise: its groups, and the group of
            each row under each redraw, (m, REDRAWS).
    """

    members: np.ndarray
    words: tuple[str, ...]
    output: np.ndarray
    column: np.ndarray
    redrawn: dict[int, tuple[slice, np.ndarray]]

    @property
    def counts(self) -> np.ndarray:
        """Rows of each group, (groups,)."""
        counts: np.ndarray = self.members.sum(axis=0)
        return counts

    def concerns(self, outputs: int) -> np.ndarray:
        """Return which groups apply to which output, (groups, K) of bool."""
        found: np.ndarray = (self.output[:, None] < 0) | (self.output[:, None] == np.arange(outputs))
        return found

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of (m, K) in each group, (groups, K)."""
        means: np.ndarray = self.members.T @ values / self.counts[:, None]
        return means

    def redrawn_means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of (m, K, REDRAWS) in each group, (groups, K, REDRAWS).

        Rows are grouped by the predictions under the redrawn noise, because a fit that follows its noise ranks rows by
        it as well.
        """
        m, K, draws = values.shape
        means = (self.members.T @ values.reshape(m, -1) / self.counts[:, None]).reshape(-1, K, draws)
        for k, (where, group) in self.redrawn.items():
            count = where.stop - where.start
            flat = (group * draws + np.arange(draws)).ravel()
            sums = np.bincount(flat, weights=values[:, k].ravel(), minlength=count * draws)
            # rows with equal inputs change groups together, and may leave a group empty
            sizes = np.maximum(np.bincount(flat, minlength=count * draws), 1)
            means[where, k] = (sums / sizes).reshape(count, draws)
        return means


def group_rows(problem: Problem, found: Residuals) -> Groups | None:
    """Return the groups of some training rows; None where there are too few rows for any.

    Args:
        problem: The training problem.
        found: The rows, in their order.
    """
    # Columns before predictions: where a prediction follows one column alone, the groups are the same, and the first
    # of equal groups is named.
    columns = {name: column[found.rows] for name, column in input_columns(problem)}
    made = [(each, -1) for name in columns if (each := _along_column(columns, name))]
    redrawn: dict[int, tuple[slice, np.ndarray]] = {}
    for k in range(problem.outputs):
        grouping = _grouped(found.predictions[:, k], "whose prediction is")
        if grouping is None:
            continue
        start = sum(len(each.words) for each, _ in made)
        made.append((grouping, k))
        if grouping.ranked and found.redrawn_predictions is not None:
            where = slice(start, start + len(grouping.words))
            redrawn[k] = where, _parts_of(found.redrawn_predictions[:, k], len(grouping.words))
    if not made:
        return None
    members = [grouping.group[:, None] == np.arange(len(grouping.words)) for grouping, _ in made]
    return Groups(
        np.concatenate(members, axis=1).astype(np.float64),
        tuple(word for grouping, _ in made for word in grouping.words),
        np.concatenate([np.full(len(grouping.words), k) for grouping, k in made]),
        np.concatenate([np.full(len(grouping.words), at) for at, (grouping, _) in enumerate(made)]),
        redrawn,
    )


def _along_column(columns: dict[str, np.ndarray], name: str) -> _Grouping | None:
    """Group rows along a column of a table by the values of its measured cells.

    A column called "... is missing", which marks the filled cells of another, makes the groups "is there" and "is
    missing".

    Args:
        columns: The columns by name.
        name: The name of the column.
    """
    column = columns[name]
    measured = name.removesuffix(_MISSING)
    if measured != name and measured in columns:
        labels = (f"rows in which {measured} is there", f"rows in which {measured} is missing")
        return _large_enough((column > 0).astype(int), labels, ranked=False)
    filled = columns.get(name + _MISSING, np.zeros(len(column))) > 0
    found = _grouped(column[~filled], f"with {name}")
    if found is None or not filled.any():
        return found
    group = np.full(len(column), -1)
    group[~filled] = found.group
    return _Grouping(group, found.words, found.ranked)


def _parts_of(column: np.ndarray, parts: int) -> np.ndarray:
    """Return the number of the part of each row, by its rank along the first axis.

    Mean ranks keep equal values together, and do not depend on the unit of the column.
    """
    ranks = rankdata(column, axis=0)
    part: np.ndarray = np.floor((ranks - 0.5) * parts / len(column)).astype(int)
    return part


def _grouped(column: np.ndarray, words: str) -> _Grouping | None:
    """Group rows along a column, by value where there are few, else in fifths; None for a constant column."""
    distinct = np.unique(column)
    if len(distinct) < 2:
        return None
    if len(distinct) <= _FEW_VALUES:
        labels = tuple(f"rows {words} equal to {value:g}" for value in distinct)
        return _large_enough(np.searchsorted(distinct, column), labels, ranked=False)
    parts = min(_FIFTHS, len(column) // _LEAST_IN_GROUP)
    if parts < 2:
        return None
    labels = tuple(f"rows {words} in its {place} {_PARTS[parts]}" for place in _PLACES[parts])
    return _large_enough(_parts_of(column, parts), labels, ranked=True)


def _large_enough(group: np.ndarray, labels: tuple[str, ...], *, ranked: bool) -> _Grouping | None:
    """Remove groups with too few rows, which ties and rare values may make; None where fewer than two remain."""
    counts = np.bincount(group, minlength=len(labels))
    kept = np.flatnonzero(counts >= _LEAST_IN_GROUP)
    if len(kept) < 2:
        return None
    renumbered = np.full(len(labels), -1)
    renumbered[kept] = np.arange(len(kept))
    return _Grouping(renumbered[group], tuple(labels[each] for each in kept), ranked and len(kept) == len(labels))
