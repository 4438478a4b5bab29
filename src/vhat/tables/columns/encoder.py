"""The columns of a table together: decided once, and the same for every row that comes later."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vhat.errors import InputError
from vhat.schema import build
from vhat.tables.columns.decide import KINDS, decide
from vhat.tables.columns.kinds import MISSING, UNKNOWN, Category, Column, Date, Flag, Number, Skipped
from vhat.tables.columns.learn import learned
from vhat.tables.columns.notation import PLAIN, Notation
from vhat.tables.columns.wording import Wording

__all__ = ["Columns", "Encoded"]

_KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Number, Date, Flag, Category, Skipped)}


@dataclass(frozen=True, eq=False)
class Encoded:
    """Rows as the model sees them.

    Attributes:
        numbers: (rows, columns), finite unless a cell was infinite.
        names: The names of the columns.
        missing: By column of the table, the rows with a gap of which training knew nothing.
        unknown: By column of the table, the rows with a level of which training knew nothing.
    """

    numbers: np.ndarray
    names: tuple[str, ...]
    missing: Mapping[str, np.ndarray]
    unknown: Mapping[str, np.ndarray]

    @property
    def status(self) -> np.ndarray:
        """One text a row: ``missing cell``, ``unknown level``, or nothing."""
        found = np.full(len(self.numbers), "", dtype=object)
        for rows in self.missing.values():
            found[rows] = MISSING
        for rows in self.unknown.values():
            found[rows] = UNKNOWN
        return found


@dataclass(frozen=True)
class Columns:
    """How each column of a table is read.

    Attributes:
        columns: One entry a column, in the order of the table.
    """

    columns: tuple[Column, ...]

    @classmethod
    def of(
        cls,
        frame: Any,
        asked: Mapping[str, str] | None = None,
        *,
        weights: np.ndarray | None = None,
        wording: Wording | None = None,
    ) -> Columns:
        """Decide how to read the columns of a data frame, by all of its cells.

        Args:
            frame: A pandas DataFrame.
            asked: What the user says of some columns: one of ``number``, ``decimal-point``, ``decimal-comma``,
                ``category``, ``date``, ``day-first``, ``month-first``, ``skip``.
            weights: How much each row counts, for medians; all alike by default. Rows of weight 0 are not looked at.
            wording: Words for messages.

        Raises:
            InputError: For a column that can be read in two ways, naming the option that decides; for columns and
                kinds that there are not.
        """
        wording = wording or Wording()
        names = [str(name) for name in frame.columns]
        _check_asked(asked or {}, names, wording)
        if weights is None:
            weights = np.ones(len(frame))
        table = {name: frame.iloc[:, at] for at, name in enumerate(names)}
        if not weights.all():
            table = {name: series[weights > 0] for name, series in table.items()}
        return cls(tuple(decide(table, asked or {}, weights[weights > 0], wording).values()))

    def relearned(self, frame: Any, weights: np.ndarray | None = None, wording: Wording | None = None) -> Columns:
        """Return columns of the same kinds, with the medians and levels of other rows.

        A table is read alike in all of its rows; what is learned from it must not know the rows that are kept apart.
        """
        weights = np.ones(len(frame)) if weights is None else weights
        counted = frame[weights > 0]
        parts = (
            learned(column, counted[column.name], weights[weights > 0], wording or Wording()) for column in self.columns
        )
        return Columns(tuple(parts))

    def take(self, names: Sequence[str]) -> Columns:
        """Return some of the columns."""
        known = {column.name: column for column in self.columns}
        return Columns(tuple(known[name] for name in names))

    def __getitem__(self, name: str) -> Column:
        return self.take([name]).columns[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of the table."""
        return tuple(column.name for column in self.columns)

    @property
    def needed(self) -> tuple[str, ...]:
        """Those of them that are not left out."""
        return tuple(column.name for column in self.columns if not isinstance(column, Skipped))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the columns that the model sees, all different."""
        names: dict[str, None] = {}
        for column in self.columns:
            for name in column.outputs:
                while name in names:  # a column of the table may be called as a mark or a level is
                    name += "'"  # noqa: PLW2901
                names[name] = None
        return tuple(names)

    @property
    def spreads(self) -> np.ndarray:
        """What each of these is divided by once it is centred; NaN for its standard deviation."""
        return np.array([spread for column in self.columns for spread in column.spreads])

    @property
    def plain(self) -> bool:
        """Whether the table was numbers without gaps: the model sees its columns as they are."""
        return all(_is_plain(column) for column in self.columns)

    def encode(self, frame: Any, wording: Wording | None = None) -> Encoded:
        """Return rows as the model sees them. A row's numbers do not depend on the rows beside it.

        Args:
            frame: A pandas DataFrame with the columns that are needed, in any order, others beside them.
            wording: Words for messages.

        Raises:
            InputError: For columns that are missing, and cells that cannot be read.
        """
        wording = wording or Wording()
        known = {str(name): at for at, name in enumerate(frame.columns)}
        lacking = [name for name in self.needed if name not in known]
        if lacking:
            raise InputError(f"{wording.table} lacks the columns {lacking} of the training data.")
        parts = {
            column.name: column.encode(frame.iloc[:, known[column.name]], wording)
            for column in self.columns
            if not isinstance(column, Skipped)
        }
        numbers = [part.numbers for part in parts.values()]
        return Encoded(
            np.hstack(numbers) if numbers else np.empty((len(frame), 0)),
            self.outputs,
            {name: part.missing for name, part in parts.items() if part.missing.any()},
            {name: part.unknown for name, part in parts.items() if part.unknown.any()},
        )

    # -- on disk ---------------------------------------------------------------------------------
    def describe(self) -> list[dict[str, Any]]:
        """Return plain data from which :meth:`restore` makes the same columns."""
        return [{"kind": column.kind, **asdict(column)} for column in self.columns]

    @classmethod
    def restore(cls, saved: Sequence[Mapping[str, Any]]) -> Columns:
        """Make columns of what :meth:`describe` returned."""
        return cls(tuple(_restored(dict(each)) for each in saved))


def _is_plain(column: Column) -> bool:
    if isinstance(column, Flag):
        return not column.gaps and column.yes == "true"
    return isinstance(column, Number) and not column.gaps and column.notation == PLAIN


def _restored(saved: dict[str, Any]) -> Column:
    kind = _KINDS[saved.pop("kind")]
    if kind is Number:
        saved["notation"] = build(Notation, saved["notation"])
    for name in ("levels", "shares", "rest"):
        if name in saved:
            saved[name] = tuple(saved[name])
    return build(kind, saved)


def _check_asked(asked: Mapping[str, str], names: Sequence[str], wording: Wording) -> None:
    for name, kind in asked.items():
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Its columns are {', '.join(map(repr, names[:12]))}."
            raise InputError(f"{wording.override(name, kind)}: {wording.table} has no column {name!r}.{hint}")
        if kind not in KINDS:
            raise InputError(f"{wording.override(name, kind)}: a column is one of {', '.join(KINDS)}.")
