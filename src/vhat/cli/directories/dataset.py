"""The files of a directory, which together are one table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np

from vhat.errors import InputError
from vhat.tables.files import Chunk, TableFile, open_table

__all__ = ["Partition", "find_partitions", "open_partition"]

_ENDINGS = (".parquet", ".pq", ".csv", ".tsv")
"""Endings of the files that are read."""
_HIDDEN = ("_", ".")
"""First letters of files that are not data, as in Spark, Hive and Arrow: ``_SUCCESS``, ``.part-0.crc``."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""The name that Hive gives to a missing value in the name of a directory."""


@dataclass(frozen=True)
class Partition:
    """One file of a directory of files.

    Attributes:
        root: The directory, an absolute path.
        name: The path of the file in the directory, with forward slashes.
        size: The size of the file, in bytes.
        modified: The time of its last change, in nanoseconds.
        separator: The character between the columns of a CSV file; None for the default.
    """

    root: str
    name: str
    size: int
    modified: int
    separator: str | None = None

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return Path(self.root) / self.name

    @property
    def output(self) -> str:
        """Return the path of the file of its intervals, in the directory of the results."""
        return str(PurePosixPath(self.name).with_suffix(".parquet"))

    @property
    def keys(self) -> dict[str, str | None]:
        """Return the columns in the names of its directories, as in ``year=2024/part-0.parquet``, with their values."""
        keys: dict[str, str | None] = {}
        for part in PurePosixPath(self.name).parent.parts:
            key, sign, value = part.partition("=")
            if sign:
                keys[unquote(key)] = None if value == _NULL else unquote(value)
        return keys

    def check_unchanged(self) -> None:
        """Check that the file has not changed since the files were listed.

        Raises:
            InputError: If it was removed or written to.
        """
        try:
            state = self.path.stat()
        except OSError:
            raise InputError(
                f"{self.path} does not exist any more, or not on the machine that reads it: every worker needs the "
                "data, the model and the output under the same names."
            ) from None
        if (state.st_size, state.st_mtime_ns) != (self.size, self.modified):
            raise InputError(f"{self.path} was written to since the files were listed. Ask again.")


def find_partitions(directory: Path, separator: str | None = None) -> list[Partition]:
    """Return the files of a directory and of the directories in it, sorted by name.

    Args:
        directory: A directory of Parquet and CSV files, at any depth. Names that begin with ``_`` or ``.`` are skipped.
        separator: The character between the columns of CSV files.

    Raises:
        InputError: If there are no files, a file is of another kind, or the results of two files would have one name.
    """
    root = directory.resolve()
    found: list[Partition] = []
    outputs: dict[str, str] = {}
    for name in sorted(_names(root)):
        if not name.lower().endswith(_ENDINGS):
            raise InputError(
                f"{directory} holds {name}, which by its ending is neither Parquet nor CSV ({', '.join(_ENDINGS)}). "
                "Move it elsewhere; names that begin with _ or . are skipped."
            )
        state = (root / name).stat()
        part = Partition(str(root), name, state.st_size, state.st_mtime_ns, separator)
        if part.output in outputs:
            raise InputError(
                f"{directory} holds {outputs[part.output]} and {name}, whose intervals would both be written to "
                f"{part.output}. Rename one of them."
            )
        outputs[part.output] = name
        found.append(part)
    if not found:
        raise InputError(f"{directory} is a directory without Parquet or CSV files ({', '.join(_ENDINGS)}).")
    return found


def _names(root: Path) -> Iterator[str]:
    """Yield the paths of all files below a directory that are not hidden."""
    for folder, folders, files in os.walk(root, onerror=_raise_input_error):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]  # os.walk then skips the others
        for name in files:
            if not name.startswith(_HIDDEN):
                yield (Path(folder) / name).relative_to(root).as_posix()


def _raise_input_error(error: OSError) -> None:
    raise InputError(f"{error.filename} cannot be read: {error.strerror}.")


def open_partition(partition: Partition) -> TableFile:
    """Open a file as a table, with the columns in the names of its directories.

    Raises:
        InputError: If it cannot be read.
    """
    is_text = partition.path.suffix.lower() in (".csv", ".tsv")
    table = open_table(str(partition.path), partition.separator if is_text else None)
    keys = {key: value for key, value in partition.keys.items() if key not in table.columns}
    return _TableWithKeys(table, keys) if keys else table


@dataclass(frozen=True, eq=False)
class _TableWithKeys:
    """A table with further columns that have the same value in all rows; see :class:`vhat.tables.files.TableFile`.

    Attributes:
        table: The table in the file.
        keys: The further columns, from the names of directories, and their values.
    """

    table: TableFile
    keys: Mapping[str, str | None]

    @property
    def name(self) -> str:
        """Return the name of the table in messages."""
        return self.table.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of its columns, those from directories last."""
        return (*self.table.columns, *self.keys)

    @property
    def rereadable(self) -> bool:
        """Return whether the rows can be read more than once."""
        return self.table.rereadable

    @property
    def types(self) -> Mapping[str, Any]:
        """Return the types of the columns in the file."""
        return self.table.types

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Read some columns, ``rows`` rows at a time."""
        in_file = [name for name in columns if name not in self.keys]
        if not in_file:  # at least one column of the file has to be read, to know the number of rows
            in_file = list(self.table.columns[:1])
        for chunk in self.table.chunks(in_file, rows):
            constant = {name: np.full(len(chunk), value, dtype=object) for name, value in self.keys.items()}
            yield Chunk({**chunk.columns, **constant}, chunk.places, chunk.noun, chunk.table)

    def count(self) -> int:
        """Return the number of rows."""
        return self.table.count()
