"""A directory of files gives the intervals of its files, whoever computes them, and a stopped run goes on."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections import OrderedDict

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

import vhat
from tests.cli.cases import TARGET, load_once, loaded, model, run  # noqa: F401
from tests.cli.directory_cases import RECORD, in_parts, new_rows, predict, written
from vhat.cli import predict_stream, saved_models
from vhat.cli.directories import FramePredictor, engines, worker_models
from vhat.cli.directories.partition import Finished, predict_partition

pytestmark = pytest.mark.usefixtures("load_once")


@pytest.fixture
def rows():
    return new_rows()


@pytest.fixture
def parts(tmp_path):
    return in_parts(tmp_path / "parts")


def test_each_file_has_the_intervals_of_its_rows(parts, rows, tmp_path):
    out = tmp_path / "out"
    said = predict(parts, "--keep", "id,name", "--out", out)
    assert sorted(written(out)) == [RECORD, "y=1/a.parquet", "y=1/b.parquet", "y=2/a.parquet"]
    rows.to_csv(tmp_path / "all.csv", index=False)
    predict(tmp_path / "all.csv", "--keep", "id,name", "--out", tmp_path / "all.parquet")
    whole = pd.read_parquet(tmp_path / "all.parquet")
    found = pd.concat([pd.read_parquet(out / name) for name in ("y=1/a.parquet", "y=2/a.parquet")], ignore_index=True)
    assert found["id"].dtype == np.int64
    pd.testing.assert_frame_equal(found.drop(columns="id"), whole.drop(columns="id"), rtol=1e-12)
    assert list(found["id"]) == list(rows["id"])
    assert pyarrow.parquet.read_schema(out / "y=1/b.parquet").equals(pyarrow.parquet.read_schema(out / "y=1/a.parquet"))
    assert len(pd.read_parquet(out)) == len(rows)  # with y as a column, and without the record
    assert "Intervals of 90 rows of 3 files" in said
    assert "Nominal 95% at each point taken alone" in said
    doubtful = int((found["unsupported"] > 0.5).sum())
    assert 0 < doubtful < 90
    assert f"hardly speak for {doubtful} of 90 rows" in said


def test_files_of_csv_and_chunks(rows, tmp_path, monkeypatch):
    folder = tmp_path / "csv"
    folder.mkdir()
    rows[:50].to_csv(folder / "a.csv", index=False, sep=";")
    rows[50:].to_csv(folder / "b.csv", index=False, sep=";")
    said = predict(folder, "--separator", ";", "--out", tmp_path / "out")
    assert sorted(written(tmp_path / "out")) == [RECORD, "a.parquet", "b.parquet"]
    monkeypatch.setattr(predict_stream, "_ROWS", 1)
    again = predict(folder, "--separator", ";", "--out", tmp_path / "again")
    assert said.replace("/out", "/again") == again


def test_the_function_is_pickled_and_takes_frames_one_after_the_other(parts, rows, tmp_path):
    predict(parts, "--keep", "id", "--out", tmp_path / "out", "--interval", "observation", "--delta", "0.1")
    function = FramePredictor(str(model()), 0.1, target="observation", keep=("id",))
    sent = pickle.dumps(function)
    assert len(sent) < 1_000
    found = list(pickle.loads(sent).over(iter([rows[:50], rows[:0], rows[50:]])))
    for name, frame in zip(("y=1/a", "y=1/b", "y=2/a"), found, strict=True):
        expected = pd.read_parquet(tmp_path / "out" / f"{name}.parquet")
        pd.testing.assert_frame_equal(frame.reset_index(drop=True).astype(expected.dtypes), expected, check_exact=True)
    assert list(found[2].index) == list(rows.index[50:])
    with pytest.raises(vhat.InputError, match="has no column 'salt', which the model was trained with"):
        function(rows.drop(columns="salt"))


@pytest.mark.parametrize("cell", ["deep", True, 10**400, "\ud800"])
def test_a_column_of_several_types_is_refused(rows, cell):
    mixed = rows[:3].assign(salt=[cell, *rows["salt"][:2]])
    with pytest.raises(vhat.InputError, match="the frame: the cells of column 'salt' have no common type"):
        FramePredictor(str(model()))(mixed)


@pytest.mark.parametrize("options", [{"delta": 2.0}, {"target": "median"}, {"keep": "id"}])
def test_options_are_checked_when_the_function_is_made(options):
    with pytest.raises(vhat.InputError, match=next(iter(options))):
        FramePredictor("model", **options)


def test_a_process_loads_a_model_once(parts, rows, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(worker_models, "_models", OrderedDict())
    monkeypatch.setattr(saved_models, "load", lambda place: read.append(place) or loaded())
    predict(parts, "--out", tmp_path / "out")
    FramePredictor(str(model().resolve()))(rows[:5])
    assert read == [model().resolve()]
    with pytest.raises(vhat.StoreError, match="saved anew while it was in use"):
        FramePredictor(str(model()), fingerprint="another")(rows[:5])


def test_statuses_places_and_exit_code_are_those_of_a_table(tmp_path):
    rng = np.random.default_rng(0)
    train = pd.DataFrame({"depth": rng.uniform(0, 4, 60), "kind": rng.choice(["sand", "clay"], 60), "same": 1.0})
    train[TARGET] = np.cos(train["depth"]) + 0.1 * rng.normal(size=60)
    network = vhat.NetworkRegressor(hidden_layer_sizes=(), weight_decay=1e-2)
    with pytest.warns(vhat.TableWarning):
        network.fit(train[["depth", "kind", "same"]], train[TARGET])
    network.save(tmp_path / "model")
    folder = tmp_path / "parts"
    folder.mkdir()
    new = train[["depth", "kind", "same"]][:6].copy()
    new[:3].to_parquet(folder / "a.parquet")
    new.loc[4, "kind"] = "gravel"
    new.loc[5, "same"] = 2.0
    new[3:].to_parquet(folder / "b.parquet")
    done = run("predict", tmp_path / "model", folder, "--out", tmp_path / "out")
    assert list(pd.read_parquet(tmp_path / "out" / "b.parquet")["status"]) == [
        "converged",
        "unknown level",
        "constant column",
    ]
    said = " ".join(done.stderr.split())
    assert "in 1 row of" in said
    assert "(first in row 2 of b.parquet)" in said
    assert "(first in row 3 of b.parquet)" in said
    again = run("predict", tmp_path / "model", folder, "--out", tmp_path / "out")
    assert " ".join(again.stderr.split()).replace("; 2 were there already", "") == said


def test_rows_without_an_interval_end_in_exit_code_3(parts, tmp_path, monkeypatch):
    from dataclasses import replace

    ask = predict_stream.Asked.of

    def failing(self, network, inputs):
        band = ask(self, network, inputs)
        return replace(band, status=np.where(np.arange(len(inputs)) == 0, "stalled", band.status))

    monkeypatch.setattr(predict_stream.Asked, "of", failing)
    said = predict(parts, "--out", tmp_path / "out", code=3)
    assert "2 of 90 rows have no interval; their status is 'stalled'" in said
    monkeypatch.undo()
    assert "2 of 90 rows have no interval" in predict(parts, "--out", tmp_path / "out", code=3)


def test_simultaneous_shares_delta_among_all_rows(parts, rows, tmp_path):
    said = predict(parts, "--simultaneous", "--out", tmp_path / "out")
    assert "All 90 rows at once at 95%, by the union bound, which gives each row delta = 0.000556" in said
    alone = FramePredictor(str(model()), 0.05 / 90)(rows[50:])
    found = pd.read_parquet(tmp_path / "out" / "y=2" / "a.parquet")
    np.testing.assert_array_equal(found["upper"], alone["upper"])


def test_finished_files_are_kept_and_others_computed(parts, tmp_path, monkeypatch):
    out = tmp_path / "out"
    predict(parts, "--out", out)
    complete = written(out)
    (out / "y=2" / "a.parquet").unlink()
    kept = (out / "y=1" / "a.parquet").stat().st_mtime_ns
    record = out / RECORD
    record.write_text(record.read_text() + '{"name": "half')
    assert "2 were there already" in predict(parts, "--out", out)
    assert written(out) == complete
    assert (out / "y=1" / "a.parquet").stat().st_mtime_ns == kept
    monkeypatch.setattr(engines, "predict_partition", None)
    assert "3 were there already" in predict(parts, "--out", out)
    assert written(out) == complete


def test_what_does_not_agree_is_refused_and_computed_again_by_force(parts, rows, tmp_path):
    out = tmp_path / "out"
    predict(parts, "--out", out)
    assert "delta 0.05 there, 0.1 here" in predict(parts, "--out", out, "--delta", "0.1", code=2)
    predict(parts, "--out", out, "--delta", "0.1", "--force")
    predict(parts, "--out", tmp_path / "fresh", "--delta", "0.1")
    assert written(out) == written(tmp_path / "fresh")
    rows[:20].to_parquet(parts / "y=1" / "b.parquet", index=False)
    said = predict(parts, "--out", out, "--delta", "0.1", code=2)
    assert "1 input file was changed since the intervals" in said
    assert "2 were there already" in predict(parts, "--out", out, "--delta", "0.1", "--force")
    (parts / "y=1" / "b.parquet").unlink()
    assert "1 input file not there any more (first y=1/b.parquet)" in predict(
        parts, "--out", out, "--delta", "0.1", code=2
    )
    predict(parts, "--out", out, "--delta", "0.1", "--force")
    assert "y=1/b.parquet" not in written(out)
    shutil.copytree(parts / "y=2", parts / "y=3")
    assert "2 were there already" in predict(parts, "--out", out, "--delta", "0.1")  # files may be added
    saved = tmp_path / "model"
    loaded().sketch().save(saved)
    done = run("predict", saved, parts, "--out", out, "--delta", "0.1")
    assert done.exit_code == 2
    assert "intervals of another model" in done.stderr


def test_directories_that_cannot_be_used_are_refused_in_words(parts, rows, tmp_path):
    out = tmp_path / "out"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is a directory without Parquet or CSV files" in predict(empty, "--out", out, code=2)
    assert "give --out a directory" in predict(parts, code=2)
    assert "lie within each other" in predict(parts, "--out", parts / "out", code=2)
    assert "--scheduler tcp://a:1 has no use" in predict(parts, "--out", out, "--scheduler", "tcp://a:1", code=2)
    assert "it is part of the directory names" in predict(parts, "--out", out, "--keep", "y", code=2)
    assert "column of that name" in predict(parts, "--out", out, "--keep", "lower", code=2)
    assert "has no column 'nmae', which are to be kept. Did you mean 'name'" in predict(
        parts, "--out", out, "--keep", "nmae", code=2
    )
    assert "are for directories" in predict(parts / "y=1" / "a.parquet", "--jobs", "2", code=2)
    assert not out.exists()
    assert "is not empty (it holds _SUCCESS)" in predict(parts, "--out", _with(tmp_path / "full"), "--force", code=2)
    (parts / "y=1" / "notes.txt").write_text("x")
    assert "holds y=1/notes.txt, which by its ending is neither" in predict(parts, "--out", out, code=2)
    (parts / "y=1" / "notes.txt").unlink()
    rows.to_csv(parts / "y=1" / "a.csv")
    assert "would both be written to y=1/a.parquet" in predict(parts, "--out", out, code=2)
    (parts / "y=1" / "a.csv").unlink()
    only = tmp_path / "headers"
    only.mkdir()
    rows[:0].to_csv(only / "a.csv", index=False)
    assert "have column names and no rows" in predict(only, "--out", tmp_path / "none", code=2)


def _with(folder):
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    return folder


def test_mixed_columns_and_unreadable_files_are_named(parts, rows, tmp_path):
    out = tmp_path / "out"
    bad = parts / "y=2" / "b.parquet"
    rows.drop(columns="salt").to_parquet(bad, index=False)
    assert "b.parquet has no column 'salt'" in predict(parts, "--out", out, code=2)
    rows.astype({"id": str}).to_parquet(bad, index=False)
    said = predict(parts, "--out", out, "--keep", "id", code=2)
    assert "--keep id: the column is" in said
    assert "int64 in" in said
    bad.write_bytes(b"PAR1 and no more")
    assert "b.parquet cannot be read as Parquet" in predict(parts, "--out", out, code=2)
    assert not out.exists()
    rows.assign(depth="deep").to_parquet(bad, index=False)
    said = predict(parts, "--out", out, code=2)
    assert "'deep'" in said
    assert "3 of 4 files are finished and kept" in said
    rows.to_parquet(bad, index=False)
    assert "3 were there already" in predict(parts, "--out", out)


def test_a_column_that_directories_state_is_an_input(tmp_path):
    rng = np.random.default_rng(1)
    train = pd.DataFrame({"year": rng.integers(1, 5, 80).astype(float), "x": rng.uniform(0, 1, 80)})
    train[TARGET] = train["year"] + train["x"] + 0.1 * rng.normal(size=80)
    network = vhat.NetworkRegressor(hidden_layer_sizes=(), weight_decay=1e-3)
    network.fit(train[["year", "x"]], train[TARGET]).save(tmp_path / "model")
    for year in (2.0, 3.0):
        folder = tmp_path / "parts" / f"year={year:.0f}"
        folder.mkdir(parents=True)
        train.loc[train["year"] == year, ["x"]].to_parquet(folder / "part.parquet")
    done = run("predict", tmp_path / "model", tmp_path / "parts", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    expected = network.predict(train.loc[train["year"] == 3, ["year", "x"]])
    found = pd.read_parquet(tmp_path / "out" / "year=3" / "part.parquet")
    np.testing.assert_allclose(found["center"], expected, rtol=1e-12)


def test_what_a_worker_reports_is_the_same_after_json(parts, tmp_path):
    from vhat.cli.directories.dataset import find_partitions

    first = find_partitions(parts)[0]
    finished = predict_partition(FramePredictor(str(model())), first, str(tmp_path / "out"), vhat.__version__)
    assert Finished.of_record(json.loads(json.dumps(finished.record()))) == finished
    with pytest.raises(vhat.InputError, match="a worker has vhat"):
        predict_partition(FramePredictor(str(model())), first, str(tmp_path / "out"), "0.0.1")
    os.utime(first.path, (1, 1))
    with pytest.raises(vhat.InputError, match="was written to since"):
        predict_partition(FramePredictor(str(model())), first, str(tmp_path / "out"), vhat.__version__)


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(parts, tmp_path, monkeypatch):
    out = tmp_path / "out"
    real = engines.predict_partition

    def stopped(predict, partition, *others):
        if partition.name == "y=2/a.parquet":
            raise KeyboardInterrupt
        return real(predict, partition, *others)

    monkeypatch.setattr(engines, "predict_partition", stopped)
    said = predict(parts, "--out", out, code=130)
    assert "stopped. 2 of 3 files are finished and kept in" in said
    assert "the same command continues with the others." in said
    monkeypatch.undo()
    predict(parts, "--out", out)
    predict(parts, "--out", tmp_path / "fresh")
    assert written(out) == written(tmp_path / "fresh")
