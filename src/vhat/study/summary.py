"""Rows of a table from the results of cells: means over trials, published values, and missing cells."""

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
        title: Its title.
        metric: Name of the metric in a result.
        published: The column of the paper to compare with.
        factor: Factor on the metric.
        digits: Number of digits after the decimal point.
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
    # The published medians are close to half the published means in every bootstrap row: probably they are half widths.
    Column("median half width", "median half width, near", "median width"),
    Column("interval score", "winkler", "winkler"),
    Column("coverage %", "coverage", "coverage", factor=100.0, digits=2),
)
_REASONS_SHOWN = 5
"""Number of failed cells whose reasons are shown."""


@dataclass(frozen=True)
class Row:
    """One method at one size: means over the trials that are done.

    Attributes:
        first: One of the cells, which differ only in the trial.
        method: Name of the row.
        asked: Number of planned trials.
        done: Number of trials with intervals.
        failed: Reasons of the trials that ended in an error.
        ours: Our value of each column, by title; None if an interval of some trial is missing.
        published: The paper's values, by title; empty if it has none.
    """

    first: Cell
    method: str
    asked: int
    done: int
    failed: tuple[str, ...]
    ours: dict[str, Value | None]
    published: dict[str, Value] = field(default_factory=dict)

    def difference(self, title: str) -> float | None:
        """Return our value less the published one, in standard errors of the difference; None without a spread."""
        return difference_in_errors(self.ours.get(title), self.done, self.published.get(title))


def difference_in_errors(ours: Value | None, trials: int, published: Value | None) -> float | None:
    """Return our mean less the published one, in standard errors of the difference (Welch's statistic).

    With a single trial of ours, its variance is taken to be that of a published trial.

    Args:
        ours: Mean and standard deviation over our trials.
        trials: Number of our trials.
        published: Mean and standard deviation over :data:`PUBLISHED_TRIALS` trials.
    """
    if ours is None or published is None or published.sd is None:
        return None
    # The standard deviations divide by the number of trials k, so that sd^2 / (k - 1) is the variance of the mean.
    variance_of_theirs = published.sd**2 / (PUBLISHED_TRIALS - 1)
    variance_of_ours = PUBLISHED_TRIALS * variance_of_theirs
    if ours.sd is not None:
        variance_of_ours = ours.sd**2 / (trials - 1)
    error = math.sqrt(variance_of_ours + variance_of_theirs)
    return (ours.mean - published.mean) / error if error > 0 else None


def summarise(cells: Sequence[Cell], results: Results) -> list[Row]:
    """Return one row for all trials of each method, version, truth, size and decay, in the order of the cells."""
    return [_row(first, group, results) for first, group in _groups(cells).items()]


def table_rows(cells: Sequence[Cell], results: Results) -> list[Row]:
    """Return the rows of a table: those of the cells, each followed by the isoperimetric bound if it has one."""
    rows = []
    for first, group in _groups(cells).items():
        rows.append(_row(first, group, results))
        if has_isoperimetric(first):
            rows.append(_isoperimetric_row(first, group, results))
    return rows


def _groups(cells: Sequence[Cell]) -> dict[Cell, list[Cell]]:
    """Return the cells of each row, keyed by its first trial."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_first_trial(cell), []).append(cell)
    return groups


def _first_trial(cell: Cell) -> Cell:
    """Return the same cell for trial 0."""
    return Cell(**(cell.config() | {"trial": 0}))


def _row(first: Cell, cells: Sequence[Cell], results: Results) -> Row:
    """Return the row of some cells, with the published values if the paper has the same truth and decay."""
    comparable = first.truth == "matern" and first.lam == PUBLISHED_DECAY.get(first.d)
    published: dict[str, Value] = {}
    if comparable:
        method = "proposed" if first.method == PAPER_CG else first.method
        by_column = PUBLISHED.get((first.d, method, first.n))
        if by_column is not None:
            published = {column.title: by_column[column.published] for column in COLUMNS}
    return _averaged(first, first.method, len(cells), results.found(cells), published)


def _isoperimetric_row(first: Cell, cells: Sequence[Cell], results: Results) -> Row:
    """Return the row of the same trials with the isoperimetric bound; published values are in the row of ``tight``."""
    found = [result for cell in cells if (result := read_isoperimetric(cell, results)) is not None]
    return _averaged(first, ISOPERIMETRIC, len(cells), found, {})


def _averaged(
    first: Cell, method: str, asked: int, found: Sequence[dict[str, Any]], published: dict[str, Value]
) -> Row:
    """Return a row with means over the results that are done."""
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
    """Return the mean over trials, and the standard deviation that divides by their number, as in the paper.

    The result is None if a trial has no value. That the paper divides by the number of trials follows from its coverage
    of 99.60 with standard deviation 0.49: these are two trials of 99 and three of 100.
    """
    values = [metrics[column.metric] for metrics in done]
    if not values or any(value is None for value in values):
        return None
    sd = column.factor * float(np.std(values)) if len(values) > 1 else None
    return Value(column.factor * float(np.mean(values)), sd)


@dataclass(frozen=True)
class Gaps:
    """Missing and failed cells, and reduced training, which every output mentions.

    Attributes:
        missing: Cells without a result.
        failed: Cells that ended in an error, with the reason.
        total: Number of planned cells.
        steps: Training steps of all cells.
    """

    missing: tuple[Cell, ...]
    failed: dict[Cell, str]
    total: int
    steps: int

    def lines(self) -> list[str]:
        """Return a few lines of text; none if nothing is missing, failed or reduced."""
        lines = []
        if self.steps != STEPS:
            lines.append(f"REDUCED: trained for {self.steps:,} steps instead of the paper's {STEPS:,}.")
        if self.missing:
            lines.append(f"Missing cells, {len(self.missing)} of {self.total}: {_listed(self.missing)}.")
        if self.failed:
            lines.append(f"Failed cells, {len(self.failed)} of {self.total}: {_listed(tuple(self.failed))}.")
            first_reasons = list(self.failed.items())[:_REASONS_SHOWN]
            lines += [f"{cell.key}: {reason}" for cell, reason in first_reasons]
        return lines

    def notes(self) -> str:
        """Return the lines as Markdown paragraphs, to be appended to a text."""
        return "".join(f"\n\n**{line}**" for line in self.lines())


def gaps(cells: Sequence[Cell], results: Results) -> Gaps:
    """Return the missing, failed and reduced cells."""
    missing = []
    failed = {}
    for cell in dict.fromkeys(cells):
        result = results.read(cell)
        if result is None:
            missing.append(cell)
        elif result["status"] == "failed":
            failed[cell] = result["reason"]
    steps = cells[0].steps if cells else STEPS
    return Gaps(missing=tuple(missing), failed=failed, total=len(cells), steps=steps)


def _listed(cells: Sequence[Cell]) -> str:
    """Return a short list of cells, grouped by equal methods, decays and trials.

    For example ``published matern d=10 n=100, 1000: proposed, lam 1e-3, trials 0-4``.
    """
    # The trials of each setting (version, truth and d as text, with n), by method and decay.
    settings: dict[tuple[str, int], dict[tuple[str, float], list[int]]] = {}
    for cell in cells:
        setting = (f"{cell.version} {cell.truth} d={cell.d}", cell.n)
        settings.setdefault(setting, {}).setdefault((cell.method, cell.lam), []).append(cell.trial)
    # Settings with the same text are listed together: by text, then by setting, the sizes.
    groups: dict[str, dict[str, list[int]]] = {}
    for (setting_text, n), trials in settings.items():
        groups.setdefault(_methods_text(trials), {}).setdefault(setting_text, []).append(n)
    parts = []
    for text, sizes_by_setting in groups.items():
        where = " and ".join(f"{setting} n={_joined(sizes)}" for setting, sizes in sizes_by_setting.items())
        parts.append(f"{where}: {text}")
    return "; ".join(parts)


def _joined(items: Iterable[object]) -> str:
    """Return the items with commas."""
    return ", ".join(map(str, items))


def _methods_text(trials_by_method: dict[tuple[str, float], list[int]]) -> str:
    """Return methods, decays and trials of one setting, those with the same trials together.

    For example ``proposed and bootstrap, lam 1e-6, 1e-5, trials 0-4``.

    Args:
        trials_by_method: Trials by method and decay.
    """
    by_trials: dict[str, dict[str, list[str]]] = {}  # by trials, then by method, the decays
    for (method, lam), trials in sorted(trials_by_method.items(), key=lambda item: item[0][1]):
        by_trials.setdefault(trials_text(trials), {}).setdefault(method, []).append(decay_text(lam))
    parts = []
    for trials_shown, methods in by_trials.items():
        by_decays: dict[str, list[str]] = {}
        for method, decays in methods.items():
            by_decays.setdefault(_joined(decays), []).append(method)
        for decays_shown, names in by_decays.items():
            parts.append(f"{' and '.join(names)}, lam {decays_shown}, {trials_shown}")
    return " + ".join(parts)


def trials_text(trials: Sequence[int]) -> str:
    """Return numbers of trials as short text.

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
    noun = "trials" if len(trials) > 1 else "trial"
    return f"{noun} {text}"
