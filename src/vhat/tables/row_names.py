"""Names of rows in messages and reports: by the index of a data frame, or by line of a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = ["RowNames"]


@dataclass(frozen=True, eq=False)
class RowNames:
    """Names of rows, as in the table that they come from, also where some of its rows were left out.

    Inside ``vhat.errors.calling_rows(names)`` messages use these names.

    Attributes:
        labels: One label per row: integers, or text.
        noun: The noun before a label: ``"row"``, ``"line"``, or the name of an index.
        origin: Where the labels come from, to end the sentence "rows are called by ...".
    """

    labels: np.ndarray
    noun: str = "row"
    origin: str = "their number in the table, counted from 0"

    @classmethod
    def of(cls, table: Any, count: int) -> RowNames:
        """Return the names of the rows of a table: its index for a data frame or series, else numbers from 0.

        Args:
            table: Inputs of any kind.
            count: The number of rows.
        """
        index = getattr(table, "index", None) if hasattr(table, "iloc") else None
        if index is None or len(index) != count:
            return cls(np.arange(count))
        labels = _labels(index)
        name = ", ".join(str(level) for level in index.names if level is not None)
        if name:
            return cls(labels, name, f"the index of the data frame, {name}")
        if np.array_equal(labels, np.arange(count)):
            return cls(labels)
        return cls(labels, "row", "the index of the data frame")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> str:
        return f"{self.noun} {self.labels[row]}"

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))

    def take(self, rows: np.ndarray | slice) -> RowNames:
        """Return the names of some rows, by position."""
        return replace(self, labels=self.labels[rows])


def _labels(index: Any) -> np.ndarray:
    """Return integers as they are and everything else as text; the levels of a label are separated by commas."""
    if index.dtype.kind in "iu":
        return np.asarray(index)
    texts = [", ".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in index]
    return np.fromiter(texts, dtype=object, count=len(texts))
