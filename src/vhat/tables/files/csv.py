"""CSV files and their kin, strictly: every row has as many fields as the header, every refusal names its line."""

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
        gather = _Gather(self.name, self.columns, columns, rows)
        with _in_words(self.name), self.path.open("rb") as stream:
            header = self._after_header(stream)  # held to the end: a reader that is forgotten closes its stream
            if not _skip_lines(stream, header.line_num):
                again = self._after_header(stream)
                yield from _chunks(again, gather, 0)
                return
            line = yield from _chunks_of_lines(stream, self.separator, gather, header.line_num)
            # what is left has quotes: the csv module alone knows where its rows end
            rest = _reader(io.TextIOWrapper(stream, encoding="utf-8", newline=""), self.separator)
            yield from _chunks(rest, gather, line)

    def _after_header(self, stream: IO[bytes]) -> Reader:
        """Return a reader of a file from its beginning that has read the header."""
        stream.seek(0)
        reader = _reader(io.TextIOWrapper(stream, encoding=_ENCODING, newline=""), self.separator)
        # the columns are found by the header that was read before: this pass must have the same one
        if _column_names(_first(reader) or []) != self.columns:
            raise InputError(
                f"{self.name} was changed while it was read: its first line names other columns now. Ask again."
            )
        return reader

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
            yield from _chunks(self.reader, _Gather(self.name, self.columns, columns, rows), 0)

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


@dataclass
class _Gather:
    """Rows of a table until there are enough for a chunk; a record that is no row is refused by its line.

    Attributes:
        name: What messages call the table.
        known: All its columns.
        wanted: Those that are read.
        rows: How many rows a chunk has.
    """

    name: str
    known: Sequence[str]
    wanted: Sequence[str]
    rows: int
    records: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many rows are missing from a chunk."""
        return self.rows - len(self.records)

    def add(self, batch: list[list[str]], numbers: Sequence[int]) -> None:
        """Add records, which end on lines of these numbers."""
        if set(map(len, batch)) != {len(self.known)}:
            batch, numbers = _rows_only(batch, numbers, self.name, len(self.known))
        self.records += batch
        self.lines += numbers

    def take(self) -> Chunk:
        """Return the rows that were added, and begin anew."""
        place = {column: at for at, column in enumerate(self.known)}
        fields = list(zip(*self.records, strict=True))
        columns = {column: _column(fields[place[column]]) for column in self.wanted}
        chunk = Chunk(columns, np.array(self.lines), "line", self.name)
        self.records, self.lines = [], []
        return chunk


def _chunks(reader: Reader, gather: _Gather, before: int) -> Iterator[Chunk]:
    """Gather what a reader yields into chunks, after some lines that were read before."""
    while True:
        start = before + reader.line_num
        batch = list(islice(reader, gather.missing))
        if not batch:
            break
        gather.add(batch, _line_numbers(batch, start, before + reader.line_num))
        if not gather.missing:
            yield gather.take()
    if gather.records:
        yield gather.take()


def _chunks_of_lines(stream: IO[bytes], separator: str, gather: _Gather, line: int) -> Generator[Chunk, None, int]:
    """Yield chunks as long as every line is a row or blank, and return how many lines were read.

    The stream then stands at its end, or before a block of lines with quotes. Rows that are still missing from a chunk
    are left in ``gather``.
    """
    while True:
        start = stream.tell()
        lines = list(islice(stream, gather.missing))
        block = b"".join(lines).replace(b"\r\n", b"\n")
        if not lines or b'"' in block or b"\r" in block:
            stream.seek(start)
            return line
        numbers = range(line + 1, line + 1 + len(lines))
        cells = None if gather.records else split_lines(block, gather.known, gather.wanted, separator)
        if cells is not None:
            yield Chunk(cells, np.array(numbers), "line", gather.name)
        else:
            gather.add(list(_reader(io.StringIO(block.decode("utf-8"), newline=""), separator)), numbers)
        if not gather.missing:
            yield gather.take()
        line = numbers.stop - 1


def _skip_lines(stream: IO[bytes], lines: int) -> bool:
    """Read some lines from the beginning, and return whether all of them end in a line feed."""
    stream.seek(0)
    return b"\r" not in b"".join(islice(stream, lines)).replace(b"\r\n", b"\n")


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
