"""CSV files and their kin, strictly: every row has as many fields as the header, every refusal names its line."""

from __future__ import annotations

import csv
import io
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from vhat.errors import InputError
from vhat.table_files.chunk import Chunk
from vhat.table_files.separators import WORDS, likely_other

if TYPE_CHECKING:
    from _csv import Reader

__all__ = ["DelimitedFile", "StandardInput", "open_delimited", "read_standard_input"]

_ENCODING = "utf-8-sig"
"""UTF-8, with or without the mark that spreadsheets write first."""
_TAB = "\t"
_WORDS = {"tab": _TAB, "\\t": _TAB}


@dataclass(frozen=True)
class DelimitedFile:
    """A text file with one row a line; see :class:`vhat.table_files.TableFile`."""

    path: Path
    separator: str
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.path)

    @property
    def types(self) -> Mapping[str, Any]:
        """None: everything is text."""
        return {}

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Read some columns, ``rows`` rows at a time."""
        with _in_words(self.name), self.path.open(encoding=_ENCODING, newline="") as stream:
            reader = _reader(stream, self.separator)
            _first(reader)
            yield from _chunks(reader, self.name, self.columns, columns, rows)

    def count(self) -> int:
        """Count the rows in a pass over the file."""
        with _in_words(self.name), self.path.open(encoding=_ENCODING, newline="") as stream:
            return sum(1 for record in _reader(stream, self.separator) if not _is_blank(record)) - 1


@dataclass(frozen=True)
class StandardInput:
    """CSV on standard input, to be read once; see :class:`vhat.table_files.TableFile`."""

    columns: tuple[str, ...]
    reader: Reader = field(repr=False)
    name: str = "standard input"

    @property
    def types(self) -> Mapping[str, Any]:
        """None: everything is text."""
        return {}

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Read some columns, ``rows`` rows at a time."""
        with _in_words(self.name):
            yield from _chunks(self.reader, self.name, self.columns, columns, rows)

    def count(self) -> int:
        """Refuse: what has been counted could not be read again."""
        raise InputError("standard input can be read only once, so its rows cannot be counted first. Give a file.")


def open_delimited(path: Path, separator: str) -> DelimitedFile:
    """Look at a CSV file."""
    separator = _one_character(separator)
    with _in_words(str(path)), path.open(encoding=_ENCODING, newline="") as stream:
        columns = _header(_reader(stream, separator), str(path), separator)
    return DelimitedFile(path, separator, columns)


def read_standard_input(separator: str) -> StandardInput:
    """Read the header from standard input; the rows follow when they are asked for."""
    separator = _one_character(separator)
    with _in_words("standard input"):
        reader = _reader(io.TextIOWrapper(sys.stdin.buffer, encoding=_ENCODING, newline=""), separator)
        return StandardInput(_header(reader, "standard input", separator), reader)


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
    columns = tuple(field.strip() for field in record)
    if len(columns) == 1:
        other = likely_other(columns)
        if other not in (None, separator):
            raise InputError(
                f"{name} has one column, {reprlib.repr(columns[0])}: its columns seem to stand between "
                f"{'tabs' if other == _TAB else repr(other)}. Give --separator {WORDS[other]}."
            )
    return columns


def _first(reader: Reader) -> list[str] | None:
    """Read on to the first line that is not blank: the names of the columns."""
    return next((record for record in reader if not _is_blank(record)), None)


def _is_blank(record: list[str]) -> bool:
    return not record or (len(record) == 1 and not record[0].strip())


def _chunks(reader: Reader, name: str, known: Sequence[str], wanted: Sequence[str], rows: int) -> Iterator[Chunk]:
    """Gather records into chunks; a record that is no row of this table is refused by its line."""
    at = [known.index(column) for column in wanted]
    records: list[list[str]] = []
    lines: list[int] = []
    for record in reader:
        if len(record) != len(known):
            if _is_blank(record):
                continue
            raise InputError(
                f"{name}, line {reader.line_num}: {len(record)} fields, where the first line names {len(known)} "
                "columns. Text that holds the separator must stand in double quotes."
            )
        records.append(record)
        lines.append(reader.line_num)
        if len(records) == rows:
            yield _chunk(records, lines, wanted, at, name)
            records, lines = [], []
    if records:
        yield _chunk(records, lines, wanted, at, name)


def _chunk(records: list[list[str]], lines: list[int], wanted: Sequence[str], at: list[int], name: str) -> Chunk:
    columns = {
        column: np.array([record[i] for record in records], dtype=object) for column, i in zip(wanted, at, strict=True)
    }
    return Chunk(columns, np.array(lines), "line", name)


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
