"""Coverage by fifth of the prediction and by group. Intervals may be right overall and wrong in every part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vhat.report.evaluation_rows import EvaluationRows
from vhat.report.numbers import distinct, plain, short
from vhat.report.slices import FEW_VALUES
from vhat.report.table import Table

__all__ = ["CHANCE", "Part", "count", "parts"]

CHANCE = 0.0455
"""Significance level of the tests: the two-sided probability of more than two standard errors of a normal variable."""
MIN_ROWS = 5
"""Least number of rows of a part."""
_FIFTHS = 5
_ROUNDING = 0.02
"""Largest rounding of an edge between two fifths, in standard deviations."""
_MAX_COLUMNS = 5
"""Number of columns with few values whose groups are tested: the most important ones."""


@dataclass(frozen=True)
class Part:
    """Number of responses inside their intervals, for a part of the rows.

    Attributes:
        of: The quantity by which the rows were divided: ``"prediction"`` or the name of a column; empty for all rows.
        label: The part, such as ``"up to 101"`` or ``"= 1"``.
        rows: The number of rows.
        inside: The number of rows whose response lies inside its interval.
        low: Lower limit of the exact binomial interval of the share, with the confidence of two standard errors.
        high: Upper limit.
        chance: p-value: the probability of a count at least this extreme if the coverage is right.
        off: ``"low"`` or ``"high"`` if the p-value is too small, allowing for the number of tests; otherwise empty.
    """

    of: str
    label: str
    rows: int
    inside: int
    low: float
    high: float
    chance: float
    off: Literal["", "low", "high"]

    @property
    def named(self) -> str:
        """Return the name of the part."""
        return f"{self.of} {self.label}"

    @property
    def share(self) -> float:
        """Return the share of responses inside."""
        return self.inside / self.rows

    def to_plain(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        fields = {name: value if isinstance(value, str) else plain(value) for name, value in vars(self).items()}
        return fields | {"share": plain(self.share)}


def count(
    inside: np.ndarray,
    coverage: np.ndarray,
    *,
    two_sided: bool,
    tests: int = 1,
    of: str = "",
    label: str = "",
) -> Part:
    """Count the responses inside their intervals, and test whether chance explains the count.

    Args:
        inside: Whether each response lies inside its interval.
        coverage: Equally likely values of the true coverage if the intervals are right; a single value if it is known.
        two_sided: Whether covering more is a fault, too. It is not for a bound.
        tests: The number of parts that are tested together (Bonferroni).
        of: As in :class:`Part`.
        label: As in :class:`Part`.
    """
    from scipy.stats import beta, binom

    rows = len(inside)
    hits = int(np.sum(inside))
    below = float(np.mean(binom.cdf(hits, rows, coverage)))
    above = float(np.mean(binom.sf(hits - 1, rows, coverage)))
    chance = min(1.0, 2 * min(below, above)) if two_sided else below
    # The interval of Clopper and Pearson for the share.
    low = float(beta.ppf(CHANCE / 2, hits, rows - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - CHANCE / 2, hits + 1, rows - hits)) if hits < rows else 1.0
    off: Literal["", "low", "high"] = ""
    if chance < CHANCE / tests:
        off = "low" if below < above else "high"
    return Part(of, label, rows, hits, low, high, chance, off)


@dataclass(frozen=True, eq=False)
class _Group:
    """Some of the rows.

    Attributes:
        of: As in :class:`Part`.
        label: As in :class:`Part`.
        rows: Which rows these are, (m,) booleans.
    """

    of: str
    label: str
    rows: np.ndarray


def parts(
    evaluation: EvaluationRows, table: Table, sources: tuple[str, ...], ranked: np.ndarray, k: int, spread: float
) -> list[Part]:
    """Divide the rows by prediction and by column, and test the coverage of each part.

    Args:
        evaluation: The rows.
        table: The training inputs.
        sources: The column of the user's table from which each column was made.
        ranked: Indices of columns, the most important first.
        k: The output.
        spread: The standard deviation of the responses, for the digits of a prediction.

    Returns:
        Fifths of the prediction, groups of equal values for columns with few values, and fifths of the most important
        other column. Parts of few rows are left out.
    """
    known = np.isfinite(evaluation.prediction[:, k])
    groups: list[_Group] = []
    if np.any(known):
        groups += _fifths("prediction", evaluation.prediction[:, k], known, spread)
    by_source = _groups_of_few_values(evaluation.values, table, sources, ranked)
    for of_column in list(by_source.values())[:_MAX_COLUMNS]:
        groups += of_column
    column = _most_important_continuous(table, sources, ranked)
    if column is not None:
        everywhere = np.ones(len(evaluation), dtype=bool)
        values = evaluation.values[:, column]
        groups += _fifths(table.names[column], values, everywhere, float(table.spread[column]))
    kept = [group for group in groups if np.sum(group.rows) >= MIN_ROWS]
    inside = evaluation.inside[:, k]
    return [
        count(
            inside[group.rows],
            evaluation.coverage[k],
            two_sided=evaluation.two_sided,
            tests=len(kept),
            of=group.of,
            label=group.label,
        )
        for group in kept
    ]


def _most_important_continuous(table: Table, sources: tuple[str, ...], ranked: np.ndarray) -> int | None:
    """Return the most important column of the user's own table with many values, or None if there is none."""
    for column in ranked:
        is_own = sources[column] == table.names[column]  # not one of several that encode a column
        if is_own and len(np.unique(table.values[:, column])) > FEW_VALUES:
            return int(column)
    return None


def _groups_of_few_values(
    values: np.ndarray, table: Table, sources: tuple[str, ...], ranked: np.ndarray
) -> dict[str, list[_Group]]:
    """Return a group for each value of the columns with few values, and for each level of an encoded column."""
    groups: dict[str, list[_Group]] = {}
    for column in ranked:
        source = sources[column]
        name = table.names[column]
        levels = np.unique(table.values[:, column])
        if len(levels) > FEW_VALUES:
            continue
        of_source = groups.setdefault(source, [])
        if source != name and set(levels) <= {0.0, 1.0}:  # an indicator such as "town = Rome", or "size is missing"
            of_source.append(_Group(source, name.removeprefix(source).strip(), values[:, column] == 1))
        else:
            of_source += [_Group(name, f"= {short(level, 4)}", values[:, column] == level) for level in levels]
    return {source: of_source for source, of_source in groups.items() if len(of_source) <= FEW_VALUES}


def _fifths(of: str, values: np.ndarray, known: np.ndarray, spread: float) -> list[_Group]:
    """Divide rows into fifths by a value. Equal values stay together, so that there may be fewer parts."""
    edges = np.unique(np.quantile(values[known], np.arange(1, _FIFTHS) / _FIFTHS))
    place = np.searchsorted(edges, values, side="left")  # a value on an edge belongs to the part below
    texts = _edge_texts(edges, spread)
    groups = []
    for fifth in range(len(edges) + 1):
        if fifth == 0:
            label = f"up to {texts[0]}"
        elif fifth == len(edges):
            label = f"above {texts[-1]}"
        else:
            label = f"{texts[fifth - 1]} to {texts[fifth]}"
        groups.append(_Group(of, label, known & (place == fifth)))
    return groups


def _edge_texts(edges: np.ndarray, spread: float) -> list[str]:
    """Return edges as text: with three digits if these distinguish them, and with more otherwise."""
    texts = [short(edge) for edge in edges]
    rounded = np.array([float(f"{edge:.3g}") for edge in edges])
    if len(set(texts)) == len(texts) and np.all(np.abs(rounded - edges) <= _ROUNDING * spread):
        return texts
    return [distinct(edge, spread) for edge in edges]
