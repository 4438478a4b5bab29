"""Whatever is wrong with the input gets one sentence that says where, and an exit code; nothing is written."""

from __future__ import annotations

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.cli.cases import TARGET, data, fitted, folder, load_once, model, read, run, table  # noqa: F401
from vhat.tables.files import open_table, read_all

pytestmark = pytest.mark.usefixtures("load_once")
FIT = ("--target", TARGET, "--hidden", "2", "--weight-decay", "0.01")


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def refused(done, *parts, code=2):
    """One sentence on standard error with these parts, this exit code, and no traceback."""
    assert done.exit_code == code, done.output
    assert done.stderr.startswith("vhat: ")
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr
    assert not done.stdout


ROWS = "depth,salt,warmth\n1,35,10\n2,36,11\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty"]),
        ("\n\n", ["is empty"]),
        ("depth,salt,warmth\n", ["no rows"]),
        ("depth;salt;warmth\n1;2;3\n", ["one column, 'depth;salt;warmth'", "--separator ';'"]),
        ("depth\tsalt\twarmth\n1\t2\t3\n", ["between tabs", "--separator tab"]),
        ("depth, m;salt;warmth\n1;2;3\n", ["has no column 'warmth'", "give --separator ';'"]),
        ("depth,salt,salt,warmth\n1,2,3,4\n", ["more than one column called 'salt'"]),
        ("depth,salt\n1,2\n", ["no column 'warmth'", "Its columns are 'depth', 'salt'"]),
        (",depth,warmth\n0,1,2\n", ["column 1 has no name", "--features"]),
        ("warmth\n1\n2\n", ["no column to learn from"]),
        (ROWS + "3,deep,12\n", ["line 4: column 'salt' holds 'deep' among numbers", "--columns salt=number"]),
        (ROWS + "\n\n3,deep,12\n", ["line 6"]),
        (ROWS + '"3",35,"12\n"\nx,1,2\n', ["line 6: column 'depth' holds 'x'"]),
        (ROWS + '3,"35,5",12\n3,35.5,12\n', ["line 4: column 'salt' holds '35,5' among numbers"]),
        (ROWS + "3,1_000,12\n", ["line 4: column 'salt' holds '1_000' among numbers"]),
        (ROWS + "3,\uff11\uff12,12\n", ["line 4: column 'salt' holds '\uff11\uff12' among numbers"]),
        (ROWS + "3,\u0663\u0665,12\n", ["line 4: column 'salt' holds", "among numbers"]),
        ("depth,warmth\n1,cold\n2,warm\n", ["the target 'warmth' holds no numbers", "Check --target"]),
        ("depth,warmth\n1,\n2,NA\n", ["the target 'warmth' holds no numbers", "empty in all rows"]),
        (ROWS + "3,Infinity,12\n", ["line 4: column 'salt' is infinite"]),
        (ROWS + "3,-inf,12\n", ["line 4: column 'salt' is infinite"]),
        (ROWS + "3,1e999,12\n", ["line 4: column 'salt' is infinite"]),
        (ROWS + "3,-inf,12\n,34,12\n", ["line 4: column 'salt' is infinite"]),
        (ROWS + "3,35\n", ["line 4: 2 fields, where the first line names 3 columns"]),
        (ROWS + "3,35,12,9\n", ["line 4: 4 fields"]),
        (ROWS + '3,"35,12\n', ["cannot be read as CSV", "quotes"]),
    ],
)
def test_a_table_that_cannot_be_learned_from_is_refused_by_its_line(tmp_path, text, parts):
    data = write(tmp_path / "data.csv", text)
    done = run("fit", data, *FIT, "--out", tmp_path / "model")
    refused(done, str(data), *parts)
    assert not (tmp_path / "model").exists()


def test_blanks_signs_and_exponents_around_and_in_numbers_are_read(tmp_path):
    path = write(tmp_path / "data.csv", "a\n 1 \n+2\n-3e2\n.5\n6.\n\u00a07\nTrue\n")
    found = read_all(open_table(str(path)), ["a"]).numbers(["a"])
    np.testing.assert_array_equal(found[:, 0], [1.0, 2.0, -300.0, 0.5, 6.0, 7.0, 1.0])


def test_other_faults_of_a_fit_are_sentences_too(tmp_path):
    data, out = write(tmp_path / "data.csv", ROWS), ("--out", tmp_path / "model")
    refused(run("fit", tmp_path / "none.csv", *FIT, *out), "there is no file", "none.csv")
    refused(run("fit", tmp_path, *FIT, *out), "is a directory")
    refused(run("fit", data, *FIT, *out, "--features", "depth,warmth"), "the target 'warmth' is among the columns")
    refused(run("fit", data, *FIT, *out, "--features", "depth,sold"), "no column 'sold'", "which --features names")
    refused(run("fit", data, *FIT, *out, "--hold-out", "1.5"), "--hold-out 1.5")
    refused(run("fit", data, *FIT[:-1], "much", *out), "--weight-decay 'much'")
    refused(run("fit", data, "--target", TARGET, "--hidden", "two", *out), "--hidden 'two'")
    refused(run("fit", data, *FIT, *out, "--separator", "::"), "--separator '::'")
    (tmp_path / "bytes.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    refused(run("fit", tmp_path / "bytes.csv", *FIT, *out), "UTF-8")
    (tmp_path / "fake.parquet").write_text(ROWS)
    refused(run("fit", tmp_path / "fake.parquet", *FIT, *out), "cannot be read as Parquet")
    assert run("fit", data, *out).exit_code == 2  # no --target: typer's own sentence


def test_a_place_that_is_taken_is_refused_before_anything_is_read(tmp_path):
    nothing = tmp_path / "none.csv"
    refused(run("fit", nothing, *FIT, "--out", model()), "holds a model already", "--force")
    write(tmp_path / "file", "")
    refused(run("fit", nothing, *FIT, "--out", tmp_path / "file"), "is a file")
    refused(run("fit", nothing, *FIT, "--out", tmp_path, "--force"), "not empty and holds no model")
    out = write(tmp_path / "out.csv", "precious")
    refused(run("predict", model(), nothing, "--out", out), "exists and is not written over", "--force")
    assert out.read_text() == "precious"
    refused(run("predict", model(), nothing, "--out", tmp_path / "out.xlsx"), "ending", ".parquet")
    refused(run("predict", model(), nothing, "--out", tmp_path / "no" / "out.csv"), "there is no directory")
    refused(run("predict", model(), nothing, "--out", tmp_path), "is a directory")


@pytest.fixture
def new(tmp_path):
    path = tmp_path / "new.csv"
    table(5, seed=1).to_csv(path, index=False)
    return path


def test_models_that_are_none_are_refused(tmp_path, new):
    refused(run("predict", tmp_path / "none", new), "holds no model saved by vhat: there is no such directory")
    refused(run("audit", tmp_path), "it has no vhat.json")
    refused(run("plan", new, new), "is a file")
    newer = tmp_path / "newer"
    shutil.copytree(model(), newer)
    pointer = json.loads((newer / "vhat.json").read_text())
    (newer / "vhat.json").write_text(json.dumps(pointer | {"format_version": 99}))
    refused(run("predict", newer, new), "was saved in format 99", "Update vhat")
    damaged = tmp_path / "damaged"
    shutil.copytree(model(), damaged)
    (arrays,) = damaged.glob("v*/arrays.safetensors")
    arrays.write_bytes(arrays.read_bytes()[:-9])
    refused(run("audit", damaged), "truncated")


def test_columns_that_a_model_needs_are_asked_for_by_name(tmp_path, new):
    table(5).drop(columns="salt").to_csv(tmp_path / "few.csv", index=False)
    refused(run("predict", model(), tmp_path / "few.csv"), "no column 'salt', which the model was trained with")
    refused(run("predict", model(), new, "--keep", "label"), "no column 'label', which --keep asks for")
    taken = table(5).rename(columns={"name": "status"})
    taken.to_csv(tmp_path / "taken.csv", index=False)
    refused(run("predict", model(), tmp_path / "taken.csv", "--keep", "status"), "a column of that name")


def test_bad_rows_and_options_of_a_prediction_leave_no_output(tmp_path, new):
    bad = write(tmp_path / "bad.csv", new.read_text() + "last,1,cold,3\n")
    for options in (("--out", tmp_path / "out.csv"), ("--out", tmp_path / "out.parquet")):
        refused(run("predict", model(), bad, *options), "bad.csv, line 7: column 'salt' holds 'cold'")
    refused(run("predict", model(), new, "--delta", "1.5", "--out", tmp_path / "out.csv"), "delta")
    refused(run("predict", model(), new, "--json", "--out", tmp_path / "out.csv"), ".jsonl")
    refused(run("predict", model(), "-", "--simultaneous", input=new.read_text()), "standard input", "Give a file")
    assert run("predict", model(), new, "--bound", "loose").exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "new.csv"]


def test_force_replaces_an_output(tmp_path, new):
    out = write(tmp_path / "out.csv", "old")
    assert run("predict", model(), new, "--out", out, "--force").exit_code == 0
    assert out.read_text().startswith("center,")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_said_in_words(new):
    refused(
        run("predict", model(), new, "--out", "/dev/full", "--quiet"), "/dev/full cannot be written", "The disk is full"
    )


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "out.jsonl"])
def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(tmp_path, new, name, monkeypatch):
    out, directory = write(tmp_path / name, "precious"), model()  # fitted while the disk has room

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(
        run("predict", directory, new, "--out", out, "--force", "--quiet"), "No space left on device", "disk is full"
    )
    assert out.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"new.csv", name}


@pytest.mark.parametrize("command", ["predict", "report"])
def test_links_and_files_under_the_name_of_a_temporary_file_are_neither_followed_nor_removed(
    tmp_path, new, command, monkeypatch
):
    """The process number was all that told the names apart, and anybody can see it."""
    victim = write(tmp_path / "victim", "precious")
    out = tmp_path / ("out.csv" if command == "predict" else "out.html")
    arguments = (new, "--quiet") if command == "predict" else ("--quiet",)
    guesses = [f".{out.name}.{os.getpid()}", f".{out.name}.{os.getpid()}.part"]
    for guess in guesses:
        (tmp_path / guess).symlink_to(victim)
    done = run(command, model(), *arguments, "--out", out)
    assert done.exit_code == 0, done.output
    assert victim.read_text() == "precious"
    assert all((tmp_path / guess).is_symlink() for guess in guesses)
    # not even a name that was guessed right
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    (tmp_path / f".vhat-{16 * '0'}.part").symlink_to(victim)
    refused(run(command, model(), *arguments, "--out", out, "--force"), "cannot be written", "File exists")
    assert victim.read_text() == "precious"
    assert (tmp_path / f".vhat-{16 * '0'}.part").is_symlink()


def test_a_report_goes_through_a_link_and_into_a_pipe_and_replaces_neither(tmp_path):
    real = write(tmp_path / "real.html", "old")
    link = tmp_path / "link.html"
    link.symlink_to(real)
    assert run("report", model(), "--out", link, "--force").exit_code == 0
    assert link.is_symlink()
    assert real.read_text().startswith("<!DOCTYPE html>")
    os.mkfifo(tmp_path / "pipe.html")
    with ThreadPoolExecutor() as pool:
        received = pool.submit((tmp_path / "pipe.html").read_text)
        done = run("report", model(), "--out", tmp_path / "pipe.html")
        assert (tmp_path / "pipe.html").is_fifo()
        if done.exit_code:  # nobody has written: let the reader go
            os.close(os.open(tmp_path / "pipe.html", os.O_WRONLY))
        assert done.exit_code == 0, done.output
        assert received.result(60) == real.read_text()


def test_methods_that_do_not_exist_are_named_with_those_that_do():
    done = run("compare", data(), "--target", TARGET, "--methods", "proposed,magic")
    refused(done, "--methods magic", "linearized-laplace", "mc-dropout")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (("fti", "data.csv"), ["no such command 'fti'. Did you mean 'fit'?", "vhat --help"]),
        (("--nonsense",), ["no such option: --nonsense", "vhat --help"]),
        (("fit", "data.csv"), ["missing option '--target'", "vhat fit --help"]),
        (("fit", "data.csv", "--traget", "y"), ["no such option: --traget", "--target", "vhat fit --help"]),
        (("predict",), ["missing argument 'DIR'", "vhat predict --help"]),
        (("fit", "data.csv", "--target", "y", "--hold-out", "x"), ["invalid value for '--hold-out'"]),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_as_everything_else(line, parts):
    refused(run(*line), *parts)


def test_a_column_that_is_nearly_named_is_asked_for():
    refused(run("fit", data(), "--target", TARGET.upper() + "s"), f"Did you mean {TARGET!r}?")


def test_unexpected_errors_are_a_sentence_with_exit_code_1_and_a_traceback_only_in_debug(new, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a fault")

    monkeypatch.setattr(vhat.NetworkRegressor, "predict_interval", broken)
    refused(run("predict", model(), new), "unexpected RuntimeError: a fault", "--debug", code=1)
    for arguments in (("--debug", "predict", model(), new), ("predict", model(), new, "--debug")):
        assert isinstance(run(*arguments).exception, RuntimeError)


def test_a_model_that_cannot_answer_has_exit_code_3(new, monkeypatch):
    def silent(*_, **__):
        raise vhat.NoiseError("the fit interpolates.")

    monkeypatch.setattr(vhat.NetworkRegressor, "predict_interval", silent)
    refused(run("predict", model(), new), "the fit interpolates.", code=3)


def test_true_and_false_count_as_one_and_zero_and_marks_of_spreadsheets_are_no_part_of_a_name(tmp_path):
    path = tmp_path / "marked.csv"
    path.write_bytes(b"\xef\xbb\xbf\r\na, b\r\nTrue, 1\r\nfalse, 2.5\r\n\r\n")
    opened = open_table(str(path))
    assert opened.columns == ("a", "b")
    assert opened.count() == 2
    np.testing.assert_array_equal(read_all(opened, ["b", "a"]).numbers(["a", "b"]), [[1, 1], [0, 2.5]])


def test_parquet_types_become_numbers_and_missing_values_are_named_by_row(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [True, False, True], "c": [1.5, None, 2.0], "d": ["x", "y", "z"]})
    frame.to_parquet(tmp_path / "t.parquet")
    chunk = read_all(open_table(str(tmp_path / "t.parquet")), ["a", "b", "c", "d"])
    np.testing.assert_array_equal(chunk.numbers(["b", "a"]), [[1, 1], [0, 2], [1, 3]])
    with pytest.raises(vhat.InputError, match=r"row 2: column 'c' is missing"):
        chunk.numbers(["a", "c"])
    with pytest.raises(vhat.InputError, match=r"row 1: column 'd' holds 'x'"):
        chunk.numbers(["d"])


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    write(tmp_path / "t.parquet", "")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(run("fit", tmp_path / "t.parquet", *FIT, "--out", tmp_path / "m"), 'pip install "vhat[parquet]"')


def test_warnings_of_the_library_are_sentences(tmp_path):
    assert fitted()[0].exit_code == 0
    rows = table(8)
    rows["flat"] = 1.0
    rows.drop(columns="name").to_csv(tmp_path / "data.csv", index=False)
    done = run("fit", tmp_path / "data.csv", "--target", TARGET, "--hidden", "0", "--out", tmp_path / "m")
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert any(line.startswith("vhat: warning: column 'flat' of X has the same value") for line in lines)
    assert not any("site-packages" in line or ".py:" in line for line in lines)
    moved = rows.assign(flat=[1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0])
    moved.to_csv(tmp_path / "moved.csv", index=False)
    predicted = run("predict", tmp_path / "m", tmp_path / "moved.csv", "--out", tmp_path / "out.csv")
    assert predicted.exit_code == 0, predicted.output
    said = "column 'flat' was the same in all training rows and is not in 2 rows of"
    place = "moved.csv (first in line 3)"
    told = " ".join(predicted.stderr.split())
    assert said in told
    assert place in told.replace(" moved.csv", "moved.csv")
    written = read(tmp_path / "out.csv")
    assert list(written["status"]) == ["constant column" if row in (1, 3) else "converged" for row in range(8)]
    still = run("predict", tmp_path / "m", tmp_path / "data.csv", "--out", tmp_path / "still.csv")
    assert "constant column" not in still.output
    same = read(tmp_path / "still.csv")
    assert list(same["status"]) == ["converged"] * 8
    np.testing.assert_array_equal(written["center"], same["center"])  # the column was left out of the model
    reported = run("report", tmp_path / "m", "--held-out", tmp_path / "moved.csv", "--out", tmp_path / "r.html")
    assert reported.exit_code == 0, reported.output
    told = " ".join(reported.stderr.split())
    assert said in told
    assert place in told.replace(" moved.csv", "moved.csv")
    assert "row 1" not in told  # the same row under another count


def test_columns_that_were_learned_from_and_constant_ones_are_told_apart(tmp_path):
    table(20).assign(flat=1.0).drop(columns="name").to_csv(tmp_path / "data.csv", index=False)
    options = ("--target", TARGET, "--hidden", "0", "--weight-decay", "0.01", "--out", tmp_path / "m")
    done = run("fit", tmp_path / "data.csv", *options)
    assert "20 rows, 2 columns: depth, salt\n" in done.stdout
    assert "left out        flat: the same in all of these rows\n" in done.stdout
    found = json.loads(run("fit", tmp_path / "data.csv", *options, "--force", "--json").stdout)
    assert found["columns"] == ["depth", "salt"]
    assert found["constant"] == ["flat"]


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_a_device_that_never_ends_is_refused(device):
    if not Path(device).exists():
        pytest.skip(f"there is no {device}")
    with pytest.raises(vhat.InputError, match="begins with a zero byte"):
        open_table(device)
