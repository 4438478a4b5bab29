"""A table in chunks gives, bit for bit, what it gives in one piece; an interruption leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.cli.cases import NAMES, TARGET, data, load_once, loaded, model, read, run, table  # noqa: F401
from vhat.cli import predict_stream
from vhat.tables.files import open_table, read_all

pytestmark = pytest.mark.usefixtures("load_once")
NUMBERS = ["center", "lower", "upper", "standard_error", "unsupported"]
ROWS = 700
"""Three chunks of 256, which is a block of the solver, the last one short."""


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(predict_stream, "_ROWS", 256)


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


def test_a_gap_in_a_column_that_the_model_takes_is_filled_and_has_a_status(tmp_path):
    rows = table(20)
    rows["salt"] = pd.array(rows["salt"], dtype="Float64")
    rows.loc[16, "salt"] = pd.NA
    rows.to_parquet(tmp_path / "new.parquet")
    done = run("predict", model(), tmp_path / "new.parquet", "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    told = " ".join(done.stderr.split())
    assert "column 'salt' is missing, as in no training row, in 1 row of" in told
    assert "(first in row 17): the median of the training rows replaces it" in told
    written = read(tmp_path / "out.csv")
    assert list(written["status"]) == ["missing cell" if row == 16 else "converged" for row in range(20)]


# -- pipes, which can be read only once --------------------------------------------------------------------
@contextmanager
def fifo(path, content):
    """A named pipe that hands its content to whoever opens it first; whoever opens it again finds it empty."""
    os.mkfifo(path)
    done = threading.Event()

    def feed():
        with suppress(BrokenPipeError), open(path, "wb") as pipe:
            pipe.write(content)
        while not done.wait(0.1):  # a second opening would wait for a writer for ever: the test must fail, not hang
            with suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    writer = threading.Thread(target=feed, daemon=True)
    writer.start()
    try:
        yield path
    finally:
        done.set()
        with suppress(OSError):  # where nothing was read the writer still waits for a reader
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        writer.join(10)


def csv_of(rows):
    return rows.to_csv(index=False).encode()


def rows_within(size):
    """How many rows make a table of at most so many bytes."""
    ends = np.cumsum([len(line) for line in csv_of(table(3_600)).splitlines(keepends=True)])
    return int(np.searchsorted(ends, size, side="right")) - 1


# the buffers of a text stream, of a binary stream and of a pipe, and the number of rows just below and above them
BUFFERS = [rows_within(size) + more for size in (8_192, 65_536, 131_072) for more in (0, 1)]


@pytest.mark.parametrize("rows", [0, 1, *BUFFERS, 3_600, 100_000])
def test_every_row_of_a_pipe_is_read(tmp_path, rows):
    expected = table(max(rows, 1))[:rows]
    with fifo(tmp_path / "new", csv_of(expected)) as path:
        opened = open_table(str(path))
        parts = list(opened.chunks(["name", "depth"], 256))
    assert sum(map(len, parts)) == rows
    assert [name for part in parts for name in part.columns["name"]] == expected["name"].tolist()
    assert all(len(part) == 256 for part in parts[:-1])
    assert [int(place) for part in parts for place in part.places] == list(range(2, rows + 2))
    with fifo(tmp_path / "again", csv_of(expected)) as path:
        assert open_table(str(path)).count() == rows


@pytest.mark.parametrize("rows", [3_600, 100_000])
def test_predictions_for_a_process_substitution_are_those_for_the_file(tmp_path, rows):
    content = csv_of(table(rows, seed=5))
    (tmp_path / "new.csv").write_bytes(content)
    assert (
        run("predict", model(), tmp_path / "new.csv", "--keep", "name", "--out", tmp_path / "file.csv").exit_code == 0
    )
    with fifo(tmp_path / "63", content) as pipe:
        done = run("predict", model(), pipe, "--keep", "name", "--out", tmp_path / "pipe.csv")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "pipe.csv").read_bytes().count(b"\n") == rows + 1
    assert (tmp_path / "pipe.csv").read_bytes() == (tmp_path / "file.csv").read_bytes()


def test_every_command_that_takes_a_table_takes_a_pipe(tmp_path):
    content = csv_of(table(60).drop(columns="name"))
    options = ("--target", TARGET, "--hidden", "0", "--weight-decay", "0.01")
    with fifo(tmp_path / "a", content) as pipe:
        done = run("fit", pipe, *options, "--out", tmp_path / "model", "--json")
    assert done.exit_code == 0, done.output
    assert '"rows": 60,' in done.stdout
    with fifo(tmp_path / "b", content) as pipe:
        done = run("plan", tmp_path / "model", pipe, "--json")
    assert done.exit_code == 0, done.output
    assert '"rows": 60,' in done.stdout
    fresh = csv_of(table(60, seed=1).drop(columns="name"))
    with fifo(tmp_path / "c", fresh) as pipe:
        done = run("report", tmp_path / "model", "--held-out", pipe, "--out", tmp_path / "report.html")
    assert done.exit_code == 0, done.output
    with fifo(tmp_path / "e", fresh) as pipe:
        done = run("calibrate", tmp_path / "model", pipe, "--json")
    assert '"rows": 60,' in done.stdout
    with fifo(tmp_path / "d", content) as pipe:
        done = run("compare", pipe, *options, "--methods", "proposed", "--splits", "1", "--json")
    assert done.exit_code == 0, done.output
    assert '"outcomes"' in done.stdout


def test_standard_input_is_counted_by_plan_and_written_to_a_file_under_a_progress_bar(tmp_path, monkeypatch):
    content = csv_of(table(60))
    assert '"rows": 60,' in run("plan", model(), "-", "--json", input=content).stdout
    counted = []
    for kind in (type(open_table(str(data()))), type(stream(tmp_path / "kind"))):
        monkeypatch.setattr(kind, "count", lambda self: counted.append(self.name) or 60)
    monkeypatch.setattr("vhat.cli.predict.sys", Terminal())
    assert run("predict", model(), data(), "--out", tmp_path / "file.csv").exit_code == 0
    assert counted == [str(data())]  # a bar is wanted, and a file may be counted for it
    done = run("predict", model(), "-", "--out", tmp_path / "pipe.csv", input=content)
    assert done.exit_code == 0, done.output
    assert len(read(tmp_path / "pipe.csv")) == 60
    assert counted == [str(data())]


class Terminal:
    """A ``sys`` whose standard error is a terminal."""

    class stderr:  # noqa: N801  (stands for sys.stderr)
        @staticmethod
        def isatty():
            return True


def stream(path):
    with fifo(path, b"a\n1\n") as pipe:
        return open_table(str(pipe))


def test_what_a_pipe_cannot_do_is_refused_in_words(tmp_path):
    with fifo(tmp_path / "a", csv_of(table(60))) as pipe:
        done = run("predict", model(), pipe, "--simultaneous", "--out", tmp_path / "out.csv")
    assert done.exit_code == 2
    assert f"{tmp_path / 'a'} can be read only once. Give a file." in done.stderr
    assert not (tmp_path / "out.csv").exists()
    with fifo(tmp_path / "b", csv_of(table(60))) as pipe:
        opened = open_table(str(pipe))
        assert len(read_all(opened, ["depth"])) == 60
        for again in (lambda: read_all(opened, ["depth"]), opened.count):
            with pytest.raises(vhat.InputError, match="can be read only once, and its rows have been read"):
                again()


def test_parquet_from_a_pipe_is_refused_in_words_whatever_the_pipe_is_called(tmp_path):
    table(60).to_parquet(tmp_path / "new.parquet")
    content = (tmp_path / "new.parquet").read_bytes()
    for name in ("63", "pipe.parquet"):
        with fifo(tmp_path / name, content) as pipe:
            done = run("predict", model(), pipe, "--out", tmp_path / "out.csv")
        assert done.exit_code == 2
        assert "Parquet, which is read from its end" in done.stderr
        assert "Save it to a file" in done.stderr
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_file_that_is_exchanged_between_its_header_and_its_rows_is_refused(tmp_path, form):
    def write(rows):
        rows.to_csv(path, index=False) if form == "csv" else rows.to_parquet(path)

    path = tmp_path / f"new.{form}"
    write(table(20))
    opened = open_table(str(path))
    write(table(20)[["name", "salt", "depth", TARGET]])
    with pytest.raises(vhat.InputError, match="was changed while it was read"):
        read_all(opened, NAMES)
