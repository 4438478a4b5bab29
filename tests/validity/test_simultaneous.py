"""Bands for many points at once, on a linear model whose redraws have a closed form."""

from __future__ import annotations

import numpy as np
import pytest

from tests.validity.linear import estimator, fitted_at, polynomial

pytestmark = pytest.mark.slow

NOISE, N, DELTA, REDRAWS = 0.4, 20, 0.05, 20_000
X = polynomial(np.linspace(-1, 1, N), 4)
POINTS = polynomial(np.linspace(-1.3, 1.3, 25), 4)
Z = np.random.default_rng(11).standard_normal((REDRAWS, N))
GAPS = NOISE * Z @ estimator(X).T @ POINTS.T
MONTE_CARLO = np.sqrt(DELTA * (1 - DELTA) / REDRAWS)
SIMULATION = np.sqrt(DELTA * (1 - DELTA) / 40_000)
"""What vhat's own simulation of the sup-t quantile leaves open."""


def band(simultaneous, *, seed=0, **options):
    y = NOISE * np.random.default_rng(seed).standard_normal(N)
    return fitted_at(X, y).interval(POINTS, DELTA, simultaneous=simultaneous, **options)


def all_at_once(half_width) -> float:
    return float(np.mean(np.all(np.abs(GAPS) <= half_width, axis=1)))


@pytest.fixture(scope="module")
def noise_of_redraws() -> np.ndarray:
    """The classical estimate of each redraw's noise, (redraws, 1)."""
    residuals = NOISE * (Z - Z @ estimator(X).T @ X.T)
    return np.sqrt(np.sum(residuals**2, axis=1, keepdims=True) / (N - X.shape[1]))


@pytest.mark.parametrize("bound", ["isoperimetric", "tight", "asymptotic"])
def test_union_band_covers_all_points_at_once(bound):
    assert all_at_once(band(True, bound=bound, noise=NOISE).half_width) >= 1 - DELTA


def test_pointwise_band_does_not_cover_all_points_at_once():
    assert all_at_once(band(False, bound="asymptotic", noise=NOISE).half_width) < 1 - DELTA - 5 * MONTE_CARLO


def test_sup_t_band_covers_all_points_at_once_at_exactly_its_level():
    covered = all_at_once(band("sup-t", bound="asymptotic", noise=NOISE).half_width)
    assert abs(covered - (1 - DELTA)) < 3 * np.hypot(MONTE_CARLO, SIMULATION)


def test_sup_t_band_is_narrower_than_the_union_band():
    union = band("union", bound="asymptotic", noise=NOISE).half_width
    assert np.all(band("sup-t", bound="asymptotic", noise=NOISE).half_width < 0.95 * union)


def test_sup_t_band_with_estimated_noise_covers_at_exactly_its_level(noise_of_redraws):
    """Its half width is a constant times the estimate, so that one call stands for every redraw."""
    one, other = (band("sup-t", seed=s, bound="asymptotic") for s in (0, 1))
    np.testing.assert_allclose(one.half_width / one.noise, other.half_width / other.noise, rtol=1e-6)
    covered = all_at_once(one.half_width / one.noise * noise_of_redraws)
    assert abs(covered - (1 - DELTA)) < 3 * np.hypot(MONTE_CARLO, SIMULATION)


def test_union_band_with_estimated_noise_covers_all_points_at_once(noise_of_redraws):
    one = band("union", bound="asymptotic")
    assert all_at_once(one.half_width / one.noise * noise_of_redraws) >= 1 - DELTA


def test_sup_t_band_covers_new_responses_at_all_points_at_once():
    """New responses have independent noise of their own, so that the points are less correlated."""
    new = NOISE * np.random.default_rng(12).standard_normal(GAPS.shape)
    half_width = band("sup-t", bound="asymptotic", noise=NOISE, target="observation").half_width
    covered = np.mean(np.all(np.abs(GAPS - new) <= half_width, axis=1))
    assert abs(covered - (1 - DELTA)) < 3 * np.hypot(MONTE_CARLO, SIMULATION)
