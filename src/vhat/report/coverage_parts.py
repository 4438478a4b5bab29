"""Coverage by fifth of the prediction and by group: intervals may be right on the whole and wrong in every part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vhat.report.judged_rows import JudgedRows
from vhat.report.numbers import plain, short, told
from vhat.report.slices import FEW_VALUES
from vhat.report.table import Table

__all__ = ["CHANCE", "Part", "count", "parts"]

CHANCE = 0.0455
"""Probability of a value more than two standard errors off, both sides together: what is called off is rarer."""
LEAST = 5
"""Rows that a part must hold to be counted."""
_FIFTHS = 5
_ROUNDED = 0.02
"""By how much an edge may be rounded, in standard deviations."""
_MOST_COLUMNS = 5
"""Columns with few values whose groups are counted; of more, the most important ones."""


@dataclass(frozen=True)
class Part:
    """How many responses of a part of the rows lie inside their intervals.

    Attributes:
        of: What the rows were divided by: ``"prediction"`` or the name of a column; empty for all rows.
        label: Which rows of that: ``"up to 101"`` or ``"= 1"``.
        rows: How many there are.
        inside: How many of them lie inside.
        low: Lower end of the exact binomial interval of the share, at two standard errors.
        high: Its upper end.
        chance: Probability of a count at least this far off, were the coverage as claimed.
        off: ``"low"`` or ``"high"`` where that is too improbable, also after so many parts were looked at.
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
        """Which rows these are."""
        return f"{self.of} {self.label}"

    @property
    def share(self) -> float:
        """The share inside."""
        return self.inside / self.rows

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: value if isinstance(value, str) else plain(value) for name, value in vars(self).items()} | {
            "share": plain(self.share)
        }


def count(
    inside: np.ndarray,
    coverage: np.ndarray,
    *,
    aimed: bool,
    looked: int = 1,
    of: str = "",
    label: str = "",
) -> Part:
    """Count the responses inside, and say whether chance explains the count.

    Args:
        inside: Whether each lies inside its interval.
        coverage: Values of the true coverage, equally likely, where the intervals are right; a single one where it is
            known.
        aimed: Whether covering more is a fault too; for a bound it is none.
        looked: How many parts are looked at together: each is allowed that much less chance.
        of: As in :class:`Part`.
        label: As in :class:`Part`.
    """
    from scipy.stats import beta, binom

    rows = len(inside)
    found = int(np.sum(inside))
    below = float(np.mean(binom.cdf(found, rows, coverage)))
    above = float(np.mean(binom.sf(found - 1, rows, coverage)))
    chance = min(1.0, 2 * min(below, above)) if aimed else below
    # Clopper and Pearson's interval of the share
    low = float(beta.ppf(CHANCE / 2, found, rows - found + 1)) if found else 0.0
    high = float(beta.ppf(1 - CHANCE / 2, found + 1, rows - found)) if found < rows else 1.0
    off: Literal["", "low", "high"] = ""
    if chance < CHANCE / looked:
        off = "low" if below < above else "high"
    return Part(of, label, rows, found, low, high, chance, off)


def parts(
    judges: JudgedRows, table: Table, sources: tuple[str, ...], ranked: np.ndarray, k: int, spread: float
) -> list[Part]:
    """Divide the rows by prediction and by column, and count each part.

    Args:
        judges: The rows.
        table: The training inputs.
        sources: The column of the user's table that each column comes from.
        ranked: Columns, the most important first.
        k: The output.
        spread: The spread of the responses, for the digits of a prediction.

    Returns:
        Fifths of the prediction, the levels of columns with few values, and fifths of the most important other
        column. Parts of few rows are left out.
    """
    known = np.isfinite(judges.prediction[:, k])
    found: list[tuple[str, str, np.ndarray]] = []
    if np.any(known):
        found += _fifths("prediction", judges.prediction[:, k], known, spread)
    grouped = _groups(judges.values, table, sources, ranked)
    found += [group for groups in list(grouped.values())[:_MOST_COLUMNS] for group in groups]
    rest = [
        int(column)
        for column in ranked
        if sources[column] == table.names[column] and len(np.unique(table.values[:, column])) > FEW_VALUES
    ]
    if rest:
        everywhere = np.ones(len(judges), dtype=bool)
        found += _fifths(table.names[rest[0]], judges.values[:, rest[0]], everywhere, float(table.spread[rest[0]]))
    kept = [(of, label, rows) for of, label, rows in found if np.sum(rows) >= LEAST]
    inside = judges.inside[:, k]
    return [
        count(inside[rows], judges.coverage[k], aimed=judges.aimed, looked=len(kept), of=of, label=label)
        for of, label, rows in kept
    ]


def _groups(
    values: np.ndarray, table: Table, sources: tuple[str, ...], ranked: np.ndarray
) -> dict[str, list[tuple[str, str, np.ndarray]]]:
    """Return the rows of each value of the columns with few values, and of each level of an encoded column."""
    found: dict[str, list[tuple[str, str, np.ndarray]]] = {}
    for column in ranked:
        source, name = sources[column], table.names[column]
        seen = np.unique(table.values[:, column])
        if len(seen) > FEW_VALUES:
            continue
        groups = found.setdefault(source, [])
        if source != name and set(seen) <= {0.0, 1.0}:  # a level such as "town = Rome", or "size is missing"
            groups.append((source, name.removeprefix(source).strip(), values[:, column] == 1))
        else:
            groups += [(name, f"= {short(value, 4)}", values[:, column] == value) for value in seen]
    return {source: groups for source, groups in found.items() if len(groups) <= FEW_VALUES}


def _fifths(of: str, values: np.ndarray, known: np.ndarray, spread: float) -> list[tuple[str, str, np.ndarray]]:
    """Divide rows into fifths by a value; equal values stay together, which may leave fewer parts."""
    inner = np.unique(np.quantile(values[known], np.arange(1, _FIFTHS) / _FIFTHS))
    place = np.searchsorted(inner, values, side="left")  # a value on an edge belongs below it
    texts = _edges(inner, spread)
    made = []
    for fifth in range(len(inner) + 1):
        if fifth == 0:
            label = f"up to {texts[0]}"
        elif fifth == len(inner):
            label = f"above {texts[-1]}"
        else:
            label = f"{texts[fifth - 1]} to {texts[fifth]}"
        made.append((of, label, known & (place == fifth)))
    return made


def _edges(inner: np.ndarray, spread: float) -> list[str]:
    """Return edges as text: three digits where these tell them apart, else as many as the spread asks for."""
    texts = [short(edge) for edge in inner]
    rounded = np.array([float(f"{edge:.3g}") for edge in inner])
    if len(set(texts)) == len(texts) and np.all(np.abs(rounded - inner) <= _ROUNDED * spread):
        return texts
    return [told(edge, spread) for edge in inner]
