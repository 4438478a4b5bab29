"""How the columns of a table were read, in a few lines of the terminal."""

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


def column_lines(columns: Columns) -> dict[str, str]:
    """Return one line a kind; nothing for a table of numbers without gaps."""
    if columns.plain:
        return {}
    lines = {
        label: "; ".join(_entry(column) for column in columns.columns if column.outputs and column.kind == kind)
        for kind, label in _LABELS.items()
    }
    lines["left out"] = "; ".join(_entry(column) for column in columns.columns if not column.outputs)
    return {label: line for label, line in lines.items() if line}


def _entry(column: Column) -> str:
    return f"{column.name} ({column.detail})" if column.detail else column.name


def column_remarks(columns: Columns) -> list[str]:
    """Return what a reader must know of how single columns were read."""
    return [f"column {column.name!r}: {column.remark}" for column in columns.columns if column.remark]
