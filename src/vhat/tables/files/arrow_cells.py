"""Split lines of CSV into cells with pyarrow, about five times as fast as Python's csv module.

Only blocks of whole lines without quotes are split here, so that every line is a row and every separator ends a cell:
the cells are then those of the csv module. They stay text in pyarrow's memory, and are converted to Python objects or
numbers when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["ArrowCells", "split_lines"]

_MANY_BYTES = 100_000
"""Bytes of a block from which splitting saves more time than importing pyarrow takes, a third of a second."""
_ODD_BYTES = (b'"', b"\r", b"\x00")
"""Bytes of blocks that are left to the csv module: quotes may hold separators and line ends, a carriage return alone
ends a line, and a zero byte may end a text."""


@dataclass(frozen=True, eq=False)
class ArrowCells(Mapping[str, np.ndarray]):
    """The columns of some rows: a mapping from names to arrays of text, each made when it is accessed.

    Attributes:
        table: The columns as a table of pyarrow, all of type string.
    """

    table: Any = field(repr=False)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.table.column_names:
            raise KeyError(name)
        return np.asarray(self.table.column(name).to_numpy(), dtype=object)

    def __iter__(self) -> Iterator[str]:
        return iter(self.table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_columns)

    def numbers(self, name: str) -> np.ndarray | None:
        """Return a column in float64, rounded correctly as by ``float``; None if pyarrow cannot read a cell."""
        import pyarrow

        try:
            numbers: np.ndarray = self.table.column(name).cast(pyarrow.float64()).to_numpy()
        except pyarrow.ArrowInvalid:
            return None
        return numbers


def split_lines(block: bytes, known: Sequence[str], wanted: Sequence[str], separator: str) -> ArrowCells | None:
    """Return the cells of whole lines; None if the csv module must read them, or pyarrow is not installed.

    Args:
        block: The lines, without the header.
        known: All columns of the file.
        wanted: The columns that are read.
        separator: The character between cells.
    """
    if len(block) < _MANY_BYTES or not _is_simple(block, separator):
        return None
    try:
        import pyarrow
        from pyarrow import csv
    except ImportError:
        return None
    try:
        table = csv.read_csv(
            pyarrow.BufferReader(block),
            # All lines in one block of pyarrow: the end of a smaller block would lie within a line.
            csv.ReadOptions(column_names=list(known), use_threads=False, block_size=len(block) + 1),
            csv.ParseOptions(delimiter=separator, quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pyarrow.string()),
                include_columns=list(wanted),
                strings_can_be_null=False,
            ),
        )
    except pyarrow.ArrowException:  # a blank line, or one with too few or too many cells
        return None
    return ArrowCells(table)


def _is_simple(block: bytes, separator: str) -> bool:
    """Return whether the csv module would split the block at every separator and line end, and drop nothing."""
    if not separator.isascii() or (separator.isspace() and separator != "\t"):
        return False
    if any(odd in block for odd in _ODD_BYTES):
        return False
    if block.startswith(b"\n") or b"\n\n" in block:  # pyarrow may read a blank line as a row of empty cells
        return False
    # The csv module drops spaces at the beginning of a cell. Most blocks have no spaces, and the search for one byte is
    # much faster than the search for two of which the first occurs in every cell.
    begins_with_space = (b"\n ", separator.encode() + b" ")
    if b" " in block and (block.startswith(b" ") or any(start in block for start in begins_with_space)):
        return False
    return block.isascii() or _is_utf8(block)  # in another encoding, the csv module's reader raises the error


def _is_utf8(block: bytes) -> bool:
    """Return whether bytes are text in UTF-8."""
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
