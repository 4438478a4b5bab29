"""Commands with closed or full streams, and commands that get signals: a sentence or silence, and nothing half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import vhat
from tests.cli.cases import TARGET, data, model, run, table
from tests.hostile.shell import Shell

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="commands are forked")


@pytest.fixture(scope="module")
def shell():
    with Shell() as shell:
        yield shell


def said(ended, code, *parts):
    """One sentence on standard error, and the exit code."""
    assert ended.code == code, ended
    assert ended.err.startswith("vhat: "), ended.err
    assert "unexpected" not in ended.err
    assert "Traceback" not in ended.err
    for part in parts:
        assert part in ended.err


@pytest.fixture
def new(tmp_path):
    table(6000, seed=3).to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


def test_a_full_disk_under_standard_output_is_said(shell, tmp_path):
    ended = shell.run(["audit", model()], tmp_path, stdout="/dev/full")
    said(ended, 2, "standard output cannot be written", "The disk is full")
    ended = shell.run(["audit", model(), "--json"], tmp_path, stdout="/dev/full")
    said(ended, 2, "standard output cannot be written")


def test_closed_streams_are_said(shell, tmp_path, new):
    said(shell.run(["fit", "-", "--target", "y"], tmp_path, closed=[0]), 2, "standard input is closed")
    said(shell.run(["predict", model(), new], tmp_path, closed=[1]), 2, "standard output is closed")
    said(shell.run(["audit", model()], tmp_path, closed=[1]), 2, "standard output is closed")
    assert not (tmp_path / "model").exists()


def test_a_file_that_is_written_with_closed_streams_holds_rows_alone(shell, tmp_path, new):
    ended = shell.run(["predict", model(), new, "--out", "out.csv"], tmp_path, closed=[0, 1, 2])
    assert ended.code == 0
    assert (tmp_path / "out.csv").read_text().count("\n") == 6001


def test_a_reader_that_goes_away_ends_the_command_without_a_word(shell, tmp_path, new):
    os.mkfifo(tmp_path / "pipe")

    def read_a_line():
        with (tmp_path / "pipe").open() as pipe:
            pipe.readline()

    for command in (["predict", model(), new, "--quiet"], ["predict", model(), new, "--json", "--quiet"]):
        reader = threading.Thread(target=read_a_line)
        reader.start()
        ended = shell.run(command, tmp_path, stdout="pipe")
        reader.join()
        assert (ended.code, ended.err) == (141, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_part_of_a_file(shell, tmp_path, new, number):
    """The rows come from a pipe that stays open, so that the command is surely in the middle."""
    os.mkfifo(tmp_path / "rows")
    command = ["predict", model(), "rows", "--out", "out.csv", "--quiet"]
    child = shell.start(command, tmp_path)
    with (tmp_path / "rows").open("w") as rows:
        rows.write(new.read_text())
        rows.flush()
        while not any(path.name.endswith(".part") for path in tmp_path.iterdir()):
            threading.Event().wait(0.01)
        os.kill(child, number)
        ended = shell.wait(tmp_path)
    assert ended.code == 128 + number
    assert {path.name for path in tmp_path.iterdir()} == {"new.csv", "rows"}
    assert ended.err.strip() in ("", "vhat: stopped.")


@pytest.mark.parametrize("after", [0.0, 0.02, 0.1, 0.3])
def test_control_c_at_any_time_of_a_report_is_no_traceback(shell, tmp_path, after):
    ended = shell.signalled(["report", model(), "--out", "page.html"], tmp_path, signal.SIGINT, after)
    assert ended.code in (0, 130)
    assert "Traceback" not in ended.err
    assert {path.name for path in tmp_path.iterdir()} <= {"page.html"}
    assert (tmp_path / "page.html").exists() == (ended.code == 0)


@pytest.mark.parametrize("option", ["--unit", "--target"])
def test_a_text_that_is_not_utf8_is_refused_before_any_work(tmp_path, option, monkeypatch):
    done = run("report", model(), option, "\udcff\udcfe", "--out", tmp_path / "page.html")
    assert done.exit_code == 2
    assert "not text in UTF-8" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("hidden", ["1000000000,1000000000", "99999999999", "9" * 400])
def test_a_network_that_no_memory_holds_is_refused_before_it_is_made(tmp_path, hidden):
    done = run("fit", data(), "--target", TARGET, "--features", "depth", "--hidden", hidden, "--out", tmp_path / "m")
    assert done.exit_code == 3
    assert "parameters, and training it takes" in done.stderr
    assert "--hidden" in done.stderr
    assert not (tmp_path / "m").exists()


def test_an_empty_list_of_layers_is_refused(tmp_path):
    done = run("fit", data(), "--target", TARGET, "--hidden", "", "--out", tmp_path / "m")
    assert done.exit_code == 2
    assert "--hidden is empty" in done.stderr


def test_the_estimator_refuses_a_network_that_no_memory_holds():
    with pytest.raises(vhat.MemoryBudgetError, match="parameters, and training it takes"):
        vhat.NetworkRegressor((10**9, 10**9), weight_decay=0.1).fit([[1.0], [2.0], [4.0]], [1.0, 2.0, 3.0])


SWALLOWED = """
import os, signal, sys
from vhat.cli.orderly_end import interrupts_as_exceptions, interrupts_as_exits
signal.signal(signal.SIGINT, signal.default_int_handler)
with interrupts_as_exits():
    if "command" in sys.argv:
        interrupts_as_exceptions()
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass  # as pydantic does while options are read
print("went on")
"""


@pytest.mark.parametrize(("stage", "code", "said"), [("options", 130, ""), ("command", 0, "went on\n")])
def test_an_interrupt_that_a_library_swallows_while_options_are_read_ends_the_program(stage, code, said):
    ended = subprocess.run([sys.executable, "-c", SWALLOWED, stage], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, said)
    assert ended.stderr == ("vhat: stopped.\n" if stage == "options" else "")
