"""Lines for the terminal that say how the columns of a table were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vhat.tables.columns import Column, Columns

__all__ = ["column_lines", "column_remarks"]

_LABELS = {
    "number": "numbers",
    "yes/no": "yes or no",
    "date": "dates",
    "category": "categories",
    "left out": "left out",
}
"""Kinds of columns, and their labels on the terminal."""


def column_lines(columns: Columns) -> dict[str, str]:
    """Return one line per kind of column, by its label. A table of numbers without gaps needs no lines."""
    if columns.plain:
        return {}
    entries: dict[str, list[str]] = {label: [] for label in _LABELS.values()}
    for column in columns.columns:
        label = "left out" if column.left_out else _LABELS[column.kind]
        entries[label].append(_entry(column))
    return {label: "; ".join(parts) for label, parts in entries.items() if parts}


def _entry(column: Column) -> str:
    """Return the name of a column, with the details of its reading."""
    return f"{column.name} ({column.detail})" if column.detail else column.name


def column_remarks(columns: Columns) -> list[str]:
    """Return a remark on every column whose reading needs attention."""
    return [f"column {column.name!r}: {column.remark}" for column in columns.columns if column.remark]
