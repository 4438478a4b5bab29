"""A table in a file, whatever its format."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vhat.errors import InputError
from vhat.tables.files.cells import Chunk
from vhat.tables.files.header import lacks_header
from vhat.tables.files.separators import WORDS, likely_other

__all__ = ["STANDARD_INPUT", "TableFile", "open_table", "read_all", "require_columns"]

STANDARD_INPUT = "-"
_PARQUET = (".parquet", ".pq")
_EXCEL = (".xlsx", ".xlsm", ".xls", ".ods")
_CHUNK = 65_536
_SHOWN = 12


class TableFile(Protocol):
    """A table that can be read in chunks."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, all different."""

    @property
    def rereadable(self) -> bool:
        """Whether the rows can be read more than once; those of a pipe cannot."""

    @property
    def types(self) -> Mapping[str, Any]:
        """The types of its columns, where the file states them: what a Parquet file made of them has to keep."""

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Read some columns, exactly ``rows`` rows at a time but for the last chunk; nothing where there are none."""

    def count(self) -> int:
        """Count the rows: a pass over the file where it does not say. The rows of a pipe are used up by it."""


def open_table(path: str, separator: str | None = None) -> TableFile:
    """Look at a table: whether it is there, its format and its columns.

    A regular file may be read several times. Anything else (standard input, a named pipe, ``<(command)`` of a shell, a
    device) is opened once, and the stream that gave the header goes on to give the rows.

    Args:
        path: A file, Parquet or Excel by its ending and CSV otherwise; ``-`` for CSV on standard input.
        separator: What stands between columns of a CSV file; None for a comma, or a tab in a ``.tsv`` file.

    Raises:
        InputError: When there is no such file, it is empty, its separator is another one, or its columns have no
            different names; and for Parquet from a pipe.
    """
    from vhat.tables.files.csv import open_delimited, open_pipe, open_standard_input

    if path == STANDARD_INPUT:
        return _checked(open_standard_input(separator or ","))
    file = Path(path)
    if not file.exists():
        raise InputError(f"there is no file {path}. Check the name; - stands for standard input.")
    if file.is_dir():
        raise InputError(f"{path} is a directory; give a CSV, Parquet or Excel file.")
    if file.suffix.lower() in _PARQUET:
        if separator is not None:
            raise InputError(f"--separator is for CSV files, and {path} is a Parquet file by its name.")
        if not file.is_file():
            raise InputError(
                f"{path} is a pipe or a device and, by its name, Parquet, which is read from its end: a pipe has to be "
                "read from its beginning. Save it to a file and give that, or send CSV under another name."
            )
        from vhat.tables.files.parquet import open_parquet

        return _checked(open_parquet(file))
    if file.suffix.lower() in _EXCEL:
        if separator is not None:
            raise InputError(f"--separator is for CSV files, and {path} is an Excel file by its name.")
        from vhat.tables.files.excel import open_excel

        return _checked(open_excel(file))
    separator = separator or ("\t" if file.suffix.lower() == ".tsv" else ",")
    if not file.is_file():
        return _checked(open_pipe(file, separator))
    return _checked(open_delimited(file, separator))


def _checked(table: TableFile) -> TableFile:
    if lacks_header(table.columns):
        shown = _listed(table.columns)
        example = ",".join(f"column{at}" for at in range(1, min(4, len(table.columns) + 1)))
        raise InputError(
            f"{table.name} seems to have no line that names its columns: its first line is {shown}. Write one above "
            f"it, such as {example}{',...' if len(table.columns) > 3 else ''}, and name the target by --target."
        )
    twice = sorted(name for name, count in Counter(table.columns).items() if count > 1)
    if twice:
        raise InputError(
            f"{table.name} has more than one column called {_listed(twice)}: which is meant cannot be "
            "told. Rename them."
        )
    return table


def require_columns(table: TableFile, names: Sequence[str], purpose: str) -> None:
    """Refuse a table without some columns.

    Args:
        table: The table.
        names: The columns that it must have.
        purpose: What they are needed for, to end the message's first clause.

    Raises:
        InputError: Naming those that are missing, and those that there are.
    """
    known = set(table.columns)
    missing = [name for name in names if name not in known]
    if missing:
        plural, other = "columns" if len(missing) > 1 else "column", likely_other(table.columns)
        raise InputError(
            f"{table.name} has no {plural} {_listed(missing)}, {purpose}."
            + _nearest(missing, table.columns)
            + f" Its columns are {_listed(table.columns)}."
            + ("" if other is None else f" If something else stands between them, give --separator {WORDS[other]}.")
        )


def _nearest(missing: Sequence[str], columns: Sequence[str]) -> str:
    """Ask whether columns of nearly the same name were meant, whatever their case; empty where there are none."""
    lower = {name.lower(): name for name in columns}
    found = [difflib.get_close_matches(name.lower(), lower, n=1) for name in missing]
    near = list(dict.fromkeys(lower[name] for matches in found for name in matches))
    return f" Did you mean {_listed(near)}?" if near else ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def read_all(table: TableFile, columns: Sequence[str]) -> Chunk:
    """Read some columns of the whole table.

    Raises:
        InputError: When it has no rows.
    """
    parts = list(table.chunks(columns, _CHUNK))
    if not parts:
        raise InputError(f"{table.name} has column names and no rows.")
    joined = {name: np.concatenate([part.columns[name] for part in parts]) for name in columns}
    return Chunk(joined, np.concatenate([part.places for part in parts]), parts[0].noun, table.name)
