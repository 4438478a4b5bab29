"""Units first: no number may change because y, a functional or a parameter is written in other units."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import vhat

FIELDS = ("center", "lower", "upper", "half_width", "standard_error")
X = np.linspace(0.0, 4.0, 40)
TRUE = np.array([2.0, 0.7, 0.5])
RESPONSES = TRUE[0] * np.exp(-TRUE[1] * X) + TRUE[2] + 0.05 * np.random.default_rng(0).standard_normal(40)
POINTS = np.array([-1.0, 0.5, 2.0, 6.0])


def curve(q, x):
    return q[0] * jnp.exp(-q[1] * x) + q[2]


@pytest.fixture(scope="module")
def fitted():
    return vhat.from_jax(curve, TRUE, X, RESPONSES, weight_decay=1e-3).polish()


@pytest.fixture(scope="module")
def band(fitted):
    return fitted.interval(POINTS)


def same(a, b, factor=1.0, rtol=1e-8):
    for name in FIELDS:
        np.testing.assert_allclose(getattr(a, name), factor * getattr(b, name), rtol=rtol, err_msg=name)
    np.testing.assert_allclose(a.weighted_norm, b.weighted_norm, rtol=rtol)
    np.testing.assert_allclose(a.unsupported, b.unsupported, rtol=1e-6, atol=1e-9)
    assert a.noise == pytest.approx(factor * b.noise, rel=rtol)
    assert a.df == pytest.approx(b.df, rel=rtol)


@pytest.mark.parametrize("a", [1e-9, 1e-3, 1e6])
@pytest.mark.parametrize("bound", ["tight", "isoperimetric", "asymptotic", "chebyshev"])
def test_the_unit_of_y_scales_everything_and_changes_nothing_else(fitted, a, bound):
    """y' = a y with f' = a f: amplitudes scale by a, so their decay scales by 1/a^2; the objective by a^2."""
    theta = np.asarray(fitted.params) * [a, 1.0, a]
    scaled = vhat.from_jax(curve, theta, X, a * RESPONSES, weight_decay=np.array([1e-3, a * a * 1e-3, 1e-3]))
    other, plain = scaled.interval(POINTS, bound=bound), fitted.interval(POINTS, bound=bound)
    same(other, plain, a)
    assert other.guarantee.split("; assumed: ")[1] == plain.guarantee.split("; assumed: ")[1]


@pytest.mark.parametrize("a", [1e-4, 1e3, 1e8])
def test_the_unit_of_one_parameter_changes_nothing(fitted, band, a):
    def renamed(q, x):
        return q[0] * jnp.exp(-q[1] / a * x) + q[2]

    theta = np.asarray(fitted.params) * [1.0, a, 1.0]
    other = vhat.from_jax(renamed, theta, X, RESPONSES, weight_decay=np.array([1e-3, 1e-3 / a**2, 1e-3]))
    for solver in (vhat.Dense(), vhat.CG(rtol=1e-12)):
        same(other.interval(POINTS, solver=solver), band)
    lines, plain = other.audit(), fitted.audit()
    for name in ("smallest eigenvalue", "smoothness", "noise", "alignment", "residual curvature"):
        assert lines[name].verdict == plain[name].verdict
        assert lines[name].value == pytest.approx(plain[name].value, rel=1e-3, abs=1e-7)
    assert lines["stationarity"].verdict == "holds"


@pytest.mark.parametrize("a", [-1e-6, 1e5])
@pytest.mark.parametrize("bound", ["tight", "isoperimetric", "asymptotic"])
def test_the_unit_of_a_functional_scales_its_interval(fitted, a, bound):
    one = fitted.functional(lambda q: q[0] / q[1], bound=bound)
    other = fitted.functional(lambda q: a * q[0] / q[1], bound=bound)
    assert one.center.shape == ()
    np.testing.assert_allclose(other.half_width, abs(a) * one.half_width, rtol=1e-9)
    np.testing.assert_allclose(other.center, a * one.center, rtol=1e-9)


def test_a_prediction_is_a_functional_of_the_parameters(fitted, band):
    same(fitted.functional(lambda q: curve(q, jnp.asarray(POINTS))), band)


def test_the_order_of_rows_does_not_matter(fitted, band):
    order = np.random.default_rng(1).permutation(len(X))
    theta = np.asarray(fitted.params)
    same(vhat.from_jax(curve, theta, X[order], RESPONSES[order], weight_decay=1e-3).interval(POINTS), band)


def test_a_row_alone_has_the_interval_that_it_has_in_company(fitted, band):
    for solver in ("auto", vhat.CG(rtol=1e-12)):
        company = fitted.interval(POINTS, solver=solver)
        for i in range(len(POINTS)):
            alone = fitted.interval(POINTS[i : i + 1], solver=solver)
            np.testing.assert_allclose(alone.half_width[0], company.half_width[i], rtol=1e-10)
            assert alone.guarantee == company.guarantee


def test_duplicated_rows_are_weights(fitted):
    """Two equal rows of noise s are one row of weight 2 and noise s/sqrt(2); the mean over n moves lam along."""
    n, times = len(X), np.where(np.arange(len(X)) % 3 == 0, 2, 1)
    total = int(times.sum())
    theta = np.asarray(fitted.params)
    doubled = vhat.from_jax(
        curve, theta, np.repeat(X, times), np.repeat(RESPONSES, times), weight_decay=1e-3 * n / total
    ).polish()
    weighted = vhat.from_jax(curve, theta, X, RESPONSES, weight_decay=1e-3, sample_weight=times).polish()
    a = doubled.interval(POINTS, noise=0.05)
    b = weighted.interval(POINTS, noise=0.05 / np.sqrt(times))
    for name in (*FIELDS, "unsupported"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-7, err_msg=name)


def test_one_noise_for_all_rows_is_the_same_as_a_row_of_them(fitted):
    same_noise = fitted.interval(POINTS, noise=0.05), fitted.interval(POINTS, noise=np.full(len(X), 0.05))
    for name in (*FIELDS, "weighted_norm"):
        np.testing.assert_allclose(getattr(same_noise[0], name), getattr(same_noise[1], name), rtol=1e-12)
