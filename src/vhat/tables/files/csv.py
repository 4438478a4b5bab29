"""Read CSV and other delimited text, strictly: every row has as many fields as the header; errors name the line.

Rows are read in chunks. Blocks of lines without quotes are split by pyarrow where that is safe
(:mod:`vhat.tables.files.arrow_cells`), and all others by Python's csv module: the cells are the same.
"""

from __future__ import annotations

import csv
import io
import re
import reprlib
import sys
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import numpy as np

from vhat.errors import InputError
from vhat.tables.files.arrow_cells import split_lines
from vhat.tables.files.cells import Chunk
from vhat.tables.files.separators import WORDS, likely_other

if TYPE_CHECKING:
    from _csv import Reader

__all__ = ["DelimitedFile", "DelimitedStream", "open_delimited", "open_pipe", "open_standard_input"]

_ENCODING = "utf-8-sig"
"""UTF-8, with or without the byte order mark that spreadsheets write."""
_PARQUET_MAGIC = b"PAR1"
"""The first four bytes of every Parquet file."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_TAB = "\t"
_WORDS = {"tab": _TAB, "\\t": _TAB}
"""Names that ``--separator`` takes for the tab."""


@dataclass(frozen=True)
class DelimitedFile:
    """A regular text file with one row a line; see :class:`vhat.tables.files.TableFile`.

    The file is opened again for every pass and is closed in between. It must not be a pipe, which can be read only
    once: see :class:`DelimitedStream`.
    """

    path: Path
    separator: str
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        """The path, for messages."""
        return str(self.path)

    @property
    def rereadable(self) -> bool:
        """True: the file can be opened again."""
        return True

    @property
    def types(self) -> Mapping[str, Any]:
        """None: everything is text."""
        return {}

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield some columns, ``rows`` rows at a time."""
        pending = _PendingRows(self.name, self.columns, columns, rows)
        with _errors_in_words(self.name), self.path.open("rb") as stream:
            # The variable keeps the reader alive to the end: a reader that is collected closes its stream.
            header = self._after_header(stream)
            if not _skip_lines(stream, header.line_num):
                # Carriage returns end the lines, and only the csv module counts such lines.
                again = self._after_header(stream)
                yield from _chunks_of_records(again, pending, 0)
                return
            line = yield from _chunks_of_lines(stream, self.separator, pending, header.line_num)
            # The rest holds quotes, so that only the csv module can tell where its rows end.
            rest = _reader(io.TextIOWrapper(stream, encoding="utf-8", newline=""), self.separator)
            yield from _chunks_of_records(rest, pending, line)

    def _after_header(self, stream: IO[bytes]) -> Reader:
        """Return a reader of the file from its beginning that has read the header.

        Raises:
            InputError: If the header is not the one that was read when the file was opened: columns are found by it.
        """
        stream.seek(0)
        reader = _reader(io.TextIOWrapper(stream, encoding=_ENCODING, newline=""), self.separator)
        if _column_names(_first(reader) or []) != self.columns:
            raise InputError(
                f"{self.name} was changed while it was read: its first line names other columns now. Ask again."
            )
        return reader

    def count(self) -> int:
        """Count the rows in a pass over the file."""
        with _errors_in_words(self.name), self.path.open(encoding=_ENCODING, newline="") as stream:
            return sum(1 for record in _reader(stream, self.separator) if not _is_blank(record)) - 1


@dataclass(eq=False)
class DelimitedStream:
    """Text with one row a line from a pipe, which can be read only once; see :class:`vhat.tables.files.TableFile`.

    Attributes:
        name: The name of the table in messages.
        columns: The names of the columns.
        reader: Yields the records after the header, from the stream from which the header was read.
        used: Whether the rows have been read or counted.
    """

    name: str
    columns: tuple[str, ...]
    reader: Reader = field(repr=False)
    used: bool = False

    @property
    def rereadable(self) -> bool:
        """False: a pipe can be read only once."""
        return False

    @property
    def types(self) -> Mapping[str, Any]:
        """None: everything is text."""
        return {}

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield some columns, ``rows`` rows at a time. The rows can be read only once.

        Raises:
            InputError: If the rows have been read or counted before.
        """
        self._use()
        with _errors_in_words(self.name):
            yield from _chunks_of_records(self.reader, _PendingRows(self.name, self.columns, columns, rows), 0)

    def count(self) -> int:
        """Count the rows, after which they cannot be read.

        Raises:
            InputError: If the rows have been read or counted before.
        """
        self._use()
        with _errors_in_words(self.name):
            return sum(1 for record in self.reader if not _is_blank(record))

    def _use(self) -> None:
        """Record that the rows are read; refuse to read them again."""
        if self.used:
            raise InputError(f"{self.name} can be read only once, and its rows have been read. Give a file.")
        self.used = True


def open_delimited(path: Path, separator: str) -> DelimitedFile:
    """Read the header of a regular CSV file."""
    separator = _one_character(separator)
    with _errors_in_words(str(path)), path.open(encoding=_ENCODING, newline="") as stream:
        columns = _header(_reader(stream, separator), str(path), separator)
    return DelimitedFile(path, separator, columns)


def open_pipe(path: Path, separator: str) -> DelimitedStream:
    """Open a named pipe, a process substitution or a device once, and read the header.

    The stream is closed when the returned table is collected.
    """
    separator = _one_character(separator)
    with _errors_in_words(str(path)):
        stream = path.open("rb")
    try:
        table = _stream(str(path), stream, separator)
    except BaseException:
        stream.close()
        raise
    weakref.finalize(table, stream.close)
    return table


def open_standard_input(separator: str) -> DelimitedStream:
    """Read the header from standard input.

    Raises:
        InputError: If standard input is closed.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed, so that there is no table to read. Give a file, or send one in.")
    return _stream("standard input", sys.stdin.buffer, _one_character(separator))


def _stream(name: str, stream: IO[bytes], separator: str) -> DelimitedStream:
    """Read the header, and keep its reader for the rows: it has buffered some of them."""
    with _errors_in_words(name):
        _refuse_binary(name, stream)
        reader = _reader(io.TextIOWrapper(stream, encoding=_ENCODING, newline=""), separator)
        return DelimitedStream(name, _header(reader, name, separator), reader)


def _refuse_binary(name: str, stream: IO[bytes]) -> None:
    """Refuse a stream whose first bytes are not text.

    Parquet describes its columns at its end, so that it cannot be read in one pass. A device may give zero bytes
    without an end and without a line end: reading a line of them would fill the memory.

    Raises:
        InputError: For Parquet, and for a zero byte.
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
    """Return the separator that an option names.

    Raises:
        InputError: If it is not one character, or a quote or a line end.
    """
    separator = _WORDS.get(separator, separator)
    if len(separator) != 1 or separator in '"\r\n':
        raise InputError(f"--separator {separator!r} is not one character, such as ';', or the word tab.")
    return separator


def _reader(stream: TextIO, separator: str) -> Reader:
    """Return a reader of the csv module that drops spaces before a cell and raises errors for malformed quotes."""
    return csv.reader(stream, delimiter=separator, skipinitialspace=True, strict=True)


def _header(reader: Reader, name: str, separator: str) -> tuple[str, ...]:
    """Read the names of the columns.

    Raises:
        InputError: If the table is empty, or has one column whose name holds another separator.
    """
    record = _first(reader)
    if record is None:
        raise InputError(f"{name} is empty. The first line must name the columns.")
    columns = _column_names(record)
    if len(columns) == 1:
        other = likely_other(columns)
        if other not in (None, separator):
            shown = "tabs" if other == _TAB else repr(other)
            raise InputError(
                f"{name} has one column, {reprlib.repr(columns[0])}: its columns seem to stand between "
                f"{shown}. Give --separator {WORDS[other]}."
            )
    return columns


def _column_names(record: list[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in record)


def _first(reader: Reader) -> list[str] | None:
    """Return the first record that is not blank, which names the columns; None if there is none."""
    return next((record for record in reader if not _is_blank(record)), None)


def _is_blank(record: list[str]) -> bool:
    """Return whether a record comes from a blank line."""
    return not record or (len(record) == 1 and not record[0].strip())


@dataclass
class _PendingRows:
    """Rows that were split by the csv module, collected until there are enough for a chunk.

    Attributes:
        name: The name of the table in messages.
        known: All columns of the table.
        wanted: The columns that are read.
        rows: Rows of a chunk.
        records: The fields of each row.
        lines: The line on which each row ends.
    """

    name: str
    known: Sequence[str]
    wanted: Sequence[str]
    rows: int
    records: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """The number of rows that a full chunk still lacks."""
        return self.rows - len(self.records)

    def add(self, batch: list[list[str]], numbers: Sequence[int]) -> None:
        """Add records that end on the given lines.

        Raises:
            InputError: For a record with another number of fields than there are columns.
        """
        if set(map(len, batch)) != {len(self.known)}:
            batch, numbers = _rows_only(batch, numbers, self.name, len(self.known))
        self.records += batch
        self.lines += numbers

    def take(self) -> Chunk:
        """Return the collected rows as a chunk, and remove them."""
        place = {column: at for at, column in enumerate(self.known)}
        fields = list(zip(*self.records, strict=True))
        columns = {column: _column(fields[place[column]]) for column in self.wanted}
        chunk = Chunk(columns, np.array(self.lines), "line", self.name)
        self.records = []
        self.lines = []
        return chunk


def _chunks_of_records(reader: Reader, pending: _PendingRows, before: int) -> Iterator[Chunk]:
    """Yield chunks of the records of a reader, and at the end the rows that are left.

    Args:
        reader: The reader.
        pending: Rows that were read before, which begin the first chunk.
        before: Lines of the file before the first line of the reader.
    """
    while True:
        start = before + reader.line_num
        batch = list(islice(reader, pending.missing))
        if not batch:
            break
        pending.add(batch, _line_numbers(batch, start, before + reader.line_num))
        if not pending.missing:
            yield pending.take()
    if pending.records:
        yield pending.take()


def _chunks_of_lines(
    stream: IO[bytes], separator: str, pending: _PendingRows, line: int
) -> Generator[Chunk, None, int]:
    """Yield chunks as long as every line is one row or blank, and return the number of lines that were read.

    At the end the stream is at the end of the file, or before a block of lines with quotes. Rows that do not fill a
    chunk are left in ``pending``.

    Args:
        stream: The file, after the header.
        separator: The character between cells.
        pending: The rows of a chunk that is not full yet.
        line: Lines of the file before the stream's position.
    """
    while True:
        start = stream.tell()
        lines = list(islice(stream, pending.missing))
        block = b"".join(lines)
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        if not lines or b'"' in block or b"\r" in block:
            stream.seek(start)
            return line
        numbers = range(line + 1, line + 1 + len(lines))
        cells = None if pending.records else split_lines(block, pending.known, pending.wanted, separator)
        if cells is not None:
            yield Chunk(cells, np.array(numbers), "line", pending.name)
        else:
            pending.add(list(_reader(io.StringIO(block.decode("utf-8"), newline=""), separator)), numbers)
        if not pending.missing:
            yield pending.take()
        line = numbers.stop - 1


def _skip_lines(stream: IO[bytes], lines: int) -> bool:
    """Move to the end of the first lines of a file, and return whether no carriage return alone ends a line there."""
    stream.seek(0)
    return b"\r" not in b"".join(islice(stream, lines)).replace(b"\r\n", b"\n")


def _line_numbers(records: list[list[str]], before: int, after: int) -> Sequence[int]:
    """Return the line on which each record ends. A record spans several lines where a quoted cell holds line ends.

    Args:
        records: Consecutive records.
        before: Number of the last line before them.
        after: Number of their last line.
    """
    if after - before == len(records):
        return range(before + 1, after + 1)
    spans = [1 + sum(len(_LINE_END.findall(field)) for field in record) for record in records]
    return list(accumulate(spans, initial=before))[1:]


def _rows_only(
    records: list[list[str]], lines: Sequence[int], name: str, columns: int
) -> tuple[list[list[str]], list[int]]:
    """Return the records that are rows, and their lines; blank lines are left out.

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


def _column(cells: Sequence[str]) -> np.ndarray:
    """Return texts as an array of objects, (rows,)."""
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column


@contextmanager
def _errors_in_words(name: str) -> Iterator[None]:
    """Raise errors of reading as an :class:`InputError` that names the table.

    Raises:
        InputError: For bytes that are not UTF-8, malformed quotes, and errors of the operating system.
    """
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
