"""Upper confidence limits for the mean and the standard deviation of skewed draws: against the laws they come from."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from vhat import InputError
from vhat.bounds import isoperimetric_multiplier
from vhat.intervals.monte_carlo_limits import mean_limit, sd_limit

LAWS = {
    "gamma, shape 8": stats.gamma(8),
    "gamma, shape 2": stats.gamma(2),
    "gamma, shape 1": stats.gamma(1),
    "chi-square, df 1": stats.chi2(1),
    "lognormal, 0.5": stats.lognorm(0.5),
}


@pytest.mark.parametrize("law", LAWS)
def test_limits_of_a_skewed_law_err_at_most_twice_as_often_as_they_say(law):
    """100 draws, 4000 samples, eta = .01: three binomial standard errors are half of eta."""
    eta = 0.01
    room = 3 * np.sqrt(2 * eta / 4000)
    draws = LAWS[law].rvs(size=(100, 4000), random_state=np.random.default_rng(1))
    assert np.mean(mean_limit(draws, eta) < LAWS[law].mean()) < 2 * eta + room
    assert np.mean(sd_limit(draws, eta) < LAWS[law].std()) < 2 * eta + room


def test_normal_theory_would_err_far_more_often():
    """The check above can fail: Student's t and the chi-square of R - 1 degrees of freedom on an exponential law."""
    eta, count, samples = 0.01, 100, 4000
    draws = np.random.default_rng(2).exponential(size=(count, samples))
    sd = draws.std(axis=0, ddof=1)
    student = draws.mean(axis=0) + stats.t.ppf(1 - eta, count - 1) * sd / np.sqrt(count)
    classical = sd * np.sqrt((count - 1) / stats.chi2.ppf(eta, count - 1))
    assert np.mean(student < 1) > 2 * eta
    assert np.mean(classical < 1) > 8 * eta


@pytest.mark.slow
@pytest.mark.parametrize("count", [30, 100, 400])
@pytest.mark.parametrize("law", LAWS)
def test_error_rates_at_the_levels_in_use(law, count):
    """At most twice eta (4 times for the mean of 30 draws), plus four binomial standard errors."""
    samples = 1_200_000 // count
    draws = LAWS[law].rvs(size=(count, samples), random_state=np.random.default_rng(count))
    for eta in (0.005, 0.0025, 0.0005):
        most = 4 * eta if count == 30 else 2 * eta
        assert np.mean(mean_limit(draws, eta) < LAWS[law].mean()) < most + 4 * np.sqrt(most / samples)
        assert np.mean(sd_limit(draws, eta) < LAWS[law].std()) < 2 * eta + 4 * np.sqrt(2 * eta / samples)


def test_limits_of_many_nearly_normal_draws_are_the_classical_ones():
    """With a relative spread of 1/100 nothing is skewed: Student's t, and the chi-square with R - 1 for its degrees."""
    count, eta = 4000, 0.005
    draws = 1 + 0.01 * np.random.default_rng(3).standard_normal(count)
    sd = draws.std(ddof=1)
    student = draws.mean() + stats.t.ppf(1 - eta, count - 1) * sd / np.sqrt(count)
    classical = sd * np.sqrt((count - 1) / stats.chi2.ppf(eta, count - 1))
    assert float(mean_limit(draws, eta)) - draws.mean() == pytest.approx(student - draws.mean(), rel=0.03)
    assert float(sd_limit(draws, eta)) == pytest.approx(classical, rel=0.005)


def test_the_limits_are_the_formulas_of_the_docstring():
    """With scipy's bias-corrected skewness and kurtosis, on draws whose own values are above the floors and below."""
    rng = np.random.default_rng(4)
    eta, R = 0.0025, 60
    for draws in (10 + rng.lognormal(0, 1, R), rng.gamma(8, size=R)):
        m, s = draws.mean(), draws.std(ddof=1)
        skewness = max(stats.skew(draws, bias=False), 3 * s / m)
        kurtosis = max(3 + stats.kurtosis(draws, bias=False), 3 + 16 * (s / m) ** 2)
        q = stats.t.ppf(1 - eta, R - 1)
        mean = m + s / np.sqrt(R) * (q + skewness * (1 + 2 * q**2) / (6 * np.sqrt(R)))
        freedom = 2 * R / (kurtosis - (R - 3) / (R - 1))
        assert float(mean_limit(draws, eta)) == pytest.approx(mean, rel=1e-12)
        assert float(sd_limit(draws, eta)) == pytest.approx(
            s * np.sqrt(freedom / stats.chi2.ppf(eta, freedom)), rel=1e-9
        )


FUNCTIONS = {
    # The function F of one normal, and its squared derivative W.
    "tanh(z/2)": (lambda z: np.tanh(z / 2), lambda z: 0.25 / np.cosh(z / 2) ** 4),
    "z^2": (lambda z: z**2, lambda z: 4 * z**2),
    "exp(z/2)": (lambda z: np.exp(z / 2), lambda z: 0.25 * np.exp(z)),
    # The function that attains the bound without a tail at delta = .01, whose W has a relative spread of 4.7.
    "extremal": (None, lambda z: (stats.norm.cdf(z) / stats.norm.pdf(z)) ** 2 * (z <= stats.norm.isf(0.01))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("count", [30, 100])
def test_an_interval_from_estimated_moments_misses_at_most_delta(name, count):
    """E W and sd(W) raised to their limits with delta/20 each, the rest for the two-moment bound.

    The probability of a miss is exact for each set of draws, by a grid over z; 500 sets of draws are averaged.
    """
    value, square = FUNCTIONS[name]
    z = np.linspace(-9, 9, 36_001)
    weights = stats.norm.pdf(z) * (z[1] - z[0])
    slopes = np.sqrt(square(z))
    F = np.cumsum(slopes) * (z[1] - z[0]) if value is None else value(z)
    gaps = np.abs(F - np.sum(weights * F))
    order = np.argsort(gaps)
    beyond = np.append(np.cumsum(weights[order][::-1])[::-1], 0.0)
    draws = square(np.random.default_rng(count).standard_normal((count, 500)))
    for delta in (0.1, 0.05, 0.01):
        mean = mean_limit(draws, delta / 20)
        sd = sd_limit(draws, delta / 20)
        half = np.sqrt(mean) * isoperimetric_multiplier(0.9 * delta, sd=sd / mean)
        missed = beyond[np.searchsorted(gaps[order], half, side="right")]
        assert missed.mean() + 3 * missed.std() / np.sqrt(len(missed)) <= delta


# -- shapes, units, holes -------------------------------------------------------------------------------------------
def test_points_do_not_depend_on_each_other():
    draws = np.random.default_rng(5).gamma(2, size=(20, 3, 2))
    for limit in (mean_limit, sd_limit):
        together = limit(draws, 0.01)
        assert together.shape == (3, 2)
        np.testing.assert_allclose(together[1, 1], limit(draws[:, 1, 1], 0.01), rtol=1e-14)


@pytest.mark.parametrize("unit", [1e-150, 1e-9, 1e9, 1e150])
def test_limits_have_the_unit_of_the_draws(unit):
    draws = np.random.default_rng(6).gamma(2, size=(20, 3))
    for limit in (mean_limit, sd_limit):
        np.testing.assert_allclose(limit(unit * draws, 0.01), unit * limit(draws, 0.01), rtol=1e-12)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e-300, 7e200])
def test_draws_that_are_all_equal_have_that_mean_and_no_spread(constant):
    draws = np.full((30, 2), constant)
    np.testing.assert_allclose(mean_limit(draws, 0.001), constant, rtol=1e-15)
    np.testing.assert_array_equal(sd_limit(draws, 0.001), 0.0)


@pytest.mark.parametrize("hole", [np.nan, np.inf])
def test_a_point_with_a_draw_that_is_not_finite_has_no_limit(hole):
    draws = np.random.default_rng(7).gamma(2, size=(20, 3))
    whole = mean_limit(draws, 0.01), sd_limit(draws, 0.01)
    draws[4, 1] = hole
    for found, before in zip((mean_limit(draws, 0.01), sd_limit(draws, 0.01)), whole, strict=True):
        assert np.isnan(found[1])
        np.testing.assert_array_equal(found[[0, 2]], before[[0, 2]])


def test_one_draw_far_above_the_others_has_finite_limits_above_its_moments():
    draws = np.append(np.full(29, 1e-6), 1.0)
    assert draws.mean() < mean_limit(draws, 0.0005) < np.inf
    assert draws.std(ddof=1) < sd_limit(draws, 0.0005) < np.inf


def test_a_smaller_eta_has_higher_limits():
    draws = np.random.default_rng(8).gamma(2, size=50)
    for limit in (mean_limit, sd_limit):
        assert np.all(np.diff([float(limit(draws, eta)) for eta in (0.4, 0.1, 0.01, 1e-4, 1e-9)]) > 0)


@pytest.mark.parametrize("limit", [mean_limit, sd_limit])
def test_what_cannot_be_used_is_refused(limit):
    draws = np.arange(1.0, 21.0)
    with pytest.raises(InputError, match="9 draws are too few"):
        limit(draws[:9], 0.01)
    with pytest.raises(InputError, match="1 draws are too few"):
        limit(3.0, 0.01)
    with pytest.raises(InputError, match="must not be negative; the least is -2"):
        limit(draws - 3, 0.01)
    for eta in (0.0, 0.5, 1.0, -0.1, np.nan):
        with pytest.raises(InputError, match="eta="):
            limit(draws, eta)
