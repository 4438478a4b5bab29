"""Sums over the training rows on a Dask cluster: the same numbers as in one process, also after a worker is lost."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.sketch.cases import network, points, tangent
from vhat.linalg.solvers import cluster as on_cluster
from vhat.linalg.solvers.row_draws import RowDraws

distributed = pytest.importorskip("distributed")
INPUTS = ["a", "b", "c"]


@contextmanager
def workers(count):
    """Yield the client of a cluster of several processes."""
    with (
        distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as started,
        distributed.Client(started) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client():
    with workers(2) as two:
        yield two


@pytest.fixture
def small_blocks(monkeypatch):
    """Split few rows into several tasks."""
    monkeypatch.setattr(on_cluster, "_LEAST_ROWS", 16)
    monkeypatch.setattr(on_cluster, "_MOST_BLOCKS", 5)


def curve(n=90):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 4, n)
    y = 2 * np.exp(-0.7 * x) + 0.05 * rng.normal(size=n)
    return vhat.from_numpy(lambda q, x: q[0] * np.exp(-q[1] * x), [2.0, 0.7], x, y).polish()


def two_curves(n=90):
    """Two outputs and weighted rows."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 4, n)
    y = np.column_stack([2 * np.exp(-0.7 * x), 2 * x]) + 0.05 * rng.normal(size=(n, 2))

    def both(q, x):
        return np.column_stack([q[0] * np.exp(-q[1] * x), q[0] * x])

    return vhat.from_numpy(both, [2.0, 0.7], x, y, sample_weight=rng.uniform(0.5, 2, n)).polish()


def line(rows):
    """A linear model of rows in files, in NumPy."""
    return vhat.from_numpy(lambda q, X: X @ q, np.zeros(3), rows, jac=lambda X: X).polish()


@dataclass(frozen=True, repr=False)
class Deadly(vhat.Rows):
    """Rows whose second block ends the first worker that reads it."""

    marker: str = ""

    def read(self, number):
        if number == 1 and on_a_worker() and not Path(self.marker).exists():
            Path(self.marker).write_text("it died here")
            os._exit(1)
        return super().read(number)


def on_a_worker():
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Four files of 50 rows in two row groups each."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    for at in range(4):
        frame = pd.DataFrame(rng.normal(size=(50, 3)), columns=INPUTS)
        frame["y"] = np.sin(frame["a"]) + frame["b"] + 0.1 * rng.normal(size=50)
        frame.to_parquet(folder / f"{at}.parquet", row_group_size=25, index=False)
    return folder


def module():
    import torch

    torch.manual_seed(0)
    layers = (torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1), torch.nn.Flatten(0))
    return torch.nn.Sequential(*layers).eval()


def fitted_to(rows):
    return vhat.from_torch(module(), rows, weight_decay=1e-2).linearised(1e-2)


# -- without a cluster -------------------------------------------------------------------------
@pytest.mark.parametrize("outputs", [1, 3])
def test_draws_are_the_same_in_whichever_blocks_they_are_asked_for(outputs):
    draws = RowDraws(seed=7, kind=1, n=2500, outputs=outputs)
    whole = np.concatenate([draws.of(range(3), rows) for rows in draws.blocks()], axis=1)
    assert whole.shape == (3, 2500, outputs)
    for cuts in ((0, 2500), (0, 1, 1024, 1500, 2500), (0, 700, 2499, 2500)):
        parts = [rows for start, stop in pairwise(cuts) for rows in draws.blocks(start, stop)]
        np.testing.assert_array_equal(np.concatenate([draws.of(range(3), rows) for rows in parts], axis=1), whole)
    np.testing.assert_array_equal(draws.of(range(2, 3), slice(0, 10)), whole[2:, :10])


def test_tasks_of_rows_in_files_hold_no_row(files):
    problem = line(vhat.Rows.parquet(files, inputs=INPUTS, target="y")).problem
    blocks = list(on_cluster._blocks(problem))
    assert [(block.start, block.stop) for block in blocks] == [(at, at + 25) for at in range(0, 200, 25)]
    assert all(block.inputs is None for block in blocks)


def test_files_that_hold_other_rows_than_training_saw_are_refused(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 4)), columns=[*INPUTS, "y"])
    frame.to_parquet(tmp_path / "rows.parquet")
    problem = line(vhat.Rows.parquet(tmp_path, inputs=INPUTS, target="y")).problem
    (block,) = on_cluster._blocks(problem)
    block.read(problem)
    (frame + 1).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(vhat.InputError, match=r"block 0 of the training rows .* holds other rows on a worker"):
        block.read(problem)


def test_what_is_no_client_is_refused():
    with pytest.raises(vhat.InputError, match=r"engine='dask' is not the client of a Dask cluster"):
        vhat.Primal(engine="dask")
    with pytest.raises(vhat.InputError, match=r"is not the client of a Dask cluster"):
        curve().sketch(engine=4)


def test_other_solvers_are_refused_with_the_call_that_works():
    with pytest.raises(vhat.InputError, match=r"Leave solver out \(it is then vhat.Primal\(\)\), or leave engine out"):
        curve().sketch(solver=vhat.CG(), engine=object())


# -- with one ----------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["curve", "two outputs and weights", "linearised"])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "probes"])
def test_a_sketch_by_two_workers_is_that_of_this_process(client, small_blocks, monkeypatch, kind, exact):
    if not exact:
        monkeypatch.setattr("vhat.sketch.sketch.MOST_EXACT", 0)
    if kind == "curve":
        make, x, options = curve, np.array([0.5, 5.0]), {}
    elif kind == "linearised":
        make, x, options = lambda: tangent()[0], points(3), {}
    else:
        make, x, options = two_curves, np.array([0.5, 5.0]), {"noise": np.array([[0.05, 0.2]])}
    here = make().sketch(16, solver=vhat.Primal(), curvature="ggn", **options)
    there = make().sketch(16, engine=client, curvature="ggn", **options)
    known, found = here.interval(x, bound="asymptotic"), there.interval(x, bound="asymptotic")
    np.testing.assert_allclose(found.half_width, known.half_width, rtol=1e-12)
    np.testing.assert_allclose(found.unsupported, known.unsupported, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_sums_do_not_depend_on_how_many_workers_there_are(client, small_blocks, monkeypatch):
    monkeypatch.setattr("vhat.sketch.sketch.MOST_EXACT", 0)
    by_two = curve().sketch(16, engine=client, curvature="ggn").roots
    with workers(1) as alone:
        by_one = curve().sketch(16, engine=alone, curvature="ggn").roots
    np.testing.assert_array_equal(by_one.variance, by_two.variance)
    np.testing.assert_array_equal(by_one.rest, by_two.rest)


@pytest.mark.slow
def test_the_primal_solver_takes_the_sums_of_a_cluster(client, small_blocks):
    x = points()
    here = network().interval(x, solver=vhat.Primal(), curvature="ggn")
    there = network().interval(x, solver=vhat.Primal(engine=client), curvature="ggn")
    np.testing.assert_allclose(there.half_width, here.half_width, rtol=1e-12)


@pytest.mark.slow
def test_a_worker_that_dies_in_the_middle_changes_no_bit(files, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr("vhat.sketch.sketch.MOST_EXACT", 0)
    rows = vhat.Rows.parquet(files, inputs=INPUTS, target="y")
    deadly = Deadly(rows.blocks, rows.inputs, rows.target, str(tmp_path / "marker"))
    here = fitted_to(rows).sketch(16, solver=vhat.Primal())
    with workers(2) as two:
        before = set(two.scheduler_info()["workers"])
        disturbed = fitted_to(deadly).sketch(16, engine=two)
        assert (tmp_path / "marker").exists()
        assert set(two.scheduler_info()["workers"]) != before
        undisturbed = fitted_to(rows).sketch(16, engine=two)
    np.testing.assert_array_equal(disturbed.roots.variance, undisturbed.roots.variance)
    x = points(3)
    known, found = here.interval(x, bound="asymptotic"), disturbed.interval(x, bound="asymptotic")
    np.testing.assert_allclose(found.half_width, known.half_width, rtol=1e-12)


@pytest.mark.slow
def test_a_model_that_cannot_be_sent_is_refused_with_the_call_that_works(client):
    lock = threading.Lock()

    def locked(q, x):
        with lock:
            return q[0] * x

    x = np.arange(1.0, 9.0)
    fitted = vhat.from_numpy(locked, [1.0], x, x + 0.1 * np.cos(9 * x)).polish()
    with pytest.raises(
        vhat.InputError, match=r"cannot be sent to the workers .*leave engine out: fitted.sketch\(256\)"
    ):
        fitted.sketch(engine=client, curvature="ggn")
