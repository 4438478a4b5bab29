"""A table written chunk by chunk: at its place when it is complete, and never half."""

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
"""Writes some rows, given by columns; every call has the same columns."""
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
    """Say in which format a file will be written, before any work is done for it.

    Args:
        path: Where to.
        force: Whether a file that is there may be replaced.

    Raises:
        InputError: For a file that exists, a directory, a folder that is not there, and an unknown ending.
        MissingPackage: For Parquet without pyarrow.
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
    """Yield a function that writes rows; what it has written is in its place once the block ends without an error.

    Rows go to a temporary file beside ``path``, which is renamed at the end: see :func:`vhat.atomic_files.replacing`.

    Args:
        path: Where to; None for standard output, and a device or a pipe is written to directly.
        form: The format.
        force: Whether to replace a file that has come into being in the meantime.
        types: The types that columns have in a Parquet file, as :attr:`TableFile.types`; those of others are told by
            their first rows, which is not enough where these may be empty.
        escape_formulas: In CSV and TSV, put an apostrophe before text that a spreadsheet would run as a formula.

    Raises:
        InputError: When writing fails; a full disk is said in words.
    """
    name = "standard output" if path is None else str(path)
    with _in_words(name):
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
                _refuse_existing(path, force)  # again: the rows may have taken hours


def _refuse_existing(path: Path, force: bool) -> None:
    if path.exists() and not force and not _is_device(path):
        raise InputError(f"{path} exists and is not written over. Give another name, or --force.")


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file()


# -- formats -------------------------------------------------------------------------------------
def _rows(
    stream: IO[bytes], form: Form, types: Mapping[str, Any] | None, escape_formulas: bool
) -> AbstractContextManager[Write]:
    if form == "parquet":
        return _parquet(stream, types or {})
    if form == "jsonl":
        return _text(stream, _json_lines)
    return _text(stream, _delimited("\t" if form == "tsv" else ",", escaped if escape_formulas else _as_it_is))


def _as_it_is(cell: Any) -> Any:
    return cell


def escaped(cell: Any) -> Any:
    """Return a cell that no spreadsheet runs as a formula: an apostrophe before text that begins like one.

    Numbers stay as they are, also where they are text.

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
"""What text begins with that spreadsheets run, or skip before they look for a formula."""


@contextmanager
def _text(stream: IO[bytes], start: Callable[[TextIO], Write]) -> Iterator[Write]:
    """Encode text on its way to a stream that stays open."""
    text = io.TextIOWrapper(cast("io.BufferedWriter", stream), encoding="utf-8", newline="", write_through=False)
    try:
        yield start(text)
        text.flush()
    finally:
        with suppress(OSError, ValueError):  # what had to be written was flushed above
            text.detach()


def _delimited(separator: str, cell: Callable[[Any], Any]) -> Callable[[TextIO], Write]:
    """Comma or tab: floats in the shortest form that reads back as the same float, ``nan`` where there is none."""

    def start(text: TextIO) -> Write:
        writer = csv.writer(text, delimiter=separator, lineterminator="\n")
        named = False

        def write(columns: Columns) -> None:
            nonlocal named
            if not named:
                writer.writerow(map(cell, columns))
                named = True
            if cell is _as_it_is:
                lines = lines_of(columns, separator)
                if lines is not None:
                    text.write(lines)
                    return
            texts = ([cell(value) for value in values.tolist()] for values in columns.values())
            writer.writerows(zip(*texts, strict=True))

        return write

    return start


def _json_lines(text: TextIO) -> Write:
    """One JSON object a row; what is not finite is null."""

    def plain(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def write(columns: Columns) -> None:
        for row in zip(*(values.tolist() for values in columns.values()), strict=True):
            fields = {name: plain(value) for name, value in zip(columns, row, strict=True)}
            text.write(json.dumps(fields, default=str) + "\n")

    return write


@contextmanager
def _parquet(stream: IO[bytes], types: Mapping[str, Any]) -> Iterator[Write]:
    pyarrow, parquet = arrow()
    writers: list[Any] = []  # made with the first rows, which tell the types that are not given

    def write(columns: Columns) -> None:
        table = pyarrow.table({name: pyarrow.array(values, types.get(name)) for name, values in columns.items()})
        if not writers:
            writers.append(parquet.ParquetWriter(stream, table.schema))
        writers[0].write_table(table.cast(writers[0].schema))

    try:
        yield write
    finally:
        for writer in writers:
            with suppress(OSError) if sys.exc_info()[0] else nullcontext():
                writer.close()


_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def _in_words(name: str) -> Iterator[None]:
    """Turn what the operating system raises into a sentence; a closed pipe is for the caller."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        remedy = "The disk is full: make room, or write elsewhere." if error.errno in _FULL else "Write elsewhere."
        raise InputError(f"{name} cannot be written: {error.strerror or error}. {remedy}") from None
