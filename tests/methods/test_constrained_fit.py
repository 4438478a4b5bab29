"""ConstrainedFit on linear models, where the region is an ellipsoid, and against a search by hand where it is not."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

import vhat
from tests.methods.cases import data, ridge, ridge_solution
from vhat.methods import ConstrainedFit

X, Y = data(n=25, d=3)
POINTS = np.random.default_rng(9).normal(size=(5, 3))


@pytest.mark.parametrize("lam", [0.0, 0.2])
def test_on_a_linear_model_the_limits_are_the_ellipsoids(lam):
    band = ConstrainedFit(beta=0.37).fit(ridge(lam), X, Y).interval(POINTS)
    inverse = np.linalg.inv(X.T @ X / 25 + lam * np.eye(3))
    half = np.sqrt(2 * 0.37 * np.einsum("ij,jk,ik->i", POINTS, inverse, POINTS))
    center = POINTS @ ridge_solution(X, Y, lam)
    np.testing.assert_allclose(band.lower, center - half, rtol=1e-6)
    np.testing.assert_allclose(band.upper, center + half, rtol=1e-6)
    assert "whose level is not known" in band.guarantee


def test_the_profile_of_least_squares_is_the_t_interval_and_the_joint_region_is_scheffes():
    ols = sm.OLS(Y, X).fit()
    found = ols.get_prediction(POINTS)
    band = ConstrainedFit().fit(ridge(), X, Y).interval(POINTS, 0.1)
    np.testing.assert_allclose(np.c_[band.lower, band.upper], found.conf_int(alpha=0.1), rtol=1e-6)
    new = ConstrainedFit().fit(ridge(), X, Y).interval(POINTS, 0.1, target="observation")
    np.testing.assert_allclose(np.c_[new.lower, new.upper], found.conf_int(obs=True, alpha=0.1), rtol=1e-6)
    joint = ConstrainedFit("joint").fit(ridge(), X, Y).interval(POINTS, 0.1)
    scheffe = np.sqrt(3 * stats.f.isf(0.1, 3, 22)) * found.se_mean
    np.testing.assert_allclose(joint.half_width, scheffe, rtol=1e-6)
    assert "at all points at once" in joint.guarantee
    known = ConstrainedFit("joint", noise=0.3).fit(ridge(), X, Y).interval(POINTS, 0.1)
    error = 0.3 * found.se_mean / np.sqrt(ols.scale)
    np.testing.assert_allclose(known.half_width, np.sqrt(stats.chi2.isf(0.1, 3)) * error, rtol=1e-6)


def growth(q, x):
    return np.exp(q[0] * x)


def grown(X, y, *, seed, sample_weight=None):
    return vhat.from_numpy(growth, np.array([0.5]), X, y).polish()


def test_a_curved_model_has_the_limits_that_a_scan_of_its_one_parameter_finds():
    x = np.linspace(0, 2, 12)
    y = np.exp(0.8 * x) + 0.3 * np.cos(50 * x)
    fit = ConstrainedFit(beta=0.2).fit(grown, x, y)
    band = fit.interval([1.0, 3.0])
    q = np.linspace(0, 1.5, 2_000_001)
    best = float(fit.fitted.params[0])
    loss = sum((np.exp(q * a) - b) ** 2 for a, b in zip(x, y, strict=True)) / 24
    inside = q[loss <= np.sum((np.exp(best * x) - y) ** 2) / 24 + 0.2]
    np.testing.assert_allclose(band.lower, np.exp(inside.min() * np.array([1.0, 3.0])), rtol=1e-5)
    np.testing.assert_allclose(band.upper, np.exp(inside.max() * np.array([1.0, 3.0])), rtol=1e-5)
    sides = (band.upper - band.center) / (band.center - band.lower)
    assert np.all(np.abs(np.log(sides)) > 0.05)  # lopsided, as the model is: no ellipsoid would do


def test_a_network_stays_inside_its_region_and_reaches_its_edge():
    """No parameters of a large sample of the region predict beyond the limits, and some come near them."""
    x = np.linspace(-1, 1, 20)[:, None]
    y = x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0])
    recipe = vhat.fit.Minimum(vhat.fit.Network((1, 2, 1)), weight_decay=0.01)
    fit = ConstrainedFit(beta=1e-4).fit(recipe, x, y)
    band = fit.interval([[0.3]])
    problem = fit.fitted.problem
    with problem.scope():
        A = fit.fitted.workspace.matrix("hessian")
        theta = problem.numpy(problem.theta)

    def predict(q, rows):
        b, W, c, v = q[:2], q[2:4], q[4], q[5:]
        return np.tanh(rows[:, :1] * W + b) @ v + c

    def objective(q):
        return np.sum((predict(q, x) - y) ** 2) / 40 + 0.005 * q @ q

    assert predict(theta, np.array([[0.3]]))[0] == pytest.approx(band.center[0])
    draws = np.random.default_rng(0).normal(size=(20_000, 7))
    draws *= (np.random.default_rng(1).random(20_000) ** 0.02 / np.linalg.norm(draws, axis=1))[:, None]
    moved = theta + np.sqrt(2e-4) * np.linalg.solve(np.linalg.cholesky(A).T, draws.T).T
    inside = moved[[objective(q) <= objective(theta) + 1e-4 for q in moved]]
    values = np.array([predict(q, np.array([[0.3]]))[0] for q in inside])
    assert len(inside) > 1000
    assert band.lower[0] <= values.min() <= band.center[0] - 0.8 * (band.center[0] - band.lower[0])
    assert band.upper[0] >= values.max() >= band.center[0] + 0.8 * (band.upper[0] - band.center[0])


def test_units_and_company_change_nothing():
    fit = ConstrainedFit().fit(ridge(0.1), X, Y)
    band = fit.interval(POINTS)
    scaled = ConstrainedFit().fit(ridge(0.1), X, 1e5 * Y).interval(POINTS)
    np.testing.assert_allclose(scaled.half_width, 1e5 * band.half_width, rtol=1e-6)
    np.testing.assert_allclose(fit.interval(POINTS[3:]).lower, band.lower[3:], rtol=1e-9)


def test_two_outputs():
    Z, both = data(n=25, d=3, outputs=2)
    band = ConstrainedFit(beta=0.37).fit(ridge(0.2), Z, both).interval(POINTS)
    inverse = np.linalg.inv(Z.T @ Z / 25 + 0.2 * np.eye(3))
    half = np.sqrt(2 * 0.37 * np.einsum("ij,jk,ik->i", POINTS, inverse, POINTS))
    np.testing.assert_allclose(band.half_width, np.c_[half, half], rtol=1e-6)


LOUD = X @ np.array([[1.0, 3.0], [-0.5, 2.0], [0.3, 1.0]]) + [0.1, 10.0] * np.random.default_rng(3).normal(size=(25, 2))


@pytest.mark.parametrize("target", ["mean", "observation"])
def test_outputs_of_different_noise_that_share_no_parameter_are_each_their_own_least_squares(target):
    band = ConstrainedFit().fit(ridge(), X, LOUD).interval(POINTS, 0.1, target=target)
    joint = ConstrainedFit("joint").fit(ridge(), X, LOUD).interval(POINTS, 0.1)
    for k in range(2):
        ols = sm.OLS(LOUD[:, k], X).fit()
        found = ols.get_prediction(POINTS)
        limits = found.conf_int(obs=target == "observation", alpha=0.1)
        np.testing.assert_allclose(np.c_[band.lower[:, k], band.upper[:, k]], limits, rtol=1e-6)
        assert band.noise[k] == pytest.approx(np.sqrt(ols.scale))
        # a region for the six parameters of both
        scheffe = np.sqrt(6 * stats.f.isf(0.1, 6, 22)) * found.se_mean
        np.testing.assert_allclose(joint.half_width[:, k], scheffe, rtol=1e-6)
    assert "at the noise that each output meets" in band.guarantee


def test_outputs_that_share_parameters_meet_the_noise_of_both():
    """The sandwich by hand: equal weights, unequal noise."""
    A, points = np.random.default_rng(21).standard_normal((40, 2, 4)), np.random.default_rng(6).normal(size=(3, 2, 4))
    y = A @ np.ones(4) + np.array([0.2, 1.0]) * np.random.default_rng(5).normal(size=(40, 2))
    back = np.linalg.pinv(A.reshape(-1, 4))

    def recipe(A, y, *, seed, sample_weight=None):
        return vhat.from_numpy(lambda q, Z: Z @ q, back @ y.ravel(), A, y, jac=lambda q, Z: Z)

    band = ConstrainedFit().fit(recipe, A, y).interval(points, 0.1)
    error = np.linalg.norm(points @ back * np.tile(band.noise, 40), axis=2)
    np.testing.assert_allclose(band.half_width, stats.t.isf(0.05, band.df) * error, rtol=1e-6)


def test_a_point_that_no_parameter_moves_has_no_width():
    band = ConstrainedFit(beta=0.37).fit(ridge(0.2), X, Y).interval(np.zeros((1, 3)))
    assert band.half_width[0] == 0


def test_what_it_cannot_give_is_said():
    wide = np.random.default_rng(0).normal(size=(10, 301))
    with pytest.raises(vhat.InputError, match="this model has 301; it takes at most 300"):
        ConstrainedFit().fit(ridge(0.1), wide, wide[:, 0])
    with pytest.raises(vhat.InputError, match="beta="):
        ConstrainedFit(beta=-1.0)
    with pytest.raises(vhat.InputError, match="region="):
        ConstrainedFit("ball")

    def bent(X, y, *, seed, sample_weight=None):
        loss = lambda f, t: np.log(np.cosh(f - t))  # noqa: E731
        return vhat.from_numpy(lambda q, Z: Z @ q, np.zeros(3), X, y, jac=lambda q, Z: Z, weight_decay=0.1, loss=loss)

    with pytest.raises(vhat.InputError, match="another loss"):
        ConstrainedFit().fit(bent, X, Y)


def test_a_region_of_a_given_size_states_no_level():
    fit = ConstrainedFit(beta=0.37).fit(ridge(0.2), X, Y)
    for target in ("mean", "observation"):
        band = fit.interval(POINTS, delta=0.05, target=target)
        assert np.isnan(band.delta)
        assert "no stated level" in repr(band)
        assert band.guarantee.startswith("No stated level")
        assert "95%" not in repr(band)
    assert "95% confidence" in repr(ConstrainedFit().fit(ridge(0.2), X, Y).interval(POINTS))
