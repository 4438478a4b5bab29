"""Processes and clusters write the same bytes, whatever is killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import vhat
from tests.cli.cases import load_once, model  # noqa: F401
from tests.cli.directory_cases import RECORD, in_parts, new_rows, predict, written
from vhat.cli.directories import FramePredictor, engines
from vhat.cli.directories.dataset import find_partitions

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("load_once")]


MANY = 12


@pytest.fixture
def parts(tmp_path):
    return in_parts(tmp_path / "parts")


def many_files(folder, *, copies=150):
    folder.mkdir()
    big = pd.concat([new_rows()] * copies, ignore_index=True)
    for at in range(MANY):
        big.assign(depth=big["depth"] + at / 100).to_parquet(folder / f"part-{at:02}.parquet", index=False)
    return folder


def caught_in_the_middle(tmp_path, attempt):
    """The folders of a run that was disturbed before its end: the files grow until this process is quick enough."""
    for copies in (150, 600, 2400):
        many = many_files(tmp_path / f"many-{copies}", copies=copies)
        out = tmp_path / f"out-{copies}"
        if attempt(many, out):
            return many, out
    pytest.fail("each of the runs had ended before it could be disturbed")


def wait_until(happened, *, at_most=120.0):
    until = time.monotonic() + at_most
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def start(*arguments):
    command = [sys.executable, "-m", "vhat.cli", "predict", str(model()), *(str(each) for each in arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finished_lines(out):
    record = Path(out) / RECORD
    return len(record.read_text().splitlines()) - 1 if record.exists() else 0


@pytest.mark.parametrize("victim", ["nobody", "a worker"])
def test_two_dask_workers_write_the_same_bytes(tmp_path, victim):
    distributed = pytest.importorskip("distributed")

    def attempt(many, out):
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster:
            address = cluster.scheduler_address
            process = start(many, "--keep", "id", "--out", out, "--engine", "dask", "--scheduler", address)
            caught = True
            if victim == "a worker":
                wait_until(lambda: finished_lines(out) >= 2 or process.poll() is not None)
                os.kill(cluster.workers[0].process.pid, signal.SIGKILL)
                caught = finished_lines(out) < MANY
            _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        return caught

    many, out = caught_in_the_middle(tmp_path, attempt)
    predict(many, "--keep", "id", "--out", tmp_path / "local")
    assert written(out) == written(tmp_path / "local")


@pytest.mark.parametrize(
    ("how", "engine"),
    [
        (signal.SIGKILL, ["--jobs", "1"]),
        (signal.SIGKILL, ["--jobs", "2"]),
        (signal.SIGINT, ["--jobs", "1"]),
        (signal.SIGINT, ["--jobs", "2"]),
        (signal.SIGINT, ["--engine", "dask", "--jobs", "2"]),
    ],
    ids=["killed", "killed with processes", "stopped", "stopped with processes", "stopped with Dask"],
)
def test_a_run_that_was_stopped_goes_on(tmp_path, how, engine):
    said = ""

    def attempt(many, out):
        nonlocal said
        process = start(many, "--out", out, *engine)
        wait_until(lambda: finished_lines(out) >= 2 or process.poll() is not None)
        if how == signal.SIGINT:
            os.killpg(process.pid, how)  # as Ctrl-C of a terminal, which reaches workers too
        else:
            process.send_signal(how)
        # standard error ends when the last process that holds it does: none outlives the first
        _, said = process.communicate(timeout=100)
        assert finished_lines(out) >= 2
        assert "Traceback" not in said
        if finished_lines(out) == MANY:
            return False
        assert process.returncode == (130 if how == signal.SIGINT else -how)
        return True

    many, out = caught_in_the_middle(tmp_path, attempt)
    before = finished_lines(out)
    if how == signal.SIGINT:
        assert f"{before} of {MANY} files are finished and kept" in " ".join(said.split())
    assert f"{before} were there already" in predict(many, "--out", out)
    predict(many, "--out", tmp_path / "fresh")
    assert written(out) == written(tmp_path / "fresh")


def test_processes_write_the_same_bytes(parts, tmp_path):
    predict(parts, "--keep", "id", "--out", tmp_path / "one")
    predict(parts, "--keep", "id", "--out", tmp_path / "two", "--jobs", "2")
    assert written(tmp_path / "one") == written(tmp_path / "two")


class Deadly(FramePredictor):
    """Ends the process that asks it, as a system without memory does."""

    def columns_of(self, network, table):
        os._exit(9)


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_workers_that_end_one_after_the_other_stop_the_run_in_words(parts, tmp_path, engine):
    import dask
    import distributed  # noqa: F401  (whose configuration must be there before it is changed)

    work = engines.Work(Deadly(str(model())), find_partitions(parts), str(tmp_path / "out"))
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(vhat.MemoryBudgetError, match="most likely for lack of memory"),
    ):
        list(engines.compute(work, engine, 2, None))


def test_clusters_that_cannot_be_used_are_refused_in_words(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "_SCHEDULER_TIMEOUT", 1)
    options = ("--engine", "dask", "--scheduler", "tcp://127.0.0.1:1")
    assert "no Dask scheduler answers at 'tcp://127.0.0.1:1'" in predict(
        parts, "--out", tmp_path / "a", *options, code=2
    )
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "needs Dask: pip install" in predict(parts, "--out", tmp_path / "b", "--engine", "dask", code=2)
