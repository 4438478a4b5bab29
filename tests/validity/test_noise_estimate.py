"""The estimated noise of linear models over redraws: unbiased, and of the law that theory gives it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.validity.linear import estimator, fitted_at, mean_and_error, polynomial

pytestmark = pytest.mark.slow

NOISE, REDRAWS, N = 0.3, 400, 40


def estimates(X: np.ndarray, truth: np.ndarray, lam: float, seed: int) -> np.ndarray:
    ys = truth + NOISE * np.random.default_rng(seed).standard_normal((REDRAWS, N))
    return np.array([fitted_at(X, y, lam).interval(X[:1]).noise for y in ys]) ** 2


def test_estimated_noise_is_chi_square_for_a_well_specified_model_with_hardly_any_decay():
    """``sigma^2_hat (n - p) / sigma^2`` is chi-square with n - p degrees of freedom: mean, variance and shape."""
    X = polynomial(np.linspace(-1, 1, N), 5)
    squares = estimates(X, X @ np.arange(6.0), 1e-10, seed=0)
    df = N - X.shape[1]
    assert squares.mean() == pytest.approx(NOISE**2, rel=3 * np.sqrt(2 / df / REDRAWS))
    assert stats.kstest(squares * df / NOISE**2, stats.chi2(df).cdf).pvalue > 0.01


def test_estimated_noise_is_unbiased_under_strong_decay_too():
    """With nothing to fit there is no bias, whatever lam; dividing by n - tr S instead would show."""
    X, lam = np.random.default_rng(2).standard_normal((N, N // 2)), 0.5
    squares = estimates(X, np.zeros(N), lam, seed=1)
    mean, error = mean_and_error(squares)
    assert abs(mean - NOISE**2) < 3 * error
    S = X @ estimator(X, lam)
    other = mean * np.sum((np.eye(N) - S) ** 2) / (N - np.trace(S))
    assert abs(other - NOISE**2) > 3 * error
