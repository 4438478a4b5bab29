"""SGLD and Bayes by Backprop on linear models, whose posterior is known in closed form."""

from __future__ import annotations

import pickle
import re
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import vhat
from tests.methods.cases import data, ridge, ridge_solution
from vhat.fit import Network
from vhat.methods import SGLD, BayesByBackprop

X, Y = data(n=25, d=3)
POINTS = np.random.default_rng(9).normal(size=(5, 3))
LAM, SIGMA = 0.2, 0.3
PRECISION = (X.T @ X + 25 * LAM * np.eye(3)) / SIGMA**2
MEAN = ridge_solution(X, Y, LAM)


def linear(q, Z):
    return jnp.matmul(Z, q)


def recipe(X, y, *, seed, sample_weight=None):
    return vhat.from_jax(linear, ridge_solution(X, y, LAM), X, y, weight_decay=LAM)


CHAIN = SGLD(draws=2000, thin=10, burn_in=200, noise=SIGMA).fit(recipe, X, Y, seed=5)
MEAN_FIELD = BayesByBackprop(draws=2000, noise=SIGMA).fit(recipe, X, Y, seed=5)


def draws(fit):
    return np.stack([member.theta for member in fit.members])


def effective(fit):
    return float(re.search(r"worth about (\d+)", fit.claim.by).group(1))


# -- SGLD ------------------------------------------------------------------------------------


def test_the_chain_has_the_posteriors_mean_and_the_spread_that_its_steps_give():
    """A Langevin chain on a quadratic is an autoregression: covariance ``1/(c (1 - e c/2))`` along curvature c."""
    curvatures, Q = np.linalg.eigh(PRECISION)
    stride = 0.2 / (1.05 * curvatures[-1])
    covariance = Q / (curvatures * (1 - stride * curvatures / 2)) @ Q.T
    error = np.sqrt(np.einsum("ij,jk,ik->i", POINTS, covariance, POINTS))
    # an autoregression at a = 1 - e c forgets in (1 + a)/(1 - a) steps: what 20,000 steps are worth, at worst
    a = 1 - stride * curvatures[0]
    worth = 20_000 * (1 - a) / (1 + a)
    assert worth > 500
    band = CHAIN.interval(POINTS, 0.1)
    np.testing.assert_allclose(band.center, POINTS @ MEAN, atol=4 * np.max(error) / np.sqrt(worth))
    np.testing.assert_allclose(band.standard_error, error, rtol=4 / np.sqrt(2 * worth))
    np.testing.assert_allclose(band.half_width, stats.norm.ppf(0.95) * band.standard_error, rtol=1e-9)


def test_the_chain_says_what_its_draws_are_worth():
    assert 300 < effective(CHAIN) <= 2000
    hasty = SGLD(draws=200, thin=1, burn_in=0, noise=SIGMA).fit(recipe, X, Y)
    assert effective(hasty) < 0.2 * 200


@pytest.mark.parametrize("batch", [1, 5])
def test_batches_leave_the_mean_and_widen_by_no_more_than_the_steps(batch):
    """Whatever the batch, the variance is between the posterior's and that of the longer steps with all rows."""
    options = SGLD(draws=400, thin=10, burn_in=100, batch=batch, noise=SIGMA)
    band = options.fit(recipe, X, Y).interval(POINTS)
    exact = np.sqrt(np.einsum("ij,jk,ik->i", POINTS, np.linalg.inv(PRECISION), POINTS))
    curvatures = np.linalg.eigvalsh(PRECISION)
    a = 1 - 0.2 * curvatures[0] / (1.05 * curvatures[-1])
    worth = 4_000 * (1 - a) / (1 + a)
    assert worth > 100
    np.testing.assert_allclose(band.center, POINTS @ MEAN, atol=4 * exact.max() / np.sqrt(worth))
    ratio = band.standard_error / exact
    assert np.all(ratio > 1 - 4 / np.sqrt(2 * worth))
    assert np.all(ratio < (1 + 4 / np.sqrt(2 * worth)) / np.sqrt(1 - 0.1))


def test_a_chain_that_is_too_wide_says_so():
    """Residuals five times the noise that is claimed: the slopes of batches are as noisy as these are."""
    options = {"draws": 20, "thin": 1, "burn_in": 1}
    band = SGLD(**options, batch=5, noise=SIGMA / 5).fit(recipe, X, Y).interval(POINTS)
    misfit = np.mean((Y - X @ MEAN) ** 2) / (SIGMA / 5) ** 2
    e = 0.2 / 6  # of six shorter steps, in units of the steepest direction
    assert f"UP TO {(1 + e * 5 * misfit / 2) / (1 - e / 2):.2g} TIMES" in band.guarantee
    assert "UP TO" not in SGLD(**options, batch=5, noise=SIGMA).fit(recipe, X, Y).interval(POINTS).guarantee
    assert "UP TO 1.7 TIMES" in SGLD(**options, step=0.8, noise=SIGMA).fit(recipe, X, Y).interval(POINTS).guarantee


# -- Bayes by Backprop --------------------------------------------------------------------------


def test_mean_field_has_one_over_the_diagonal_of_the_precision():
    found, expected = draws(MEAN_FIELD), 1 / np.sqrt(np.diag(PRECISION))
    np.testing.assert_allclose(found.std(axis=0), expected, rtol=0.02 + 4 / np.sqrt(2 * 2000))
    np.testing.assert_allclose(found.mean(axis=0), MEAN, atol=4 * expected.max() / np.sqrt(2000))
    band = MEAN_FIELD.interval(POINTS, 0.1)
    error = np.sqrt(POINTS**2 @ expected**2)
    np.testing.assert_allclose(band.standard_error, error, rtol=0.02 + 4 / np.sqrt(2 * 2000))


def test_it_starts_elsewhere_and_has_to_travel():
    early = draws(BayesByBackprop(steps=5, draws=2000, noise=SIGMA).fit(recipe, X, Y))
    assert np.all(early.std(axis=0) < 0.2 / np.sqrt(np.diag(PRECISION)))


def test_mean_field_is_blind_to_what_parameters_trade_off():
    """Two inputs that are nearly the same: their sum is known, their difference is not, and is thought to be."""
    Z = np.c_[X[:, 0], X[:, 0] + 0.1 * X[:, 1]]
    precision = (Z.T @ Z + 25 * LAM * np.eye(2)) / SIGMA**2
    apart = np.array([[1.0, -1.0]])
    posterior = np.sqrt(apart @ np.linalg.inv(precision) @ apart.T)[0, 0]
    band = BayesByBackprop(noise=SIGMA).fit(recipe, Z, Y).interval(apart)
    assert band.standard_error[0] < 0.8 * posterior


# -- both ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [SGLD(draws=50, burn_in=50), BayesByBackprop(steps=100, draws=50)])
def test_units_company_seeds_and_pickles(method):
    fit = method.fit(recipe, X, Y)
    for target in ("mean", "observation"):
        band = fit.interval(POINTS, target=target)
        scaled = method.fit(recipe, X, 1e4 * Y).interval(POINTS, target=target)
        np.testing.assert_allclose(scaled.half_width, 1e4 * band.half_width, rtol=1e-6)
        np.testing.assert_allclose(fit.interval(POINTS[3:], target=target).lower, band.lower[3:], rtol=1e-9)
    np.testing.assert_array_equal(method.fit(recipe, X, Y).interval(POINTS).lower, fit.interval(POINTS).lower)
    assert np.all(method.fit(recipe, X, Y, seed=1).interval(POINTS).lower != fit.interval(POINTS).lower)
    again = pickle.loads(pickle.dumps(fit)).interval(POINTS)
    np.testing.assert_allclose(again.lower, fit.interval(POINTS).lower, rtol=1e-12)


def twice(f, t):
    return jnp.sum((f - t) ** 2)


def doubled(X, y, *, seed, sample_weight=None):
    """The same minimum and the same posterior: twice the loss, and twice the decay."""
    return vhat.from_jax(linear, ridge_solution(X, y, LAM), X, y, weight_decay=2 * LAM, loss=twice)


def test_a_loss_of_another_scale_has_the_same_posterior():
    for method in (SGLD(draws=20, burn_in=0, noise=SIGMA), BayesByBackprop(steps=100, draws=20, noise=SIGMA)):
        one, other = (draws(method.fit(each, X, Y, seed=5)) for each in (recipe, doubled))
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-9)


def test_few_draws_of_the_mean_field_cover_as_often_as_many():
    band = BayesByBackprop(steps=20, draws=5, noise=SIGMA).fit(recipe, X, Y).interval(POINTS, 0.1)
    expected = stats.t.ppf(0.95, 4) * np.sqrt(1 + 1 / 5) * band.standard_error
    np.testing.assert_allclose(band.half_width, expected, rtol=1e-9)


def linear_2(q, Z):
    return jnp.matmul(Z, q.reshape(3, 2))


def recipe_2(X, y, *, seed, sample_weight=None):
    return vhat.from_jax(linear_2, ridge_solution(X, y, LAM).ravel(), X, y, weight_decay=LAM)


@pytest.mark.parametrize("options", [SGLD(burn_in=200), BayesByBackprop(draws=500)], ids=["SGLD", "BayesByBackprop"])
def test_outputs_have_one_noise_level_or_no_posterior(options):
    y = X @ np.ones((3, 2)) + np.random.default_rng(3).normal(size=(25, 2))
    with pytest.raises(vhat.InputError, match=r"here they go from 0\.\d+ to .*Divide each column of y"):
        options.fit(recipe_2, X, y * [0.1, 1.0])
    # divided by their noise, as the sentence says, both have the posterior of one regression with the pooled level
    band = options.fit(recipe_2, X, y).interval(POINTS)
    smoother = X @ np.linalg.solve(X.T @ X + 25 * LAM * np.eye(3), X.T)
    level = np.linalg.norm(y - smoother @ y) / np.linalg.norm(np.eye(25) - smoother) / np.sqrt(2)
    precision = (X.T @ X + 25 * LAM * np.eye(3)) / level**2
    curvatures, Q = np.linalg.eigh(precision)
    covariance = Q / (curvatures * (1 - 0.1 * curvatures / (1.05 * curvatures[-1]))) @ Q.T
    chain = np.sqrt(np.einsum("ij,jk,ik->i", POINTS, covariance, POINTS))
    expected = chain if isinstance(options, SGLD) else np.sqrt(POINTS**2 @ (1 / np.diag(precision)))
    # 500 draws are worth 200 or more, and know a deviation to 5%
    np.testing.assert_allclose(band.standard_error, np.c_[expected, expected], rtol=0.2)
    assert "one level for all outputs, its level" in band.guarantee


def test_estimates_that_differ_by_chance_are_pooled_and_said_to_differ():
    y = X @ np.ones((3, 2)) + [0.3, 0.45] * np.random.default_rng(3).normal(size=(25, 2))
    guarantee = BayesByBackprop(steps=2, draws=2).fit(recipe_2, X, y).interval(POINTS).guarantee
    assert "one level for all outputs, WHICH DIFFER (0." in guarantee


def test_a_network_with_two_outputs():
    Z, both = data(n=25, d=3, outputs=2)
    network = Network((3, 2, 2))
    fitted = vhat.from_jax(network, network.init(0), Z, both, weight_decay=0.05)
    for method in (SGLD(draws=20, burn_in=20, noise=1.0), BayesByBackprop(steps=20, draws=20, noise=1.0)):
        band = method.fit(lambda X, y, *, seed, sample_weight=None: fitted, Z, both).interval(POINTS)
        assert band.half_width.shape == (5, 2)
        assert np.all(band.half_width > 0)


def test_what_they_cannot_give_is_said():
    for method in (SGLD(noise=SIGMA), BayesByBackprop(noise=SIGMA)):
        with pytest.raises(vhat.InputError, match=r"one that ends in vhat\.from_jax"):
            method.fit(ridge(0.1), X, Y)

        def bent(X, y, *, seed, sample_weight=None):
            loss = lambda f, t: jnp.log(jnp.cosh(f - t))  # noqa: E731
            return vhat.from_jax(linear, np.zeros(3), X, y, weight_decay=LAM, loss=loss)

        with pytest.raises(vhat.InputError, match="another loss"):
            method.fit(bent, X, Y)
    with pytest.raises(vhat.InputError, match="batch=26 is more than the 25 rows"):
        SGLD(batch=26, noise=SIGMA).fit(recipe, X, Y)
    with pytest.raises(vhat.InputError, match="step="):
        SGLD(step=1.5)
    with pytest.raises(vhat.InputError, match="learning_rate="):
        BayesByBackprop(learning_rate=0.0)


def test_without_blackjax_the_sentence_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(vhat.MissingPackage, match="pip install blackjax"):
        SGLD().fit(recipe, X, Y)
