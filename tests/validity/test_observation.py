"""Intervals for a new response of a linear model."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.validity.linear import fitted_at, mean_and_error, polynomial

pytestmark = pytest.mark.slow

NOISE, REDRAWS, NEW, N, DELTA = 0.5, 500, 20, 12, 0.05
THETA = np.array([1.0, -2.0, 0.5, 3.0])
X = polynomial(np.linspace(-1, 1, N), 3)
POINTS = polynomial(np.linspace(-1.5, 1.5, 21), 3)
STUDENT = stats.t(N - 4).ppf(1 - DELTA / 2)
KINDS = {
    "asymptotic, noise known": {"bound": "asymptotic", "noise": NOISE},
    "asymptotic, noise estimated": {"bound": "asymptotic"},
    "tight, noise known": {"bound": "tight", "noise": NOISE},
    "tight, noise estimated": {"bound": "tight"},
    "isoperimetric, noise known": {"bound": "isoperimetric", "noise": NOISE},
    "isoperimetric, noise estimated": {"bound": "isoperimetric"},
}


def draw(rng: np.random.Generator) -> np.ndarray:
    return X @ THETA + NOISE * rng.standard_normal(N)


@pytest.fixture(scope="module")
def covered() -> dict[str, np.ndarray]:
    """The share of twenty new responses a point that each redraw's band covers, (redraws,) by kind of band."""
    rng = np.random.default_rng(3)
    shares = {kind: np.empty(REDRAWS) for kind in (*KINDS, "normal quantile, noise estimated")}
    for k in range(REDRAWS):
        fitted = fitted_at(X, draw(rng))
        new = POINTS @ THETA + NOISE * rng.standard_normal((NEW, len(POINTS)))
        for kind, options in KINDS.items():
            band = fitted.interval(POINTS, DELTA, target="observation", **options)
            shares[kind][k] = np.mean(np.abs(new - band.center) <= band.half_width)
            if kind == "asymptotic, noise estimated":
                too_narrow = band.half_width * stats.norm.ppf(1 - DELTA / 2) / STUDENT
                shares["normal quantile, noise estimated"][k] = np.mean(np.abs(new - band.center) <= too_narrow)
    return shares


def test_asymptotic_with_estimated_noise_is_the_classical_prediction_interval():
    """Student's t with n - p degrees of freedom times ``s sqrt(1 + x'(X'X)^-1 x)``."""
    y = draw(np.random.default_rng(4))
    band = fitted_at(X, y).interval(POINTS, DELTA, target="observation", bound="asymptotic")
    residuals = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    s = np.sqrt(residuals @ residuals / (N - 4))
    leverage = np.einsum("ia,ab,ib->i", POINTS, np.linalg.inv(X.T @ X), POINTS)
    np.testing.assert_allclose(band.half_width, STUDENT * s * np.sqrt(1 + leverage), rtol=1e-8)


@pytest.mark.parametrize("noise", ["known", "estimated"])
def test_asymptotic_covers_a_new_response_at_exactly_its_level(covered, noise):
    mean, error = mean_and_error(covered[f"asymptotic, noise {noise}"])
    assert abs(mean - (1 - DELTA)) < 3 * error


def test_normal_quantile_would_not_do_where_the_noise_was_estimated(covered):
    """The check above can fail: at 8 degrees of freedom Student's quantile matters."""
    mean, error = mean_and_error(covered["normal quantile, noise estimated"])
    assert mean + 3 * error < 1 - DELTA


@pytest.mark.parametrize("noise", ["known", "estimated"])
@pytest.mark.parametrize("bound", ["tight", "isoperimetric"])
def test_a_proved_bound_covers_a_new_response_at_its_level_or_more(covered, bound, noise):
    mean, _ = mean_and_error(covered[f"{bound}, noise {noise}"])
    assert mean >= 1 - DELTA


@pytest.mark.parametrize("noise", ["known", "estimated"])
def test_the_isoperimetric_bound_takes_fit_and_new_noise_together(covered, noise):
    """It spends delta once: at most two points above the level, where `tight`, which splits delta, is further above."""
    together, _ = mean_and_error(covered[f"isoperimetric, noise {noise}"])
    split, _ = mean_and_error(covered[f"tight, noise {noise}"])
    assert 1 - DELTA <= together <= 1 - DELTA + 0.02
    assert split > together
