"""Consecutive rows of a table as they are in its file, and the numbers in them."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from vhat.errors import InputError
from vhat.tables.files.arrow_cells import ArrowCells

__all__ = ["Chunk"]

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "?", "."})
"""Texts, in lower case, that are read as a missing value."""
_LOGICAL = {"true": "1", "false": "0"}


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive rows of a table.

    Attributes:
        columns: The values of each column that was asked for: text from a CSV file, typed from a Parquet file.
        places: The line or the row of the file at which each row is found, counted from 1, (rows,).
        noun: The unit of ``places``: ``"line"`` or ``"row"``.
        table: The name of the table in messages.
    """

    columns: Mapping[str, np.ndarray]
    places: np.ndarray
    noun: str
    table: str

    def __len__(self) -> int:
        return len(self.places)

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return some columns in float64, (rows, columns). True and false become 1 and 0.

        Raises:
            InputError: For text, and for values that are missing or infinite, naming the place of the first.
        """
        numbers = np.empty((len(self), len(names)))
        for at, name in enumerate(names):
            numbers[:, at] = self._column(name)
        bad = ~np.isfinite(numbers)
        if bad.any():
            row, at = divmod(int(bad.argmax()), len(names))
            kind = "missing (NaN)" if np.isnan(numbers[row, at]) else "infinite"
            self._refuse(row, names[at], f"is {kind}", _NO_VALUE)
        return numbers

    def _column(self, name: str) -> np.ndarray:
        """Return one column in float64, (rows,), by the fastest way that gives the numbers of ``float``."""
        if isinstance(self.columns, ArrowCells):
            numbers = self.columns.numbers(name)
            if numbers is not None:
                return numbers
        values = self.columns[name]
        if values.dtype.kind in "fiub" or _is_plain(values):
            with suppress(ValueError):
                return values.astype(np.float64)
        # Cell by cell: true and false, spaces around a number, and the message for what is no number.
        return np.array([self._number(row, name, value) for row, value in enumerate(values)], dtype=np.float64)

    def _number(self, row: int, name: str, value: object) -> float:
        """Return the number in one cell.

        Raises:
            InputError: If there is none.
        """
        text = "null" if value is None else str(value).strip()
        try:
            number = float(_LOGICAL.get(text.lower(), text))
        except ValueError:
            self._refuse_text(row, name, text)
        if not _is_plain([text]):  # 1_000, which only Python reads as a number
            self._refuse_text(row, name, text)
        return number

    def _refuse_text(self, row: int, name: str, text: str) -> NoReturn:
        """Refuse a cell that holds no number: as missing, as a number in another notation, or as text."""
        if text.lower() in _MISSING:
            shown = "empty" if not text else f"missing ({text})"
            self._refuse(row, name, f"is {shown}", _NO_VALUE)
        hint = _FIGURES if _LIKE_A_NUMBER.fullmatch(text) else _TEXT
        self._refuse(row, name, f"holds {reprlib.repr(text)}, which is not a number", hint)

    def _refuse(self, row: int, name: str, found: str, remedy: str) -> NoReturn:
        """Raise the error about one cell.

        Args:
            row: The row within the chunk.
            name: The column.
            found: What is wrong with the cell, with its verb.
            remedy: What to do about it.
        """
        raise InputError(f"{self.table}, {self.noun} {self.places[row]}: column {name!r} {found}. {remedy}")


def _is_plain(values: Sequence[str] | np.ndarray) -> bool:
    """Return whether ``float`` may read these texts: it would also accept 1_000 and the digits of other scripts."""
    try:
        joined = "".join(values)
    except TypeError:  # objects that are not texts, from a Parquet file
        return False
    return joined.isascii() and "_" not in joined


_LIKE_A_NUMBER = re.compile(r"[+\-\u2212]?\d[\d_,'\u2019\s]{0,30}(\.[\d_,'\u2019\s]{0,30})?")
"""Text with digits and separators of thousands, or with another minus sign: a number in a notation that is not read."""
_FIGURES = (
    "Write numbers with the digits 0 to 9 and a decimal point, and nothing between thousands; or leave the column out."
)
_NO_VALUE = "Remove such rows, or fill them in; an interval takes what was filled in as if it had been measured."
_TEXT = "Correct it, encode categories as numbers first, or leave the column out (--features)."
