"""Trees against MAPIE around scikit-learn's own, called by hand."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.model_selection import KFold

from vhat.methods import GradientBoosting, RandomForest

RNG = np.random.default_rng(5)
X = RNG.normal(size=(120, 2))
Y = X[:, 0] ** 2 + 0.2 * RNG.normal(size=120)
POINTS = RNG.normal(size=(4, 2))
TREES = {GradientBoosting: HistGradientBoostingRegressor, RandomForest: RandomForestRegressor}


@pytest.mark.parametrize("method", TREES)
def test_cross_validation_plus_is_mapies(method):
    band = method(folds=3).fit(None, X, Y, seed=2).interval(POINTS, 0.1, target="observation")
    folds = KFold(3, shuffle=True, random_state=2)
    hand = CrossConformalRegressor(TREES[method](random_state=2), confidence_level=0.9, cv=folds)
    center, limits = hand.fit_conformalize(X, Y).predict_interval(POINTS, aggregate_point_predictions=None)
    np.testing.assert_allclose(band.center, center, rtol=1e-12)
    np.testing.assert_allclose(np.c_[band.lower, band.upper], limits[:, :, 0], rtol=1e-12)


def test_split_is_mapies():
    fit = GradientBoosting("split", share=0.4).fit(None, X, Y, seed=2)
    train = np.setdiff1d(np.arange(len(Y)), fit.rows)
    trees = HistGradientBoostingRegressor(random_state=2).fit(X[train], Y[train])
    hand = SplitConformalRegressor(trees, confidence_level=0.9).conformalize(X[fit.rows], Y[fit.rows])
    center, limits = hand.predict_interval(POINTS)
    band = fit.interval(POINTS, 0.1, target="observation")
    np.testing.assert_allclose(band.center, center, rtol=1e-12)
    np.testing.assert_allclose(np.c_[band.lower, band.upper], limits[:, :, 0], rtol=1e-12)


def test_they_survive_a_pickle():
    fit = RandomForest("split").fit(None, X, Y)
    again = pickle.loads(pickle.dumps(fit))
    bands = [each.interval(POINTS, 0.2, target="observation") for each in (fit, again)]
    np.testing.assert_array_equal(bands[0].lower, bands[1].lower)


def test_messages_and_intervals_name_the_trees():
    fit = RandomForest("split").fit(None, X, Y)
    with pytest.raises(ValueError, match=r"random forest\('split'\) gives no interval for target='mean'"):
        fit.interval(POINTS)
    assert fit.interval(POINTS, 0.2, target="observation").bound == "split conformal, random forest"
