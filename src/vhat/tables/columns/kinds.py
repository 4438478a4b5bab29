"""What is kept of a column of each kind, and the numbers that it makes of new cells.

A missing number, date, or yes and no is filled with the median of the training rows. Where training rows had gaps, a
second column marks them, so that the model learns what a gap means; where they had none, the row of a gap has the
status ``missing cell``.

A category has one column a level, 1 in its rows and 0 elsewhere, and none is the reference: weight decay treats all
levels alike. These columns are centred and divided by one number, sqrt(1/2), whatever the level's frequency. Two
balanced levels then weigh as much as one standardised column, and a rare level is drawn to the mean more than a
frequent one, where dividing by its own small standard deviation would do the opposite.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from vhat.errors import InputError, name_rows
from vhat.tables.columns.dates import FORMATS, days, read_dates
from vhat.tables.columns.notation import PLAIN, Notation
from vhat.tables.columns.texts import dtype_kind, present_texts, texts_of
from vhat.tables.columns.wording import Wording

__all__ = ["MISSING", "OTHER", "UNKNOWN", "Category", "Cells", "Column", "Date", "Filled", "Flag", "Number", "Skipped"]

MISSING = "missing cell"
"""Status of a row with a gap in a column that had none in training."""
UNKNOWN = "unknown level"
"""Status of a row with a level of a category that training did not see."""
OTHER = "(other)"
NOTHING = "(missing)"
LEVEL_SPREAD = math.sqrt(0.5)
MARK_SPREAD = 0.5
"""The standard deviation of a balanced yes and no: a mark of rare gaps is no outlier in the units of the model."""


class Cells(NamedTuple):
    """The numbers of a column.

    Attributes:
        numbers: (rows, columns that the model sees), finite.
        missing: Rows with a gap of which training knew nothing.
        unknown: Rows with a level of which training knew nothing.
    """

    numbers: np.ndarray
    missing: np.ndarray
    unknown: np.ndarray


@dataclass(frozen=True)
class Column(ABC):
    """What is kept of a column.

    Attributes:
        name: Its name, as text.
        gaps: How many cells were missing in training.
        remark: What a reader must know of how it was read, or nothing.
    """

    kind: ClassVar[str] = ""
    name: str
    gaps: int = 0
    remark: str = ""

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns that the model sees."""

    @property
    @abstractmethod
    def spreads(self) -> tuple[float, ...]:
        """What each of them is divided by once it is centred; NaN for its standard deviation."""

    @property
    @abstractmethod
    def detail(self) -> str:
        """What is to be said beside the kind, in words, or nothing."""

    @property
    def told(self) -> str:
        """How the column was read, in words."""
        return ": ".join(filter(None, (self.kind, self.detail)))

    @abstractmethod
    def encode(self, column: Any, wording: Wording) -> Cells:
        """Return the numbers of a pandas Series."""


@dataclass(frozen=True)
class Filled(Column):
    """A column of one number a cell, whose gaps are filled.

    Attributes:
        fill: The median of the training rows.
        coerce: Whether cells that cannot be read count as missing, because the user has said what the column holds.
    """

    fill: float = math.nan
    coerce: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the column, and the mark of its gaps where there were any."""
        return (self.name, f"{self.name} is missing") if self.gaps else (self.name,)

    @property
    def spreads(self) -> tuple[float, ...]:
        """Return NaN for the numbers, and that of a mark."""
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
        gone = np.isnan(numbers)
        none = np.zeros(len(numbers), dtype=bool)
        filled = np.where(gone, self.fill, numbers)
        if self.gaps:
            return Cells(np.column_stack([filled, gone]), none, none)
        return Cells(filled[:, None], gone, none)

    def refuse_infinite(self, numbers: np.ndarray, wording: Wording) -> None:
        """Refuse infinite numbers.

        Raises:
            InputError: Naming the first one's row.
        """
        infinite = np.isinf(numbers)
        if infinite.any():
            where = name_rows([int(infinite.argmax())])
            raise InputError(
                f"{wording.table}, {where}: column {self.name!r} is infinite. Correct it, or leave the cell empty."
            )

    def _refuse(self, texts: np.ndarray, rows: np.ndarray, what: str, wording: Wording) -> None:
        """Refuse cells that cannot be read, unless they count as missing."""
        if self.coerce or not rows.any():
            return
        first = int(rows.argmax())
        raise InputError(
            f"{wording.table}, {name_rows([first])}: column {self.name!r} holds {texts[first]!r}, which is not "
            f"{what}. Correct it, or leave the cell empty: it then counts as missing."
        )

    @property
    def _of_gaps(self) -> str:
        if not self.gaps:
            return ""
        return f"{self.gaps:,} missing, filled with {self._shown_fill} and marked"

    @property
    def _shown_fill(self) -> str:
        return f"the median {self.fill:.5g}"


@dataclass(frozen=True)
class Number(Filled):
    """A column of numbers.

    Attributes:
        notation: How they are written where they are text.
    """

    kind: ClassVar[str] = "number"
    notation: Notation = PLAIN

    def read(self, column: Any, wording: Wording) -> np.ndarray:
        """Return the numbers, NaN where a cell is missing."""
        if dtype_kind(column) == "number":
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        if dtype_kind(column) == "duration":
            return days(column)
        texts, _ = texts_of(column)
        there = present_texts(texts)
        numbers, bad = self.notation.read(np.where(there, texts, "0"))
        bad &= there  # what stands in for a gap need not be written as the numbers are
        self._refuse(texts, bad, self._like(texts, bad), wording)
        return np.where(there & ~bad, numbers, np.nan)

    def _like(self, texts: np.ndarray, bad: np.ndarray) -> str:
        """Say what the first cell that cannot be read is not."""
        either = self.notation.either(texts[int(bad.argmax())]) if bad.any() else None
        if either is not None:
            return (
                f"clear: it may be {either[0]:.12g} or {either[1]:.12g}, and no training cell had a sign between "
                "thousands"
            )
        return "a number" if self.notation == PLAIN else f"a number like those of training ({self.notation.told})"

    @property
    def detail(self) -> str:
        """How the numbers are written, and their gaps."""
        return ", ".join(filter(None, (self.notation.told, self._of_gaps)))


@dataclass(frozen=True)
class Date(Filled):
    """A column of dates or times, as days since 1970-01-01.

    Attributes:
        form: How they are written where they are text, one of :data:`vhat.tables.columns.dates.FORMATS`.
    """

    kind: ClassVar[str] = "date"
    form: str = "iso"

    def read(self, column: Any, wording: Wording) -> np.ndarray:
        """Return days, NaN where a cell is missing."""
        if dtype_kind(column) == "time":
            return days(column)
        texts, _ = texts_of(column)
        there = present_texts(texts)
        found = read_dates(np.where(there, texts, "1970-01-01" if self.form == "iso" else ""), self.form)
        self._refuse(texts, there & np.isnan(found), f"a date ({FORMATS[self.form]})", wording)
        return np.where(there, found, np.nan)

    @property
    def detail(self) -> str:
        """How the dates are written, and their gaps."""
        return ", ".join(filter(None, (FORMATS[self.form], self._of_gaps)))

    @property
    def _shown_fill(self) -> str:
        return f"the median {np.datetime64('1970-01-01') + np.timedelta64(round(self.fill), 'D')}"


@dataclass(frozen=True)
class Flag(Filled):
    """A column of two words for yes and no, as 1 and 0.

    Attributes:
        yes: The word for 1, in small letters.
        no: The word for 0.
    """

    kind: ClassVar[str] = "yes/no"
    yes: str = "true"
    no: str = "false"

    def read(self, column: Any, wording: Wording) -> np.ndarray:
        """Return ones and zeros, NaN where a cell is missing."""
        if dtype_kind(column) == "number":
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        texts, _ = texts_of(column)
        there = present_texts(texts)
        meaning = {self.yes: 1.0, self.no: 0.0}
        found = np.array([meaning.get(text.lower(), np.nan) for text in texts], dtype=np.float64)
        self._refuse(texts, there & np.isnan(found), f"{self.yes} or {self.no}", wording)
        return found

    @property
    def detail(self) -> str:
        """Which word is 1, and the gaps."""
        words = "" if self.yes == "true" else f"{self.yes} is 1, {self.no} is 0"
        return ", ".join(filter(None, (words, self._of_gaps)))


@dataclass(frozen=True)
class Category(Column):
    """A column of levels.

    Attributes:
        levels: Those that have a column of their own, an empty text for missing cells.
        shares: How frequent each of them was in training, and the rest together last where there is one.
        rest: Levels that were too rare for a column of their own: they share one.
    """

    kind: ClassVar[str] = "category"
    levels: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    rest: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return one name a level; none where there is a single level, from which nothing can be learned."""
        if len(self.shares) < 2:
            return ()
        shown = [level or NOTHING for level in self.levels] + ([OTHER] if self.rest else [])
        return tuple(f"{self.name} = {level}" for level in shown)

    @property
    def spreads(self) -> tuple[float, ...]:
        """Return the same for every level."""
        return (LEVEL_SPREAD,) * len(self.outputs)

    def encode(self, column: Any, wording: Wording) -> Cells:  # noqa: ARG002  (any text is a level)
        """Return one column a level; a level that is not known has the column of the rest, or the mean of all levels.

        The mean of the training rows is the origin of the model's units: the prediction of an average level.
        """
        texts, empty = texts_of(column)
        place = {level: at for at, level in enumerate(self.levels)}
        place |= dict.fromkeys(self.rest, len(self.levels))
        at = np.array([place.get(text, -1) for text in texts], dtype=np.int64)
        new = at < 0
        width = len(self.shares)
        if self.rest:
            at = np.where(new, width - 1, at)
        numbers = np.vstack([np.eye(width), self.shares])[at]  # -1 is the last row: the shares
        return Cells(numbers[:, : len(self.outputs)], new & empty, new & ~empty)

    @property
    def detail(self) -> str:
        """How many levels there are, and which have no column of their own."""
        if len(self.shares) < 2:
            return f"{self.levels[0]!r} in all rows"
        parts = [f"{len(self.levels) + len(self.rest)} levels"]
        if self.rest:
            few = f"{len(self.rest)} rare ones" if len(self.rest) > 1 else f"{self.rest[0]!r}, which is rare,"
            parts.append(f"{few} as {OTHER}")
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
    def outputs(self) -> tuple[str, ...]:
        """Return none."""
        return ()

    @property
    def spreads(self) -> tuple[float, ...]:
        """Return none."""
        return ()

    def encode(self, column: Any, wording: Wording) -> Cells:  # noqa: ARG002
        """Return no column."""
        none = np.zeros(len(column), dtype=bool)
        return Cells(np.empty((len(column), 0)), none, none)

    @property
    def detail(self) -> str:
        """Say why."""
        return self.reason
