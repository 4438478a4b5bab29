"""Tables that somebody else has written: formulas for a spreadsheet, very many columns, numbers at the edge."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.cli.cases import TARGET, load_once, model, run, table  # noqa: F401  (a fixture)
from vhat.checks import match_columns
from vhat.tables.files import open_table, read_all
from vhat.tables.files.write import escaped

EVIL = ["=cmd|'/c calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", " =1+1", "-", "harmless", "-3.5", "+4e2", "a=b"]
SAFE = ["'=cmd|'/c calc'!A0", "'+1+1", "'-2+3", "'@SUM(A1)", "'\t=1", "' =1+1", "'-", *EVIL[7:]]


@pytest.fixture
def evil(tmp_path):
    frame = table(len(EVIL), seed=5).assign(note=EVIL).rename(columns={"note": "=note"})
    frame.to_csv(tmp_path / "evil.csv", index=False)
    return tmp_path / "evil.csv"


@pytest.mark.usefixtures("load_once")
@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_formulas_are_passed_on_as_they_are_unless_asked_otherwise(tmp_path, evil, form):
    separator = "\t" if form == "tsv" else ","
    for options, name, cells in (((), "=note", EVIL), (("--escape-formulas",), "'=note", SAFE)):
        out = tmp_path / f"{len(options)}.{form}"
        assert run("predict", model(), evil, "--keep", "=note", "--out", out, *options).exit_code == 0
        found = pd.read_csv(out, sep=separator, keep_default_na=False, dtype={name: str})
        assert found.columns[0] == name
        # the reader of tables drops blanks around a cell
        assert [cell.strip() for cell in found[name]] == [cell.strip().replace("' =", "'=") for cell in cells]
        assert np.isfinite(found["center"]).all()


def test_json_is_never_escaped(evil, load_once):  # noqa: F811
    done = run("predict", model(), evil, "--keep", "=note", "--json", "--escape-formulas", "--quiet")
    assert '"=note": "=cmd|' in done.stdout


@pytest.mark.parametrize(("cell", "safe"), list(zip(EVIL, SAFE, strict=True)))
def test_only_text_that_is_no_number_is_escaped(cell, safe):
    assert escaped(cell) == safe


def test_numbers_are_never_escaped():
    assert escaped(-1.5) == -1.5
    assert escaped(None) is None


def test_forty_thousand_columns_are_read_in_seconds(tmp_path):
    names = [f"c{at}" for at in range(40_000)]
    path = tmp_path / "wide.csv"
    path.write_text(",".join(names) + "\n" + ",".join("1" * len(names)) + "\n")
    began = time.process_time()
    opened = open_table(str(path))
    assert read_all(opened, names).numbers(names).shape == (1, 40_000)
    frame = pd.DataFrame(np.zeros((1, len(names))), columns=names)
    assert tuple(match_columns("X", frame, tuple(reversed(names))).columns) == tuple(reversed(names))
    assert time.process_time() - began < 3


def test_forty_thousand_names_twice_are_refused_in_seconds(tmp_path):
    names = [f"c{at}" for at in range(20_000)] * 2
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n")
    began = time.process_time()
    with pytest.raises(vhat.InputError, match=r"more than one column called .* and 19988 more"):
        open_table(str(tmp_path / "wide.csv"))
    assert time.process_time() - began < 3


@pytest.mark.parametrize("value", [1e308, -1e308, 1e160])
def test_a_column_that_one_value_flattens_is_refused_by_name(tmp_path, value):
    frame = table(40).drop(columns="name")
    frame.loc[3, "salt"] = value
    frame.to_csv(tmp_path / "data.csv", index=False)
    done = run("fit", tmp_path / "data.csv", "--target", TARGET, "--hidden", "0", "--out", tmp_path / "m")
    assert done.exit_code == 2
    assert "column 'salt'" in done.stderr
    assert "does not tell them apart" in " ".join(done.stderr.split())
    assert not (tmp_path / "m").exists()
