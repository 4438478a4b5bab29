"""Noise that differs from row to row, given by the user, with and without sample weights."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import vhat
from tests.validity.linear import estimator, fitted_at, polynomial
from tests.validity.redraws import Design, predictions, refit

pytestmark = pytest.mark.slow

N = 30
GRID = np.linspace(-1, 1, N)
X = polynomial(GRID, 3)
POINTS = polynomial(np.linspace(-1.5, 1.5, 25), 3)
NOISE = 0.1 * np.exp(1.2 * GRID)
WEIGHTS = {
    "no weights": None,
    "inverse variance": np.mean(NOISE**2) / NOISE**2,
    "weights of another cause": np.random.default_rng(1).uniform(0.2, 3.0, N),
    "some rows left out": np.tile([1.0, 1.0, 0.0], N // 3),
}


@pytest.mark.parametrize("lam", [0.0, 0.05])
@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_standard_error_of_a_linear_model_is_exact(weight, lam):
    """``sqrt(sum_i sigma_i^2 s_i^2)``, s the row of the estimator; and the deviation of 20,000 redraws to 2%."""
    y = np.sin(3 * GRID) + NOISE * np.random.default_rng(2).standard_normal(N)
    band = fitted_at(X, y, lam, weight).interval(POINTS, noise=NOISE)
    moves = POINTS @ estimator(X, lam, weight)
    np.testing.assert_allclose(band.standard_error, np.linalg.norm(moves * NOISE, axis=1), rtol=1e-8)
    draws = NOISE * np.random.default_rng(3).standard_normal((20_000, N))
    np.testing.assert_allclose(band.standard_error, np.std(draws @ moves.T, axis=0), rtol=0.02)


def test_one_common_level_would_be_wrong():
    """The check above can fail: the root mean square of the noise in every row is off by 10% or more somewhere."""
    y = np.sin(3 * GRID) + NOISE * np.random.default_rng(2).standard_normal(N)
    fitted = fitted_at(X, y)
    common = float(np.sqrt(np.mean(NOISE**2)))
    right, wrong = (fitted.interval(POINTS, noise=noise).standard_error for noise in (NOISE, common))
    assert np.max(np.abs(wrong / right - 1)) > 0.1


def network(q, Z):
    """Eight tanh units: p = 25."""
    return jnp.tanh(Z * q[:8] + q[8:16]) @ q[16:24] + q[24]


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "inverse variance"])
def test_standard_error_of_a_network_is_the_monte_carlo_deviation(weighted):
    rng = np.random.default_rng(0)
    inputs = np.sort(rng.uniform(-2, 2, 60))[:, None]
    noise = 0.1 * np.exp(0.5 * inputs[:, 0])
    weight = np.mean(noise**2) / noise**2 if weighted else None
    start = np.concatenate([2 * rng.normal(size=16), rng.normal(size=8) / np.sqrt(8), [0.0]])
    design = Design(network, inputs, np.sin(2 * inputs[:, 0]), noise, 1e-3, start, weight).settled()
    refits = refit(design, 200, seed=1)
    assert refits.dropped <= 4
    x = np.linspace(-3, 3, 25)[:, None]
    deviation = predictions(design, refits.theta, x).std(axis=0, ddof=1)
    models = (
        vhat.from_jax(network, refits.theta[k], inputs, refits.y[k], weight_decay=1e-3, sample_weight=weight)
        for k in range(10)
    )
    errors = [model.interval(x, noise=noise, curvature="hessian").standard_error for model in models]
    ratio = np.median(errors, axis=0) / deviation
    assert np.mean((ratio >= 0.8) & (ratio <= 1.25)) >= 0.8
