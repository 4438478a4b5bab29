"""Ensembles against their members, ridge in closed form, exact posteriors and the variance of dropout."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from scipy import stats

import vhat
from tests.methods.cases import data, ridge, ridge_solution, torch_recipe
from vhat.fit import Adam, GradientDescent, Network
from vhat.methods import DeepEnsemble, MCDropout, PerturbedResponses, RandomizedPrior

X, Y = data(n=25, d=2)
POINTS = np.random.default_rng(9).normal(size=(4, 2))
CURVE = np.linspace(-1, 1, 16)[:, None]
BENT = np.sin(3 * CURVE[:, 0])
RECIPE = Adam(Network((1, 5, 1)), weight_decay=1e-2, steps=100, learning_rate=1e-2)


# -- deep ensembles --------------------------------------------------------------------------


def test_an_ensemble_of_one_is_its_member():
    fit = DeepEnsemble(members=1, noise=0.2).fit(RECIPE, CURVE, BENT, seed=3)
    alone = RECIPE(CURVE, BENT, seed=3)
    band = fit.interval(CURVE, 0.1, target="observation")
    np.testing.assert_allclose(band.center, alone.predict(CURVE), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(band.half_width, stats.norm.ppf(0.95) * 0.2, rtol=1e-9)
    with pytest.raises(vhat.InputError, match="one member has no spread"):
        fit.interval(CURVE)


def test_a_linear_model_has_no_spread_over_seeds():
    band = DeepEnsemble(members=3).fit(ridge(0.1), X, Y).interval(POINTS)
    np.testing.assert_allclose(band.half_width, 0, atol=1e-12)
    np.testing.assert_allclose(band.center, POINTS @ ridge_solution(X, Y, 0.1), rtol=1e-9)


def test_a_users_own_torch_loop_makes_an_ensemble():
    fit = DeepEnsemble(members=3).fit(torch_recipe, CURVE, BENT, seed=7)
    band = fit.interval(CURVE, 0.1)
    found = np.stack([member.predict(CURVE) for member in fit.members])
    np.testing.assert_allclose(found[0], torch_recipe(CURVE, BENT, seed=7).predict(CURVE), rtol=1e-9)
    assert np.all(np.ptp(found, axis=0).max() > 1e-3)
    np.testing.assert_allclose(band.center, found.sum(axis=0) / 3, rtol=1e-9)
    spread = np.sqrt((found**2).mean(axis=0) - found.mean(axis=0) ** 2)
    np.testing.assert_allclose(band.half_width, stats.norm.ppf(0.95) * spread, rtol=1e-6)


# -- perturbed responses ---------------------------------------------------------------------


def test_perturbed_responses_simulate_the_delta_method():
    members = 400
    fit = PerturbedResponses(members=members, noise=0.5).fit(ridge(0.1), X, Y, seed=1)
    band = fit.interval(POINTS, 0.1)
    slope = POINTS @ np.linalg.solve(X.T @ X / 25 + 0.1 * np.eye(2), X.T) / 25
    exact = 0.5 * np.linalg.norm(slope, axis=1)
    # the standard deviation of 400 normal draws is off by 1/sqrt(800) = 3.5% (one standard error)
    np.testing.assert_allclose(band.standard_error, exact, rtol=4 / np.sqrt(2 * members))
    np.testing.assert_allclose(band.half_width, stats.t.ppf(0.95, members - 1) * band.standard_error, rtol=1e-9)
    np.testing.assert_allclose(band.center, POINTS @ ridge_solution(X, Y, 0.1), rtol=1e-9)


def test_each_perturbed_member_is_ridge_on_its_responses():
    fit = PerturbedResponses(members=3, noise=0.5).fit(ridge(0.1), X, Y)
    for member in fit.members:
        np.testing.assert_allclose(member.params, ridge_solution(X, member.problem.targets[:, 0], 0.1), rtol=1e-9)
        assert 0.3 < np.std(member.problem.targets[:, 0] - Y) < 0.8  # 25 draws of standard deviation 0.5


def test_two_outputs_keep_their_own_noise():
    Z, both = data(n=25, d=2, outputs=2)
    fit = PerturbedResponses(members=300).fit(ridge(0.1), Z, both * [1.0, 100.0])
    band = fit.interval(POINTS)
    slope = POINTS @ np.linalg.solve(Z.T @ Z / 25 + 0.1 * np.eye(2), Z.T) / 25
    sizes = [vhat.methods.Proposed().fit(ridge(0.1), Z, both[:, k]).interval(POINTS).noise for k in range(2)]
    exact = np.linalg.norm(slope, axis=1)[:, None] * np.array(sizes) * [1.0, 100.0]
    np.testing.assert_allclose(band.standard_error, exact, rtol=4 / np.sqrt(600))


def test_inputs_that_cannot_be_used_are_refused_whatever_the_members_are():
    fit = MCDropout(draws=2).fit(RECIPE, CURVE, BENT)
    with pytest.raises(vhat.InputError, match="row 1"):
        fit.interval([[0.0], [np.nan]])


# -- randomised priors -------------------------------------------------------------------------


def linear_prior(x, seed, *, spread):
    return np.asarray(x) @ (spread * np.random.default_rng(seed).normal(size=2))


def test_with_a_matching_prior_members_draw_from_the_exact_posterior():
    lam, sigma, members = 0.3, 0.5, 400
    # beta is in standard deviations of y; the prior function then has the variance sigma^2 / (n lam)
    prior = partial(linear_prior, spread=sigma / np.sqrt(25 * lam) / Y.std())
    band = RandomizedPrior(members=members, noise=sigma, prior=prior).fit(ridge(lam), X, Y).interval(POINTS)
    precision = (X.T @ X + 25 * lam * np.eye(2)) / sigma**2
    error = np.sqrt(np.einsum("ij,jk,ik->i", POINTS, np.linalg.inv(precision), POINTS))
    np.testing.assert_allclose(band.standard_error, error, rtol=4 / np.sqrt(2 * members))
    mean = POINTS @ ridge_solution(X, Y, lam)
    assert np.all(np.abs(band.center - mean) < 4 * error / np.sqrt(members))


def slope_prior(x, seed, *, spread):
    return spread * np.random.default_rng(seed).normal() * np.asarray(x)[:, 0]


def test_few_members_cover_a_truth_of_the_prior_as_often_as_the_level_says():
    """Three exact draws of the posterior: 80% of 200 truths, within four binomial errors (11%).

    The normal quantile with the members' own deviation would cover 54% of them.
    """
    lam, sigma, members, trials, delta = 0.1, 0.3, 3, 200, 0.2
    rng = np.random.default_rng(1)
    Z, spread = X[:, :1], sigma / np.sqrt(25 * lam)
    hits = 0
    for trial in range(trials):
        slope = spread * rng.normal()
        y = Z[:, 0] * slope + sigma * rng.normal(size=25)
        prior = partial(slope_prior, spread=spread / y.std())
        fit = RandomizedPrior(members=members, noise=sigma, prior=prior).fit(ridge(lam), Z, y, seed=trial)
        band = fit.interval([[1.0]], delta)
        hits += int(band.lower[0] <= slope <= band.upper[0])
    assert abs(hits / trials - (1 - delta)) < 4 * np.sqrt(delta * (1 - delta) / trials)
    reach = stats.t.ppf(1 - delta / 2, members - 1) * np.sqrt(1 + 1 / members)
    np.testing.assert_allclose(band.half_width, reach * band.standard_error, rtol=1e-9)


def test_a_network_is_trained_beside_its_prior():
    fit = RandomizedPrior(members=2, scale=0.5, noise=0.1).fit(RECIPE, CURVE, BENT, seed=2)
    far = np.array([[-30.0], [40.0]])
    for member in fit.members:
        with jax.enable_x64(True):
            prior = np.asarray(RECIPE.network(RECIPE.network.init(member.seed), far))
        np.testing.assert_allclose(
            member.predict(far), member.fitted.predict(far) + 0.5 * BENT.std() * prior, rtol=1e-9
        )
        shifted = BENT - (member.predict(CURVE) - member.fitted.predict(CURVE))
        noise = member.fitted.problem.targets[:, 0] - shifted
        assert 0.03 < noise.std() < 0.2  # 16 draws of standard deviation 0.1


def test_units_of_y_scale_a_linear_prior_ensemble():
    prior = partial(linear_prior, spread=1.0)
    method = RandomizedPrior(members=3, prior=prior)
    one, other = (method.fit(ridge(0.1), X, scale * Y).interval(POINTS) for scale in (1.0, 1e3))
    np.testing.assert_allclose(other.half_width, 1e3 * one.half_width, rtol=1e-8)
    np.testing.assert_allclose(other.center, 1e3 * one.center, rtol=1e-8)


def test_a_loop_without_a_visible_network_needs_a_prior():
    with pytest.raises(vhat.InputError, match="Give prior="):
        RandomizedPrior().fit(ridge(0.1), X, Y)
    with pytest.raises(vhat.InputError, match=r"prior\(X, seed\) has shape"):
        RandomizedPrior(prior=lambda x, seed: np.zeros((2, 2))).fit(ridge(0.1), X, Y)
    with pytest.raises(vhat.InputError, match="scale="):
        RandomizedPrior(scale=0.0)


# -- dropout -----------------------------------------------------------------------------------


def variance_over_drops(hidden, weights, rate):
    """Of ``sum_j hidden_j kept_j / (1 - rate) weights_j`` over what is dropped: exact for one hidden layer."""
    return rate / (1 - rate) * (hidden**2) @ (weights**2)


def test_the_spread_of_dropout_is_its_exact_variance():
    draws, rate = 2000, 0.3
    fit = MCDropout(rate=rate, draws=draws).fit(RECIPE, CURVE, BENT, seed=1)
    band = fit.interval(CURVE, 0.1)
    first, last = ({name: np.asarray(leaf) for name, leaf in layer.items()} for layer in fit.base.params)
    hidden = np.tanh(CURVE @ first["w"] + first["b"])
    exact = np.sqrt(variance_over_drops(hidden, last["w"][:, 0], rate))
    # relative error of a standard deviation is about 1/sqrt(2 draws) = 1.6%; sums of Bernoullis have no heavier tails
    np.testing.assert_allclose(band.standard_error, exact, rtol=0.07)
    mean = hidden @ last["w"][:, 0] + last["b"]
    assert np.all(np.abs(band.center - mean) < 5 * exact / np.sqrt(draws))
    np.testing.assert_allclose(fit.interval(CURVE[3:5], 0.1).half_width, band.half_width[3:5], rtol=1e-9)


def test_dropout_training_learns_and_depends_on_the_rate():
    light, heavy = (
        MCDropout(rate=rate, draws=2).fit(
            Adam(Network((1, 20, 1)), weight_decay=1e-4, steps=1000, learning_rate=1e-2), CURVE, BENT
        )
        for rate in (0.01, 0.6)
    )
    errors = [np.sqrt(np.mean((fit.base.predict(CURVE) - BENT) ** 2)) for fit in (light, heavy)]
    assert errors[0] < 0.1 * BENT.std()
    # dropout at rate r penalises sum_j r/(1-r) h_j^2 v_j^2: that share of the fitted function must shrink
    sizes = []
    for fit in (light, heavy):
        first, last = fit.base.params
        hidden = np.tanh(CURVE @ np.asarray(first["w"]) + np.asarray(first["b"]))
        sizes.append(np.mean(variance_over_drops(hidden, np.asarray(last["w"])[:, 0], 0.5)))
    assert sizes[1] < sizes[0]


def test_a_torch_module_drops_what_its_own_layers_drop():
    draws = 1000
    fit = MCDropout(draws=draws).fit(partial(torch_recipe, dropout=0.25), CURVE, BENT, seed=1)
    band = fit.interval(CURVE, 0.1)
    named = {name: value.numpy() for name, value in fit.base.params.items()}
    hidden = np.tanh(CURVE @ named["0.weight"].T + named["0.bias"])
    exact = np.sqrt(variance_over_drops(hidden, named["3.weight"][0], 0.25))
    np.testing.assert_allclose(band.standard_error[:, 0], exact, rtol=0.1)
    assert "rate 0.25" in band.guarantee
    np.testing.assert_allclose(fit.interval(CURVE[3:5], 0.1).half_width, band.half_width[3:5], rtol=1e-9)
    # the hooks are gone: the model predicts as before
    before = torch_recipe(CURVE, BENT, seed=1, dropout=0.25).predict(CURVE)
    np.testing.assert_allclose(fit.base.predict(CURVE), before, rtol=1e-9)


def test_dropout_needs_something_to_drop():
    with pytest.raises(vhat.InputError, match="nothing to drop"):
        MCDropout().fit(ridge(0.1), X, Y)
    with pytest.raises(vhat.InputError, match="nothing to drop"):
        MCDropout().fit(torch_recipe, CURVE, BENT)
    with pytest.raises(vhat.InputError, match="GradientDescent cannot"):
        MCDropout().fit(GradientDescent(Network((1, 5, 1)), weight_decay=1e-2), CURVE, BENT)
    with pytest.raises(vhat.InputError, match="no hidden layer"):
        MCDropout().fit(Adam(Network((1, 1)), weight_decay=1e-2), CURVE, BENT)
    with pytest.raises(vhat.InputError, match="rate="):
        MCDropout(rate=1.0)
