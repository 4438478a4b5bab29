"""CSV that pyarrow reads and writes is, byte for byte and cell for cell, that of Python's csv module."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

import vhat
from vhat.tables.files import arrow_cells, arrow_lines, open_output, open_table

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def from_the_first_row(monkeypatch):
    """Let pyarrow read and write tables however small."""
    monkeypatch.setattr(arrow_cells, "_MANY_BYTES", 0)
    monkeypatch.setattr(arrow_lines, "_MANY_ROWS", 0)


@pytest.fixture
def used(monkeypatch):
    """Count what pyarrow has read and written."""
    counts = {"read": 0, "written": 0}
    lines_of = arrow_lines.lines_of

    def counted_split(*args):
        found = arrow_cells.split_lines(*args)
        counts["read"] += found is not None
        return found

    def counted_lines(*args):
        found = lines_of(*args)
        counts["written"] += found is not None
        return found

    monkeypatch.setattr("vhat.tables.files.csv.split_lines", counted_split)
    monkeypatch.setattr("vhat.tables.files.write.lines_of", counted_lines)
    return counts


# -- writing -----------------------------------------------------------------------------------
def hard_floats() -> np.ndarray:
    """Floats whose shortest decimal form is hard to find, or has another form in pyarrow."""
    rng = np.random.default_rng(0)
    powers = 2.0 ** np.arange(-60, 60)
    halves = np.arange(1, 4001) / 2.0**11
    tenths = np.arange(-2000, 2000) / 10
    bits = rng.integers(0, 2**63, 2_000, dtype=np.int64).view(np.float64)
    odd = [0.0, -0.0, 1e-4, 1e10, 1e15, 1e16, 1e22, 5e-324, 1.7976931348623157e308, np.nan, np.inf, -np.inf]
    usual = [rng.normal(size=2_000) * 10.0**k for k in range(-5, 12)]
    found = np.concatenate([powers, np.nextafter(powers, 0), np.nextafter(powers, 9e99), halves, tenths, odd, *usual])
    return np.concatenate([found, -found, bits])


def naive(columns: dict, separator: str = ",") -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    return text.getvalue().encode()


def written(path, columns: dict) -> bytes:
    with open_output(path, "tsv" if path.suffix == ".tsv" else "csv") as write:
        write(columns)
    return path.read_bytes()


def test_every_float_is_written_as_repr_writes_it(tmp_path, used):
    values = hard_floats()
    usual = values[(np.abs(values) >= 1e-4) & (np.abs(values) < 1e10)]
    for name, cells in (("all", values), ("usual", usual)):
        columns = {"a": cells, "b": cells[::-1]}
        assert written(tmp_path / f"{name}.csv", columns) == naive(columns)
    assert used["written"] == 2


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize(
    "texts",
    [
        ["converged", "missing cell", "", " a ", "ß", "0.5", "'", "\\", "a;b"],
        ['5" pipe', "a,b", "two\nlines", "carriage\rreturn", "tab\tulator"],
    ],
)
def test_text_beside_numbers_is_quoted_as_ever(tmp_path, ending, texts):
    cells = np.array(texts, dtype=object)
    columns = {"number": np.arange(len(cells)) + 0.5, "text": cells, "whole": np.arange(len(cells))}
    separator = "\t" if ending == "tsv" else ","
    assert written(tmp_path / f"out.{ending}", columns) == naive(columns, separator)


@pytest.mark.parametrize(
    "cells",
    [[True, False], [None, "a"], [1, "a"], ["\ud800", "a"]],
    ids=["booleans", "gaps", "mixed", "lone surrogate"],
)
def test_cells_that_pyarrow_would_write_otherwise_are_left_to_the_csv_module(tmp_path, cells):
    columns = {"number": np.array([0.5, 1.5]), "cell": np.array(cells, dtype=object)}
    assert arrow_lines.lines_of(columns, ",") is None


def test_the_narrow_result_of_one_column_is_left_to_the_csv_module():
    assert arrow_lines.lines_of({"a": np.array(["", "b"], dtype=object)}, ",") is None


# -- reading -----------------------------------------------------------------------------------
def rows_of(text: str, separator: str = ",") -> list[list[str]]:
    """Return the rows that the csv module finds, without the header and blank lines."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    return [record for record in reader if record and not (len(record) == 1 and not record[0].strip())][1:]


def cells_of(chunk, names) -> list[list[str]]:
    """Return the rows of a chunk."""
    return [list(row) for row in zip(*(chunk.columns[name] for name in names), strict=True)]


TABLES = {
    "plain": "a,b\n" + "1.5,x\n2.5,y\n" * 20,
    "windows": "a,b\r\n" + "1.5,x\r\n2.5,y\r\n" * 20,
    "macintosh": "a,b\r" + "1.5,x\r2.5,y\r" * 20,
    "no line end": "a,b\n" + "1.5,x\n2.5,y\n" * 20 + "3,z",
    "blank lines": "\n\na,b\n" + "1.5,x\n\n2.5,y\n  \n" * 20,
    "quotes late": "a,b\n" + "1.5,x\n2.5,y\n" * 20 + '3,"two\nlines"\n4,z\n' * 9,
    "quoted header": '"a","b"\n' + "1.5,x\n2.5,y\n" * 20,
    "header of two lines": '"a","b\n"\n' + "1.5,x\n2.5,y\n" * 20,
    "spaces": "a,b\n" + "1.5, x\n 2.5,y \n" * 20,
    "empty cells": "a,b\n" + "1.5,\n,y\n" * 20,
    "other scripts": "a,b\n" + "1.5,Zürich\n2.5,東京\n" * 20,
    "signed mark": "\ufeffa,b\n" + "1.5,x\n2.5,y\n" * 20,
    "words for gaps": "a,b\n" + "1.5,NA\n2.5,null\n" * 20,
}


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("kind", TABLES)
def test_cells_and_lines_are_those_of_the_csv_module(tmp_path, kind, rows):
    text = TABLES[kind]
    (tmp_path / "data.csv").write_bytes(text.encode())
    table = open_table(str(tmp_path / "data.csv"))
    chunks = list(table.chunks(table.columns, rows))
    assert all(len(chunk) == rows for chunk in chunks[:-1])
    found = [row for chunk in chunks for row in cells_of(chunk, table.columns)]
    assert found == rows_of(text.removeprefix("\ufeff"))
    # the place of a row is the line on which it ends: the text up to there holds as many rows
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for count, place in enumerate(np.concatenate([chunk.places for chunk in chunks]), start=1):
        assert len(rows_of("\n".join(lines[:place]).removeprefix("\ufeff"))) == count


@pytest.mark.parametrize("separator", [";", "\t", "|", " "])
def test_separators_are_those_of_the_csv_module(tmp_path, separator):
    text = f"a{separator}b\n" + f"1.5{separator}x,y\n" * 20
    (tmp_path / "data.csv").write_text(text)
    (chunk,) = open_table(str(tmp_path / "data.csv"), separator).chunks(["b", "a"], 100)
    assert cells_of(chunk, ["a", "b"]) == rows_of(text, separator)


def test_numbers_are_those_of_float(tmp_path, used):
    cells = [repr(float(value)) for value in hard_floats() if np.isfinite(value)]
    cells += ["1.", ".5", "-0", "1e5", "1E-5", "00012", "9007199254740993", "0.1000000000000000055511151231257827"]
    (tmp_path / "data.csv").write_text("a,b\n" + "".join(f"{cell},1\n" for cell in cells))
    (chunk,) = open_table(str(tmp_path / "data.csv")).chunks(["a", "b"], len(cells))
    numbers = chunk.numbers(["a", "b"])
    np.testing.assert_array_equal(numbers[:, 0], [float(cell) for cell in cells])
    assert used["read"] == 1
    assert chunk.columns.numbers("a") is not None


@pytest.mark.parametrize("cell", ["+1.5", " 1.5 ", "true", "1e400"])
def test_cells_that_pyarrow_does_not_read_are_read_as_ever(tmp_path, cell):
    (tmp_path / "data.csv").write_text("a,b\n" + f"{cell},1\n" * 9)
    (chunk,) = open_table(str(tmp_path / "data.csv")).chunks(["a"], 100)
    if cell == "1e400":
        with pytest.raises(vhat.InputError, match=r"line 2: column 'a' is infinite"):
            chunk.numbers(["a"])
    else:
        assert chunk.numbers(["a"])[0, 0] == (1.0 if cell == "true" else 1.5)


@pytest.mark.parametrize(
    ("cell", "told"),
    [("", "is empty"), ("nan", "is missing"), ("NA", "is missing"), ("1_000", "not a number"), ("0x1", "not a number")],
)
def test_refusals_name_the_line_as_ever(tmp_path, cell, told):
    (tmp_path / "data.csv").write_text("a,b\n" + "1.5,1\n" * 9 + f"{cell},1\n")
    (chunk,) = open_table(str(tmp_path / "data.csv")).chunks(["a"], 100)
    with pytest.raises(vhat.InputError, match=rf"line 11: column 'a' .*{told}"):
        chunk.numbers(["a"])


def test_bytes_that_are_not_utf8_are_refused_in_a_column_that_nobody_reads(tmp_path):
    (tmp_path / "data.csv").write_bytes(b"a,b\n" + b"1.5,x\n" * 20 + b"2.5,\xff\n")
    with pytest.raises(vhat.InputError, match="not text in UTF-8"):
        list(open_table(str(tmp_path / "data.csv")).chunks(["a"], 5))


def test_a_row_of_another_length_is_refused_by_its_line(tmp_path):
    (tmp_path / "data.csv").write_text("a,b\n" + "1.5,1\n" * 9 + "1,2,3\n")
    with pytest.raises(vhat.InputError, match="line 11: 3 fields, where the first line names 2 columns"):
        list(open_table(str(tmp_path / "data.csv")).chunks(["a"], 100))
