"""What the training rows say of a column: its median, its gaps, its levels."""

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
"""Rows below which a level has no column of its own: its effect would rest on one or two rows."""
_MOST = 40
"""Levels that have a column of their own, the most frequent first: each costs a column of the first layer."""


def learned(column: Column, series: Any, weights: np.ndarray, wording: Wording) -> Column:
    """Add what the training rows say to a column whose kind is decided: median, gaps, levels.

    Args:
        column: The column, without these.
        series: Its cells.
        weights: How much each row counts.
        wording: Words for messages.
    """
    if isinstance(column, Filled):
        numbers = column.read(series, wording)
        column.refuse_infinite(numbers, wording)
        gone = np.isnan(numbers)
        if gone.all():
            return Skipped(column.name, reason="empty in all rows")
        fill = weighted_median(numbers[~gone], weights[~gone])
        return replace(column, fill=fill, gaps=int(gone.sum()))
    if isinstance(column, Category):
        return _levels(column, series, weights)
    return column


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """Return the median of values that count as often as their weights; that of NumPy where all count alike."""
    if np.all(weights == weights[0]):
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    values, heap = values[order], np.cumsum(weights[order])
    half = heap[-1] / 2
    at = int(np.searchsorted(heap, half))
    if heap[at] == half and at + 1 < len(values):
        return float((values[at] + values[at + 1]) / 2)
    return float(values[at])


def _levels(column: Category, series: Any, weights: np.ndarray) -> Column:
    """Count the levels; those that are rare or too many share a column."""
    texts, empty = texts_of(series)
    counts = Counter(texts.tolist())
    frequent = sorted(counts, key=lambda level: (-counts[level], level))
    kept = sorted(level for level in frequent[:_MOST] if counts[level] >= _RARE or len(counts) == 1)
    rest = tuple(sorted(set(counts) - set(kept)))
    if not kept:
        return Skipped(column.name, reason=f"text, {len(counts):,} different in {len(texts):,} rows")
    masks = [texts == level for level in kept] + ([np.isin(texts.astype(str), rest)] if rest else [])
    shares = tuple(float(np.average(mask, weights=weights)) for mask in masks)
    remark = ""
    if len(frequent) > _MOST and counts[frequent[_MOST]] >= _RARE:
        remark = f"{len(frequent):,} levels, of which the {_MOST} most frequent have a column of their own"
    return replace(column, levels=tuple(kept), shares=shares, rest=rest, gaps=int(empty.sum()), remark=remark)
