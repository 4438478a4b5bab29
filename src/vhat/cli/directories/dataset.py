"""The files of a directory that together are one table."""

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
_HIDDEN = ("_", ".")
"""First letters of names that are no data, as Spark, Hive and Arrow have it: ``_SUCCESS``, ``.part-0.crc``."""
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Partition:
    """One file of a directory of files.

    Attributes:
        root: The directory, an absolute path.
        name: The file's path within it, with forward slashes.
        size: Its bytes.
        modified: When it was last written, in nanoseconds.
        separator: What stands between the columns of a CSV file; None for the default.
    """

    root: str
    name: str
    size: int
    modified: int
    separator: str | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.root) / self.name

    @property
    def output(self) -> str:
        """The path of the file of its intervals within the directory of the result."""
        return str(PurePosixPath(self.name).with_suffix(".parquet"))

    @property
    def keys(self) -> dict[str, str | None]:
        """The columns that its directories state, as in ``year=2024/part-0.parquet``."""
        pairs = [part.split("=", maxsplit=1) for part in PurePosixPath(self.name).parent.parts if "=" in part]
        return {unquote(key): None if value == _NULL else unquote(value) for key, value in pairs}

    def check_unchanged(self) -> None:
        """Refuse a file that is not the one that was found.

        Raises:
            InputError: When it was removed or written to.
        """
        try:
            state = self.path.stat()
        except OSError:
            raise InputError(
                f"{self.path} is not there any more, or not on the machine that was to read it: every worker has to "
                "see data, model and output under the same names."
            ) from None
        if (state.st_size, state.st_mtime_ns) != (self.size, self.modified):
            raise InputError(f"{self.path} was written to since the files were listed. Ask again.")


def find_partitions(directory: Path, separator: str | None = None) -> list[Partition]:
    """Return the files of a directory and of the directories in it, sorted by name.

    Args:
        directory: Parquet and CSV files, at any depth; names that begin with ``_`` or ``.`` are passed over.
        separator: What stands between the columns of CSV files.

    Raises:
        InputError: For no files, for a file of another kind, and for two files whose results would have one name.
    """
    root = directory.resolve()
    found: list[Partition] = []
    outputs: dict[str, str] = {}
    for name in sorted(_names(root)):
        if not name.lower().endswith(_ENDINGS):
            raise InputError(
                f"{directory} holds {name}, which by its ending is neither Parquet nor CSV ({', '.join(_ENDINGS)}). "
                "Move it elsewhere; names that begin with _ or . are passed over."
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
    for folder, folders, files in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        for name in files:
            if not name.startswith(_HIDDEN):
                yield (Path(folder) / name).relative_to(root).as_posix()


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename} cannot be read: {error.strerror}.")


def open_partition(partition: Partition) -> TableFile:
    """Look at a file, with the columns that its directories state.

    Raises:
        InputError: When it cannot be read.
    """
    is_text = partition.path.suffix.lower() in (".csv", ".tsv")
    table = open_table(str(partition.path), partition.separator if is_text else None)
    stated = {key: value for key, value in partition.keys.items() if key not in table.columns}
    return _WithKeys(table, stated) if stated else table


@dataclass(frozen=True, eq=False)
class _WithKeys:
    """A file with columns that have one value in all of its rows; see :class:`vhat.tables.files.TableFile`."""

    table: TableFile
    stated: Mapping[str, str | None]

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.table.name

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, the stated ones last."""
        return (*self.table.columns, *self.stated)

    @property
    def rereadable(self) -> bool:
        """Whether the rows can be read more than once."""
        return self.table.rereadable

    @property
    def types(self) -> Mapping[str, Any]:
        """The types of the columns in the file."""
        return self.table.types

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Read some columns; where only stated ones are asked for, the file's first tells how many rows there are."""
        inside = [name for name in columns if name not in self.stated] or list(self.table.columns[:1])
        for chunk in self.table.chunks(inside, rows):
            stated = {name: np.full(len(chunk), value, dtype=object) for name, value in self.stated.items()}
            yield Chunk({**chunk.columns, **stated}, chunk.places, chunk.noun, chunk.table)

    def count(self) -> int:
        """Count the rows."""
        return self.table.count()
