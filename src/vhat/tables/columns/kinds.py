"""The kinds of columns: what each one keeps of the training rows, and how it encodes cells as inputs of the network.

A missing number, date, or yes/no is filled with the median of the training rows. If the training rows had gaps, a
second input marks them, so that the network learns what a gap means. If they had none, a row with a gap gets the status
``missing cell``.

A category has one input per level, 1 in its rows and 0 elsewhere. No level is the reference: weight decay treats all
levels alike. These inputs are centred and divided by one number, sqrt(1/2), whatever the frequency of the level. Two
balanced levels then weigh as much as one standardised column, and a rare level is shrunk to the mean more than a
frequent one. Dividing by the level's own small standard deviation would do the opposite.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from vhat.errors import InputError, name_rows
from vhat.tables.columns.dates import FORMATS, read_dates, to_days
from vhat.tables.columns.notation import PLAIN, Notation
from vhat.tables.columns.texts import dtype_kind, present_texts, texts_of
from vhat.tables.columns.wording import Wording

__all__ = ["MISSING", "OTHER", "UNKNOWN", "Category", "Cells", "Column", "Date", "Filled", "Flag", "Number", "Skipped"]

MISSING = "missing cell"
"""Status of a row with a gap in a column without gaps in training."""
UNKNOWN = "unknown level"
"""Status of a row with a level of a category that was not in the training rows."""
OTHER = "(other)"
"""Name of the level that the rare levels share."""
NO_LEVEL = "(missing)"
"""Name of the level of empty cells."""
LEVEL_SPREAD = math.sqrt(0.5)
"""Divisor of the inputs of a level: two balanced levels then weigh as much as one standardised column."""
MARK_SPREAD = 0.5
"""Divisor of a mark of gaps: the standard deviation of a balanced yes/no, so that a rare gap is no outlier."""


class Cells(NamedTuple):
    """The cells of a column as inputs of the network.

    Attributes:
        numbers: (rows, inputs), finite.
        missing: Whether a cell is missing in a column without gaps in training, (rows,).
        unknown: Whether a cell holds a level that was not in the training rows, (rows,).
    """

    numbers: np.ndarray
    missing: np.ndarray
    unknown: np.ndarray


@dataclass(frozen=True)
class Column(ABC):
    """A column of a table, and how its cells are read.

    Attributes:
        name: The name of the column, as text.
        gaps: How many cells were missing in training.
        remark: A doubt about how the column was read, with the option that settles it; empty where there is none.
    """

    kind: ClassVar[str] = ""
    name: str
    gaps: int = 0
    remark: str = ""

    @property
    @abstractmethod
    def network_inputs(self) -> tuple[str, ...]:
        """Names of the inputs of the network that the column becomes; none where it is left out."""

    @property
    def left_out(self) -> bool:
        """Whether the network does not see the column."""
        return not self.network_inputs

    @property
    @abstractmethod
    def spreads(self) -> tuple[float, ...]:
        """Divisor of each of these inputs after centring; NaN for its standard deviation."""

    @property
    @abstractmethod
    def detail(self) -> str:
        """What is to be said besides the kind, in words; empty where there is nothing."""

    @property
    def told(self) -> str:
        """How the column was read, in words."""
        return f"{self.kind}: {self.detail}" if self.detail else self.kind

    @abstractmethod
    def encode(self, column: Any, wording: Wording) -> Cells:
        """Return the cells of a pandas Series as inputs of the network."""


@dataclass(frozen=True)
class Filled(Column):
    """A column of one number per cell, whose gaps are filled.

    Attributes:
        fill: The median of the training rows, which fills gaps.
        coerce: Whether cells that cannot be read count as missing, because the user has said what the column holds.
        constant: Whether the column has one value in all training rows and no gap: the network then leaves it out.
    """

    fill: float = math.nan
    coerce: bool = False
    constant: bool = False

    @property
    def network_inputs(self) -> tuple[str, ...]:
        """Return the column, and the mark of its gaps if training had any."""
        return (self.name, f"{self.name} is missing") if self.gaps else (self.name,)

    @property
    def left_out(self) -> bool:
        """Return whether the column has one value in all training rows, which the network leaves out."""
        return self.constant

    @property
    def spreads(self) -> tuple[float, ...]:
        """Return NaN for the numbers, and the divisor of a mark."""
        return (math.nan, MARK_SPREAD) if self.gaps else (math.nan,)

    @abstractmethod
    def read(self, column: Any, wording: Wording) -> np.ndarray:
        """Return the numbers, NaN where a cell is missing.

        Raises:
            InputError: For a cell that cannot be read.
        """

    def encode(self, column: Any, wording: Wording) -> Cells:
        """Return the numbers with their gaps filled."""
        numbers = self.read(column, wording)
        self.refuse_infinite(numbers, wording)
        missing = np.isnan(numbers)
        nowhere = np.zeros(len(numbers), dtype=bool)
        filled = np.where(missing, self.fill, numbers)
        if self.gaps:
            # The network has learned what a gap means: the mark says it, and no status is needed.
            return Cells(np.column_stack([filled, missing]), missing=nowhere, unknown=nowhere)
        return Cells(filled[:, None], missing=missing, unknown=nowhere)

    def refuse_infinite(self, numbers: np.ndarray, wording: Wording) -> None:
        """Refuse infinite numbers.

        Raises:
            InputError: Naming the row of the first one.
        """
        infinite = np.isinf(numbers)
        if infinite.any():
            where = name_rows([int(infinite.argmax())])
            raise InputError(
                f"{wording.table}, {where}: column {self.name!r} is infinite. Correct it, or leave the cell empty."
            )

    def _refuse(self, texts: np.ndarray, rows: np.ndarray, what: str, wording: Wording) -> None:
        """Refuse cells that cannot be read, unless they count as missing.

        Args:
            texts: The cells.
            rows: Which of them cannot be read, (rows,).
            what: What the cells should be.
            wording: Words for the message.
        """
        if self.coerce or not rows.any():
            return
        first = int(rows.argmax())
        raise InputError(
            f"{wording.table}, {name_rows([first])}: column {self.name!r} holds {texts[first]!r}, which is not "
            f"{what}. Correct it, or leave the cell empty: it then counts as missing."
        )

    @property
    def _gaps_in_words(self) -> str:
        if not self.gaps:
            return ""
        return f"{self.gaps:,} missing, filled with {self._fill_in_words} and marked"

    @property
    def _fill_in_words(self) -> str:
        return f"the median {self.fill:.5g}"

    def _in_words(self, how: str) -> str:
        """Return how the cells are written, the gaps, and whether the column is constant."""
        constant = "the same in all rows" if self.constant else ""
        return ", ".join(part for part in (how, self._gaps_in_words, constant) if part)


@dataclass(frozen=True)
class Number(Filled):
    """A column of numbers.

    Attributes:
        notation: How the numbers are written, if they are text.
    """

    kind: ClassVar[str] = "number"
    notation: Notation = PLAIN

    def read(self, column: Any, wording: Wording) -> np.ndarray:
        """Return the numbers, NaN where a cell is missing."""
        if dtype_kind(column) == "number":
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        if dtype_kind(column) == "duration":
            return to_days(column)
        texts, _ = texts_of(column)
        present = present_texts(texts)
        numbers, unreadable = self.notation.read(np.where(present, texts, "0"))
        unreadable &= present  # the "0" in place of a gap may lack a percent sign
        if unreadable.any():
            first = texts[int(unreadable.argmax())]
            self._refuse(texts, unreadable, self._expected(first), wording)
        return np.where(present & ~unreadable, numbers, np.nan)

    def _expected(self, text: str) -> str:
        """Return what a cell that cannot be read should be, to end the sentence "which is not ..."."""
        readings = self.notation.both_readings(text)
        if readings is not None:
            point, comma = readings
            between = "comma" if self.notation.decimal == "point" else "point"
            return (
                f"clear: it may be {point:.12g} or {comma:.12g}, and no training cell had a {between} between thousands"
            )
        if self.notation == PLAIN:
            return "a number"
        return f"a number like those of training ({self.notation.told})"

    @property
    def detail(self) -> str:
        """How the numbers are written, their gaps, and whether they vary."""
        return self._in_words(self.notation.told)


@dataclass(frozen=True)
class Date(Filled):
    """A column of dates or times, as days since 1970-01-01.

    Attributes:
        form: How dates are written, if they are text: one of :data:`vhat.tables.columns.dates.FORMATS`.
    """

    kind: ClassVar[str] = "date"
    form: str = "iso"

    def read(self, column: Any, wording: Wording) -> np.ndarray:
        """Return days, NaN where a cell is missing."""
        if dtype_kind(column) == "time":
            return to_days(column)
        texts, _ = texts_of(column)
        present = present_texts(texts)
        instead_of_gap = "1970-01-01" if self.form == "iso" else ""
        found = read_dates(np.where(present, texts, instead_of_gap), self.form)
        self._refuse(texts, present & np.isnan(found), f"a date ({FORMATS[self.form]})", wording)
        return np.where(present, found, np.nan)

    @property
    def detail(self) -> str:
        """How the dates are written, their gaps, and whether they vary."""
        return self._in_words(FORMATS[self.form])

    @property
    def _fill_in_words(self) -> str:
        return f"the median {np.datetime64('1970-01-01') + np.timedelta64(round(self.fill), 'D')}"


@dataclass(frozen=True)
class Flag(Filled):
    """A column of two words for yes and no, as 1 and 0.

    Attributes:
        yes: The word for 1, in lower case.
        no: The word for 0, in lower case.
    """

    kind: ClassVar[str] = "yes/no"
    yes: str = "true"
    no: str = "false"

    def read(self, column: Any, wording: Wording) -> np.ndarray:
        """Return ones and zeros, NaN where a cell is missing."""
        if dtype_kind(column) == "number":
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        texts, _ = texts_of(column)
        present = present_texts(texts)
        meaning = {self.yes: 1.0, self.no: 0.0}
        found = np.array([meaning.get(text.lower(), np.nan) for text in texts], dtype=np.float64)
        self._refuse(texts, present & np.isnan(found), f"{self.yes} or {self.no}", wording)
        return found

    @property
    def detail(self) -> str:
        """Which word is 1, the gaps, and whether the column varies."""
        return self._in_words("" if self.yes == "true" else f"{self.yes} is 1, {self.no} is 0")


@dataclass(frozen=True)
class Category(Column):
    """A column of levels.

    Attributes:
        levels: Levels with an input of their own; an empty text stands for missing cells.
        shares: Share of the training rows of each of these levels; if there are rare levels, their share comes last.
        rest: Levels that are too rare for an input of their own: they share one.
    """

    kind: ClassVar[str] = "category"
    levels: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    rest: tuple[str, ...] = ()

    @property
    def network_inputs(self) -> tuple[str, ...]:
        """Return one name per level; none for a single level, from which nothing can be learned."""
        if len(self.shares) < 2:
            return ()
        levels = [level or NO_LEVEL for level in self.levels]
        if self.rest:
            levels.append(OTHER)
        return tuple(f"{self.name} = {level}" for level in levels)

    @property
    def spreads(self) -> tuple[float, ...]:
        """Return the same for every level."""
        return (LEVEL_SPREAD,) * len(self.network_inputs)

    def encode(self, column: Any, wording: Wording) -> Cells:  # noqa: ARG002  (any text is a level)
        """Return one input per level; an unknown level counts as a rare one, or as the average level if none is rare.

        The average level has the shares of the training rows. It is the origin of the standardised inputs.
        """
        texts, empty = texts_of(column)
        position = {level: at for at, level in enumerate(self.levels)}
        position |= dict.fromkeys(self.rest, len(self.levels))
        at = np.array([position.get(text, -1) for text in texts], dtype=np.int64)
        new = at < 0
        width = len(self.shares)
        if self.rest:
            at = np.where(new, width - 1, at)
        rows = np.vstack([np.eye(width), self.shares])  # row k is level k; the last row is the average level
        numbers = rows[at]  # position -1 takes the last row
        return Cells(numbers[:, : len(self.network_inputs)], missing=new & empty, unknown=new & ~empty)

    @property
    def detail(self) -> str:
        """How many levels there are, and which have no input of their own."""
        if len(self.shares) < 2:
            return f"{self.levels[0]!r} in all rows"
        parts = [f"{len(self.levels) + len(self.rest)} levels"]
        if len(self.rest) > 1:
            parts.append(f"{len(self.rest)} rare ones as {OTHER}")
        elif self.rest:
            parts.append(f"{self.rest[0]!r}, which is rare, as {OTHER}")
        if self.gaps:
            parts.append(f"{self.gaps:,} missing, as a level")
        return ", ".join(parts)


@dataclass(frozen=True)
class Skipped(Column):
    """A column that is left out.

    Attributes:
        reason: Why.
    """

    kind: ClassVar[str] = "left out"
    reason: str = "as asked"

    @property
    def network_inputs(self) -> tuple[str, ...]:
        """Return none."""
        return ()

    @property
    def spreads(self) -> tuple[float, ...]:
        """Return none."""
        return ()

    def encode(self, column: Any, wording: Wording) -> Cells:  # noqa: ARG002
        """Return no input."""
        nowhere = np.zeros(len(column), dtype=bool)
        return Cells(np.empty((len(column), 0)), missing=nowhere, unknown=nowhere)

    @property
    def detail(self) -> str:
        """Why the column is left out."""
        return self.reason
