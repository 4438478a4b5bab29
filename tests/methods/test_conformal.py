"""Conformal against MAPIE called by hand with scikit-learn's own regression."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold

import vhat
from tests.methods.cases import data, ridge
from vhat.methods import Conformal

X, Y = data(n=60, d=2)
POINTS = np.random.default_rng(9).normal(size=(5, 2))


def recipe(X, y, *, seed, sample_weight=None):
    """The model of sklearn's Ridge(alpha=3), whose penalty is on the sum over rows."""
    return ridge(3.0 / len(y))(X, y, seed=seed, sample_weight=sample_weight)


def alone(**options):
    return Ridge(alpha=3.0, fit_intercept=False, **options)


def test_split_is_mapies():
    fit = Conformal(share=0.4).fit(recipe, X, Y, seed=3)
    train = np.setdiff1d(np.arange(60), fit.rows)
    assert len(fit.rows) == 24
    hand = SplitConformalRegressor(alone().fit(X[train], Y[train]), confidence_level=0.9)
    center, limits = hand.conformalize(X[fit.rows], Y[fit.rows]).predict_interval(POINTS)
    band = fit.interval(POINTS, 0.1, target="observation")
    np.testing.assert_allclose(band.center, center, rtol=1e-9)
    np.testing.assert_allclose(np.c_[band.lower, band.upper], limits[:, :, 0], rtol=1e-8)
    # and MAPIE's is the quantile of the textbook
    misses = np.sort(np.abs(Y[fit.rows] - alone().fit(X[train], Y[train]).predict(X[fit.rows])))
    np.testing.assert_allclose(band.half_width, misses[int(np.ceil(0.9 * 25)) - 1], rtol=1e-8)


def test_cross_validation_plus_is_mapies():
    fit = Conformal("cv+", folds=4).fit(recipe, X, Y, seed=3)
    hand = CrossConformalRegressor(alone(), confidence_level=0.9, cv=KFold(4, shuffle=True, random_state=3))
    center, limits = hand.fit_conformalize(X, Y).predict_interval(POINTS, aggregate_point_predictions=None)
    band = fit.interval(POINTS, 0.1, target="observation")
    np.testing.assert_allclose(band.center, center, rtol=1e-9)
    np.testing.assert_allclose(np.c_[band.lower, band.upper], limits[:, :, 0], rtol=1e-8)
    assert "proved is a miss with probability at most 0.294" in band.guarantee  # 0.2 + 1.5/16


def test_asking_again_trains_nothing():
    calls = []

    def counted(X, y, *, seed, sample_weight=None):
        calls.append(len(y))
        return recipe(X, y, seed=seed)

    for kind, trainings in (("split", [30]), ("cv+", [60, 48, 48, 48, 48, 48])):
        calls.clear()
        fit = Conformal(kind).fit(counted, X, Y)
        assert calls == trainings
        fit.interval(POINTS, 0.1, target="observation")
        fit.interval(POINTS, 0.2, target="observation")
        assert calls == trainings


@pytest.mark.parametrize("kind", ["split", "cv+"])
def test_units_company_and_seeds_change_nothing(kind):
    fit = Conformal(kind).fit(recipe, X, Y)
    band = fit.interval(POINTS, 0.1, target="observation")
    for factor in (1e12, 1e-12):
        scaled = Conformal(kind).fit(recipe, X, factor * Y).interval(POINTS, 0.1, target="observation")
        np.testing.assert_allclose(scaled.half_width, factor * band.half_width, rtol=1e-9)
    np.testing.assert_allclose(fit.interval(POINTS[3:], 0.1, target="observation").lower, band.lower[3:], rtol=1e-12)
    other = Conformal(kind).fit(recipe, X, Y, seed=1).interval(POINTS, 0.1, target="observation")
    assert np.all(other.half_width != band.half_width)


def test_a_column_of_responses_is_one_output():
    def columns(X, y, *, seed, sample_weight=None):
        assert y.ndim == 2
        return recipe(X, y, seed=seed)

    band = Conformal().fit(columns, X, Y[:, None]).interval(POINTS, 0.1, target="observation")
    expected = Conformal().fit(recipe, X, Y).interval(POINTS, 0.1, target="observation")
    np.testing.assert_allclose(band.lower, expected.lower, rtol=1e-9)


def test_what_it_cannot_give_is_said():
    fit = Conformal().fit(recipe, X, Y)
    with pytest.raises(vhat.InputError, match="no interval for target='mean'"):
        fit.interval(POINTS)
    with pytest.raises(vhat.InputError, match=r"allow a delta of 0\.0335 or more"):
        fit.interval(POINTS, 0.01, target="observation")
    fit.interval(POINTS, 0.0335, target="observation")
    with pytest.raises(vhat.InputError, match="one output, and there are 2"):
        Conformal().fit(recipe, X, np.c_[Y, Y])
    with pytest.raises(vhat.InputError, match="too few"):
        Conformal("cv+").fit(recipe, X[:3], Y[:3])
    with pytest.raises(vhat.InputError, match="kind="):
        Conformal("jackknife")


def test_without_mapie_the_sentence_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mapie", None)
    with pytest.raises(vhat.MissingPackage, match="pip install mapie"):
        Conformal().fit(recipe, X, Y)


def linear(q, Z):
    return Z @ q


def plain(X, y, *, seed, sample_weight=None):
    q = np.linalg.lstsq(X, y, rcond=None)[0]
    return vhat.from_numpy(linear, q, X, y, weight_decay=1e-6)


def test_it_survives_a_pickle():
    fit = Conformal("cv+").fit(plain, X, Y)
    again = pickle.loads(pickle.dumps(fit))
    bands = [each.interval(POINTS, 0.1, target="observation") for each in (fit, again)]
    np.testing.assert_array_equal(bands[0].lower, bands[1].lower)
