"""`vhat report` and `NetworkRegressor.report`: from a saved estimator to a file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import vhat
from tests.report.cases import data_of
from vhat.cli import app
from vhat.estimator.persistence import KIND
from vhat.store import read, write

runner = CliRunner()


def table(rows, seed):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"height": rng.normal(170, 10, rows), "sex": rng.integers(0, 2, rows), "kept": np.ones(rows)})
    return X, pd.Series(0.5 * X["height"] + 3 * X["sex"] + rng.normal(size=rows), name="mass")


@pytest.fixture(scope="module")
def network():
    with pytest.warns(vhat.TableWarning):
        return vhat.NetworkRegressor((), random_state=7).fit(*table(60, 0))


@pytest.fixture(scope="module")
def saved(network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    network.save(folder / "model")
    X, y = table(25, 1)
    X.assign(mass=y).to_csv(folder / "new.csv", index=False)
    return folder


def run(*arguments):
    return runner.invoke(app, ["report", *map(str, arguments)])


def test_a_saved_estimator_is_reported_as_the_one_in_memory(network, saved, tmp_path):
    out = tmp_path / "report.html"
    done = run(saved / "model", "--held-out", saved / "new.csv", "--target", "mass", "--unit", "kg", "--out", out)
    assert done.exit_code == 0, done.output
    found = data_of(out)
    X, _ = table(25, 1)
    band = network.predict_interval(X)
    np.testing.assert_allclose(found["outputs"][0]["held_out"]["center"], band.center, rtol=1e-5)
    np.testing.assert_allclose(found["outputs"][0]["held_out"]["half_width"], band.half_width, rtol=1e-5)
    assert found["responses"] == ["mass (kg)"]
    assert found["columns"] == ["height", "sex", "kept"]
    assert [found["columns"][line["column"]] for line in found["outputs"][0]["slices"]] == ["height", "sex"]
    assert found["outputs"][0]["slices"][1]["grid"] == [0.0, 1.0]
    facts = dict(found["facts"])
    assert facts["Seed of the fit"] == "7"
    assert facts["Training rows"] == "60"
    assert facts["Columns"] == "3 (1 constant: kept)"
    assert out.stat().st_size < 1_000_000
    curve = network.selection_.curve
    np.testing.assert_allclose(found["curve"]["weight_decay"], curve.weight_decay, rtol=1e-5)
    np.testing.assert_allclose(found["curve"]["score"], curve.score, rtol=1e-5)
    assert found["curve"]["best"] == curve.best


def test_how_the_weight_decay_was_chosen_survives_the_disk(network, saved):
    loaded = vhat.NetworkRegressor.load(saved / "model")
    assert loaded.selection_.by == network.selection_.by
    assert repr(loaded.selection_.curve) == repr(network.selection_.curve)
    X, _ = table(25, 1)
    standard = network.scaling_.inputs(X.to_numpy())
    np.testing.assert_array_equal(
        loaded.selection_.trained.predict(standard), network.selection_.trained.predict(standard)
    )


def test_the_name_of_a_held_out_series_is_the_name_of_the_response(network, tmp_path):
    path = network.report(tmp_path / "r.html", held_out=table(25, 1))
    assert data_of(path)["responses"] == ["mass"]


def test_no_such_directory(tmp_path):
    done = run(tmp_path / "none", "--out", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "there is no such directory" in done.stderr
    assert not (tmp_path / "r.html").exists()


def test_an_output_that_exists_is_refused_before_the_model_is_read(tmp_path):
    (tmp_path / "r.html").write_text("kept")
    done = run(tmp_path / "none", "--out", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "is there already" in done.stderr
    assert (tmp_path / "r.html").read_text() == "kept"


def test_a_directory_of_a_newer_version_is_refused(network, tmp_path):
    network.save(tmp_path / "model")
    pointer = json.loads((tmp_path / "model" / "vhat.json").read_text())
    (tmp_path / "model" / "vhat.json").write_text(json.dumps(pointer | {"format_version": 99}))
    done = run(tmp_path / "model", "--out", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "saved in format 99" in done.stderr
    assert "Update vhat" in done.stderr


def test_the_name_of_the_target_is_kept_with_the_model(network, saved, tmp_path):
    assert network.target_name_ == "mass"
    assert run(saved / "model", "--out", tmp_path / "a.html").exit_code == 0
    assert data_of(tmp_path / "a.html")["responses"] == ["mass"]
    held = ("--held-out", saved / "new.csv")
    done = run(saved / "model", *held, "--unit", "kg", "--out", tmp_path / "b.html")
    assert done.exit_code == 0, done.output
    assert "warning" not in done.stderr
    assert data_of(tmp_path / "b.html")["responses"] == ["mass (kg)"]
    observed = data_of(tmp_path / "b.html")["outputs"][0]["held_out"]["observed"]
    np.testing.assert_allclose(observed, table(25, 1)[1], rtol=1e-5)
    pd.read_csv(saved / "new.csv").rename(columns={"mass": "weight"}).to_csv(tmp_path / "other.csv", index=False)
    other = ("--held-out", tmp_path / "other.csv")
    done = run(saved / "model", *other, "--out", tmp_path / "c.html")
    assert done.exit_code == 2
    assert "no column 'mass', which the model was fitted to (--target names another)" in done.stderr
    done = run(saved / "model", *other, "--target", "weight", "--out", tmp_path / "c.html")
    assert done.exit_code == 0, done.output
    assert "the model was fitted to 'mass' and is tested on 'weight'" in " ".join(done.stderr.split())
    assert data_of(tmp_path / "c.html")["responses"] == ["weight"]
    done = run(saved / "model", *held, "--target", "height", "--out", tmp_path / "d.html")
    assert done.exit_code == 2
    assert "--target height is among the columns that the model takes" in done.stderr


def test_a_directory_from_before_targets_had_names_loads(network, saved, tmp_path):
    document = dict(read(saved / "model", KIND))
    del document["target"]
    write(tmp_path / "older", KIND, document)
    loaded = vhat.NetworkRegressor.load(tmp_path / "older")
    assert loaded.target_name_ is None
    X, _ = table(25, 1)
    np.testing.assert_array_equal(loaded.predict(X), network.predict(X))


def test_held_out_rows_need_a_target_that_is_there(saved, tmp_path):
    X, y = table(60, 0)
    with pytest.warns(vhat.TableWarning):
        nameless = vhat.NetworkRegressor((), weight_decay=0.01).fit(X, y.to_numpy())
    assert nameless.target_name_ is None
    nameless.save(tmp_path / "nameless")
    done = run(tmp_path / "nameless", "--held-out", saved / "new.csv", "--out", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "--target is needed" in done.stderr
    done = run(saved / "model", "--held-out", saved / "new.csv", "--target", "size", "--out", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "no column 'size'" in done.stderr


def test_help_loads_no_numerical_library():
    code = (
        "import sys\n"
        "from vhat.cli import app\n"
        "try: app(['report', '--help'])\n"
        "except SystemExit as leave: assert not leave.code\n"
        "assert not {'jax', 'torch', 'jinja2', 'scipy', 'sklearn'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "vhat report" in done.stdout


@pytest.mark.slow
def test_the_example_of_the_documentation_runs_and_its_page_is_small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(compile(block, "report.md", "exec"), names)
    assert names["path"].stat().st_size < 1_000_000
    found = data_of(tmp_path / "report.html")
    assert found["audit"]["failed"] == ["unequal noise"]  # as on the page about the command line
    assert found["outputs"][0]["calibration"]["rows"] == 42


def lines_of(path):
    """The fields of every line of a text file, by its number in an editor."""
    return {f"line {at}": line.split(",") for at, line in enumerate(path.read_text().split("\n"), start=1)}


def judge_names(group, file, target):
    """Every row is called by the line of the file in which its response stands."""
    known = lines_of(file)
    assert len(set(group["name"])) == len(group["name"])
    for name, observed in zip(group["name"], group["observed"], strict=True):
        assert float(known[name][target]) == pytest.approx(observed, rel=1e-9)


@pytest.fixture
def written(tmp_path):
    """A table with a blank line, and rows of weight zero."""
    X, y = table(60, 3)
    X.drop(columns="kept").assign(mass=y, weight=np.arange(60) % 4 > 0).to_csv(tmp_path / "data.csv", index=False)
    lines = (tmp_path / "data.csv").read_text().split("\n")
    (tmp_path / "data.csv").write_text("\n".join([*lines[:20], "", *lines[20:]]))
    return tmp_path / "data.csv"


FIT = ("--target", "mass", "--hidden", "0", "--weight-decay", "0.01", "--quiet")


def test_rows_are_called_by_their_lines_in_the_file_whatever_was_kept_apart(written, saved, tmp_path):
    options = (*FIT, "--weights", "weight", "--hold-out", "0.2", "--out", tmp_path / "model")
    done = runner.invoke(app, list(map(str, ["fit", written, *options])))
    assert done.exit_code == 0, done.output
    out, held = tmp_path / "report.html", tmp_path / "later.csv"
    lines = (saved / "new.csv").read_text().split("\n")
    held.write_text("\n".join([*lines[:5], "", "", *lines[5:]]))
    done = run(tmp_path / "model", "--held-out", held, "--out", out)
    assert done.exit_code == 0, done.output
    found = data_of(out)
    output = found["outputs"][0]
    assert len(output["training"]["name"]) == 36  # 45 of 60 have a weight, and a fifth of them was kept apart
    judge_names(output["training"], written, target=2)
    judge_names(output["held_out"], held, target=3)
    known = lines_of(written)
    for row in output["influential_rows"].values():
        assert float(known[row["name"]][2]) == pytest.approx(row["response"], rel=1e-9)
    central = known[found["slice_row"]]
    assert [float(central[0]), float(central[1])] == pytest.approx(found["inputs"]["central"])
    text = out.read_text()
    assert f"stay as in training {found['slice_row']}, the row" in text
    assert (
        "Training rows are named by their line in data.csv, as an editor counts them; held-out rows by their line in "
        "later.csv, as an editor counts them." in text
    )
    assert "over the rows that were fitted" not in text


def test_rows_of_a_parquet_file_are_called_as_its_errors_call_them(tmp_path):
    X, y = table(30, 3)
    frame = X.drop(columns="kept").assign(mass=y)
    frame.to_parquet(tmp_path / "data.parquet")
    fitted = ["fit", tmp_path / "data.parquet", *FIT, "--hold-out", "0.3", "--out", tmp_path / "model"]
    assert runner.invoke(app, list(map(str, fitted))).exit_code == 0
    assert run(tmp_path / "model", "--out", tmp_path / "r.html").exit_code == 0
    training = data_of(tmp_path / "r.html")["outputs"][0]["training"]
    for name, observed in zip(training["name"], training["observed"], strict=True):
        assert frame["mass"][int(name.removeprefix("row ")) - 1] == pytest.approx(observed)
    assert "Rows are named by their row in data.parquet, counted from 1." in (tmp_path / "r.html").read_text()
    frame.loc[int(name.removeprefix("row ")) - 1, "mass"] = np.inf
    frame.to_parquet(tmp_path / "gap.parquet")
    done = runner.invoke(app, list(map(str, ["fit", tmp_path / "gap.parquet", *FIT, "--out", tmp_path / "other"])))
    assert f"{name}: column 'mass'" in done.stderr


def test_an_estimator_keeps_the_index_of_its_rows_on_disk(tmp_path):
    X, y = table(40, 5)
    X.index = pd.Index([f"p{k}" for k in range(40)], name="patient")
    weight = np.where(np.arange(40) == 7, 0.0, 1.0)
    with pytest.warns(vhat.TableWarning):
        network = vhat.NetworkRegressor((), weight_decay=0.01).fit(X, y.to_numpy(), weight)
    named = [f"patient p{k}" for k in range(40) if k != 7]
    assert list(network.row_names_) == named
    network.save(tmp_path / "model")
    assert list(vhat.NetworkRegressor.load(tmp_path / "model").row_names_) == named
    document = dict(read(tmp_path / "model", KIND))
    del document["row_names"]
    write(tmp_path / "older", KIND, document)
    older = vhat.NetworkRegressor.load(tmp_path / "older")
    assert list(older.row_names_) == [f"row {k}" for k in range(40) if k != 7]


def test_held_out_rows_that_warnings_name_are_named_by_line(saved, tmp_path):
    """A column that was constant in training moves in two of them; the page and standard error say in which."""
    lines = (saved / "new.csv").read_text().split("\n")
    for at in (3, 17):
        fields = lines[at].split(",")
        lines[at] = ",".join([*fields[:2], "2.0", *fields[3:]])
    held = tmp_path / "later.csv"
    held.write_text("\n".join(lines))
    done = run(saved / "model", "--held-out", held, "--out", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    assert any("is not in lines 4, 18:" in said for said in data_of(tmp_path / "r.html")["warnings"])
    assert "first in line 4" in " ".join(done.stderr.split())


def test_rows_kept_apart_by_a_fit_are_named_by_line_in_its_warnings(tmp_path):
    X, y = table(40, 3)
    held = np.sort(np.random.default_rng(0).permutation(40)[:8])
    X = X.drop(columns="kept").assign(still=1.0)
    X.loc[held[[2, 5]], "still"] = 3.0
    X.assign(mass=y).to_csv(tmp_path / "data.csv", index=False)
    options = ["fit", tmp_path / "data.csv", *FIT[:-1], "--hold-out", "0.2", "--out", tmp_path / "model"]
    done = runner.invoke(app, list(map(str, options)))
    assert done.exit_code == 0, done.output
    told = " ".join(done.stderr.split())
    assert f"is not in lines {held[2] + 2}, {held[5] + 2}:" in told
    assert not re.search(r"\brows? \d", told)


def test_a_page_of_the_command_line_gives_advice_in_commands(saved, tmp_path):
    from vhat.cli.advice import AUDIT

    out = tmp_path / "page.html"
    assert run(saved / "model", "--out", out).exit_code == 0
    advice = " ".join(f"{line['meaning']} {line['remedy']}" for line in data_of(out)["audit"]["lines"])
    assert "--refits 10" in advice
    for python in AUDIT:
        assert python not in advice, python


def test_rows_outside_the_training_range_are_named_once_by_their_lines(saved, tmp_path):
    X, y = table(25, 1)
    X.loc[[4, 9], "height"] = 900.0
    X.assign(mass=y).to_csv(tmp_path / "far.csv", index=False)
    out = tmp_path / "report.html"
    done = run(saved / "model", "--held-out", tmp_path / "far.csv", "--out", out)
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert said.count("far outside") == 1
    assert "far outside in lines 6, 11 (900 in the first)" in said
    assert sum("far outside" in text for text in data_of(out)["warnings"]) == 1
