"""UnrolledDescent against the implicit formula at a minimum, and against nudged trainings before it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.optimize import brentq

import vhat
from tests.methods.cases import data, ridge
from vhat.fit import GradientDescent, Network
from vhat.methods import Proposed, UnrolledDescent

X = np.linspace(-1, 1, 15)[:, None]
Y = X[:, 0] ** 2 + X[:, 0] + 0.1 * np.cos(40 * X[:, 0])
POINTS = np.array([[-1.5], [0.0], [0.4], [2.0]])
NETWORK = Network((1, 3, 1))
RECIPE = GradientDescent(NETWORK, weight_decay=0.05, tol=1e-10)
FIT = UnrolledDescent().fit(RECIPE, X, Y)


def test_at_convergence_it_is_the_librarys_own():
    own = Proposed().fit(RECIPE, X, Y)
    np.testing.assert_allclose(
        FIT.sensitivity(POINTS)[:, 0, :, 0], own.fitted.sensitivity(POINTS), rtol=1e-5, atol=1e-8
    )
    band, expected = FIT.interval(POINTS, 0.1), own.interval(POINTS, 0.1)
    np.testing.assert_allclose(band.center, expected.center, rtol=1e-9)
    np.testing.assert_allclose(band.half_width, expected.half_width, rtol=1e-5)
    assert band.noise == pytest.approx(expected.noise, rel=1e-6)


@pytest.mark.parametrize("bound", ["theorem", "chebyshev", "asymptotic"])
def test_every_bound_is_the_librarys_own(bound):
    band = type(FIT)(UnrolledDescent(bound, noise=0.2), FIT.fitted, FIT.steps, FIT.tangent).interval(POINTS, 0.1)
    expected = FIT.fitted.interval(POINTS, 0.1, bound=bound, noise=0.2)
    np.testing.assert_allclose(band.half_width, expected.half_width, rtol=1e-5)


def descend(y, steps, beta):
    """Plain gradient descent on the same network in NumPy, with a step of 1/beta; predictions at the points."""
    (first, last) = NETWORK.init(0)
    W, b, v, c = first["w"], first["b"], last["w"][:, 0], last["b"][0]
    for _ in range(steps):
        h = np.tanh(X @ W + b)
        r = (h @ v + c - y) / len(y)
        back = r[:, None] * v * (1 - h**2)
        slopes = (X.T @ back, back.sum(axis=0), h.T @ r, r.sum())
        W, b, v, c = (q - (g + 0.05 * q) / beta for q, g in zip((W, b, v, c), slopes, strict=True))
    return np.tanh(POINTS @ W + b) @ v + c


def test_before_convergence_it_is_the_derivative_of_the_training_that_was_done():
    """Nudge one response, descend as many steps of the same size, and difference; the implicit formula is far off."""
    early = GradientDescent(NETWORK, weight_decay=0.05, steps=40)
    with pytest.warns(vhat.NotMinimumWarning):
        fit = UnrolledDescent(noise=0.2).fit(early, X, Y)
    center, found = fit.interval(POINTS).center, fit.sensitivity(POINTS)[:, 0, :, 0]
    # the size of its steps is the one under which the descent by hand ends where it ended
    beta = brentq(lambda beta: (descend(Y, 40, beta) - center)[3], 0.5, 10)
    np.testing.assert_allclose(descend(Y, 40, beta), center, rtol=1e-8)
    for i in (0, 7):
        up, down = (descend(Y + sign * 1e-4 * np.eye(15)[i], 40, beta) for sign in (1, -1))
        np.testing.assert_allclose(found[:, i], (up - down) / 2e-4, rtol=1e-5, atol=1e-8)
    assert np.max(np.abs(found - FIT.fitted.sensitivity(POINTS))) > 0.05
    assert "40 steps" in fit.interval(POINTS).guarantee


def test_a_linear_network_is_ridge_regression():
    recipe = GradientDescent(Network((2, 1)), weight_decay=0.1, tol=1e-12)
    Z, y = data(n=20, d=2)
    fit = UnrolledDescent(noise=0.3).fit(recipe, Z, y)
    rows, points = np.c_[Z, np.ones(20)], np.c_[Z[:4], np.ones(4)]
    S = points @ np.linalg.solve(rows.T @ rows / 20 + 0.1 * np.eye(3), rows.T) / 20
    np.testing.assert_allclose(fit.sensitivity(Z[:4])[:, 0, :, 0], S, rtol=1e-6, atol=1e-9)
    band = fit.interval(Z[:4], 0.1)
    multiplier = vhat.bounds.isoperimetric_multiplier(0.1, v=0.5, c=0.25)
    np.testing.assert_allclose(band.half_width, 0.3 * multiplier * np.linalg.norm(S, axis=1), rtol=1e-6)
    tight = UnrolledDescent(bound="tight", noise=0.3).fit(recipe, Z, y).interval(Z[:4], 0.1)
    np.testing.assert_allclose(tight.half_width, 0.3 * np.sqrt(2 * np.log(20)) * np.linalg.norm(S, axis=1), rtol=1e-6)


def test_two_outputs():
    recipe = GradientDescent(Network((2, 2)), weight_decay=0.1, tol=1e-12)
    Z, both = data(n=20, d=2, outputs=2)
    both[:, 1] *= 10
    band = UnrolledDescent(noise=0.3).fit(recipe, Z, both).interval(Z[:4], target="mean")
    # A linear network would be answered exactly; a tail that is given is used as it is.
    expected = Proposed(noise=0.3, tail=vhat.Tail.relative(0.5, 0.25)).fit(recipe, Z, both).interval(Z[:4])
    np.testing.assert_allclose(band.half_width, expected.half_width, rtol=1e-5)


def test_units_company_and_pickles_change_nothing():
    linear = GradientDescent(Network((1, 1)), weight_decay=0.1, tol=1e-11)
    fit = UnrolledDescent().fit(linear, X, Y)
    for target in ("mean", "observation"):
        band = fit.interval(POINTS, target=target)
        scaled = UnrolledDescent().fit(linear, X, 100 * Y).interval(POINTS, target=target)
        np.testing.assert_allclose(scaled.half_width, 100 * band.half_width, rtol=1e-6)
        np.testing.assert_allclose(fit.interval(POINTS[2:], target=target).lower, band.lower[2:], rtol=1e-10)
        again = pickle.loads(pickle.dumps(fit)).interval(POINTS, target=target)
        np.testing.assert_allclose(again.lower, band.lower, rtol=1e-12)


def test_another_recipe_is_refused():
    with pytest.raises(vhat.InputError, match="differentiates plain gradient descent"):
        UnrolledDescent().fit(ridge(0.1), X, Y)
    with pytest.raises(vhat.InputError, match="bound="):
        UnrolledDescent("empirical")
