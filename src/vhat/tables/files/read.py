"""Open a table in a file of any format."""

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
"""The path that stands for standard input."""
_PARQUET = (".parquet", ".pq")
_EXCEL = (".xlsx", ".xlsm", ".xls", ".ods")
_CHUNK_ROWS = 65_536
"""Rows of a chunk where the whole table is read."""
_MOST_NAMES = 12
"""The most names of columns that a message lists."""


class TableFile(Protocol):
    """A table that can be read in chunks."""

    @property
    def name(self) -> str:
        """The name of the table in messages."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, all different."""

    @property
    def rereadable(self) -> bool:
        """Whether the rows can be read more than once; the rows of a pipe cannot."""

    @property
    def types(self) -> Mapping[str, Any]:
        """The types of the columns where the file states them. A Parquet file with these columns keeps the types."""

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield some columns in chunks of exactly ``rows`` rows, except for the last; no chunk if there are no rows."""

    def count(self) -> int:
        """Return the number of rows, by a pass over the file unless the file states it. This uses up a pipe."""


def open_table(path: str, separator: str | None = None) -> TableFile:
    """Open a table: check that it exists, find its format and read the names of its columns.

    A regular file may be read several times. Anything else (standard input, a named pipe, ``<(command)`` of a shell, a
    device) is opened once: the rows are read from the stream from which the header was read.

    Args:
        path: A file, Parquet or Excel by its ending and CSV otherwise; ``-`` for CSV on standard input.
        separator: The character between columns of a CSV file; None for a comma, or a tab in a ``.tsv`` file.

    Raises:
        InputError: If the file does not exist or is empty, if its separator seems to be another one, if the first line
            does not name the columns or two columns have one name; and for Parquet from a pipe.
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
    if not separator:
        separator = "\t" if file.suffix.lower() == ".tsv" else ","
    if not file.is_file():
        return _checked(open_pipe(file, separator))
    return _checked(open_delimited(file, separator))


def _checked(table: TableFile) -> TableFile:
    """Return the table if its first line names the columns and all names differ.

    Raises:
        InputError: If not.
    """
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
    """Refuse a table in which required columns are missing.

    Args:
        table: The table.
        names: The required columns.
        purpose: What they are needed for; the message continues with it after their names.

    Raises:
        InputError: Naming the missing columns and the columns of the table.
    """
    known = set(table.columns)
    missing = [name for name in names if name not in known]
    if not missing:
        return
    noun = "columns" if len(missing) > 1 else "column"
    message = (
        f"{table.name} has no {noun} {_listed(missing)}, {purpose}.{_similar(missing, table.columns)} "
        f"Its columns are {_listed(table.columns)}."
    )
    separator = likely_other(table.columns)
    if separator is not None:
        message += f" If something else stands between them, give --separator {WORDS[separator]}."
    raise InputError(message)


def _similar(missing: Sequence[str], columns: Sequence[str]) -> str:
    """Return a question that suggests columns with similar names, in any case; empty if there are none."""
    lower = {name.lower(): name for name in columns}
    matches = [difflib.get_close_matches(name.lower(), lower, n=1) for name in missing]
    near = list(dict.fromkeys(lower[name] for found in matches for name in found))
    if not near:
        return ""
    return f" Did you mean {_listed(near)}?"


def _listed(names: Sequence[str]) -> str:
    """Return the first names, quoted and with commas between them, and the number of further names."""
    listed = ", ".join(map(repr, names[:_MOST_NAMES]))
    if len(names) > _MOST_NAMES:
        listed += f" and {len(names) - _MOST_NAMES} more"
    return listed


def read_all(table: TableFile, columns: Sequence[str]) -> Chunk:
    """Read some columns of the whole table.

    Raises:
        InputError: If it has no rows.
    """
    parts = list(table.chunks(columns, _CHUNK_ROWS))
    if not parts:
        raise InputError(f"{table.name} has column names and no rows.")
    joined = {name: np.concatenate([part.columns[name] for part in parts]) for name in columns}
    return Chunk(joined, np.concatenate([part.places for part in parts]), parts[0].noun, table.name)
