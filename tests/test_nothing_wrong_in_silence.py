"""Cases that once gave a wrong number, or a wrong verdict, without a word."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import vhat


def badly_scaled_ridge(unit, n=60, p=3200, lam=1e-3):
    """A ridge with one column in a large unit, and V from a QR factorisation in balanced units."""
    rng = np.random.default_rng(0)
    Z, column = rng.normal(size=(n, p - 1)) / p**0.5, rng.normal(size=n)
    Zt, column_t = rng.normal(size=(4, p - 1)) / p**0.5, rng.normal(size=4)
    y = column + Z @ rng.normal(size=p - 1) + 0.1 * rng.normal(size=n)
    X, x, s = np.c_[column * unit, Z], np.c_[column_t * unit, Zt], np.r_[unit, np.ones(p - 1)]
    Q, R = np.linalg.qr(np.r_[X / n**0.5 / s, np.diag(lam**0.5 / s)])
    V = ((X / s @ np.linalg.solve(R, np.linalg.solve(R.T, (x / s).T))) ** 2).sum(0) / n
    theta = np.linalg.solve(R, Q.T @ np.r_[y / n**0.5, np.zeros(p)]) / s
    return vhat.from_jax(lambda q, X: X @ q, theta, X, y, weight_decay=lam), x, V


@pytest.mark.parametrize("unit", [1e3, 1e6])
@pytest.mark.parametrize("curvature", ["auto", "ggn"])
def test_a_column_in_a_large_unit_does_not_spoil_the_dual(unit, curvature):
    fitted, x, V = badly_scaled_ridge(unit)
    found = fitted.weighted_norm(x, curvature=curvature)
    assert found.solver == "dual"
    np.testing.assert_allclose(found.value, V, rtol=1e-5)


@pytest.mark.parametrize("lam", [0.1, 1.0])
def test_a_leaf_that_is_only_nearly_of_rank_one_is_not_factored(lam):
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, 40)
    y = 1 + 2 * x + 0.1 * rng.normal(size=40)
    fitted = vhat.from_jax(
        lambda q, X: 1e6 * q["W"][0, 0] + q["W"][1, 1] * X, {"W": np.diag([1e-6, 2.0])}, x, y, weight_decay=lam
    ).polish()
    dense, dual = (fitted.weighted_norm([0.9], solver=solver).value for solver in (vhat.Dense(), vhat.Dual()))
    np.testing.assert_allclose(dual, dense, rtol=1e-6)


def curve(q, x):
    return q[0] * np.exp(-q[1] * x)


def test_stationarity_sees_three_standard_errors_whatever_the_unit_of_the_weights():
    rng = np.random.default_rng(2)
    x = np.linspace(0, 4, 40)
    y = curve([2.0, 1.0], x) + 0.1 * rng.normal(size=40)
    at = vhat.from_numpy(curve, [2.0, 1.0], x, y).polish()
    off = np.asarray(at.params) + np.array([3 * at.covariance()[0, 0] ** 0.5, 0.0])
    values = [
        vhat.from_numpy(curve, off, x, y, sample_weight=np.full(40, weight)).audit()["stationarity"].value
        for weight in (1.0, 1e-8, 1e6)
    ]
    assert min(values) > 1
    np.testing.assert_allclose(values, values[0], rtol=1e-6)


def test_stationarity_sees_the_output_that_is_off_beside_one_in_large_numbers():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 1))
    unit = np.array([1.0, 1e3])
    y = (x * [2.0, 3.0] + 0.1 * rng.normal(size=(30, 2))) * unit
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    off = best + np.array([[5 * 0.1 / np.linalg.norm(x), 0.0]])
    audit = vhat.from_jax(lambda q, X: X @ q, off, x, y, weight_decay=0.0).audit()
    assert audit["stationarity"].verdict == "fails"
    assert not audit.holds


def test_residual_degrees_of_freedom_never_exceed_what_the_fit_left():
    rng = np.random.default_rng(4)
    X = np.c_[np.ones(10), rng.normal(size=10)]
    y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=10)
    w = np.r_[1e6, np.ones(9)]
    theta = np.linalg.solve(X.T @ (w[:, None] * X), X.T @ (w * y))
    band = vhat.from_numpy(lambda q, Z: Z @ q, theta, X, y, sample_weight=w).interval(
        X[:2], bound="asymptotic", noise="equal"
    )
    assert band.df <= 8 + 1e-9


def test_sup_t_covers_new_responses_where_the_mean_is_certain_and_small_deltas():
    rng = np.random.default_rng(5)
    x = rng.normal(size=30)
    y = 2 * x + 0.5 * rng.normal(size=30)
    fitted = vhat.from_numpy(lambda q, Z: q[0] * Z, [x @ y / (x @ x)], x, y)
    options = {"bound": "asymptotic", "simultaneous": "sup-t", "noise": 0.5}
    new = fitted.interval([0.0], target="observation", **options)
    assert new.half_width[0] == pytest.approx(1.96 * 0.5, rel=0.02)
    rare = fitted.interval([1.0], 1e-6, **options)
    assert rare.half_width[0] == pytest.approx(stats.norm.isf(5e-7) * rare.standard_error[0], rel=1e-9)


def test_observations_are_refused_where_the_prediction_is_not_on_the_scale_of_y():
    x = np.linspace(0, 1, 20)
    y = np.exp(x)
    fitted = vhat.from_numpy(lambda q, Z: q[0] * Z, [1.0], x, y, loss=lambda f, t: np.exp(f) - t * f, weight_decay=0.01)
    with pytest.raises(vhat.InputError, match="scale of y"):
        fitted.interval([0.5], target="observation", noise=0.5)


def test_the_choice_of_solver_does_not_depend_on_the_company():
    fitted, x, _ = badly_scaled_ridge(1.0)
    assert type(fitted.plan(x[:1]).solver) is type(fitted.plan(np.repeat(x, 50, axis=0)).solver)
