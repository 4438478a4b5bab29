"""A table in chunks gives, bit for bit, what it gives in one piece; an interruption leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.cli_cases import NAMES, load_once, loaded, model, read, run, table  # noqa: F401
from vhat.cli import streaming
from vhat.table_files import open_table

pytestmark = pytest.mark.usefixtures("load_once")
NUMBERS = ["center", "lower", "upper", "standard_error", "unsupported"]
ROWS = 700
"""Three chunks of 256, which is a block of the solver, the last one short."""


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(streaming, "_ROWS", 256)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "many.csv"
    rows = table(ROWS, seed=2)
    rows.loc[::7, "depth"] += 40.0  # where the training data hardly speak
    rows.to_csv(path, index=False)
    return path


def one_piece(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.SupportWarning)
        return loaded().predict_interval(read(path)[NAMES], **options)


def identical(frame, band):
    for name in NUMBERS:
        np.testing.assert_array_equal(frame[name], getattr(band, name), err_msg=name)


@pytest.mark.parametrize("options", [{}, {"target": "observation"}, {"simultaneous": True}])
def test_chunks_change_not_one_bit(small_chunks, many, tmp_path, options):
    flags = ["--interval", options.get("target", "mean"), *(["--simultaneous"] if "simultaneous" in options else [])]
    done = run("predict", model(), many, "--out", tmp_path / "out.csv", *flags)
    assert done.exit_code == 0, done.output
    identical(read(tmp_path / "out.csv"), one_piece(many, **options))
    told = " ".join(done.stderr.split())
    assert ("All 700 rows at once at 95%" in told) == ("simultaneous" in options)


def test_rows_that_the_data_hardly_speak_for_are_counted_over_all_chunks(small_chunks, many, tmp_path):
    told = " ".join(run("predict", model(), many, "--out", tmp_path / "out.csv").stderr.split())
    count = int(np.sum(one_piece(many).unsupported > 0.5))
    assert 0 < count < ROWS
    assert f"hardly speak for {count} of 700 rows" in told
    assert "at each point taken alone" in told
    assert "of 256 values" not in told


def test_standard_input_and_row_groups_of_other_sizes_give_the_same(small_chunks, many, tmp_path):
    band = one_piece(many)
    done = run("predict", model(), "-", input=many.read_bytes())
    (tmp_path / "out.csv").write_text(done.stdout)
    identical(read(tmp_path / "out.csv"), band)
    read(many).to_parquet(tmp_path / "many.parquet", row_group_size=111)
    assert run("predict", model(), tmp_path / "many.parquet", "--out", tmp_path / "out.parquet").exit_code == 0
    identical(pd.read_parquet(tmp_path / "out.parquet"), band)
    sizes = [len(chunk) for chunk in open_table(str(tmp_path / "many.parquet")).chunks(["depth"], 256)]
    assert sizes == [256, 256, 188]


def test_an_interruption_in_a_later_chunk_leaves_the_old_output_alone(small_chunks, many, tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    out.write_text("precious")
    answer, calls = vhat.NetworkRegressor.predict_interval, []

    def interrupted(self, *args, **options):
        calls.append(1)
        if len(calls) == 3:
            assert len(list(tmp_path.iterdir())) == 2  # the partial file is there
            raise KeyboardInterrupt
        return answer(self, *args, **options)

    monkeypatch.setattr(vhat.NetworkRegressor, "predict_interval", interrupted)
    done = run("predict", model(), many, "--out", out, "--force")
    assert done.exit_code == 130
    assert done.stderr == "vhat: stopped.\n"
    assert out.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [out]


def test_rows_without_an_interval_are_written_with_their_status_and_exit_code_3(many, tmp_path, monkeypatch):
    from dataclasses import replace

    answer = vhat.NetworkRegressor.predict_interval

    def failing(self, *args, **options):
        band = answer(self, *args, **options)
        lost = np.arange(len(band.center)) == 5
        nan = {name: np.where(lost, np.nan, getattr(band, name)) for name in ("lower", "upper", "standard_error")}
        return replace(band, status=np.where(lost, "not converged", band.status), **nan)

    monkeypatch.setattr(vhat.NetworkRegressor, "predict_interval", failing)
    done = run("predict", model(), many, "--out", tmp_path / "out.csv")
    assert done.exit_code == 3
    assert "1 of 700 rows have no interval; their status is 'not converged'." in " ".join(done.stderr.split())
    frame = read(tmp_path / "out.csv")
    assert list(np.flatnonzero(frame["status"] == "not converged")) == [5]
    assert np.isnan(frame["lower"][5])


def test_control_c_from_a_terminal_ends_a_waiting_command_cleanly(tmp_path):
    """The command waits for rows on standard input when the signal comes."""
    arguments = ["predict", str(model()), "-", "--out", str(tmp_path / "out.csv")]
    code = (  # a shell that runs tests in the background may have told its children to ignore the signal
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from vhat.cli import app; app({arguments!r})"
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", code], **pipes, text=True) as process:
        process.stdin.write("depth,salt\n1,35\n")
        process.stdin.flush()
        patience = time.monotonic() + 120
        while not list(tmp_path.iterdir()):  # the temporary file tells that it waits for rows
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < patience
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert told == "vhat: stopped.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_identifiers_of_a_parquet_table_are_passed_on_as_they_are(small_chunks, tmp_path, form):
    """Above 2^53 no float is the number itself; the gap lies in the second chunk, whose type must not tell."""
    rows = table(300, seed=2)
    rows["id"] = pd.array(2**53 + 1 + np.arange(300), dtype="Int64")
    rows.loc[280, "id"] = pd.NA
    rows["seen"] = np.arange(300) % 2 == 0
    rows.to_parquet(tmp_path / "new.parquet")
    out = tmp_path / f"out.{form}"
    done = run("predict", model(), tmp_path / "new.parquet", "--keep", "id,seen", "--out", out)
    assert done.exit_code == 0, done.output
    if form == "parquet":
        kept = pd.read_parquet(out, dtype_backend="numpy_nullable")
    else:
        kept = pd.read_csv(out, dtype={"id": "Int64", "seen": bool})
    pd.testing.assert_series_equal(kept["id"], rows["id"])
    np.testing.assert_array_equal(kept["seen"], rows["seen"])


def test_kept_columns_of_a_parquet_table_have_its_types_whatever_the_first_chunk_holds(small_chunks, tmp_path):
    """All are empty in the first chunk, which therefore tells no type."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    first, more = [None] * 256, 44
    columns = {
        "text": pyarrow.array([*first, *(f"n{k}" for k in range(more))]),
        "whole": pyarrow.array([*first, *range(more)], pyarrow.int16()),
        "real": pyarrow.array([*first, *([0.5, float("nan"), None, 2.0] * 11)], pyarrow.float32()),
        "money": pyarrow.array([*first, *(Decimal(k**4) / 4 for k in range(more))], pyarrow.decimal128(12, 2)),
        "day": pyarrow.array([*first, *range(more)], pyarrow.date32()),
        "moment": pyarrow.array([*first, *range(more)], pyarrow.timestamp("ns", tz="UTC")),
        "kind": pyarrow.array([*first, *("ab" * 22)]).dictionary_encode(),
        "pairs": pyarrow.array([*first, *([k, k + 1] for k in range(more))], pyarrow.list_(pyarrow.int32())),
        "nothing": pyarrow.nulls(300),
    }
    source = pyarrow.table(columns | dict(table(300, seed=2)[NAMES].items()))
    parquet.write_table(source, tmp_path / "new.parquet", row_group_size=100)
    done = run(
        "predict", model(), tmp_path / "new.parquet", "--keep", ",".join(columns), "--out", tmp_path / "out.parquet"
    )
    assert done.exit_code == 0, done.output
    found = parquet.read_table(tmp_path / "out.parquet")
    for name in columns:
        assert found.schema.field(name).type == source.schema.field(name).type, name
        assert str(found[name].to_pylist()) == str(source[name].to_pylist()), name  # as text: NaN is NaN there
    identical(found.to_pandas(), loaded().predict_interval(table(300, seed=2)[NAMES]))
    done = run("predict", model(), tmp_path / "new.parquet", "--keep", "real,text", "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    kept = [line.split(",")[:2] for line in (tmp_path / "out.csv").read_text().splitlines()]
    assert kept[1] == ["", ""]
    assert kept[257:260] == [["0.5", "n0"], ["nan", "n1"], ["", "n2"]]


def test_a_gap_in_a_column_that_the_model_takes_is_refused_by_its_row(tmp_path):
    rows = table(20)
    rows["salt"] = pd.array(rows["salt"], dtype="Float64")
    rows.loc[16, "salt"] = pd.NA
    rows.to_parquet(tmp_path / "new.parquet")
    done = run("predict", model(), tmp_path / "new.parquet", "--out", tmp_path / "out.csv")
    assert done.exit_code == 2
    assert "row 17: column 'salt' is missing (null)" in done.stderr
