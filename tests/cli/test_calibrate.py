"""``vhat calibrate``, calibrated intervals of ``vhat predict``, and held-out rows that training saw."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.cli.cases import NAMES, TARGET, data, loaded, model, read, run, table
from tests.report.cases import data_of


@pytest.fixture
def copied(tmp_path):
    """A model of one's own, to be changed."""
    shutil.copytree(model(), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def files(tmp_path):
    """Fresh rows, and others to predict."""
    table(80, seed=5).to_csv(tmp_path / "held.csv", index=False)
    table(9, seed=6).to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "held.csv", tmp_path / "new.csv"


def predicted(place, new, *options):
    done = run("predict", place, new, "--interval", "observation", *options, "--out", new.parent / "out.csv", "--force")
    assert done.exit_code == 0, done.output
    return read(new.parent / "out.csv"), " ".join(done.stderr.split())


def test_fit_saves_the_calibration_and_predict_does_not_repeat_it(files, monkeypatch):
    from vhat.estimator import calibration

    assert loaded().calibrated_.source == "cv"  # 48 rows are few for a network
    monkeypatch.setattr(calibration, "_by_training_rows", None)
    found, said = predicted(model(), files[1])
    band = loaded().predict_interval(read(files[1])[NAMES], target="observation")
    np.testing.assert_array_equal(found["upper"], band.upper)
    assert band.bound == "cv"
    assert "48 training rows, each predicted by a refit without a fifth of the rows" in said


def test_held_out_rows_are_stored_and_used_from_then_on(copied, files):
    held, new = files
    done = run("calibrate", copied, held, "--json")
    said = " ".join(done.stderr.split())
    assert f"by 80 held-out rows of {held}; delta from 0.0123 up" in said
    assert "missed with probability at most delta" in said
    assert json.loads(done.stdout) == {
        "model": str(copied),
        "source": "split",
        "rows": 80,
        "smallest_delta": pytest.approx(1 / 81),
    }
    again = run("report", copied, "--held-out", held, "--out", new.parent / "page.html")
    assert again.exit_code == 2
    assert "vhat calibrate MODEL, without a table, goes back to leave-one-out" in again.stderr
    assert not (new.parent / "page.html").exists()
    found, said = predicted(copied, new)
    rows = read(held)
    expected = loaded().fitted_.calibrate(rows[NAMES], np.array(rows[TARGET])).interval(read(new)[NAMES])
    np.testing.assert_allclose(found["upper"], expected.upper, rtol=1e-12)
    assert "80 calibration rows" in said
    back = run("calibrate", copied)
    assert "by 48 training rows, each predicted by a refit without its fifth of them" in " ".join(back.stderr.split())
    assert vhat.NetworkRegressor.load(copied).calibrated_.source == "cv"


def test_a_bound_is_reached_by_its_option(files):
    found, said = predicted(model(), files[1], "--bound", "isoperimetric")
    expected = loaded().fitted_.interval(read(files[1])[NAMES], target="observation")
    np.testing.assert_array_equal(found["upper"], expected.upper)
    assert "by the isoperimetric bound" in said


def test_a_level_that_cannot_be_calibrated_is_said_in_options(files):
    found, said = predicted(model(), files[1], "--delta", "0.001")
    expected = loaded().fitted_.interval(read(files[1])[NAMES], 0.001, target="observation")
    np.testing.assert_array_equal(found["upper"], expected.upper)
    assert "not calibrated but rest on the isoperimetric bound: 48 scores are too few for delta=0.001" in said
    assert "vhat calibrate MODEL HELD_OUT.csv calibrates" in said
    assert "--bound isoperimetric asks" in said
    assert "network." not in said


def test_the_training_file_is_refused_as_held_out_data_by_every_command(copied, tmp_path):
    """The whole file that vhat fit read, and the part of it that training saw: no page, no calibration."""
    whole = read(data())
    kept = set(np.round(loaded().held_out_.X[:, 0], 12))
    seen = whole[[round(depth, 12) not in kept for depth in whole["depth"]]]
    assert len(seen) == 48
    seen.to_csv(tmp_path / "seen.csv", index=False)
    before = vhat.NetworkRegressor.load(copied).calibrated_.guarantee
    for file in (data(), tmp_path / "seen.csv"):
        for command in (
            ("report", copied, "--held-out", file, "--out", tmp_path / "page.html"),
            ("calibrate", copied, file),
        ):
            done = run(*command)
            assert done.exit_code == 2
            assert "training row" in done.stderr
            assert "Give rows that training did not see" in done.stderr
    assert not (tmp_path / "page.html").exists()
    assert vhat.NetworkRegressor.load(copied).calibrated_.guarantee == before


def test_rows_that_fit_kept_apart_judge_the_report(tmp_path):
    done = run("report", model(), "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    (output,) = data_of(tmp_path / "page.html")["outputs"]
    kept = loaded().held_out_
    assert output["calibration"]["source"] == "held-out"
    assert output["calibration"]["rows"] == len(kept.y) == 12
    assert "12 held-out rows, none of them a training row" in output["calibration"]["method"]
    band = loaded().predict_interval(pd.DataFrame(kept.X, columns=NAMES), target="observation")
    first = output["calibration"]["curves"][0]
    assert first["bound"] == "calibrated, five folds"
    inside = (band.lower <= kept.y) & (kept.y <= band.upper)
    assert first["coverage"][first["asked"]] == pytest.approx(inside.mean())
    np.testing.assert_allclose(output["held_out"]["observation"], band.half_width, rtol=1e-5)
    assert output["held_out"]["name"][0].startswith("line ")
