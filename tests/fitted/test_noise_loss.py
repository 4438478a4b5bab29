"""Losses of the noise itself: nudged refits, closed forms, simulation, and the square loss as a special case."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import vhat

RNG = np.random.default_rng(0)
X = np.linspace(0.5, 2.0, 12)
S = 0.05


def in_inputs(p, row, z):
    """A curve with noise in its inputs."""
    return (p[0] * (row["x"] + S * z[0]) ** p[1] - row["y"]) ** 2 / 2


def fit_inputs(x, y, lam):
    """Minimise the same in NumPy, by scipy."""

    def objective(p):
        return np.mean((p[0] * x ** p[1] - y) ** 2) / 2 + lam / 2 * np.sum(p**2)

    found = minimize(
        objective, [1.5, 1.2], method="Nelder-Mead", options={"xatol": 1e-11, "fatol": 1e-16, "maxiter": 4000}
    )
    return found.x


@pytest.mark.slow
def test_sensitivities_are_those_of_refits_with_one_input_nudged():
    x = X + S * RNG.normal(size=12)
    y = 1.5 * X**1.2
    lam, step = 1e-3, 1e-3
    model = vhat.from_noise_loss(in_inputs, fit_inputs(x, y, lam), {"x": x, "y": y}, weight_decay=lam)
    assert model.offset < 1e-4
    found = model.sensitivity(lambda p: p[0] * 1.3 ** p[1])
    for i in (0, 5, 11):
        nudge = S * step * np.eye(12)[i]
        up, down = fit_inputs(x + nudge, y, lam), fit_inputs(x - nudge, y, lam)
        moved = (up[0] * 1.3 ** up[1] - down[0] * 1.3 ** down[1]) / (2 * step)
        assert found[i, 0] == pytest.approx(moved, rel=1e-3, abs=1e-6)


@pytest.mark.slow
def test_noise_in_responses_is_the_square_loss_of_the_library():
    y = 1.5 * X + 0.1 * RNG.normal(size=12)
    q = X @ y / (X @ X + 12 * 0.1)

    def loss(p, row, z):
        return (p * row["x"] - row["y"] - 0.1 * z[0]) ** 2 / 2

    model = vhat.from_noise_loss(loss, np.array(q), {"x": X, "y": y}, weight_decay=0.1)
    fitted = vhat.from_numpy(lambda p, x: p[0] * x, [q], X, y, jac=lambda x: x[:, None], weight_decay=0.1)
    usual = fitted.interval([1.7], noise=0.1, tail=vhat.Tail(0.5, 0.1))
    ours = model.functional(lambda p: 1.7 * p, tail=vhat.Tail(0.5 * 0.1**2, 0.1 * 0.1**2))
    assert float(ours.standard_error) == pytest.approx(float(usual.standard_error[0]), rel=1e-9)
    assert float(ours.half_width) == pytest.approx(float(usual.half_width[0]), rel=1e-6)
    np.testing.assert_allclose(
        model.sensitivity(lambda p: 1.7 * p)[:, 0], 0.1 * fitted.sensitivity([1.7])[0], rtol=1e-9
    )


def test_the_interval_covers_the_mean_under_multiplicative_noise():
    """y = m (1 + s z) with a slope through the origin: refits in closed form, 4000 draws."""
    m, s = 2.0 * X, 0.1

    def loss(p, row, z):
        return (p * row["x"] - row["y"] - s * row["m"] * z[0]) ** 2 / 2

    draws = m * (1 + s * np.random.default_rng(1).normal(size=(4000, 12)))
    slopes = draws @ X / (X @ X)
    model = vhat.from_noise_loss(loss, np.array(slopes[0]), {"x": X, "y": draws[0], "m": m})
    band = model.functional(lambda p: p, 0.1, bound="asymptotic")
    assert float(band.standard_error) == pytest.approx(slopes.std(), rel=4 / np.sqrt(2 * 4000))
    missed = np.mean(np.abs(slopes - slopes.mean()) > band.half_width)
    assert abs(missed - 0.1) < 4 * np.sqrt(0.1 * 0.9 / 4000)


def test_two_noises_a_row_add_up():
    """Noise in input and response: the variance of a slope, to first order, is the sum of both."""

    def loss(p, row, z):
        return (p * (row["x"] + S * z[0]) - row["y"] - 0.1 * z[1]) ** 2 / 2

    rows = {"x": X, "y": 2.0 * X}
    both = vhat.from_noise_loss(loss, np.array(2.0), rows, noises=2).functional(lambda p: p)
    # at residual zero G_i = (2 s x_i, -0.1 x_i) and A = mean x^2
    variance = np.sum((2.0 * S * X) ** 2 + (0.1 * X) ** 2) / np.sum(X**2) ** 2
    assert float(both.standard_error) == pytest.approx(np.sqrt(variance), rel=1e-9)
    assert both.lower < both.center < both.upper


def test_what_is_no_minimum_is_said():
    rows = {"x": X, "y": 2.0 * X}
    off = vhat.from_noise_loss(in_inputs, np.array([1.5, 1.2]), rows, weight_decay=1.0)
    with pytest.warns(vhat.NotMinimumWarning, match="away from a minimum"):
        band = off.functional(lambda p: p[0])
    assert "WHICH THEY ARE NOT" in band.guarantee
    saddle = vhat.from_noise_loss(lambda p, row, z: -(p**2) * row + z[0] * p, np.array(0.0), X)
    with pytest.raises(vhat.NotPositiveDefinite, match="no minimum"):
        saddle.functional(lambda p: p)


def test_what_cannot_be_used_is_refused_in_words():
    with pytest.raises(vhat.InputError, match="leading axis"):
        vhat.from_noise_loss(in_inputs, np.ones(2), {"x": X, "y": X[:3]})
    with pytest.raises(vhat.InputError, match="weight_decay"):
        vhat.from_noise_loss(in_inputs, np.ones(2), {"x": X, "y": X}, weight_decay=-1.0)
    with pytest.raises(vhat.MemoryBudgetError, match="few parameters"):
        vhat.from_noise_loss(in_inputs, np.ones(2000), {"x": X, "y": X}, memory=1e6)


@pytest.mark.parametrize(
    ("options", "there", "absent"),
    [
        ({}, ["E[V]", "lighter tail than a chi-square with 8 degrees of freedom", "the isoperimetric bound"], []),
        ({"tail": "any"}, ["E[V]", "nothing of the tail of V"], ["supplied", "does not vary"]),
        ({"tail": "constant"}, ["E[V]", "that V does not vary with the noise"], ["supplied"]),
        ({"tail": vhat.Tail(0.1, 0.1)}, ["E[V]", "the tail of V that was supplied"], ["does not vary"]),
        ({"bound": "tight"}, ["E[V]", "that V does not vary with the noise"], ["supplied"]),
        ({"bound": "chebyshev"}, ["E[V]", "by Chebyshev's inequality"], ["does not vary", "tail"]),
        ({"bound": "asymptotic"}, ["exact only as n grows"], ["E[V]", "does not vary", "tail"]),
    ],
)
def test_the_guarantee_assumes_of_v_what_its_bound_needs(options, there, absent):
    rows = {"x": X, "y": 2.0 * X}
    model = vhat.from_noise_loss(lambda p, row, z: (p * row["x"] - row["y"] - z[0]) ** 2 / 2, np.array(2.0), rows)
    told = model.functional(lambda p: p, **options).guarantee
    assert [words for words in there if words not in told] == []
    assert [words for words in absent if words in told] == []
