"""Some consecutive rows of a table, as they stand in its file, and the numbers in them."""

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
_LOGICAL = {"true": "1", "false": "0"}


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive rows of a table.

    Attributes:
        columns: The values of each column that was asked for: text from a CSV file, typed from a Parquet file.
        places: Where each row stands in the file, counted from 1.
        noun: What is counted: ``"line"`` or ``"row"``.
        table: What messages call the table.
    """

    columns: Mapping[str, np.ndarray]
    places: np.ndarray
    noun: str
    table: str

    def __len__(self) -> int:
        return len(self.places)

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return some columns in float64, (rows, columns). True and false count as 1 and 0.

        Raises:
            InputError: For text, and for values that are missing or infinite, naming the first one's place.
        """
        found = np.empty((len(self), len(names)))
        for at, name in enumerate(names):
            found[:, at] = self._column(name)
        bad = ~np.isfinite(found)
        if bad.any():
            row, at = divmod(int(bad.argmax()), len(names))
            kind = "missing (NaN)" if np.isnan(found[row, at]) else "infinite"
            self._refuse(row, names[at], f"is {kind}", _NO_VALUE)
        return found

    def _column(self, name: str) -> np.ndarray:
        if isinstance(self.columns, ArrowCells):
            numbers = self.columns.numbers(name)
            if numbers is not None:
                return numbers
        values = self.columns[name]
        if values.dtype.kind in "fiub" or _is_plain(values):
            with suppress(ValueError):
                return values.astype(np.float64)
        return np.array([self._number(row, name, value) for row, value in enumerate(values)], dtype=np.float64)

    def _number(self, row: int, name: str, value: object) -> float:
        text = "null" if value is None else str(value).strip()
        try:
            number = float(_LOGICAL.get(text.lower(), text))
        except ValueError:
            self._refuse_text(row, name, text)
        if not _is_plain([text]):
            self._refuse_text(row, name, text)
        return number

    def _refuse_text(self, row: int, name: str, text: str) -> NoReturn:
        if text.lower() in _MISSING:
            shown = "empty" if not text else f"missing ({text})"
            self._refuse(row, name, f"is {shown}", _NO_VALUE)
        hint = _FIGURES if _LIKE_A_NUMBER.fullmatch(text) else _TEXT
        self._refuse(row, name, f"holds {reprlib.repr(text)}, which is not a number", hint)

    def _refuse(self, row: int, name: str, found: str, remedy: str) -> NoReturn:
        raise InputError(f"{self.table}, {self.noun} {self.places[row]}: column {name!r} {found}. {remedy}")


def _is_plain(values: Sequence[str] | np.ndarray) -> bool:
    """Whether these are texts that may be left to ``float``, which also reads 1_000 and the digits of every script."""
    try:
        joined = "".join(values)
    except TypeError:  # objects of a Parquet file
        return False
    return joined.isascii() and "_" not in joined


_LIKE_A_NUMBER = re.compile(r"[+\-\u2212]?\d[\d_,'\u2019\s]{0,30}(\.[\d_,'\u2019\s]{0,30})?")
_FIGURES = (
    "Write numbers with the digits 0 to 9 and a decimal point, and nothing between thousands; or leave the column out."
)
_NO_VALUE = "Remove such rows, or fill them in; an interval takes what was filled in as if it had been measured."
_TEXT = "Correct it, encode categories as numbers first, or leave the column out (--features)."
