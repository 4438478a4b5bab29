"""Runs of the study for real: killed and taken up again, on another engine, with a worker killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vhat.cli import app
from vhat.errors import InputError, MissingPackage
from vhat.study import run as run_module
from vhat.study.cell import Cell
from vhat.study.protocol import PROTOCOL
from vhat.study.results import Results, to_text
from vhat.study.run import run
from vhat.study.worker import CellCrashed, compute

pytestmark = pytest.mark.slow

STEPS, TRIALS = 2, 3
CELLS = [Cell("published", "matern", 10, 100, 1e-3, "bootstrap", trial, STEPS) for trial in range(TRIALS)]
COMMAND = [
    *(sys.executable, "-m", "vhat.cli", "study", "table1", "--sizes", "100", "--trials", str(TRIALS)),
    *("--steps", str(STEPS), "--versions", "published", "--truths", "matern", "--methods", "bootstrap"),
]


def wait_until(happened, *, at_most=240.0):
    until = time.monotonic() + at_most
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def files(out):
    return {path.name: path.read_bytes() for path in sorted((Path(out) / "cells").glob("*.json"))}


def silent(_line):
    """Say nothing."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The files of a run that nothing happened to, one cell after the other in processes of their own."""
    out = tmp_path_factory.mktemp("undisturbed")
    done = run(CELLS, out, say=silent)
    assert (set(done.computed), done.kept, done.crashed) == (set(CELLS), 0, {})
    return out


def test_a_killed_run_that_is_taken_up_again_ends_in_the_same_bytes(undisturbed, tmp_path):
    """Killed in the middle of the second cell, with some of its fits done."""
    second = Results(tmp_path).scratch / CELLS[1].key
    with subprocess.Popen([*COMMAND, "--out", str(tmp_path)], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: process.poll() is not None or (second.is_dir() and len(list(second.iterdir())) >= 4))
        assert process.poll() is None, "it ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
    assert set(files(tmp_path)) == {f"{CELLS[0].key}.json"}
    first = Results(tmp_path).path(CELLS[0])
    written, fits = first.stat().st_mtime_ns, set(second.iterdir())
    said = subprocess.run([*COMMAND, "--out", str(tmp_path)], capture_output=True, text=True, check=True)
    assert "3 cells: 1 have a result, 2 are to be computed." in said.stderr
    assert first.stat().st_mtime_ns == written
    assert fits, "nothing of the second cell was kept"
    assert files(tmp_path) == files(undisturbed)
    assert not any(Results(tmp_path).scratch.iterdir())


def test_two_dask_workers_of_which_one_is_killed_give_the_same_bytes(undisturbed, tmp_path):
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True)
    with cluster:
        found = []
        address = cluster.scheduler_address
        runner = threading.Thread(
            target=lambda: found.append(run(CELLS, tmp_path, engine="dask", jobs=2, scheduler=address, say=silent))
        )
        runner.start()
        scratch = Results(tmp_path).scratch
        wait_until(lambda: len(list(scratch.glob("*/*/vhat.json"))) >= 3)
        killed = cluster.workers[0].process.pid
        os.kill(killed, signal.SIGKILL)
        runner.join(timeout=400)
        assert not runner.is_alive()
    assert (set(found[0].computed), found[0].crashed) == (set(CELLS), {})
    assert files(tmp_path) == files(undisturbed)


def worked_at(cell, _out, _progress=None):
    """The result of a cell that says only that a worker of a cluster has made it."""
    from distributed import get_worker

    return cell, to_text({"cell": cell.config(), "protocol": PROTOCOL, "worker": str(get_worker().name)}), None


def test_a_cluster_of_one_worker_computes_the_cells_itself(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(run_module, "_attempt", worked_at)
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None, "processes": False}
    with distributed.LocalCluster(**options) as cluster:
        done = run(CELLS, tmp_path, engine="dask", jobs=1, scheduler=cluster.scheduler_address, say=silent)
    assert set(done.computed) == set(CELLS)
    assert all("worker" in Results(tmp_path).read(cell) for cell in CELLS)


class RayStandIn(types.ModuleType):
    """The part of Ray that a study uses, with a thread as the only worker."""

    def __init__(self):
        super().__init__("ray")
        self.workers = ThreadPoolExecutor(1, thread_name_prefix="ray-worker")
        self.started = None
        self.most = 0
        self.open = 0

    def init(self, **options):
        if options["address"] == "ray://nowhere:1":
            raise ConnectionError("nobody is there")
        self.started = options

    def shutdown(self):
        self.workers.shutdown()

    def remote(self, function):
        return types.SimpleNamespace(remote=lambda *arguments: self.submit(function, arguments))

    def submit(self, function, arguments):
        self.open += 1
        self.most = max(self.most, self.open)
        return self.workers.submit(function, *arguments)

    def wait(self, running, num_returns):
        assert num_returns == 1
        done = next(as_completed(running))
        self.open -= 1
        return [done], [each for each in running if each is not done]

    def get(self, answer):
        return answer.result()


@pytest.mark.parametrize("jobs", [1, 2])
def test_ray_computes_the_cells_with_one_job_too(tmp_path, monkeypatch, jobs):
    def named(cell, _out, _progress=None):
        name = threading.current_thread().name
        return cell, to_text({"cell": cell.config(), "protocol": PROTOCOL, "worker": name}), None

    ray = RayStandIn()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(run_module, "_attempt", named)
    done = run(CELLS, tmp_path, engine="ray", jobs=jobs, say=silent)
    assert set(done.computed) == set(CELLS)
    assert all(Results(tmp_path).read(cell)["worker"].startswith("ray-worker") for cell in CELLS)
    assert ray.most == jobs
    assert ray.started["num_cpus"] == jobs
    with pytest.raises(InputError, match="no Ray cluster answers at 'ray://nowhere:1': nobody is there"):
        run(CELLS, tmp_path / "other", engine="ray", scheduler="ray://nowhere:1", say=silent)


def test_ray_gives_the_same_bytes(undisturbed, tmp_path):
    pytest.importorskip("ray")
    done = run(CELLS[:2], tmp_path, engine="ray", jobs=2, say=silent)
    assert (set(done.computed), done.crashed) == (set(CELLS[:2]), {})
    found, expected = files(tmp_path), files(undisturbed)
    assert found == {name: expected[name] for name in found}
    assert len(found) == 2


def test_the_order_of_cells_and_their_number_at_once_do_not_matter(undisturbed, tmp_path):
    run(CELLS[:0:-1], tmp_path, jobs=2, say=silent)
    found, expected = files(tmp_path), files(undisturbed)
    assert found == {name: expected[name] for name in found}
    assert len(found) == 2


def test_a_rerun_computes_nothing_and_says_so(undisturbed):
    said, before = [], files(undisturbed)
    done = run(CELLS, undisturbed, say=said.append)
    assert (done.computed, done.kept) == ((), TRIALS)
    assert said == ["3 cells: 3 have a result, 0 are to be computed."]
    assert files(undisturbed) == before


def test_a_cell_that_crashes_is_named_and_the_others_go_on(undisturbed, tmp_path, monkeypatch):
    real = run_module.compute

    def compute_or_crash(cell, out, report):
        if cell == CELLS[0]:
            raise CellCrashed("killed for memory")
        return real(cell, out, report)

    monkeypatch.setattr(run_module, "compute", compute_or_crash)
    said = []
    done = run(CELLS[:2], tmp_path, say=said.append)
    assert done.crashed == {CELLS[0]: "killed for memory"}
    assert done.computed == (CELLS[1],)
    assert f"{CELLS[1].key} begins" in said
    assert any("CRASHED: killed for memory" in line for line in said)
    assert Results(tmp_path).missing(CELLS[:2]) == [CELLS[0]]


def test_a_process_that_ends_without_a_result_is_a_crash_with_its_words(tmp_path):
    with pytest.raises(CellCrashed, match="there is no method 'oracle'"):
        compute(Cell("published", "matern", 10, 100, 1e-3, "oracle", 0, STEPS), tmp_path)


def test_engines_that_cannot_be_used_are_refused_in_words(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no use with engine='local'"):
        run([], tmp_path, scheduler="tcp://localhost:1")
    with pytest.raises(InputError, match="engine"):
        run([], tmp_path, engine="slurm")
    for package, engine in (("distributed", "dask"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingPackage, match="pip install"):
            run([], tmp_path, engine=engine)


def test_the_small_study_from_the_command_line(tmp_path):
    """Both methods, two trials, reduced steps: every output is there, stamped, and complete."""
    options = ["--sizes", "100", "--trials", "2", "--steps", "20", "--versions", "published", "--truths", "matern"]
    done = CliRunner().invoke(app, ["study", "table1", *options, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "table1.md").read_text()
    assert "| proposed | 100 (2 of 2) | ours |" in text
    assert "| bootstrap | 100 (2 of 2) | ours |" in text
    assert "REDUCED: trained for 20 steps" in text
    assert "Missing" not in text
    for name in ("table1.csv", "table1.tex"):
        assert (tmp_path / name).stat().st_size > 500
    more = CliRunner().invoke(app, ["study", "figure2", *options, "--out", str(tmp_path), "--report"])
    assert more.exit_code == 1
    assert "Missing cells, 36 of 40" in (tmp_path / "selection.md").read_text()
    assert (tmp_path / "figure2-published.png").stat().st_size > 5_000


@pytest.mark.parametrize("arguments", [["study", "--help"], ["study", "table1", "--help"]])
def test_help_imports_neither_jax_nor_torch(arguments):
    code = (
        "import sys\n"
        "from vhat.cli import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit as leave: assert not leave.code\n"
        "assert not {'jax', 'torch', 'matplotlib', 'scipy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
