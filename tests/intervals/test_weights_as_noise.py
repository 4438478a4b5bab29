"""Sample weights and the noise: what is estimated, and what is said when nobody says what the weights mean."""

from __future__ import annotations

import numpy as np
import pytest

import vhat

SPREAD = np.repeat([0.1, 1.5], 30)
"""Thirty quiet rows and thirty noisy ones."""


def line(q, x):
    return q[0] + q[1] * x


def weighted_line(y, x, weights):
    A = np.column_stack([np.ones_like(x), x])
    theta = np.linalg.solve((A.T * weights) @ A, A.T @ (weights * y))
    return vhat.from_numpy(line, theta, x, y, sample_weight=weights)


def design():
    # The noisy rows lie to the right, so that predictions there lean on them.
    return np.concatenate([np.linspace(-1, 0, 30), np.linspace(0, 1, 30)])


def test_varying_weights_without_a_word_on_the_noise_warn_once_and_name_both_answers():
    x = design()
    y = 1 + x + SPREAD * np.random.default_rng(0).standard_normal(60)
    fitted = weighted_line(y, x, 1 / SPREAD**2)
    with pytest.warns(vhat.NoiseWarning, match=r'noise="weights".*noise="equal"'):
        fitted.interval([0.9])
    fitted.interval([0.9])  # and no second warning, or this test fails
    weighted_line(y, x, 1 / SPREAD**2).interval([0.9], noise="weights")
    weighted_line(y, x, 1 / SPREAD**2).interval([0.9], noise="equal")
    weighted_line(y, x, 1 / SPREAD**2).interval([0.9], noise=SPREAD)
    weighted_line(y, x, np.full(60, 3.0)).interval([0.9])  # equal weights say nothing


def test_noise_by_weights_is_the_given_shape_times_an_estimated_scale():
    x = design()
    y = 1 + x + SPREAD * np.random.default_rng(1).standard_normal(60)
    fitted = weighted_line(y, x, 1 / SPREAD**2)
    band = fitted.interval([0.9, -0.9], noise="weights", bound="asymptotic")
    residuals = (y - fitted.predict(x)) / SPREAD
    scale = np.sqrt(np.sum(residuals**2) / 58)  # the chi-square of weighted least squares
    given = fitted.interval([0.9, -0.9], noise=scale * SPREAD, bound="asymptotic")
    np.testing.assert_allclose(band.standard_error, given.standard_error, rtol=1e-8)
    assert band.df == pytest.approx(58, rel=1e-8)
    rescaled = weighted_line(y, x, 1e6 / SPREAD**2).interval([0.9, -0.9], noise="weights", bound="asymptotic")
    np.testing.assert_allclose(rescaled.half_width, band.half_width, rtol=1e-8)


def test_rows_of_weight_zero_do_not_count():
    x = design()
    y = 1 + x + SPREAD * np.random.default_rng(2).standard_normal(60)
    weights = np.where(np.arange(60) % 7 == 0, 0.0, 1 / SPREAD**2)
    seen = weights > 0
    all_rows = weighted_line(y, x, weights).interval([0.9], noise="weights")
    alone = weighted_line(y[seen], x[seen], weights[seen]).interval([0.9], noise="weights")
    np.testing.assert_allclose(all_rows.half_width, alone.half_width, rtol=1e-8)


@pytest.mark.slow
def test_noise_by_weights_keeps_its_level_where_equal_noise_does_not():
    """400 redraws: a 95% interval of the mean at x = 0.9 misses 5% of the time by weights, several times that without.

    The share of misses is that of the textbook's Student interval, whatever the seed, within four binomial errors.
    """
    x = design()
    rng = np.random.default_rng(3)
    missed = {"weights": 0, "equal": 0}
    for _ in range(400):
        fitted = weighted_line(1 + x + SPREAD * rng.standard_normal(60), x, 1 / SPREAD**2)
        for kind in missed:
            band = fitted.interval([0.9], noise=kind, bound="asymptotic")
            missed[kind] += int(not band.lower[0] <= 1.9 <= band.upper[0])
    assert abs(missed["weights"] / 400 - 0.05) <= 4 * np.sqrt(0.05 * 0.95 / 400)
    wrong = missed["equal"] / 400
    assert not abs(wrong - 0.05) <= 4 * np.sqrt(0.05 * 0.95 / 400)


def test_an_unknown_word_for_the_noise_is_refused():
    x = design()
    fitted = weighted_line(1 + x + np.random.default_rng(0).standard_normal(60), x, np.ones(60))
    with pytest.raises(vhat.InputError, match=r"noise='gaussian' is not known. .*'weights' or 'equal'"):
        fitted.interval([0.9], noise="gaussian")
