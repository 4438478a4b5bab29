"""Write a table chunk by chunk; the file appears under its name when it is complete."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Literal, TextIO, cast

import numpy as np

from vhat.atomic_files import replacing
from vhat.errors import InputError
from vhat.tables.files.arrow_lines import lines_of
from vhat.tables.files.parquet import arrow

__all__ = ["Form", "Write", "check_output", "open_output"]

Columns = Mapping[str, np.ndarray]
Write = Callable[[Columns], None]
"""A function that writes rows, given as columns; every call must have the same columns."""
Form = Literal["csv", "tsv", "parquet", "jsonl"]
_FORMS: dict[str, Form] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}


def check_output(path: Path, *, force: bool) -> Form:
    """Return the format in which a file will be written, and refuse a bad path before any work is done.

    Args:
        path: The output.
        force: Whether an existing file may be replaced.

    Raises:
        InputError: If the path is a directory or an existing file, its directory does not exist, or its ending is
            unknown.
        MissingPackage: For Parquet, if pyarrow is not installed.
    """
    if path.is_dir():
        raise InputError(f"--out {path} is a directory; give the name of a file in it.")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: there is no directory {path.parent}. Make it first.")
    _refuse_existing(path, force)
    form = _FORMS.get(path.suffix.lower())
    if form is None and _is_device(path):
        return "csv"
    if form is None:
        known = ", ".join(dict.fromkeys(_FORMS))
        raise InputError(f"--out {path}: the format is told by the ending, which must be one of {known}.")
    if form == "parquet":
        arrow()
    return form


@contextmanager
def open_output(
    path: Path | None,
    form: Form,
    *,
    force: bool = False,
    types: Mapping[str, Any] | None = None,
    escape_formulas: bool = False,
) -> Iterator[Write]:
    """Yield a function that writes rows. The file takes its name when the block ends without an error.

    Rows go to a temporary file beside ``path``, which is renamed at the end: see :func:`vhat.atomic_files.replacing`.
    A device or a pipe is written to directly.

    Args:
        path: The output; None for standard output.
        form: The format.
        force: Whether to replace a file that was created in the meantime.
        types: The types of columns in a Parquet file, as :attr:`TableFile.types`. The type of any other column follows
            from its first rows, which tell none if they are all empty.
        escape_formulas: In CSV and TSV, put an apostrophe before text that a spreadsheet would run as a formula.

    Raises:
        InputError: If writing fails.
    """
    name = "standard output" if path is None else str(path)
    with _errors_in_words(name):
        if path is None:
            if sys.stdout is None:
                raise InputError("standard output is closed. Give --out a file, or send the output to one.")
            with _rows(sys.stdout.buffer, form, types, escape_formulas) as write:
                yield write
        elif _is_device(path):
            with path.open("wb") as device, _rows(device, form, types, escape_formulas) as write:
                yield write
        else:
            with replacing(path) as stream:
                with _rows(stream, form, types, escape_formulas) as write:
                    yield write
                _refuse_existing(path, force)  # once more: another program may have created it since


def _refuse_existing(path: Path, force: bool) -> None:
    """Refuse to replace a file without ``force``."""
    if path.exists() and not force and not _is_device(path):
        raise InputError(f"{path} exists and is not written over. Give another name, or --force.")


def _is_device(path: Path) -> bool:
    """Return whether a path is something other than a regular file: a device, a pipe or a directory."""
    return path.exists() and not path.is_file()


# -- formats -------------------------------------------------------------------------------------
def _rows(
    stream: IO[bytes], form: Form, types: Mapping[str, Any] | None, escape_formulas: bool
) -> AbstractContextManager[Write]:
    """Return a context that yields the function which writes rows of a format to a stream."""
    if form == "parquet":
        return _parquet(stream, types or {})
    if form == "jsonl":
        return _text(stream, _json_lines)
    separator = "\t" if form == "tsv" else ","
    return _text(stream, _delimited(separator, escape_formulas=escape_formulas))


def escaped(cell: Any) -> Any:
    """Return a cell with an apostrophe before text that a spreadsheet would run as a formula.

    Numbers are not changed, whether they are floats or text.

    Examples:
        >>> [escaped(cell) for cell in ("=1+1", "-2.5", "- 2", "@x", 3.0)]
        ["'=1+1", '-2.5', "'- 2", "'@x", 3.0]
    """
    if not isinstance(cell, str) or not cell.lstrip(" ").startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of text that spreadsheets run as a formula, or skip before they look for one."""


@contextmanager
def _text(stream: IO[bytes], start: Callable[[TextIO], Write]) -> Iterator[Write]:
    """Yield the function that writes rows as text in UTF-8.

    Args:
        stream: The output, which stays open.
        start: Returns the function, given a text stream.
    """
    text = io.TextIOWrapper(cast("io.BufferedWriter", stream), encoding="utf-8", newline="", write_through=False)
    try:
        yield start(text)
        text.flush()
    finally:
        with suppress(OSError, ValueError):  # the text was flushed above, unless an error is on its way
            text.detach()


def _delimited(separator: str, *, escape_formulas: bool) -> Callable[[TextIO], Write]:
    """Return what starts a CSV writer. A float has the shortest form that reads back as the same float, or is ``nan``.

    Args:
        separator: The character between cells.
        escape_formulas: Whether to put an apostrophe before formulas.
    """

    def start(text: TextIO) -> Write:
        writer = csv.writer(text, delimiter=separator, lineterminator="\n")
        header_written = False

        def write_header(names: list[str]) -> None:
            nonlocal header_written
            writer.writerow(map(escaped, names) if escape_formulas else names)
            header_written = True

        def write(columns: Columns) -> None:
            if not header_written:
                write_header(list(columns))
            if not escape_formulas:
                lines = lines_of(columns, separator)
                if lines is not None:
                    text.write(lines)
                    return
            cells = [values.tolist() for values in columns.values()]
            if escape_formulas:
                cells = [list(map(escaped, column)) for column in cells]
            writer.writerows(zip(*cells, strict=True))

        return write

    return start


def _json_lines(text: TextIO) -> Write:
    """Return the function that writes one JSON object a row, with null for NaN and infinity."""

    def write(columns: Columns) -> None:
        for row in zip(*(values.tolist() for values in columns.values()), strict=True):
            fields = {name: _json_value(value) for name, value in zip(columns, row, strict=True)}
            text.write(json.dumps(fields, default=str) + "\n")

    return write


def _json_value(value: Any) -> Any:
    """Return a value that JSON can hold: None for NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def _parquet(stream: IO[bytes], types: Mapping[str, Any]) -> Iterator[Write]:
    """Yield the function that writes rows as Parquet.

    Args:
        stream: The output, which stays open.
        types: The types of some columns; those of the others follow from the first rows.
    """
    pyarrow, parquet = arrow()
    writers: list[Any] = []  # one, created with the first rows, which determine the schema

    def write(columns: Columns) -> None:
        table = pyarrow.table({name: pyarrow.array(values, types.get(name)) for name, values in columns.items()})
        if not writers:
            writers.append(parquet.ParquetWriter(stream, table.schema))
        writers[0].write_table(table.cast(writers[0].schema))

    try:
        yield write
    finally:
        for writer in writers:
            # Where an error is on its way, a second one from closing must not replace it.
            with suppress(OSError) if sys.exc_info()[0] else nullcontext():
                writer.close()


_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk and of an exhausted quota."""


@contextmanager
def _errors_in_words(name: str) -> Iterator[None]:
    """Raise errors of the operating system as an :class:`InputError`, except for a closed pipe.

    Raises:
        InputError: With the name of the output and a remedy.
        BrokenPipeError: If the reader of a pipe has gone.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        remedy = "The disk is full: make room, or write elsewhere." if error.errno in _FULL else "Write elsewhere."
        raise InputError(f"{name} cannot be written: {error.strerror or error}. {remedy}") from None
