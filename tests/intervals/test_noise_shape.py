"""Noise that varies with the prediction is found where it is there, and calibrated intervals follow it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom

import vhat
from vhat.intervals import noise_shape
from vhat.intervals.noise_shape import NoiseShape, estimate_noise_shape, spread_of

ROWS = 400
SLOPE = 0.8
"""Of the logarithm of the noise, in standard deviations of the prediction."""


def drawn(seed, *, slope=SLOPE, rows=ROWS):
    """Inputs and responses of a line whose noise grows with its height."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(rows), rng.normal(size=rows)])
    mean = 10.0 + 3.0 * X[:, 1]
    return X, mean + 0.5 * np.exp(slope * X[:, 1]) * rng.normal(size=rows)


def line(X, y):
    params = np.linalg.lstsq(X, y, rcond=None)[0]
    return vhat.from_numpy(lambda q, Z: Z @ q, params, X, y)


def scores_of(rng, z, slope):
    return np.exp(slope * z) * np.abs(rng.normal(size=len(z)))


def test_the_coefficients_minimise_the_stated_objective():
    rng = np.random.default_rng(0)
    z = rng.normal(size=300)
    a = scores_of(rng, z, 0.5)
    basis = np.column_stack([np.ones_like(z), z, z**2])

    def objective(b):
        log_r = basis @ b
        return np.mean(log_r + a * np.exp(-log_r)) + 0.01 * (b[1] ** 2 + b[2] ** 2) / 2

    oracle = minimize(objective, np.zeros(3), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(noise_shape._minimise(basis, a), oracle.x, atol=1e-6)


def test_the_shape_of_the_noise_is_recovered():
    rng = np.random.default_rng(1)
    prediction = 5.0 + 2.0 * rng.normal(size=20_000)
    z = (prediction - prediction.mean()) / prediction.std()
    shape, relative = estimate_noise_shape(prediction, scores_of(rng, z, 0.5))
    truth = np.exp(0.5 * z) / np.sqrt(np.mean(np.exp(z)))
    inner = np.abs(z) < 2
    np.testing.assert_allclose(shape(prediction)[inner], truth[inner], rtol=0.08)
    np.testing.assert_allclose(relative[inner], truth[inner], rtol=0.1)
    assert np.mean(shape(prediction) ** 2) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("rows", [1000, 5000])
def test_noise_proportional_to_skewed_predictions_does_not_fall_again_at_the_largest(rows):
    found = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        prediction = rng.exponential(size=rows) + 0.1
        error = 0.3 * prediction * rng.normal(size=rows)
        shape, _ = estimate_noise_shape(prediction, error / np.sqrt(np.mean(error**2)))
        assert shape is not None
        found.append(shape(np.quantile(prediction, [0.5, 0.9, 0.99, 1.0])))
    assert np.all(np.diff(found, axis=1) > 0)


def test_constant_noise_is_seldom_taken_for_varying_noise():
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        prediction = rng.normal(size=ROWS)
        found += estimate_noise_shape(prediction, np.abs(rng.normal(size=ROWS)))[0] is not None
    assert found <= binom.isf(1e-4, 60, 0.05)


def test_units_of_the_response_do_not_matter():
    rng = np.random.default_rng(2)
    prediction = rng.normal(size=ROWS)
    scores = scores_of(rng, prediction, 0.7)
    shape, relative = estimate_noise_shape(prediction, scores)
    other, other_relative = estimate_noise_shape(1e6 * prediction - 3e7, scores)
    np.testing.assert_allclose(other(1e6 * prediction - 3e7), shape(prediction), rtol=1e-7)
    np.testing.assert_allclose(other_relative, relative, rtol=1e-7)


def test_beyond_all_predictions_the_noise_stays_that_of_the_last():
    rng = np.random.default_rng(3)
    prediction = rng.normal(size=ROWS)
    shape, _ = estimate_noise_shape(prediction, scores_of(rng, prediction, 0.7))
    assert shape(np.array([1e9])) == shape(np.array([prediction.max()]))
    least, most = shape.extremes
    assert least < 1 < most


def test_each_row_is_judged_by_other_rows():
    rng = np.random.default_rng(4)
    prediction = rng.normal(size=ROWS)
    scores = scores_of(rng, prediction, 0.7)
    _, before = estimate_noise_shape(prediction, scores)
    scores[0] *= 1.5
    _, after = estimate_noise_shape(prediction, scores)
    part = np.random.default_rng(0).permutation(ROWS) % 5
    # only the level that is common to all rows has seen the row itself
    moved = np.log(after / before)[part == part[0]]
    assert np.ptp(moved) < 1e-12


def test_copies_are_no_further_evidence():
    rng = np.random.default_rng(6)
    prediction = rng.normal(size=120)
    scores = scores_of(rng, prediction, 0.12)
    copied = np.tile(prediction, 30), np.tile(scores, 30)
    groups = np.tile(np.arange(120), 30)
    assert estimate_noise_shape(prediction, scores)[0] is None
    assert estimate_noise_shape(*copied)[0] is not None
    assert estimate_noise_shape(*copied, groups)[0] is None


@pytest.mark.parametrize("case", ["few rows", "one prediction", "no error", "no score"])
def test_what_tells_nothing_of_the_noise_leaves_it_constant(case):
    rows = 99 if case == "few rows" else ROWS
    prediction = np.full(rows, 2.0) if case == "one prediction" else np.linspace(0, 1, rows)
    scores = np.exp(3 * prediction) * np.abs(np.random.default_rng(0).normal(size=rows))
    if case == "no error":
        scores[:] = 0
    if case == "no score":
        scores[:] = np.nan
    shape, relative = estimate_noise_shape(prediction, scores)
    assert shape is None
    assert np.all(relative == 1)


def test_little_noise_does_not_narrow_what_the_model_does_not_know():
    assert spread_of(3.0, 4.0, 1.0) == 5.0
    assert spread_of(3.0, 4.0, 1e-6) == pytest.approx(3.0)
    assert spread_of(3.0, 4.0, 2.0) == 10.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prediction", "constant"])
def test_intervals_cover_alike_where_the_noise_is_small_and_where_it_is_large(kind):
    covered = np.zeros(2)
    asked = 0
    for seed in range(40):
        X, y = drawn(seed)
        calibrated = line(X, y).calibrate("loo", noise_shape=kind)
        fresh_X, fresh_y = drawn(1000 + seed, rows=100)
        band = calibrated.interval(fresh_X, 0.1)
        inside = (band.lower <= fresh_y) & (fresh_y <= band.upper)
        order = np.argsort(fresh_X[:, 1])
        covered += inside[order[:20]].sum(), inside[order[-20:]].sum()
        asked += 20
    if kind == "constant":  # else this test could not fail
        assert covered[0] > 0.97 * asked
        assert covered[1] < 0.7 * asked
        return
    # The rows of one draw share a fit: their coverage varies by some 2 points more than a binomial's would.
    error = np.sqrt(0.09 / asked + 0.02**2 / 40)
    assert np.all(np.abs(covered / asked - 0.9) < 4 * error + 0.01)


@pytest.mark.slow
def test_a_shape_of_training_rows_keeps_the_level_of_split_conformal_prediction():
    misses = 0
    for seed in range(400):
        X, y = drawn(seed, rows=150)
        fitted = line(X, y)
        shape = fitted.calibrate("loo", noise_shape="prediction").noise_shape
        fresh_X, fresh_y = drawn(5000 + seed, rows=20)
        calibrated = fitted.calibrate(fresh_X[:19], fresh_y[:19], noise_shape=shape or "constant")
        band = calibrated.interval(fresh_X[19:], 0.1)
        misses += bool(fresh_y[19] < band.lower[0] or fresh_y[19] > band.upper[0])
    # 19 scores: missed with probability 0.1 exactly
    assert binom.ppf(1e-4, 400, 0.1) <= misses <= binom.isf(1e-4, 400, 0.1)


def test_the_sentence_says_that_the_noise_varies():
    X, y = drawn(0)
    fitted = line(X, y)
    calibrated = fitted.calibrate("loo", noise_shape="prediction")
    assert "noise that varies with the prediction" in calibrated.interval(X[:3]).guarantee
    assert "varies" not in fitted.calibrate("loo").guarantee


def test_outputs_have_shapes_of_their_own():
    rng = np.random.default_rng(5)
    prediction = rng.normal(size=(ROWS, 2))
    scores = np.column_stack([scores_of(rng, prediction[:, 0], 0.7), np.abs(rng.normal(size=ROWS))])
    shape, _ = estimate_noise_shape(prediction, scores)
    alone, _ = estimate_noise_shape(prediction[:, 0], scores[:, 0])
    np.testing.assert_array_equal(shape(prediction)[:, 0], alone(prediction[:, 0]))
    np.testing.assert_array_equal(shape(prediction)[:, 1], 1.0)


def test_a_saved_calibration_keeps_its_shape():
    X, y = drawn(0)
    fitted = line(X, y)
    calibrated = fitted.calibrate("loo", noise_shape="prediction")
    assert isinstance(calibrated.noise_shape, NoiseShape)
    again = vhat.Calibrated.restored(calibrated.record(), calibrated.base)
    np.testing.assert_array_equal(again.interval(X[:5]).half_width, calibrated.interval(X[:5]).half_width)


@pytest.mark.parametrize("given", ["prediction", "quadratic", None, 3])
def test_a_shape_that_calibration_rows_would_choose_is_refused(given):
    X, y = drawn(0)
    fresh = drawn(1)
    with pytest.raises(vhat.InputError, match="estimated without them"):
        line(X, y).calibrate(*fresh, noise_shape=given)


def test_one_noise_at_a_time():
    X, y = drawn(0)
    fitted = line(X, y)
    shape = fitted.calibrate("loo", noise_shape="prediction").noise_shape
    with pytest.raises(vhat.InputError, match="Give one of them"):
        fitted.calibrate(*drawn(1), observation_noise=0.5, noise_shape=shape)
    with pytest.raises(vhat.InputError, match="neither 'constant' nor 'prediction'"):
        fitted.calibrate("loo", noise_shape="linear")


def test_copies_of_rows_are_found_by_leave_one_out_too():
    X, y = drawn(0, slope=0.12, rows=120)
    once = line(X, y).calibrate("loo", noise_shape="prediction")
    copied = line(np.tile(X, (30, 1)), np.tile(y, 30)).calibrate("loo", noise_shape="prediction")
    assert once.noise_shape is None
    assert copied.noise_shape is None


def test_held_out_rows_calibrate_alike_whatever_was_asked_before():
    X, y = drawn(0, rows=200)
    fresh = drawn(1, rows=60)
    X, fresh_X = X[:, 1:], fresh[0][:, 1:]
    straight = vhat.NetworkRegressor((2,), weight_decay=1e-2).fit(X, y)
    detour = vhat.NetworkRegressor((2,), weight_decay=1e-2).fit(X, y).calibrate(noise_shape="constant")
    widths = [
        network.calibrate(fresh_X, fresh[1]).predict_interval(X[:9], 0.1, target="observation").half_width
        for network in (straight, detour)
    ]
    assert straight.calibrated_.noise_shape is not None
    np.testing.assert_array_equal(*widths)


def test_arrays_that_do_not_belong_together_are_no_shape():
    rng = np.random.default_rng(7)
    shape, _ = estimate_noise_shape(rng.exponential(size=ROWS), scores_of(rng, rng.normal(size=ROWS), 0.0))
    assert shape is None
    knots = np.linspace(0, 1, 65)[None]
    NoiseShape(knots, knots, np.zeros((1, 3)))
    for broken in (
        (knots[:, :9], knots, np.zeros((1, 3))),
        (knots, knots, np.zeros(3)),
        (-knots, knots, np.zeros((1, 3))),
    ):
        with pytest.raises(vhat.InputError, match="a noise shape has"):
            NoiseShape(*broken)
