"""Where not to rely on a prediction: failed points always, wide and unsupported ones when asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vhat

N = 30
X = np.column_stack([np.random.default_rng(0).normal(size=N), np.zeros(N)])  # nothing is known of the second input
Y = X[:, 0] + 0.1 * np.random.default_rng(1).standard_normal(N)
POINTS = np.array([[0.5, 0.0], [8.0, 0.0], [0.5, 3.0], [0.0, 5.0]])


@pytest.fixture(scope="module")
def band():
    theta = np.linalg.solve(X.T @ X / N + 0.01 * np.eye(2), X.T @ Y / N)
    fitted = vhat.from_numpy(
        lambda q, x: x @ q,
        theta,
        X,
        Y,
        jac=lambda q, x: x,
        hess=lambda q, x: np.zeros((len(x), 2, 2)),
        weight_decay=0.01,
    )
    return fitted.interval(POINTS, noise=0.1)


def test_without_thresholds_every_point_that_converged_is_kept(band):
    assert band.abstain().tolist() == [False] * 4
    assert band.abstain().dtype == bool


def test_wide_points_and_unsupported_points_are_told_apart(band):
    """Along the input that never varied V is 0: the narrowest interval of all is the one not to be relied on."""
    wide = band.half_width > band.half_width[0] * 2
    assert wide.tolist() == [False, True, False, False]
    assert band.half_width[3] == 0.0
    assert band.abstain(max_half_width=2 * band.half_width[0]).tolist() == wide.tolist()
    assert band.abstain(max_unsupported=0.5).tolist() == [False, False, True, True]
    both = band.abstain(max_half_width=2 * band.half_width[0], max_unsupported=0.5)
    assert both.tolist() == [False, True, True, True]


def test_the_limit_itself_is_kept(band):
    assert not band.abstain(max_half_width=band.half_width).any()
    assert not band.abstain(max_unsupported=np.maximum(band.unsupported, 0)).any()


def test_points_without_an_interval_are_abstained_from_whatever_is_asked(band):
    nothing = np.array([1.0, np.nan, 1.0, 1.0])
    failed = replace(
        band,
        half_width=band.half_width * nothing,
        unsupported=band.unsupported * nothing,
        status=np.where(np.isnan(nothing), "not converged", band.status),
    )
    for options in ({}, {"max_half_width": np.inf}, {"max_unsupported": 1e9}):
        assert failed.abstain(**options).tolist() == [False, True, False, False]
    silent = replace(band, half_width=band.half_width * nothing)  # NaN limits under a good status
    assert silent.abstain().tolist() == [False, True, False, False]


def test_each_output_may_have_its_own_threshold():
    rng = np.random.default_rng(2)
    Y2 = np.column_stack([Y, 100 * Y])
    fitted = vhat.from_jax(lambda q, x: x @ q, np.zeros((2, 2)), X, Y2, weight_decay=0.01).polish()
    band = fitted.interval(rng.normal(size=(5, 2)), noise=np.array([[0.1, 10.0]]))
    found = band.abstain(max_half_width=[np.inf, 0.0])
    assert found.shape == (5, 2)
    assert found.all(axis=0).tolist() == [False, True]


def test_one_functional_has_one_answer():
    fitted = vhat.from_numpy(lambda q, x: q[0] * x, [1.0], np.arange(1.0, 5.0), np.array([1.1, 1.9, 3.2, 3.9])).polish()
    answer = fitted.functional(lambda q: q[0]).abstain(max_half_width=1e-9)
    assert answer.shape == ()
    assert bool(answer)


@pytest.mark.parametrize("value", [-1.0, np.nan, "wide"])
@pytest.mark.parametrize("name", ["max_half_width", "max_unsupported"])
def test_a_threshold_that_is_none_is_refused_in_words(band, name, value):
    with pytest.raises(vhat.InputError, match=name):
        band.abstain(**{name: value})


def test_a_threshold_of_another_shape_is_refused_in_words(band):
    with pytest.raises(vhat.InputError, match=r"max_half_width has shape \(3,\); the interval has shape \(4,\)"):
        band.abstain(max_half_width=np.ones(3))


def test_a_calibrated_band_abstains_too(band):
    theta = np.array([1.0, 0.0])
    fitted = vhat.from_numpy(lambda q, x: x @ q, theta, X, Y, weight_decay=0.01).polish()
    rng = np.random.default_rng(3)
    x = np.column_stack([rng.normal(size=20), np.zeros(20)])
    calibrated = fitted.calibrate(x, x[:, 0] + 0.1 * rng.standard_normal(20)).interval(POINTS, 0.1)
    assert calibrated.abstain(max_unsupported=0.5).tolist() == [False, False, True, True]


# -- a linearised model, whose penalty pulls to the trained parameters -----------------------------------
@pytest.fixture(scope="module")
def tangent():
    """A wide linearisation: next to every parameter the penalty weighs more than the data."""
    rng = np.random.default_rng(3)
    waves, shifts = 2 * rng.normal(size=200), rng.uniform(0, 6, size=200)
    x, z = rng.uniform(-1, 1, size=60), rng.uniform(-1, 1, size=40)
    theta = rng.normal(size=200) / 20

    def features(v):
        return np.cos(np.outer(v, waves) + shifts)

    def predict(q, v):
        return np.tanh(features(v) @ q)

    y, t = (predict(theta, v) + 0.3 * rng.normal(size=len(v)) for v in (x, z))
    fitted = vhat.from_numpy(
        predict, theta, x, y,
        jac=lambda q, v: features(v) / np.cosh(features(v) @ q)[:, None] ** 2,
        weight_decay=0.0, validation=(z, t),
    )  # fmt: skip
    return fitted.linearised(40.0), x


def test_support_of_a_linearised_model_is_counted_from_its_training_rows(tangent):
    fitted, x = tangent
    band = fitted.interval(np.append(x, 30.0))
    J = fitted.problem.gradients(fitted.problem.X)
    S = J @ np.linalg.solve(J.T @ J / 60 + 40.0 * np.eye(200), J.T) / 60
    usual = 1 - np.trace(S @ S) / np.trace(S)
    np.testing.assert_allclose(band.usual_unsupported, usual, rtol=1e-6)
    assert np.all(band.unsupported > 0.5)  # the penalty, more than the data, decides every refit
    left = 1 - band.unsupported
    for share in (0.5, 0.2):
        assert band.abstain(max_unsupported=share).tolist() == (left < (1 - share) * (1 - usual)).tolist()
    doubtful = band.abstain(max_unsupported=0.5)
    assert np.mean(doubtful[:-1]) < 0.05
    assert doubtful[-1]
    told = f"training data say less than half as much of {doubtful.sum()} of 61 values as of training rows"
    assert told in band.guarantee
    assert "bias" not in band.guarantee.split("; checked")[0].split("beware")[1]
    assert f"{usual:.2f} is usual at training rows" in str(band)
    line = fitted.audit()["support"]
    assert line.verdict == "noted"
    np.testing.assert_allclose(line.value, usual, rtol=1e-6)


def test_an_interval_of_a_linearised_model_names_its_curvature_as_exact(tangent, band):
    fitted, x = tangent
    assert "exact (linearised) curvature" in str(fitted.interval(x[:2]))
    assert "hessian curvature" in str(band)
    assert band.usual_unsupported == 0.0
