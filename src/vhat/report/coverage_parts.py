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
_MOST_COLUMNS = 5
"""Columns with few values whose groups are counted; of more, the most important ones."""


@dataclass(frozen=True)
class Part:
    """How many responses of a part of the rows lie inside their intervals.

    Attributes:
        of: What the rows were divided by: ``"prediction"`` or the name of a column; empty for all rows.
        label: Which rows these are.
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
    def share(self) -> float:
        """The share inside."""
        return self.inside / self.rows

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: value if isinstance(value, str) else plain(value) for name, value in vars(self).items()} | {
            "share": plain(self.share)
        }


def count(inside: np.ndarray, level: float, *, aimed: bool, looked: int = 1, of: str = "", label: str = "") -> Part:
    """Count the responses inside, and say whether chance explains the count.

    Args:
        inside: Whether each lies inside its interval.
        level: The coverage that is claimed.
        aimed: Whether covering more is a fault too; for a bound it is none.
        looked: How many parts are looked at together: each is allowed that much less chance.
        of: As in :class:`Part`.
        label: As in :class:`Part`.
    """
    from scipy.stats import binomtest

    rows = len(inside)
    found = int(np.sum(inside))
    test = binomtest(found, rows, level, alternative="two-sided" if aimed else "less")
    ends = binomtest(found, rows).proportion_ci(1 - CHANCE, method="exact")
    off: Literal["", "low", "high"] = ""
    if test.pvalue < CHANCE / looked:
        off = "low" if found < level * rows else "high"
    return Part(of, label, rows, found, float(ends.low), float(ends.high), float(test.pvalue), off)


def parts(judges: JudgedRows, table: Table, ranked: np.ndarray, level: float, k: int, spread: float) -> list[Part]:
    """Divide the rows by prediction and by column, and count each part.

    Args:
        judges: The rows.
        table: The training inputs.
        ranked: Columns, the most important first.
        level: The coverage that is claimed.
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
    few = {int(column): np.unique(table.values[:, column]) for column in ranked}
    few = {column: seen for column, seen in few.items() if len(seen) <= FEW_VALUES}
    for column in list(few)[:_MOST_COLUMNS]:
        name = table.names[column]
        values = judges.values[:, column]
        found += [(name, f"{name} = {short(value, 4)}", values == value) for value in few[column]]
    rest = [int(column) for column in ranked if int(column) not in few]
    if rest:
        everywhere = np.ones(len(judges), dtype=bool)
        found += _fifths(table.names[rest[0]], judges.values[:, rest[0]], everywhere, float(table.spread[rest[0]]))
    kept = [(of, label, rows) for of, label, rows in found if np.sum(rows) >= LEAST]
    inside = judges.inside[:, k]
    return [
        count(inside[rows], level, aimed=judges.aimed, looked=len(kept), of=of, label=label) for of, label, rows in kept
    ]


def _fifths(of: str, values: np.ndarray, known: np.ndarray, spread: float) -> list[tuple[str, str, np.ndarray]]:
    """Divide rows into fifths by a value; equal values stay together, which may leave fewer parts."""
    inner = np.unique(np.quantile(values[known], np.arange(1, _FIFTHS) / _FIFTHS))
    place = np.searchsorted(inner, values, side="left")  # a value on an edge belongs below it
    texts = [told(edge, spread * 100) for edge in inner]  # two digits of the spread are enough for an edge
    made = []
    for fifth in range(len(inner) + 1):
        if fifth == 0:
            label = f"{of} up to {texts[0]}"
        elif fifth == len(inner):
            label = f"{of} above {texts[-1]}"
        else:
            label = f"{of} {texts[fifth - 1]} to {texts[fifth]}"
        made.append((of, label, known & (place == fifth)))
    return made
