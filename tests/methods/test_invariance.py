"""What must not matter, for every method: the unit of y, the company of a point, and running the same seed twice."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy import stats

import vhat
from tests.methods.cases import data, ridge
from tests.methods.table import CONFORMAL, METHODS, POINTS
from vhat import methods

X, Y = data()
every = pytest.mark.parametrize("name", METHODS)
TARGETS = {name: ("observation",) if name in CONFORMAL else ("mean", "observation") for name in METHODS}
LIMITS = ("center", "lower", "upper")


@cache
def fitted(name, unit=1.0):
    method, make = METHODS[name]
    return method.fit(make(1), X, unit * Y, seed=3)


def agree(found, expected, rtol, unit=1.0):
    """Hold limits to others, in units of the narrowest of these, or of the prediction where all have no width."""
    size = float(np.min(expected.upper - expected.lower)) or float(np.max(np.abs(expected.center)))
    for each in LIMITS:
        np.testing.assert_allclose(getattr(found, each) / unit, getattr(expected, each), rtol=0, atol=rtol * size)


@every
def test_a_point_alone_has_the_limits_that_it_has_in_company(name):
    for target in TARGETS[name]:
        together = fitted(name).interval(POINTS, 0.2, target=target)
        for row in range(len(POINTS)):
            alone = fitted(name).interval(POINTS[row : row + 1], 0.2, target=target)
            for each in LIMITS:
                np.testing.assert_allclose(getattr(alone, each), getattr(together, each)[row : row + 1], rtol=1e-8)


@every
def test_the_same_seed_is_the_same_answer(name):
    method, make = METHODS[name]
    again = method.fit(make(1), X, Y, seed=3)
    for target in TARGETS[name]:
        bands = [each.interval(POINTS, 0.2, target=target) for each in (fitted(name), again)]
        for each in LIMITS:
            np.testing.assert_array_equal(getattr(bands[0], each), getattr(bands[1], each))
        assert bands[0].guarantee == bands[1].guarantee


@pytest.mark.parametrize("name", ["SGLD", "BayesByBackprop", "Bootstrap", "Conformal", "LastLayer", "MCDropout"])
def test_another_seed_is_another_answer_where_something_is_drawn(name):
    method, make = METHODS[name]
    other = method.fit(make(1), X, Y, seed=4).interval(POINTS, 0.2, target="observation")
    assert np.all(other.lower != fitted(name).interval(POINTS, 0.2, target="observation").lower)


@pytest.mark.parametrize("unit", [1e3, 1e-6])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "MCDropout"])  # a tanh network is not linear in y
def test_the_unit_of_y_is_that_of_the_limits(name, unit):
    for target in TARGETS[name]:
        one, other = (fitted(name, each).interval(POINTS, 0.2, target=target) for each in (1.0, unit))
        agree(other, one, 1e-5, unit)


@pytest.mark.parametrize(
    "method",
    [
        methods.Proposed(),
        methods.Wald(),
        methods.Wald(covariance="hc3"),
        methods.ConstrainedFit(),
        methods.LinearizedLaplace(),
        methods.PerturbedResponses(members=3),
        methods.Bootstrap(resamples=5),
        methods.Bootstrap(resamples=15, limits="bca"),
    ],
    ids=repr,
)
def test_the_units_of_the_inputs_do_not_matter_to_least_squares(method):
    units = np.array([1e-3, 1e5])
    one, other = (method.fit(ridge(), X * each, Y).interval(POINTS * each, 0.4) for each in (1.0, units))
    agree(other, one, 1e-6)


@every
@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([[0.1, 0.2], [np.nan, 0.0]], "row 1"),
        ([[np.inf, 0.0]], "row 0"),
        ([[0.1, 0.2, 0.3]], "3"),
        ([["a", "b"]], "numbers|dtype"),
        ([[[0.1, 0.2]]], r"shape \(1, 1, 2\)|shape \(1, 2\)"),
    ],
    ids=["NaN", "infinite", "too wide", "words", "too deep"],
)
def test_points_that_cannot_be_asked_about_are_refused(name, x, words):
    with pytest.raises(vhat.VhatError, match=words):
        fitted(name).interval(x, 0.2, target="observation")


@every
def test_rows_that_are_not_finite_are_refused(name):
    method, make = METHODS[name]
    with pytest.raises(vhat.VhatError, match=r"NaN|finite"):
        method.fit(make(1), np.where(np.arange(30)[:, None] == 4, np.nan, X), Y, seed=3)


@every
def test_no_points_are_no_question(name):
    with pytest.raises(vhat.InputError, match="at least one row"):
        fitted(name).interval(np.zeros((0, 2)), 0.2, target="observation")


def estimator(X, y, *, seed=0, sample_weight=None):
    """A recipe that standardises inside, so that its objective has no unit and its predictions have that of y."""
    network = vhat.NetworkRegressor((3,), weight_decay=1e-2, random_state=seed)
    return network.fit(X, y, sample_weight=sample_weight).fitted_


@pytest.mark.parametrize(
    "method",
    [
        methods.Proposed(),
        methods.Bootstrap(resamples=3),
        methods.PerturbedResponses(members=3),
        methods.LinearizedLaplace(),
        methods.ConstrainedFit(),
        methods.NeuralTangent(),
    ],
    ids=lambda method: type(method).__name__,
)
def test_an_estimator_inside_a_method_keeps_the_unit_and_the_zero_of_the_response(method):
    rng = np.random.default_rng(0)
    X, points = rng.normal(size=(40, 2)), rng.normal(size=(3, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(40)
    one, other = (method.fit(estimator, X, u * y + b).interval(points, 0.1) for u, b in ((1.0, 0.0), (1000.0, 7.0)))
    assert np.all(one.half_width > 0)
    np.testing.assert_allclose(other.half_width, 1000 * one.half_width, rtol=1e-6)
    np.testing.assert_allclose(other.center - 7, 1000 * one.center, rtol=1e-6, atol=1e-6)


def weighted(weights, decay):
    """Ridge regression with weights, solved by hand; the recipe knows the weight of each row of X."""

    def recipe(Z, y, *, seed=0, sample_weight=None):
        n = len(Z)
        w = weights[[int(np.flatnonzero((row == X).all(axis=1))[0]) for row in Z]]
        theta = np.linalg.solve((Z.T * w) @ Z / n + decay * np.eye(2), (Z.T * w) @ y / n)
        return vhat.from_jax(lambda q, Z: Z @ q, theta, Z, y, weight_decay=decay, sample_weight=w)

    return recipe


WEIGHED = [
    methods.Proposed(),
    methods.Wald(),
    methods.LinearizedLaplace(),
    methods.LinearizedLaplace(evidence=True),
    methods.ConstrainedFit(),
    methods.SGLD(draws=20, thin=2, burn_in=20),
    methods.NeuralTangent(),
    methods.LastLayer(leaves=1),
]


@pytest.mark.parametrize("method", WEIGHED, ids=repr)
def test_one_factor_on_all_weights_and_the_decay_says_nothing_new(method):
    one, other = (
        method.fit(weighted(np.full(len(X), c), 0.05 * c), X, Y, seed=3).interval(POINTS, 0.2) for c in (1.0, 400.0)
    )
    agree(other, one, 1e-6)


@pytest.mark.parametrize("method", WEIGHED[:-1], ids=repr)
def test_rows_of_weight_zero_are_no_rows(method):
    kept = np.arange(len(X)) % 3 > 0
    wrong = np.where(kept, Y, 1e3)
    few = method.fit(weighted(np.ones(len(X)), 0.05), X[kept], Y[kept], seed=3).interval(POINTS, 0.2)
    all_rows = method.fit(weighted(1.0 * kept, 0.05 * kept.mean()), X, wrong, seed=3).interval(POINTS, 0.2)
    agree(all_rows, few, 1e-6)


def test_the_tangent_of_a_weighted_linear_model_is_weighted_ridge_regression():
    rng = np.random.default_rng(0)
    w, n, lam = rng.uniform(0.2, 3.0, len(X)), len(X), 0.05
    A = (X.T * w) @ X / n + lam * np.eye(2)
    map_ = np.linalg.solve(A, X.T * w / n)
    center, theta = POINTS @ map_ @ Y, map_ @ Y
    left = np.eye(n) - X @ map_
    sigma = np.sqrt(np.sum((left @ Y) ** 2) / np.sum(left**2))
    error = sigma * np.linalg.norm(POINTS @ map_, axis=1)
    bias = lam * np.linalg.norm(np.linalg.solve(A, POINTS.T), axis=0) * np.linalg.norm(theta)
    band = methods.NeuralTangent().fit(weighted(w, lam), X, Y).interval(POINTS, 0.2)
    np.testing.assert_allclose(band.center, center, rtol=1e-8)
    np.testing.assert_allclose(band.standard_error, error, rtol=1e-8)
    np.testing.assert_allclose(band.half_width, bias + stats.t.ppf(0.9, np.sum(left**2)) * error, rtol=1e-7)


def test_the_last_layer_has_no_weights_for_rows_that_were_not_trained_on():
    recipe = weighted(1.0 + np.arange(len(X)) % 2, 0.05)
    with pytest.raises(vhat.InputError, match="different weights, and LastLayer has rows that it was not trained on"):
        methods.LastLayer(leaves=1).fit(recipe, X, Y)


@pytest.mark.parametrize("method", [methods.LinearizedLaplace(noise=0.3), methods.ConstrainedFit(noise=0.3)], ids=repr)
def test_weights_that_the_noise_does_not_ask_for_make_no_interval_too_narrow(method):
    """Noise of one level, weights over two decades, hardly any decay: the standard error is the sandwich's."""
    w = np.where(np.arange(len(X)) % 10 == 0, 20.0, 1.0)
    map_ = np.linalg.solve((X.T * w) @ X / len(X) + 1e-9 * np.eye(2), X.T * w / len(X))
    band = method.fit(weighted(w, 1e-9), X, Y, seed=3).interval(POINTS, 0.2)
    expected = stats.norm.ppf(0.9) * 0.3 * np.linalg.norm(POINTS @ map_, axis=1)
    np.testing.assert_allclose(band.half_width, expected, rtol=1e-5)
    assert "weights of the rows do not follow" in band.guarantee


def test_a_posterior_says_that_weights_do_not_follow_the_noise():
    recipe = weighted(1.0 + np.arange(len(X)) % 2, 0.05)
    band = methods.SGLD(draws=20, thin=2, burn_in=20).fit(recipe, X, Y).interval(POINTS, 0.2)
    assert "IN ROWS WHOSE WEIGHTS DO NOT FOLLOW IT" in band.guarantee
