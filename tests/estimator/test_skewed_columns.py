"""Skewed columns: transformed for a network, in whatever unit they are given, and said."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import vhat


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.lognormal(size=n), rng.normal(size=n)])
    return X, np.log(X[:, 0]) + 0.2 * X[:, 1] + 0.1 * rng.normal(size=n)


def network(**options):
    return vhat.NetworkRegressor((4,), weight_decay=1e-2, **options)


def test_the_network_sees_a_skewed_column_transformed_and_standardised():
    X, y = table()
    fitted = network().fit(X, y)
    np.testing.assert_array_equal(fitted.scaling_.transformed, [0])
    z = (X[:, 0] - X[:, 0].mean()) / X[:, 0].std()
    power = np.clip(stats.yeojohnson_normmax(z), 0.0, 2.0)
    moved = stats.yeojohnson(z, lmbda=power)
    seen = fitted.scaling_.inputs(X)
    np.testing.assert_allclose(seen[:, 0], (moved - moved.mean()) / moved.std(), atol=1e-5)
    np.testing.assert_allclose(seen[:, 1], (X[:, 1] - X[:, 1].mean()) / X[:, 1].std(), rtol=1e-12)


def test_predictions_and_intervals_do_not_depend_on_the_unit_of_a_column():
    X, y = table()
    one = network().fit(X, y).predict_interval(X[:5], 0.1)
    other = X * [1e-3, 60.0] + [0.0, 32.0]
    two = network().fit(other, y).predict_interval(other[:5], 0.1)
    np.testing.assert_allclose(two.center, one.center, rtol=1e-5)
    np.testing.assert_allclose(two.half_width, one.half_width, rtol=1e-4)


def test_it_can_be_switched_off_and_a_linear_model_is_linear_in_its_columns():
    X, y = table()
    assert network(transform_skewed=False).fit(X, y).scaling_.power is None
    linear = vhat.NetworkRegressor((), weight_decay=1e-3).fit(X, y)
    a, b = linear.predict([[1.0, 0.0], [3.0, 0.0]])
    assert linear.predict([[2.0, 0.0]])[0] == pytest.approx((a + b) / 2, rel=1e-12)


def test_a_saved_model_answers_alike(tmp_path):
    X, y = table()
    fitted = network().fit(X, y)
    fitted.save(tmp_path / "model")
    loaded = vhat.NetworkRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(loaded.scaling_.transformed, [0])


def test_a_report_names_the_columns(tmp_path):
    X, y = table()
    fitted = network().fit(pd.DataFrame(X, columns=["income", "age"]), y)
    page = fitted.report(tmp_path / "report.html").read_text()
    assert "transformed by Yeo and Johnson&#39;s method: income" in page
