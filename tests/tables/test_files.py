"""Tables without names of columns are recognised; Excel files are read where the package is there."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

import vhat
from vhat.tables.files import open_table, read_all
from vhat.tables.files.header import lacks_header


@pytest.mark.parametrize("first", ["12.5,35,10", "3,2,1", "1.0,1.0", "12.5,Ulm,7", "5,5", "1,2.5,3", "-4,-4,Ulm"])
def test_a_table_without_names_of_columns_is_recognised(tmp_path, first):
    (tmp_path / "data.csv").write_text(f"{first}\n{first}\n")
    with pytest.raises(vhat.InputError, match=r"seems to have no line that names its columns: its first line is"):
        open_table(str(tmp_path / "data.csv"))


@pytest.mark.parametrize("line", ["a,b", "0,1,2", "id,2021,2022,2023", "x1,1", ",a", "35"])
def test_names_that_people_give_are_names(line):
    assert not lacks_header(line.split(","))


def test_rows_are_named_by_the_line_on_which_they_end(tmp_path):
    (tmp_path / "data.csv").write_text('a,b\n1,x\n\n2,"two\nlines"\n3,y\n   \n4,"\r\n"\n5,z\n', newline="")
    table = open_table(str(tmp_path / "data.csv"))
    for rows in (1, 2, 100):
        chunks = list(table.chunks(["a"], rows))
        assert [len(chunk) for chunk in chunks[:-1]] == [rows] * (len(chunks) - 1)
        assert np.concatenate([chunk.places for chunk in chunks]).tolist() == [2, 5, 6, 9, 10]
        assert np.concatenate([chunk.columns["a"] for chunk in chunks]).tolist() == list("12345")


def test_a_row_with_too_many_fields_is_refused_by_its_line(tmp_path):
    (tmp_path / "data.csv").write_text('a,b\n1,"two\nlines"\n\n2,3,4\n')
    with pytest.raises(vhat.InputError, match=r"line 5: 3 fields, where the first line names 2 columns"):
        list(open_table(str(tmp_path / "data.csv")).chunks(["a"], 10))


def sheet():
    return pd.DataFrame(
        [
            ["size", "city", "when"],
            [1.5, "Ulm", pd.Timestamp("2024-01-31")],
            [None, None, None],
            [2, None, "2024-02-01"],
        ],
        dtype=object,
    )


def test_a_sheet_is_read_by_the_rows_that_excel_counts(tmp_path, monkeypatch):
    (tmp_path / "data.xlsx").write_bytes(b"")
    monkeypatch.setattr(pd, "read_excel", lambda path, header, dtype, engine: sheet())
    table = open_table(str(tmp_path / "data.xlsx"))
    assert table.columns == ("size", "city", "when")
    chunk = read_all(table, ["size", "city"])
    assert chunk.places.tolist() == [2, 4]  # the third row of the sheet is empty
    np.testing.assert_array_equal(chunk.numbers(["size"])[:, 0], [1.5, 2])
    with pytest.raises(vhat.InputError, match=r"--separator is for CSV files"):
        open_table(str(tmp_path / "data.xlsx"), ";")


def test_a_file_written_by_excel_is_read(tmp_path):
    pytest.importorskip("openpyxl")
    frame = pd.DataFrame({"size": [1.5, 2.5], "when": pd.to_datetime(["2024-01-31", "2024-02-01"])})
    frame.to_excel(tmp_path / "data.xlsx", index=False)
    chunk = read_all(open_table(str(tmp_path / "data.xlsx")), ["size", "when"])
    np.testing.assert_array_equal(chunk.numbers(["size"])[:, 0], [1.5, 2.5])
    assert [str(when)[:10] for when in chunk.columns["when"]] == ["2024-01-31", "2024-02-01"]


def test_excel_without_openpyxl_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "data.xlsx").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(vhat.errors.MissingPackage, match="pip install openpyxl"):
        open_table(str(tmp_path / "data.xlsx"))


def test_what_is_no_sheet_is_refused(tmp_path, monkeypatch):
    def fail(path, header, dtype, engine):
        raise ValueError("File is not a zip file")

    (tmp_path / "data.xlsx").write_bytes(b"no")
    monkeypatch.setattr(pd, "read_excel", fail)
    with pytest.raises(vhat.InputError, match="cannot be read as an Excel file: File is not a zip file"):
        open_table(str(tmp_path / "data.xlsx"))
