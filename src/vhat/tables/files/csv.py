"""CSV files and their kin, strictly: every row has as many fields as the header, every refusal names its line."""

from __future__ import annotations

import csv
import io
import re
import reprlib
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import numpy as np

from vhat.errors import InputError
from vhat.tables.files.cells import Chunk
from vhat.tables.files.separators import WORDS, likely_other

if TYPE_CHECKING:
    from _csv import Reader

__all__ = ["DelimitedFile", "DelimitedStream", "open_delimited", "open_pipe", "open_standard_input"]

_ENCODING = "utf-8-sig"
"""UTF-8, with or without the mark that spreadsheets write first."""
_PARQUET_MAGIC = b"PAR1"
"""The first four bytes of every Parquet file."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_TAB = "\t"
_WORDS = {"tab": _TAB, "\\t": _TAB}


@dataclass(frozen=True)
class DelimitedFile:
    """A regular text file with one row a line; see :class:`vhat.tables.files.TableFile`.

    It is opened anew for every pass, so nothing stays open between them. A pipe must not come here: what the first
    pass has read is gone for the second. :class:`DelimitedStream` is for pipes.
    """

    path: Path
    separator: str
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.path)

    @property
    def rereadable(self) -> bool:
        """Return True: the file can be opened again."""
        return True

    @property
    def types(self) -> Mapping[str, Any]:
        """None: everything is text."""
        return {}

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Read some columns, ``rows`` rows at a time."""
        with _in_words(self.name), self.path.open(encoding=_ENCODING, newline="") as stream:
            reader = _reader(stream, self.separator)
            # the columns are found by the header that was read before: this pass must have the same one
            if _column_names(_first(reader) or []) != self.columns:
                raise InputError(
                    f"{self.name} was changed while it was read: its first line names other columns now. Ask again."
                )
            yield from _chunks(reader, self.name, self.columns, columns, rows)

    def count(self) -> int:
        """Count the rows in a pass over the file."""
        with _in_words(self.name), self.path.open(encoding=_ENCODING, newline="") as stream:
            return sum(1 for record in _reader(stream, self.separator) if not _is_blank(record)) - 1


@dataclass(eq=False)
class DelimitedStream:
    """Text with one row a line from a pipe, which can be read only once; see :class:`vhat.tables.files.TableFile`.

    Attributes:
        name: What messages call it.
        columns: The names of the columns; the header has been read.
        reader: Yields the records after the header, from the one stream that was opened.
        used: Whether the rows have been asked for.
    """

    name: str
    columns: tuple[str, ...]
    reader: Reader = field(repr=False)
    used: bool = False

    @property
    def rereadable(self) -> bool:
        """Return False: what has been read from a pipe is gone."""
        return False

    @property
    def types(self) -> Mapping[str, Any]:
        """None: everything is text."""
        return {}

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Read some columns, ``rows`` rows at a time; once.

        Raises:
            InputError: When the rows have been read or counted before.
        """
        self._use()
        with _in_words(self.name):
            yield from _chunks(self.reader, self.name, self.columns, columns, rows)

    def count(self) -> int:
        """Count the rows, which uses them up.

        Raises:
            InputError: When the rows have been read or counted before.
        """
        self._use()
        with _in_words(self.name):
            return sum(1 for record in self.reader if not _is_blank(record))

    def _use(self) -> None:
        if self.used:
            raise InputError(f"{self.name} can be read only once, and its rows have been read. Give a file.")
        self.used = True


def open_delimited(path: Path, separator: str) -> DelimitedFile:
    """Read the header of a regular CSV file."""
    separator = _one_character(separator)
    with _in_words(str(path)), path.open(encoding=_ENCODING, newline="") as stream:
        columns = _header(_reader(stream, separator), str(path), separator)
    return DelimitedFile(path, separator, columns)


def open_pipe(path: Path, separator: str) -> DelimitedStream:
    """Open a named pipe, a process substitution or a device once, and read the header; the rows follow when asked for.

    The stream is closed with the table that is returned.
    """
    separator = _one_character(separator)
    with _in_words(str(path)):
        stream = path.open("rb")
    try:
        table = _stream(str(path), stream, separator)
    except BaseException:
        stream.close()
        raise
    weakref.finalize(table, stream.close)
    return table


def open_standard_input(separator: str) -> DelimitedStream:
    """Read the header from standard input; the rows follow when they are asked for."""
    if sys.stdin is None:
        raise InputError("standard input is closed, so that there is no table to read. Give a file, or send one in.")
    return _stream("standard input", sys.stdin.buffer, _one_character(separator))


def _stream(name: str, stream: IO[bytes], separator: str) -> DelimitedStream:
    """Read the header; the reader that has read it, with all that it has buffered, goes on to read the rows."""
    with _in_words(name):
        _refuse_binary(name, stream)
        reader = _reader(io.TextIOWrapper(stream, encoding=_ENCODING, newline=""), separator)
        return DelimitedStream(name, _header(reader, name, separator), reader)


def _refuse_binary(name: str, stream: IO[bytes]) -> None:
    """Refuse what is no text by its first bytes.

    Parquet describes its columns at its end, so that it cannot be read in one pass. Zero bytes without a line end, such
    as a device gives without end, would be read into memory until there is none.
    """
    if not isinstance(stream, io.BufferedReader):
        return
    first = stream.peek(4)
    if first[:4] == _PARQUET_MAGIC:
        raise InputError(
            f"{name} holds Parquet, which is read from its end, and a pipe has to be read from its beginning. Save it "
            "to a file whose name ends in .parquet and give that, or send CSV."
        )
    if first[:1] == b"\0":
        raise InputError(f"{name} begins with a zero byte, which no text does. Give a CSV file in UTF-8.")


def _one_character(separator: str) -> str:
    separator = _WORDS.get(separator, separator)
    if len(separator) != 1 or separator in '"\r\n':
        raise InputError(f"--separator {separator!r} is not one character, such as ';', or the word tab.")
    return separator


def _reader(stream: TextIO, separator: str) -> Reader:
    return csv.reader(stream, delimiter=separator, skipinitialspace=True, strict=True)


def _header(reader: Reader, name: str, separator: str) -> tuple[str, ...]:
    """Read the names of the columns.

    Raises:
        InputError: When there is nothing, or one column that looks like several.
    """
    record = _first(reader)
    if record is None:
        raise InputError(f"{name} is empty. The first line must name the columns.")
    columns = _column_names(record)
    if len(columns) == 1:
        other = likely_other(columns)
        if other not in (None, separator):
            raise InputError(
                f"{name} has one column, {reprlib.repr(columns[0])}: its columns seem to stand between "
                f"{'tabs' if other == _TAB else repr(other)}. Give --separator {WORDS[other]}."
            )
    return columns


def _column_names(record: list[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in record)


def _first(reader: Reader) -> list[str] | None:
    """Read on to the first line that is not blank: the names of the columns."""
    return next((record for record in reader if not _is_blank(record)), None)


def _is_blank(record: list[str]) -> bool:
    return not record or (len(record) == 1 and not record[0].strip())


def _chunks(reader: Reader, name: str, known: Sequence[str], wanted: Sequence[str], rows: int) -> Iterator[Chunk]:
    """Gather records into chunks; a record that is no row of this table is refused by its line."""
    place = {column: at for at, column in enumerate(known)}
    at = [place[column] for column in wanted]
    records: list[list[str]] = []
    lines: list[int] = []
    while True:
        before = reader.line_num
        batch = list(islice(reader, rows - len(records)))
        if not batch:
            break
        numbers = _line_numbers(batch, before, reader.line_num)
        if set(map(len, batch)) != {len(known)}:
            batch, numbers = _rows_only(batch, numbers, name, len(known))
        records += batch
        lines += numbers
        if len(records) == rows:
            yield _chunk(records, lines, wanted, at, name)
            records, lines = [], []
    if records:
        yield _chunk(records, lines, wanted, at, name)


def _line_numbers(records: list[list[str]], before: int, after: int) -> Sequence[int]:
    """Return the line on which each record ends, of records that were read together: text in quotes may hold several.

    Args:
        records: The records.
        before: The last line that was read before them.
        after: The last line that was read.
    """
    if after - before == len(records):
        return range(before + 1, after + 1)
    spans = [1 + sum(len(_LINE_END.findall(field)) for field in record) for record in records]
    return list(accumulate(spans, initial=before))[1:]


def _rows_only(
    records: list[list[str]], lines: Sequence[int], name: str, columns: int
) -> tuple[list[list[str]], list[int]]:
    """Leave out blank lines.

    Raises:
        InputError: For a record with another number of fields than there are columns.
    """
    kept = []
    for number, (record, line) in enumerate(zip(records, lines, strict=True)):
        if len(record) == columns:
            kept.append(number)
        elif not _is_blank(record):
            raise InputError(
                f"{name}, line {line}: {len(record)} fields, where the first line names {columns} columns. Text that "
                "holds the separator must stand in double quotes."
            )
    return [records[number] for number in kept], [lines[number] for number in kept]


def _chunk(records: list[list[str]], lines: list[int], wanted: Sequence[str], at: list[int], name: str) -> Chunk:
    fields = list(zip(*records, strict=True))
    columns = {column: _column(fields[i]) for column, i in zip(wanted, at, strict=True)}
    return Chunk(columns, np.array(lines), "line", name)


def _column(cells: Sequence[str]) -> np.ndarray:
    found = np.empty(len(cells), dtype=object)
    found[:] = cells
    return found


@contextmanager
def _in_words(name: str) -> Iterator[None]:
    """Turn what reading raises into a sentence."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(
            f"{name} is not text in UTF-8. Save it as CSV in UTF-8; Parquet files end in .parquet."
        ) from None
    except csv.Error as error:
        raise InputError(f"{name} cannot be read as CSV: {error}. Check its quotes.") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}.") from None
