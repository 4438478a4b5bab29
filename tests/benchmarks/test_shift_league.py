"""The shift league: its splits leave out what they say, its numbers are those of the intervals, and it goes on."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from mapie.regression import SplitConformalRegressor
from sklearn.linear_model import LinearRegression

from benchmarks import shift_league
from benchmarks.early_stopping import Recipe, Rows, train
from benchmarks.shift.bands import DELTA, Band, conformal_quantile, worth
from benchmarks.shift.report import SPLIT, markdown
from benchmarks.shift.splits import Shift, left_out, splits
from benchmarks.tables import Table


def small_table(rows=120):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-1, 1, rows), rng.integers(0, 2, rows)])
    return Table(X, np.sin(3 * X[:, 0]) + 0.2 * rng.standard_normal(rows), np.zeros((rows, 1), dtype=bool))


def test_a_gap_lies_between_the_rows_that_stay_and_an_end_beyond_them():
    values = np.random.default_rng(0).standard_normal(300)
    gap, end = left_out(values, "gap"), left_out(values, "end")
    assert 0.3 <= gap.mean() <= 0.36
    assert values[~gap].min() < values[gap].min()
    assert values[~gap].max() > values[gap].max()
    assert 0.13 <= end.mean() <= 0.17
    assert values[~end].max() < values[end].min()


def test_a_column_of_two_values_has_no_gap_and_says_so():
    found = list(splits("small", small_table()))
    assert isinstance(found[0], Shift)
    assert found[2] == ("small/1/gap", "too few values")


def test_rows_outside_are_in_no_other_part():
    split = next(splits("small", small_table()))
    parts = [set(map(tuple, X)) for X, _ in split.rows.values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 120


def test_networks_of_a_stack_are_those_that_are_trained_alone():
    rng = np.random.default_rng(0)
    X, X_val = rng.standard_normal((60, 2)), rng.standard_normal((20, 2))
    y, y_val = X[:, 0] + 0.1 * rng.standard_normal((2, 60)), X_val[:, 0]
    recipe = Recipe(hidden=(5,), epochs=20, patience=5)
    together = train(recipe, Rows(X, y), Rows(X_val, y_val), [3, 4]).predict(X_val)
    for number, seed in enumerate((3, 4)):
        alone = train(recipe, Rows(X, y[number]), Rows(X_val, y_val), [seed]).predict(X_val)
        np.testing.assert_allclose(together[number], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_of_the_stack_are_those_of_autograd(activation):
    from benchmarks.early_stopping import Pinball, SquaredError, _activations, _set_gradients, _starts

    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.standard_normal((2, 7, 3)), dtype=torch.float32)
    y = torch.as_tensor(rng.standard_normal((2, 7)), dtype=torch.float32)
    for outputs, loss in ((1, SquaredError()), (2, Pinball((0.1, 0.8)))):
        recipe = Recipe(hidden=(4, 5), activation=activation, outputs=outputs)
        layers = [(w.requires_grad_(), b.requires_grad_()) for w, b in _starts(recipe, 3, [0, 1])]
        flat = [p for layer in layers for p in layer]
        expected = torch.autograd.grad(loss.value(_activations(recipe, layers, x)[-1], y).sum(), flat)
        with torch.no_grad():
            _set_gradients(recipe, layers, x, y, loss)
        for p, gradient in zip(flat, expected, strict=True):
            torch.testing.assert_close(p.grad, gradient, rtol=1e-5, atol=1e-6)


def test_matched_widths_do_not_see_a_factor_and_see_where_the_width_is():
    y, shifted = np.array([0.5, 0.5, 3.0, 3.0]), np.array([False, False, True, True])
    matched = np.full((2, 1), 1.0)
    constant = Band(np.zeros((1, 4)), np.full((1, 4), 7.0), 0.0)
    aware = Band(np.zeros((1, 4)), np.array([[0.2, 0.2, 1.0, 1.0]]), 0.0)
    found = worth(constant, y, shifted, matched), worth(aware, y, shifted, matched)
    assert [each["outside"]["coverage"] for each in found] == [1.0, 0.0]
    assert [each["outside"]["matched"] for each in found] == [0.0, 0.0]
    # Of a mean half-width of 1 the second has 5/3 outside: not enough for 3, and too little inside for 0.5.
    assert [each["inside"]["matched overall"] for each in found] == [1.0, 0.0]


def test_the_conformal_quantile_is_that_of_mapie():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 1)), rng.standard_normal(60)
    model = LinearRegression().fit(X[:20], y[:20])
    rival = SplitConformalRegressor(model, confidence_level=1 - DELTA, prefit=True).conformalize(X[20:], y[20:])
    low, high = rival.predict_interval(X[:1])[1][0, :, 0]
    own = conformal_quantile(np.abs(y[20:] - model.predict(X[20:])))[0]
    assert own == pytest.approx((high - low) / 2)


@pytest.mark.slow
def test_the_league_runs_on_a_small_table_and_does_not_measure_a_split_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shift_league, "tables", lambda _: {"small": small_table()})
    monkeypatch.setattr(shift_league, "_laplace", lambda _: None)
    recipe = replace(shift_league.RECIPE, hidden=(4,), epochs=3)
    file = tmp_path / "shift_league.jsonl"
    first = shift_league.run(None, file, recipe, ("small/0",), 1)
    assert "1 of 1" in capsys.readouterr().out
    methods = first[0]["methods"]
    assert {SPLIT, "linearised", "last layer, calibrated", "CV+", "Gaussian process"} <= set(methods)
    assert methods[SPLIT]["outside"]["matched"] == methods[SPLIT]["outside"]["coverage"]
    again = shift_league.run(None, file, recipe, ("small/0",), 1)
    assert [line["split"] for line in again] == ["small/0/gap", "small/0/end"]
    assert [json.loads(line) for line in file.read_text().splitlines()] == again
    assert "| linearised |" in markdown(again)
