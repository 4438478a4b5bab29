"""Two outputs with noise of different sizes: both levels are found, and every output's noise reaches both."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import vhat
from tests.validity.linear import mean_and_error, predict
from tests.validity.redraws import Design, predictions, refit

pytestmark = pytest.mark.slow

# A linear model whose outputs share every parameter: f_k(x_i) = a_ik' theta, so that the residuals are coupled.
ROWS, P, DRAWS = 60, 12, 400
LEVELS = np.array([0.3, 0.6])
RNG = np.random.default_rng(21)
FEATURES = RNG.standard_normal((ROWS, 2, P))
POINTS = RNG.standard_normal((20, 2, P))
FLAT = FEATURES.reshape(2 * ROWS, P)
ESTIMATOR = np.linalg.pinv(FLAT)
RESPONSES = FEATURES @ RNG.standard_normal(P) + LEVELS * RNG.standard_normal((DRAWS, ROWS, 2))


def linear_fit(y):
    return vhat.from_jax(predict, ESTIMATOR @ y.ravel(), FEATURES, y, weight_decay=0.0)


def test_standard_errors_of_a_linear_model_are_the_closed_form_and_the_monte_carlo_deviation():
    """20,000 redraws know a standard deviation to 0.5%; forty of them at once to 2%."""
    band = linear_fit(RESPONSES[0]).interval(POINTS, noise=LEVELS[None, :])
    moves = POINTS @ ESTIMATOR
    spread = np.tile(LEVELS, ROWS)
    np.testing.assert_allclose(band.standard_error, np.linalg.norm(moves * spread, axis=2), rtol=1e-8)
    z = np.random.default_rng(22).standard_normal((20_000, 2 * ROWS))
    deviation = np.std(np.einsum("mki,ri->rmk", moves, spread * z, optimize=True), axis=0)
    np.testing.assert_allclose(band.standard_error, deviation, rtol=0.02)


def test_estimated_noise_of_each_output_of_a_linear_model_is_unbiased():
    squares = np.array([linear_fit(y).interval(POINTS[:1]).noise for y in RESPONSES]) ** 2
    for k in range(2):
        mean, error = mean_and_error(squares[:, k])
        assert abs(mean - LEVELS[k] ** 2) < 3 * error


def test_outputs_taken_one_by_one_would_blame_the_quiet_one_for_the_noise_of_the_other():
    """The check above can fail: ``|r_k|^2 / |(I - S)_kk|_F^2`` is biased where the outputs share parameters."""
    left = np.eye(2 * ROWS) - FLAT @ ESTIMATOR
    residuals = (RESPONSES.reshape(DRAWS, -1) @ left.T).reshape(RESPONSES.shape)
    own = np.sum(left.reshape(ROWS, 2, ROWS, 2)[:, 0, :, 0] ** 2)
    mean, error = mean_and_error(np.sum(residuals[:, :, 0] ** 2, axis=1) / own)
    assert mean - 5 * error > LEVELS[0] ** 2


NOISE, LAM, REDRAWS, N = np.array([0.1, 0.2]), 1e-3, 200, 120


def network(q, Z):
    """Eight tanh units that both outputs share: p = 34."""
    return jnp.tanh(Z * q[:8] + q[8:16]) @ q[16:32].reshape(8, 2) + q[32:]


@pytest.fixture(scope="module")
def measured():
    """Refits of the network: vhat's bands with estimated noise, the predictions, and the bias at the rows."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-2, 2, N))[:, None]
    truth = np.column_stack([np.sin(2 * X[:, 0]), np.cos(1.5 * X[:, 0])])
    start = np.concatenate([2 * rng.normal(size=16), rng.normal(size=16) / np.sqrt(8), [0.0, 0.0]])
    design = Design(network, X, truth, NOISE, LAM, start).settled()
    refits = refit(design, REDRAWS, seed=1)
    assert refits.dropped <= 0.02 * REDRAWS
    x = np.linspace(-3, 3, 25)[:, None]
    bands = [
        vhat.from_jax(network, theta, X, y, weight_decay=LAM).interval(x, curvature="hessian")
        for theta, y in zip(refits.theta, refits.y, strict=True)
    ]
    bias = predictions(design, refits.theta, X).mean(axis=0) - truth
    return bands, predictions(design, refits.theta, x), bias


def test_estimated_noise_of_each_output_of_a_network_is_its_noise_plus_squared_bias(measured):
    """Within Monte Carlo error of ``sigma_k^2 + |bias_k|^2 / |(I - S)_kk|_F^2``, and a tenth of ``sigma_k^2``."""
    bands, _, bias = measured
    squares = np.array([band.noise for band in bands]) ** 2
    freedom = np.mean([band.df for band in bands], axis=0)
    for k in range(2):
        mean, error = mean_and_error(squares[:, k])
        assert abs(mean - NOISE[k] ** 2 - np.sum(bias[:, k] ** 2) / freedom[k]) < 3 * error
        assert mean == pytest.approx(NOISE[k] ** 2, rel=0.1)


def test_standard_errors_of_a_network_with_estimated_noise_are_the_monte_carlo_deviation(measured):
    bands, values, _ = measured
    ratio = np.median([band.standard_error for band in bands[:10]], axis=0) / values.std(axis=0, ddof=1)
    assert ratio.shape == (25, 2)
    within = np.mean((ratio >= 0.8) & (ratio <= 1.25), axis=0)
    assert np.all(within >= 0.8)
