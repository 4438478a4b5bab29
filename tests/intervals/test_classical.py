"""No decay and Gauss-Newton curvature: what scipy and statsmodels say."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.optimize import curve_fit

import vhat

RNG = np.random.default_rng(0)


def decay(x, a, k, c):
    return a * np.exp(-k * x) + c


def michaelis(x, v, k):
    return v * x / (k + x)


def badly_scaled(x, big, small):
    """Parameters near 1e3 and 1e-4 in one curve."""
    return big * (1 - np.exp(-small * x))


CURVES = {
    "decay": (decay, np.linspace(0, 5, 40), (2.0, 1.3, 0.5), 0.05),
    "michaelis": (michaelis, np.linspace(0.1, 10, 25), (3.0, 1.5), 0.05),
    "badly scaled": (badly_scaled, np.linspace(100, 40_000, 30), (1e3, 1e-4), 5.0),
}


def fit(name, sigma=None):
    f, x, true, noise = CURVES[name]
    y = f(x, *true) + noise * RNG.standard_normal(len(x))
    popt, pcov = curve_fit(f, x, y, p0=true, sigma=sigma, xtol=1e-14, ftol=1e-14, gtol=1e-14)
    return f, x, y, popt, pcov


@pytest.mark.parametrize("name", list(CURVES))
@pytest.mark.parametrize("weighted", [False, True])
def test_standard_errors_of_parameters_are_those_of_curve_fit(name, weighted):
    x = CURVES[name][1]
    sigma = np.linspace(1.0, 3.0, len(x)) if weighted else None
    f, x, y, popt, pcov = fit(name, sigma)
    fitted = vhat.from_curve_fit(f, popt, x, y, sigma=sigma)
    errors = fitted.functional(lambda q: q, curvature="ggn").standard_error
    np.testing.assert_allclose(errors, np.sqrt(np.diag(pcov)), rtol=1e-6)
    np.testing.assert_allclose(fitted.covariance(curvature="ggn"), pcov, rtol=1e-5, atol=1e-12 * np.abs(pcov).max())


def test_absolute_sigma_is_noise_that_was_given():
    f, x, true, _ = CURVES["decay"]
    sigma = np.linspace(0.02, 0.2, len(x))
    y = f(x, *true) + sigma * RNG.standard_normal(len(x))
    popt, pcov = curve_fit(f, x, y, p0=true, sigma=sigma, absolute_sigma=True, xtol=1e-14, ftol=1e-14)
    fitted = vhat.from_curve_fit(f, popt, x, y, sigma=sigma)
    errors = fitted.functional(lambda q: q, curvature="ggn", noise=sigma).standard_error
    np.testing.assert_allclose(errors, np.sqrt(np.diag(pcov)), rtol=1e-6)
    with pytest.raises(vhat.InputError, match=r"interval\(..., noise=sigma\)"):
        vhat.from_curve_fit(f, popt, x, y, sigma=sigma, absolute_sigma=True)


def test_parameter_that_curve_fit_left_at_a_bound_is_no_minimum_and_the_others_are():
    """The noise of the offset pulls it below the bound of zero: curve_fit leaves some 1e-20 there."""
    x = np.linspace(0.0, 10.0, 60)

    def peak(x, a, mu, w, c):
        return a * np.exp(-0.5 * ((x - mu) / w) ** 2) + c

    y = peak(x, 3.0, 4.2, 1.3, -0.05) + 0.1 * np.random.default_rng(5).normal(size=60)
    popt, _ = curve_fit(peak, x, y, p0=[2, 4, 1, 0.1], bounds=(0, 9))
    assert 0 <= popt[3] < 1e-10
    with pytest.warns(vhat.NotMinimumWarning):
        vhat.from_curve_fit(peak, popt, x, y).interval([2.0])
    fixed, pcov = curve_fit(lambda x, a, mu, w: peak(x, a, mu, w, 0.0), x, y, p0=popt[:3], xtol=1e-14, ftol=1e-14)
    fitted = vhat.from_curve_fit(lambda x, a, mu, w: peak(x, a, mu, w, 0.0), fixed, x, y)
    errors = fitted.functional(lambda q: q, curvature="ggn").standard_error
    np.testing.assert_allclose(errors, np.sqrt(np.diag(pcov)), rtol=1e-6)


def linear_data(n=35):
    X = np.column_stack([np.ones(n), 1e3 * RNG.normal(size=n), 1e-4 * RNG.normal(size=n)])
    return X, X @ [1.0, 2e-3, 3e4] + 0.4 * RNG.standard_normal(n)


@pytest.mark.parametrize("front", ["numpy", "jax"])
def test_ordinary_least_squares_is_that_of_statsmodels(front):
    X, y = linear_data()
    ols = sm.OLS(y, X).fit()
    make = vhat.from_numpy if front == "numpy" else vhat.from_jax
    fitted = make(lambda q, Z: Z @ q, ols.params, X, y, weight_decay=0.0)
    parameters = fitted.functional(lambda q: q, bound="asymptotic", curvature="ggn")
    np.testing.assert_allclose(parameters.standard_error, ols.bse, rtol=1e-6)
    limits = ols.conf_int(0.05)
    np.testing.assert_allclose(np.column_stack([parameters.lower, parameters.upper]), limits, rtol=1e-6)
    assert parameters.df == pytest.approx(ols.df_resid, rel=1e-9)

    points = X[:5] * 1.7
    table = ols.get_prediction(points).summary_frame(alpha=0.1)
    mean = fitted.interval(points, 0.1, bound="asymptotic")
    seen = fitted.interval(points, 0.1, bound="asymptotic", target="observation")
    np.testing.assert_allclose(mean.lower, table["mean_ci_lower"], rtol=1e-6)
    np.testing.assert_allclose(mean.upper, table["mean_ci_upper"], rtol=1e-6)
    np.testing.assert_allclose(seen.lower, table["obs_ci_lower"], rtol=1e-6)
    np.testing.assert_allclose(seen.upper, table["obs_ci_upper"], rtol=1e-6)


def test_weighted_least_squares_is_that_of_statsmodels_when_the_noise_follows_the_weights():
    X, y = linear_data()
    weights = RNG.uniform(0.5, 4.0, len(y))
    wls = sm.WLS(y, X, weights=weights).fit()
    fitted = vhat.from_numpy(lambda q, Z: Z @ q, wls.params, X, y, sample_weight=weights)
    noise = np.sqrt(wls.scale / weights)
    np.testing.assert_allclose(fitted.functional(lambda q: q, noise=noise).standard_error, wls.bse, rtol=1e-6)


def test_estimated_noise_of_weighted_rows_follows_sigma_in_curve_fit_alone():
    """from_curve_fit(sigma) says that noise follows sigma; sample_weight alone says nothing about noise."""
    f, x, true, _ = CURVES["decay"]
    sigma = np.linspace(0.02, 0.2, len(x))
    y = f(x, *true) + sigma * RNG.standard_normal(len(x))
    popt, _ = curve_fit(f, x, y, p0=true, sigma=sigma)
    band = vhat.from_curve_fit(f, popt, x, y, sigma=sigma).interval(x, observation_noise=0.1, target="observation")
    assert "in each row as described" in band.guarantee
    weighted = vhat.from_numpy(lambda q, t: f(t, *q), popt, x, y, sample_weight=1 / sigma**2)
    assert "the same in every row" in weighted.interval(x, noise="equal").guarantee
    described = vhat.from_curve_fit(f, popt, x, y, sigma=sigma).interval(x)
    np.testing.assert_allclose(weighted.interval(x, noise="weights").half_width, described.half_width, rtol=1e-6)
