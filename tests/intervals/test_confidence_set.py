"""Wald's set is the textbook's ellipsoid, and holds the parameters as often as it says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import curve_fit

import vhat

X = np.linspace(0.0, 4.0, 40)
TRUE = np.array([2.0, 1.0])
DESIGN = np.random.default_rng(0).normal(size=(20, 3))


def curve(q, x):
    return q[0] * np.exp(-q[1] * x)


def jac(q, x):
    e = np.exp(-q[1] * x)
    return np.stack([e, -q[0] * x * e], axis=1)


def hess(q, x):
    e = np.exp(-q[1] * x)
    zero = np.zeros_like(x)
    return np.stack([np.stack([zero, -x * e], 1), np.stack([-x * e, q[0] * x**2 * e], 1)], 1)


def fit_curve(y):
    q, covariance = curve_fit(lambda x, a, b: curve((a, b), x), X, y, p0=TRUE, jac=lambda x, a, b: jac((a, b), x))
    return vhat.from_numpy(curve, q, X, y, jac=jac, hess=hess), covariance


def fit_line(y, lam=0.0):
    n, p = DESIGN.shape
    q = np.linalg.solve(DESIGN.T @ DESIGN / n + lam * np.eye(p), DESIGN.T @ y / n)
    return vhat.from_numpy(lambda q, x: x @ q, q, DESIGN, y, jac=lambda x: x, weight_decay=lam)


def binomial(level, count, errors=3.5):
    """Return the coverages that so many standard errors around the level allow."""
    spread = errors * np.sqrt(level * (1 - level) / count)
    return level - spread, level + spread


def test_the_set_of_curve_fit_is_that_of_its_own_covariance():
    y = curve(TRUE, X) + 0.05 * np.random.default_rng(1).normal(size=40)
    fitted, covariance = fit_curve(y)
    region = fitted.confidence_set(0.1, curvature="ggn")
    q = 2 * stats.f.ppf(0.9, 2, 38)
    assert region.radius2 == pytest.approx(q, rel=1e-6)
    for theta in np.random.default_rng(2).multivariate_normal(fitted.params, 4 * covariance, size=50):
        gap = theta - fitted.params
        distance = gap @ np.linalg.solve(covariance, gap)
        assert region.distance2(theta) == pytest.approx(distance, rel=1e-4)
        assert region.contains(theta) == (distance <= q)


def test_a_known_noise_has_the_quantile_of_chi_square():
    y = curve(TRUE, X) + 0.05 * np.random.default_rng(1).normal(size=40)
    region = fit_curve(y)[0].confidence_set(0.05, noise=0.05)
    assert region.radius2 == pytest.approx(stats.chi2.ppf(0.95, 2))
    assert region.df is None
    assert "chi-square" in region.guarantee


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.3, None])
def test_a_linear_model_is_covered_exactly(noise):
    """400 draws of the noise; without decay the mean of the parameters is the truth."""
    rng, truth, hits = np.random.default_rng(3), np.array([1.0, -2.0, 0.5]), 0
    for _ in range(400):
        y = DESIGN @ truth + 0.3 * rng.normal(size=20)
        hits += fit_line(y).confidence_set(0.1, noise=noise).contains(truth)
    low, high = binomial(0.9, 400)
    assert low < hits / 400 < high


@pytest.mark.slow
def test_with_decay_the_set_is_for_the_mean_of_the_estimator_and_not_for_the_truth():
    rng, truth, lam = np.random.default_rng(4), np.array([1.0, -2.0, 0.5]), 0.5
    n, p = DESIGN.shape
    gram = DESIGN.T @ DESIGN / n
    mean = np.linalg.solve(gram + lam * np.eye(p), gram @ truth)
    hits = np.zeros(2)
    for _ in range(200):
        region = fit_line(DESIGN @ truth + 0.3 * rng.normal(size=20), lam).confidence_set(0.1, noise=0.3)
        hits += region.contains(np.stack([mean, truth]))
    low, high = binomial(0.9, 200)
    assert low < hits[0] / 200 < high
    assert hits[1] == 0
    assert "not the true parameters" in region.guarantee


@pytest.mark.slow
def test_a_mildly_nonlinear_model_is_covered_nearly_as_often_as_it_says():
    rng, hits = np.random.default_rng(5), 0
    for _ in range(300):
        y = curve(TRUE, X) + 0.1 * rng.normal(size=40)
        hits += fit_curve(y)[0].confidence_set(0.1, noise=0.1).contains(TRUE)
    low, high = binomial(0.9, 300)
    assert low - 0.01 < hits / 300 < high  # a point for the curvature that first order leaves out


def test_the_shadow_holds_what_the_whole_set_holds_and_one_pair_alone_is_smaller():
    y = DESIGN @ [1.0, -2.0, 0.5] + 0.3 * np.random.default_rng(6).normal(size=20)
    region = fit_line(y).confidence_set(0.1, noise=0.3)
    # the extent of an ellipsoid along a coordinate is sqrt(radius2 cov_ii), whatever it is seen with
    shadow = region.project(0, 2).boundary(20_001)
    for column, i in ((0, 0), (1, 2)):
        extent = np.sqrt(region.radius2 * region.covariance[i, i])
        assert np.max(shadow[:, column]) - region.center[i] == pytest.approx(extent, rel=1e-6)
    alone = region.project(0, 2, alone=True)
    assert alone.radius2 == pytest.approx(stats.chi2.ppf(0.9, 2))
    assert bool(np.all(region.project(0, 2).contains(alone.boundary())))
    edge = region.project(0, 2)
    np.testing.assert_allclose(edge.distance2(edge.boundary()), edge.radius2, rtol=1e-9)


def test_a_change_of_units_changes_nothing_else():
    y = DESIGN @ [1.0, -2.0, 0.5] + 0.3 * np.random.default_rng(6).normal(size=20)
    plain = fit_line(y).confidence_set(0.1)
    unit = np.array([1e6, 1.0, 1e-6])
    scaled = vhat.from_numpy(lambda q, x: x @ q, plain.center / unit, DESIGN * unit, y, jac=lambda x: x)
    other = scaled.confidence_set(0.1)
    theta = plain.center + 0.05
    assert other.distance2(theta / unit) == pytest.approx(plain.distance2(theta), rel=1e-6)


def test_the_picture_shows_both_parameters():
    y = DESIGN @ [1.0, -2.0, 0.5] + 0.3 * np.random.default_rng(6).normal(size=20)
    ax = fit_line(y).confidence_set(0.1).plot(0, 2)
    assert ax.get_xlabel() == "parameter 0"
    assert ax.get_ylabel() == "parameter 2"


def test_sets_that_do_not_exist_are_refused_in_words():
    wide = np.random.default_rng(7).normal(size=(3, 5))
    q = np.linalg.solve(wide.T @ wide / 3 + 0.1 * np.eye(5), wide.T @ np.ones(3) / 3)
    fitted = vhat.from_numpy(lambda q, x: x @ q, q, wide, np.ones(3), jac=lambda x: x, weight_decay=0.1)
    with pytest.raises(vhat.NotPositiveDefinite, match="3 responses does not move the 5 parameters"):
        fitted.confidence_set(noise=0.1)
    y = DESIGN @ [1.0, -2.0, 0.5] + 0.3 * np.random.default_rng(6).normal(size=20)
    region = fit_line(y).confidence_set()
    with pytest.raises(vhat.InputError, match="j=3 is not a position"):
        region.project(0, 3)
    with pytest.raises(vhat.InputError, match="shape"):
        region.contains([1.0, 2.0])
