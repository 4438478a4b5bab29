"""An estimator without its training rows predicts as it did, and refuses what needs them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import vhat
from vhat.cli import app


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    n = 160
    frame = pd.DataFrame({"depth": rng.uniform(0, 4, n), "kind": rng.choice(["sand", "clay"], n)})
    frame["y"] = 3 * np.cos(frame["depth"]) + (frame["kind"] == "sand") + 0.2 * rng.normal(size=n)
    return frame


@pytest.fixture(scope="module")
def network(table):
    fitted = vhat.NetworkRegressor(hidden_layer_sizes=(6,), weight_decay=1e-3)
    return fitted.fit(table[["depth", "kind"]][:120], table["y"][:120])


@pytest.mark.parametrize("target", ["mean", "observation"])
def test_predictions_and_intervals_are_those_of_the_estimator(network, table, target, tmp_path):
    made = network.sketch()
    made.save(tmp_path)
    again = vhat.NetworkRegressor.load(tmp_path)
    X = table[["depth", "kind"]][120:]
    known = network.predict_interval(X, 0.1, target=target)
    for found in (made, again):
        band = found.predict_interval(X, 0.1, target=target)
        np.testing.assert_allclose(band.lower, known.lower, rtol=1e-9)
        np.testing.assert_allclose(band.upper, known.upper, rtol=1e-9)
        assert band.guarantee == known.guarantee
    assert str(again.audited_) == str(network.audited_)
    np.testing.assert_allclose(again.predict(X, return_std=True)[1], network.predict(X, return_std=True)[1], rtol=1e-9)


def test_nothing_of_a_training_row_is_saved(network, table, tmp_path):
    from safetensors.numpy import load_file

    network.sketch().save(tmp_path)
    (path,) = tmp_path.glob("v*/arrays.safetensors")
    numbers = np.concatenate([each.astype(float).ravel() for each in load_file(path).values()])
    assert not np.isin(table["depth"][:120], numbers).any()
    assert not np.isin(table["y"][:120], numbers).any()


def test_calibration_by_held_out_rows(network, table):
    X, y = table[["depth", "kind"]][120:], table["y"][120:]
    found = network.sketch().calibrate(X, y).predict_interval(X[:3], 0.2, target="observation")
    assert found.bound == "split"
    with pytest.raises(vhat.InputError, match="training rows"):
        network.sketch().calibrate(table[["depth", "kind"]][:120], table["y"][:120])


@pytest.mark.parametrize(
    "ask",
    [
        lambda network, path: network.audit(refits=3),
        lambda network, path: network.report(path / "page.html"),
        lambda network, path: network.calibrate(),
        lambda network, path: network.sketch(),
    ],
    ids=["audit", "report", "calibrate", "sketch"],
)
def test_what_needs_training_rows_is_refused(network, ask, tmp_path):
    with pytest.raises(vhat.InputError, match="Ask the model it was made of"):
        ask(network.sketch(), tmp_path)


def test_the_command_line_makes_and_takes_a_sketch(network, table, tmp_path):
    model, deployed, new = (str(tmp_path / name) for name in ("model", "deployed", "new.csv"))
    network.save(model)
    table[["depth", "kind"]][120:].to_csv(new, index=False)
    run = CliRunner().invoke
    assert run(app, ["sketch", model, "--out", deployed]).exit_code == 0
    outs = []
    for place in (model, deployed):
        out = f"{place}.csv"
        answer = run(app, ["predict", place, new, "--interval", "observation", "--out", out])
        assert answer.exit_code == 0, answer.output
        outs.append(pd.read_csv(out))
    np.testing.assert_allclose(outs[0][["lower", "upper"]], outs[1][["lower", "upper"]], rtol=1e-9)
    for words in (
        ["audit", deployed, "--refits", "3"],
        ["plan", deployed, new],
        ["report", deployed, "--out", f"{deployed}.html"],
    ):
        answer = run(app, words)
        assert answer.exit_code != 0
        assert "needs the training rows" in " ".join((answer.output + str(answer.exception)).split())


def test_another_noise_falls_back_to_the_bound_in_words(network, table):
    X = table[["depth", "kind"]][120:123]
    with pytest.warns(vhat.CalibrationWarning, match="a sketch has no training rows to calibrate by"):
        band = network.sketch().predict_interval(X, target="observation", noise=0.3)
    assert band.bound == "isoperimetric"


def test_quantiles_by_the_formula_allow_for_a_sampled_norm(network, table, monkeypatch):
    """The distance of a quantile from the prediction is the half width of the interval with as much on each side."""
    monkeypatch.setattr("vhat.sketch.sketch.MOST_EXACT", 0)
    made = network.sketch(16)
    made.calibrated_, made.not_calibrated_ = None, "not asked for"
    X = table[["depth", "kind"]][120:125]
    with pytest.warns(vhat.CalibrationWarning, match="Student's distribution"):
        low, high = made.predict_quantiles(X, [0.05, 0.95]).T
    band = made.predict_interval(X, 0.1, target="observation", bound="asymptotic")
    np.testing.assert_allclose(low, band.lower, rtol=1e-12)
    np.testing.assert_allclose(high, band.upper, rtol=1e-12)
