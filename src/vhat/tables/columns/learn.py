"""Learn from the training rows what a column keeps: its median, its gaps, its levels."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from vhat.tables.columns.kinds import Category, Column, Filled, Skipped
from vhat.tables.columns.texts import texts_of
from vhat.tables.columns.wording import Wording

__all__ = ["learned", "weighted_median"]

_RARE = 3
"""Rows below which a level has no input of its own: its effect would rest on one or two rows."""
_MOST = 40
"""Levels with an input of their own, the most frequent first: each costs a column of the first layer."""
_MOSTLY_RARE = 0.5
"""Share of the rows with a rare level above which the column may be free text rather than a category."""
_MOST_NAMED = 3
"""Groups of levels that differ in case only and are written out."""


def learned(column: Column, series: Any, weights: np.ndarray, wording: Wording) -> Column:
    """Return a column whose kind is decided with the median, gaps and levels of the training rows.

    Args:
        column: The column, without these.
        series: Its training cells.
        weights: Weight of each row, (rows,).
        wording: Words for messages.
    """
    if isinstance(column, Filled):
        return _with_median(column, series, weights, wording)
    if isinstance(column, Category):
        return _with_levels(column, series, weights, wording)
    return column


def _with_median(column: Filled, series: Any, weights: np.ndarray, wording: Wording) -> Column:
    """Return the column with its median and gaps; as left out if it has no cell."""
    numbers = column.read(series, wording)
    column.refuse_infinite(numbers, wording)
    missing = np.isnan(numbers)
    if missing.all():
        return Skipped(column.name, reason="empty in all rows")
    known = numbers[~missing]
    return replace(
        column,
        fill=weighted_median(known, weights[~missing]),
        gaps=int(missing.sum()),
        constant=not missing.any() and bool(known.min() == known.max()),
    )


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """Return the median of values that count as often as their weights say; with equal weights, that of NumPy."""
    if np.all(weights == weights[0]):
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    values = values[order]
    cumulative = np.cumsum(weights[order])
    half = cumulative[-1] / 2
    at = int(np.searchsorted(cumulative, half))
    # Half of the weight lies on either side: the median is the middle of the two values, as for an even count.
    if cumulative[at] == half and at + 1 < len(values):
        return float((values[at] + values[at + 1]) / 2)
    return float(values[at])


def _with_levels(column: Category, series: Any, weights: np.ndarray, wording: Wording) -> Column:
    """Return the column with its levels; those that are rare, or beyond the most frequent, share one."""
    texts, empty = texts_of(series)
    counts = Counter(texts.tolist())
    frequent = sorted(counts, key=lambda level: (-counts[level], level))
    kept = sorted(level for level in frequent[:_MOST] if counts[level] >= _RARE or len(counts) == 1)
    rest = tuple(sorted(set(counts) - set(kept)))
    if not kept:
        return Skipped(column.name, reason=f"text, {len(counts):,} different in {len(texts):,} rows")
    masks = [texts == level for level in kept]
    if rest:
        masks.append(np.isin(texts.astype(str), rest))
    shares = tuple(float(np.average(mask, weights=weights)) for mask in masks)
    remarks = []
    if len(frequent) > _MOST and counts[frequent[_MOST]] >= _RARE:
        remarks.append(f"{len(frequent):,} levels, of which the {_MOST} most frequent have a column of their own")
    rare = sum(counts[level] for level in rest)
    if rare > _MOSTLY_RARE * len(texts) and len(rest) > _MOST:
        remarks.append(
            f"{rare:,} of {len(texts):,} rows have one of {len(rest):,} levels that share a column, such as "
            f"{rest[0]!r}; if that is free text: {wording.override(column.name, 'skip')}"
        )
    remarks += _case_remark(counts)
    remark = "; ".join(remarks)
    return replace(column, levels=tuple(kept), shares=shares, rest=rest, gaps=int(empty.sum()), remark=remark)


def _case_remark(counts: Counter[str]) -> list[str]:
    """Return a remark on levels that differ in upper and lower case only; none where no levels do."""
    alike: dict[str, list[str]] = {}
    for level in counts:
        alike.setdefault(level.casefold(), []).append(level)
    groups = [sorted(levels) for levels in alike.values() if len(levels) > 1]
    if not groups:
        return []
    shown = ", ".join(" and ".join(map(repr, levels)) for levels in groups[:_MOST_NAMED])
    more = f" and {len(groups) - _MOST_NAMED:,} more" if len(groups) > _MOST_NAMED else ""
    return [
        f"levels that differ in case only are levels of their own: {shown}{more}; if they mean the same, write them "
        "alike"
    ]
