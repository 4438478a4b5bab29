"""A target that is fitted as its logarithm comes back in its own units."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor

import vhat

SMALL = {"hidden_layer_sizes": (3,), "weight_decay": 0.01}
RNG = np.random.default_rng(8)
X = RNG.uniform(-1, 1, size=(60, 2))
Y = np.exp(3 + X[:, 0] + 0.5 * X[:, 1] ** 2 + 0.3 * RNG.normal(size=60))
NEW = RNG.uniform(-3, 3, size=(9, 2))


@pytest.fixture(scope="module")
def network():
    return vhat.NetworkRegressor(**SMALL, log_target=True).fit(X, pd.Series(Y, name="price"))


@pytest.mark.filterwarnings("ignore::vhat.errors.SupportWarning")
@pytest.mark.parametrize("target", ["mean", "observation"])
def test_intervals_are_those_of_the_logarithm_mapped_back(network, target):
    logs = vhat.NetworkRegressor(**SMALL).fit(X, np.log(Y)).predict_interval(NEW, target=target)
    band = network.predict_interval(NEW, target=target)
    np.testing.assert_array_equal(band.center, np.exp(logs.center))
    np.testing.assert_array_equal(band.lower, np.exp(logs.lower))
    np.testing.assert_array_equal(band.upper, np.exp(logs.upper))
    np.testing.assert_allclose(band.half_width, (band.upper - band.lower) / 2)
    assert np.all(band.lower > 0)
    assert "center is exp of the predicted mean of log y" in band.guarantee
    assert "center is exp of the predicted mean of log y" in repr(band)
    assert band.noise_source.endswith("of log y")


def test_the_standard_error_is_that_of_the_center_to_first_order(network):
    """The first-order share of the width: a change of log f by its standard error, as a change of f."""
    logs = network.fitted_.interval(X[:3])
    band = network.predict_interval(X[:3])
    step = 1e-6
    change = (np.exp(logs.center + step * logs.standard_error) - np.exp(logs.center)) / step
    np.testing.assert_allclose(band.standard_error, change, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:column . was between:vhat.SupportWarning")
def test_predictions_are_those_of_scikit_learns_transformed_target(network):
    by_hand = TransformedTargetRegressor(vhat.NetworkRegressor(**SMALL), func=np.log, inverse_func=np.exp)
    np.testing.assert_allclose(network.predict(NEW), by_hand.fit(X, Y).predict(NEW), rtol=1e-12)


def test_other_units_of_y_scale_the_interval(network):
    scaled = vhat.NetworkRegressor(**SMALL, log_target=True).fit(X, 1000 * Y).predict_interval(X[:5])
    band = network.predict_interval(X[:5])
    np.testing.assert_allclose(scaled.lower, 1000 * band.lower, rtol=1e-6)
    np.testing.assert_allclose(scaled.upper, 1000 * band.upper, rtol=1e-6)


def test_a_target_that_is_not_positive_is_refused_by_its_row():
    with pytest.raises(vhat.InputError, match=r"must be above 0, and y is 0 in row 4\. Fit without log_target"):
        vhat.NetworkRegressor(**SMALL, log_target=True).fit(X, np.where(np.arange(60) == 4, 0.0, Y))


def test_it_is_saved_and_reported_as_the_logarithm(network, tmp_path):
    network.save(tmp_path / "model")
    loaded = vhat.NetworkRegressor.load(tmp_path / "model")
    assert loaded.log_target
    np.testing.assert_array_equal(loaded.predict_interval(X[:5]).upper, network.predict_interval(X[:5]).upper)
    page = loaded.report(tmp_path / "page.html", held_out=(X[:9] + 0.01, Y[:9] * 1.01)).read_text()
    assert "log(price)" in page
    assert "numbers on this page are of log y" in page


def test_calibration_and_quantiles_are_in_the_units_of_y():
    """Held-out responses are mapped as those of training are, and what is read off them is mapped back."""
    rng = np.random.default_rng(11)
    held = rng.uniform(-1, 1, size=(40, 2))
    seen = np.exp(3 + held[:, 0] + 0.5 * held[:, 1] ** 2 + 0.3 * rng.normal(size=40))
    logs = vhat.NetworkRegressor(**SMALL).fit(X, np.log(Y)).calibrate(held, np.log(seen))
    own = vhat.NetworkRegressor(**SMALL, log_target=True).fit(X, Y).calibrate(held, seen)
    expected = logs.predict_interval(X[:4], 0.1, target="observation")
    found = own.predict_interval(X[:4], 0.1, target="observation")
    np.testing.assert_array_equal(found.lower, np.exp(expected.lower))
    np.testing.assert_array_equal(found.upper, np.exp(expected.upper))
    levels = [0.1, 0.5, 0.9]
    np.testing.assert_array_equal(own.predict_quantiles(X[:4], levels), np.exp(logs.predict_quantiles(X[:4], levels)))
