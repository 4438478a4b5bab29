"""What the rows of a table are called where its owner reads of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = ["RowNames"]


@dataclass(frozen=True, eq=False)
class RowNames:
    """What rows are called: not by their place among those that are left, but as in the table that they come from.

    Inside ``vhat.errors.calling_rows(names)`` messages use them.

    Attributes:
        labels: One a row: whole numbers, or text.
        noun: What a label counts: ``"row"``, ``"line"``, or the name of an index.
        origin: Where the labels stand, to end the sentence "rows are called by ...".
    """

    labels: np.ndarray
    noun: str = "row"
    origin: str = "their number in the table, counted from 0"

    @classmethod
    def of(cls, table: Any, count: int) -> RowNames:
        """Return the names of a table's rows: the index of a data frame or a series, numbers from 0 for the rest.

        Args:
            table: Inputs of any kind.
            count: How many rows they have.
        """
        index = getattr(table, "index", None) if hasattr(table, "iloc") else None
        if index is None or len(index) != count:
            return cls(np.arange(count))
        labels, name = _labels(index), ", ".join(str(each) for each in index.names if each is not None)
        if not name and np.array_equal(labels, np.arange(count)):
            return cls(labels)
        return cls(labels, name or "row", f"the index of the data frame{name and ', '}{name}")

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
    """Whole numbers as they are, everything else as text; levels of an index between commas."""
    if index.dtype.kind in "iu":
        return np.asarray(index)
    texts = [", ".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in index]
    return np.fromiter(texts, dtype=object, count=len(texts))
