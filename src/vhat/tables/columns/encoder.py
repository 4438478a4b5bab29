"""Encode the columns of a table: kinds are decided once, and are the same for every later row."""

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
    """Rows as inputs of the network.

    Attributes:
        numbers: (rows, inputs), finite.
        names: The names of the inputs.
        missing: By column of the table, the rows with a gap where training had none, as a mask.
        unknown: By column of the table, the rows with a level that was not in the training rows, as a mask.
    """

    numbers: np.ndarray
    names: tuple[str, ...]
    missing: Mapping[str, np.ndarray]
    unknown: Mapping[str, np.ndarray]

    @property
    def status(self) -> np.ndarray:
        """One text per row: ``missing cell``, ``unknown level``, or empty."""
        status = np.full(len(self.numbers), "", dtype=object)
        for rows in self.missing.values():
            status[rows] = MISSING
        for rows in self.unknown.values():
            status[rows] = UNKNOWN
        return status


@dataclass(frozen=True, repr=False)
class Columns:
    """How each column of a table is read; printed, one line per column.

    Attributes:
        columns: One entry per column, in the order of the table.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"area": ["83,5", "60,25", "71,0"], "note": ["a", "b", "c"], "floor": [2, 2, 2]})
        >>> Columns.of(frame)
        3 columns, 2 left out:
          area   number: decimal comma
          note   left out: text, 3 different in 3 rows
          floor  left out: the same in all rows
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
            asked: The kinds that the user asks for, by name: one of ``number``, ``decimal-point``, ``decimal-comma``,
                ``category``, ``date``, ``day-first``, ``month-first``, ``skip``.
            weights: Weight of each row, for medians; equal by default. Rows of weight 0 are ignored.
            wording: Words for messages.

        Raises:
            InputError: For a column that can be read in two ways, naming the option that decides; for unknown columns
                and kinds in ``asked``.
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

        Kinds are decided by all rows of a table. Medians and levels are those of the training rows alone: they must not
        depend on the rows that are held out.
        """
        if weights is None:
            weights = np.ones(len(frame))
        wording = wording or Wording()
        used = weights > 0
        rows = frame[used]
        return Columns(tuple(learned(column, rows[column.name], weights[used], wording) for column in self.columns))

    def take(self, names: Sequence[str]) -> Columns:
        """Return some of the columns."""
        by_name = {column.name: column for column in self.columns}
        return Columns(tuple(by_name[name] for name in names))

    def __getitem__(self, name: str) -> Column:
        return self.take([name]).columns[0]

    def __repr__(self) -> str:
        """Return one line per column: its kind, and how it is read."""
        left_out = sum(column.left_out for column in self.columns)
        count = f"{len(self.columns):,} {'column' if len(self.columns) == 1 else 'columns'}"
        width = max((len(name) for name in self.names), default=0)
        lines = [f"  {column.name:{width}}  {_line(column)}" for column in self.columns]
        return "\n".join([f"{count}, {left_out} left out:" if left_out else f"{count}:", *lines])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of the table."""
        return tuple(column.name for column in self.columns)

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of the columns that are not left out."""
        return tuple(column.name for column in self.columns if not isinstance(column, Skipped))

    @property
    def network_inputs(self) -> tuple[str, ...]:
        """The names of the inputs of the network that the columns become, all different."""
        names: dict[str, None] = {}
        for column in self.columns:
            for name in column.network_inputs:
                while name in names:  # a column of the table may have the name of a mark or a level
                    name += "'"  # noqa: PLW2901
                names[name] = None
        return tuple(names)

    @property
    def spreads(self) -> np.ndarray:
        """Divisor of each of these inputs after centring; NaN for its standard deviation."""
        return np.array([spread for column in self.columns for spread in column.spreads])

    @property
    def plain(self) -> bool:
        """Whether all columns are numbers without gaps, so that the inputs of the network are the columns."""
        return all(_is_plain(column) for column in self.columns)

    def encode(self, frame: Any, wording: Wording | None = None) -> Encoded:
        """Return rows as inputs of the network; the numbers of a row do not depend on the other rows.

        Args:
            frame: A pandas DataFrame with the columns of :attr:`needed`, in any order; others are ignored.
            wording: Words for messages.

        Raises:
            InputError: For columns that are missing, and cells that cannot be read.
        """
        wording = wording or Wording()
        position = {str(name): at for at, name in enumerate(frame.columns)}
        lacking = [name for name in self.needed if name not in position]
        if lacking:
            raise InputError(f"{wording.table} lacks the columns {lacking} of the training data.")
        cells = {}
        for column in self.columns:
            if not isinstance(column, Skipped):
                cells[column.name] = column.encode(frame.iloc[:, position[column.name]], wording)
        numbers = [each.numbers for each in cells.values()]
        return Encoded(
            np.hstack(numbers) if numbers else np.empty((len(frame), 0)),
            self.network_inputs,
            missing={name: each.missing for name, each in cells.items() if each.missing.any()},
            unknown={name: each.unknown for name, each in cells.items() if each.unknown.any()},
        )

    # -- on disk ---------------------------------------------------------------------------------
    def describe(self) -> list[dict[str, Any]]:
        """Return plain data from which :meth:`restore` makes the same columns."""
        return [{"kind": column.kind, **asdict(column)} for column in self.columns]

    @classmethod
    def restore(cls, saved: Sequence[Mapping[str, Any]]) -> Columns:
        """Return the columns that :meth:`describe` described."""
        return cls(tuple(_restored(dict(each)) for each in saved))


def _line(column: Column) -> str:
    """Return how a column is read, and a doubt about it, in words."""
    what = f"left out: {column.detail}" if column.left_out else column.told
    return f"{what} ({column.remark})" if column.remark else what


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
