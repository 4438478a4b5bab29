"""From results of cells to rows of a table: means over trials, the published values, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vhat.study.cell import STEPS, Cell, decay_text
from vhat.study.protocol import PAPER_CG, PUBLISHED_DECAY
from vhat.study.published import PUBLISHED, PUBLISHED_TRIALS, Value
from vhat.study.results import Results
from vhat.study.stored_norms import ISOPERIMETRIC, has_isoperimetric, read_isoperimetric

__all__ = [
    "COLUMNS",
    "Column",
    "Gaps",
    "Row",
    "difference_in_errors",
    "gaps",
    "mean_over_trials",
    "summarise",
    "table_rows",
    "trials_text",
]


class Column(NamedTuple):
    """A column of the tables.

    Attributes:
        title: What is written above it.
        metric: The metric of a cell.
        published: The column of the paper that it is compared with.
        factor: What the metric is multiplied with.
        digits: How many are written after the point.
    """

    title: str
    metric: str
    published: str
    factor: float = 1.0
    digits: int = 4


COLUMNS = (
    Column("test MSE", "mse", "mse"),
    Column("mean width", "mean width, near", "mean width"),
    Column("median width", "median width, near", "median width"),
    # The published medians are close to half the published means in every bootstrap row: they look like half widths.
    Column("median half width", "median half width, near", "median width"),
    Column("interval score", "winkler", "winkler"),
    Column("coverage %", "coverage", "coverage", factor=100.0, digits=2),
)


@dataclass(frozen=True)
class Row:
    """One method at one size: means over the trials that are done.

    Attributes:
        first: A cell of the row; all differ in the trial alone.
        method: What the row is called.
        asked: How many trials were asked for.
        done: How many have intervals.
        failed: Reasons of the trials that ended in an error.
        ours: The value of each column, by title; None where some interval of some trial is missing.
        published: The paper's, by title; empty where it has none.
    """

    first: Cell
    method: str
    asked: int
    done: int
    failed: tuple[str, ...]
    ours: dict[str, Value | None]
    published: dict[str, Value] = field(default_factory=dict)

    def difference(self, title: str) -> float | None:
        """Ours less the published, in standard errors of that difference; None where there is no spread to judge by."""
        return difference_in_errors(self.ours.get(title), self.done, self.published.get(title))


def difference_in_errors(ours: Value | None, trials: int, published: Value | None) -> float | None:
    """Return ours less the published in standard errors of the difference: Welch's statistic.

    One trial of ours is taken to vary as the published ones do.

    Args:
        ours: Mean and standard deviation over our trials.
        trials: How many they are.
        published: The published ones, over :data:`PUBLISHED_TRIALS`.
    """
    if ours is None or published is None or published.sd is None:
        return None
    # The standard deviations divide by the number of trials k, so that sd^2 / (k - 1) is the mean's variance.
    of_theirs = published.sd**2 / (PUBLISHED_TRIALS - 1)
    of_ours = PUBLISHED_TRIALS * of_theirs
    if ours.sd is not None:
        of_ours = ours.sd**2 / (trials - 1)
    error = math.sqrt(of_ours + of_theirs)
    return (ours.mean - published.mean) / error if error > 0 else None


def summarise(cells: Sequence[Cell], results: Results) -> list[Row]:
    """Make one row of all trials of each method, version, truth, size and decay, in the order of the cells."""
    return [_row(first, group, results) for first, group in _groups(cells).items()]


def table_rows(cells: Sequence[Cell], results: Results) -> list[Row]:
    """Make the rows of a table: those of the cells, and the isoperimetric bound after what it is shown beside."""
    rows = []
    for first, group in _groups(cells).items():
        rows.append(_row(first, group, results))
        if has_isoperimetric(first):
            rows.append(_isoperimetric_row(first, group, results))
    return rows


def _groups(cells: Sequence[Cell]) -> dict[Cell, list[Cell]]:
    """The cells of each row, by the first of its trials."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_first(cell), []).append(cell)
    return groups


def _first(cell: Cell) -> Cell:
    return Cell(**(cell.config() | {"trial": 0}))


def _row(first: Cell, cells: Sequence[Cell], results: Results) -> Row:
    comparable = first.truth == "matern" and first.lam == PUBLISHED_DECAY.get(first.d)
    method = "proposed" if first.method == PAPER_CG else first.method
    published = PUBLISHED.get((first.d, method, first.n), {}) if comparable else {}
    beside = {column.title: published[column.published] for column in COLUMNS if published}
    return _averaged(first, first.method, len(cells), results.found(cells), beside)


def _isoperimetric_row(first: Cell, cells: Sequence[Cell], results: Results) -> Row:
    """The same trials by the isoperimetric bound; the published values stand in the row of ``tight``."""
    found = [result for cell in cells if (result := read_isoperimetric(cell, results)) is not None]
    return _averaged(first, ISOPERIMETRIC, len(cells), found, {})


def _averaged(
    first: Cell, method: str, asked: int, found: Sequence[dict[str, Any]], published: dict[str, Value]
) -> Row:
    done = [result["metrics"] for result in found if result["status"] == "done"]
    return Row(
        first=first,
        method=method,
        asked=asked,
        done=len(done),
        failed=tuple(result["reason"] for result in found if result["status"] == "failed"),
        ours={column.title: mean_over_trials(done, column) for column in COLUMNS},
        published=published,
    )


def mean_over_trials(done: Iterable[dict[str, Any]], column: Column) -> Value | None:
    """The mean over trials, and the standard deviation that divides by their number, as the paper's does.

    None where a trial has no such value.

    A coverage of 99.60 with standard deviation 0.49 is two trials of 99 and three of 100, which has no other.
    """
    values = [metrics[column.metric] for metrics in done]
    if not values or any(value is None for value in values):
        return None
    sd = column.factor * float(np.std(values)) if len(values) > 1 else None
    return Value(column.factor * float(np.mean(values)), sd)


@dataclass(frozen=True)
class Gaps:
    """What an output has to confess.

    Attributes:
        missing: Cells without a result.
        failed: Cells that ended in an error, with the reason.
        total: How many cells were asked for.
        steps: Training steps of all cells.
    """

    missing: tuple[Cell, ...]
    failed: dict[Cell, str]
    total: int
    steps: int

    def lines(self) -> list[str]:
        """Say it, in a few lines; empty where nothing is missing and nothing was reduced."""
        lines = []
        if self.steps != STEPS:
            lines.append(f"REDUCED: trained for {self.steps:,} steps instead of the paper's {STEPS:,}.")
        if self.missing:
            lines.append(f"Missing cells, {len(self.missing)} of {self.total}: {_listed(self.missing)}.")
        if self.failed:
            lines.append(f"Failed cells, {len(self.failed)} of {self.total}: {_listed(tuple(self.failed))}.")
            lines += [f"{cell.key}: {reason}" for cell, reason in list(self.failed.items())[:5]]
        return lines

    def notes(self) -> str:
        """Say it in Markdown, each line a paragraph of its own behind what it belongs to."""
        return "".join(f"\n\n**{line}**" for line in self.lines())


def gaps(cells: Sequence[Cell], results: Results) -> Gaps:
    """Find what is missing, failed or reduced."""
    found = {cell: results.read(cell) for cell in cells}
    return Gaps(
        missing=tuple(cell for cell, result in found.items() if result is None),
        failed={cell: result["reason"] for cell, result in found.items() if result and result["status"] == "failed"},
        total=len(cells),
        steps=cells[0].steps if cells else STEPS,
    )


def _listed(cells: Sequence[Cell]) -> str:
    """Name cells, those places together of which the same is meant: ``published matern d=10 n=100, 1000: ...``."""
    places: dict[tuple[str, int], dict[tuple[str, float], list[int]]] = {}
    for cell in cells:
        place = (f"{cell.version} {cell.truth} d={cell.d}", cell.n)
        places.setdefault(place, {}).setdefault((cell.method, cell.lam), []).append(cell.trial)
    alike: dict[str, dict[str, list[int]]] = {}
    for (where, n), found in places.items():
        alike.setdefault(_within(found), {}).setdefault(where, []).append(n)
    return "; ".join(
        f"{' and '.join(f'{where} n={_joined(sizes)}' for where, sizes in together.items())}: {what}"
        for what, together in alike.items()
    )


def _joined(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _within(found: dict[tuple[str, float], list[int]]) -> str:
    """``proposed and bootstrap, lam 1e-6, 1e-5, trials 0-4`` for what has the same trials, then for what has others."""
    alike: dict[str, dict[str, list[str]]] = {}
    for (method, lam), trials in sorted(found.items(), key=lambda item: item[0][1]):
        alike.setdefault(trials_text(trials), {}).setdefault(method, []).append(decay_text(lam))
    parts = []
    for which, methods in alike.items():
        together: dict[str, list[str]] = {}
        for method, decays in methods.items():
            together.setdefault(_joined(decays), []).append(method)
        parts += [f"{' and '.join(names)}, lam {decays}, {which}" for decays, names in together.items()]
    return " + ".join(parts)


def trials_text(trials: Sequence[int]) -> str:
    """Write trials short.

    Examples:
        >>> trials_text([0]), trials_text([0, 1, 2, 4])
        ('trial 0', 'trials 0-2, 4')
    """
    runs: list[list[int]] = []
    for trial in sorted(trials):
        if runs and trial == runs[-1][-1] + 1:
            runs[-1].append(trial)
        else:
            runs.append([trial])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"trial{'s' if len(trials) > 1 else ''} {text}"
