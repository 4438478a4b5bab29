"""A target fitted as its logarithm, and what is asked of new responses: in the units of the table throughout."""

from __future__ import annotations

import numpy as np
import pytest

import vhat


def table(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 1))
    return X, np.exp(0.5 * X[:, 0] + 0.3 * rng.normal(size=n))


@pytest.fixture(scope="module")
def pair():
    """The same data through the logarithm of the estimator, and of the user."""
    X, y = table(120, 0)
    options = {"hidden_layer_sizes": (3,), "weight_decay": 1e-2}
    return (
        vhat.NetworkRegressor(log_target=True, **options).fit(X, y),
        vhat.NetworkRegressor(**options).fit(X, np.log(y)),
    )


def test_quantiles_are_exp_of_those_of_the_logarithm(pair):
    ours, hand = pair
    X, _ = table(5, 1)
    np.testing.assert_allclose(ours.predict_quantiles(X, [0.1, 0.9]), np.exp(hand.predict_quantiles(X, [0.1, 0.9])))


def test_calibrated_limits_are_exp_of_those_of_the_logarithm_by_training_rows_and_by_held_out_ones(pair):
    ours, hand = pair
    X, _ = table(5, 1)
    X_held, y_held = table(40, 2)
    for rows in ((None, None), (X_held, y_held)):
        logs = (None, None) if rows[0] is None else (rows[0], np.log(rows[1]))
        band = ours.calibrate(*rows).predict_interval(X, 0.2, target="observation")
        expected = hand.calibrate(*logs).predict_interval(X, 0.2, target="observation")
        np.testing.assert_allclose(band.lower, np.exp(expected.lower))
        np.testing.assert_allclose(band.upper, np.exp(expected.upper))
        assert "the model is of log y" in band.guarantee


def test_a_standard_deviation_of_the_logarithm_is_not_passed_off_as_one_of_the_target(pair):
    with pytest.raises(vhat.InputError, match="predict_quantiles"):
        pair[0].predict([[0.0]], return_std=True)


def test_a_report_judges_by_rows_in_the_units_of_the_table(pair, tmp_path):
    X_held, y_held = table(40, 3)
    page = pair[0].report(tmp_path / "report.html", held_out=(X_held, y_held)).read_text()
    assert "log(" in page
