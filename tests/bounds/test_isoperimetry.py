"""The isoperimetric bound: its reference values, the functions that attain it, and functions that must not exceed it.

In one dimension everything is exact: ``F = T(U)`` with U standard normal and T monotone has ``W = T'(U)^2``, whose
moments and probabilities of a miss are integrals over a grid.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate
from scipy.special import ndtr, ndtri
from scipy.stats import norm, t

from vhat import InputError, bounds
from vhat.bounds import isoperimetric, isoperimetric_multiplier

DELTAS = (0.2, 0.1, 0.05, 0.01, 0.001)
CONSTANT = (1.2833, 1.6453, 1.9601, 2.5758, 3.2905)
ANY = (1.4762, 1.8790, 2.3602, 4.2593, 10.450)
"""From an independent program, as are the values below."""
SUB_GAMMA = {
    (0.05, 0.1, 0.05): 2.029,
    (0.05, 0.3, 0.2): 2.147,
    (0.05, 0.5, 0.5): 2.259,
    (0.05, 1.0, 1.0): 2.365,
    (0.01, 0.5, 0.5): 3.147,
    (0.01, 1.0, 1.0): 3.521,
    (0.1, 0.5, 0.25): 1.879,
    (0.05, 0.5, 0.25): 2.239,
    (0.01, 0.5, 0.25): 3.094,
    (0.001, 0.5, 0.25): 4.338,
}
TWO_MOMENTS = {
    (0.05, 0.1): 2.024,
    (0.05, 0.3): 2.124,
    (0.05, 0.5): 2.208,
    (0.01, 0.1): 2.722,
    (0.01, 0.3): 2.947,
    (0.01, 0.5): 3.126,
}

U = np.linspace(-9.0, 9.0, 36_001)
STEP = U[1] - U[0]
PHI = norm.pdf(U)


def miss(slope: np.ndarray, multiplier: float) -> float:
    """Return ``P(|F - E F| > multiplier sqrt(E W))`` of ``F = T(U)`` with ``T' = slope`` on the grid."""
    values = integrate.cumulative_trapezoid(slope, dx=STEP, initial=0.0)
    mean = np.sum(values * PHI) * STEP
    radius = multiplier * np.sqrt(np.sum(slope**2 * PHI) * STEP)
    return float(np.sum(PHI[np.abs(values - mean) > radius * (1 + 1e-9)]) * STEP)


@pytest.mark.parametrize(("delta", "expected"), list(zip(DELTAS, CONSTANT, strict=True)))
def test_a_constant_gradient_has_the_reference_multiplier_just_above_the_normal_quantile(delta, expected):
    found = float(isoperimetric_multiplier(delta))
    assert found == pytest.approx(expected, abs=6e-5)
    assert -ndtri(delta / 2) <= found <= 1.002 * -ndtri(delta / 2)


@pytest.mark.parametrize(("delta", "expected"), list(zip(DELTAS, ANY, strict=True)))
def test_no_assumption_on_the_tail_has_the_reference_multiplier(delta, expected):
    assert float(isoperimetric_multiplier(delta, v=np.inf)) == pytest.approx(expected, rel=5e-5)


@pytest.mark.parametrize("case", SUB_GAMMA)
def test_a_sub_gamma_tail_has_the_reference_multiplier(case):
    delta, v, c = case
    assert float(isoperimetric_multiplier(delta, v=v, c=c)) == pytest.approx(SUB_GAMMA[case], rel=0.005)


@pytest.mark.parametrize("case", TWO_MOMENTS)
def test_a_known_standard_deviation_has_the_reference_multiplier(case):
    delta, s = case
    assert float(isoperimetric_multiplier(delta, sd=s)) == pytest.approx(TWO_MOMENTS[case], rel=0.005)


@pytest.mark.parametrize("delta", DELTAS)
def test_the_constant_multiplier_is_attained(delta):
    """``min(U, z)`` has a gradient of at most one and misses with probability delta, no less."""
    r = float(isoperimetric_multiplier(delta))
    low, high = -10.0, 10.0
    for _ in range(200):
        z = (low + high) / 2
        low, high = (z, high) if z * ndtr(z) + norm.pdf(z) < r else (low, z)
    mean = z - (z * ndtr(z) + norm.pdf(z))  # E min(U, z)
    upper = ndtr(-z) if z - mean >= r * (1 - 1e-9) else 0.0
    assert upper + ndtr(mean - r) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("delta", [0.2, 0.1, 0.05])
def test_the_multiplier_without_assumptions_is_attained_on_both_sides(delta):
    """``T' = 1 / phi`` between the quantiles delta/2 and 1 - delta/2, and flat beyond, misses with delta."""
    z = -ndtri(delta / 2)
    slope = np.where(np.abs(U) <= z, 1 / PHI, 0.0)
    r = float(isoperimetric_multiplier(delta, v=np.inf))
    assert miss(slope, r * (1 - 1e-3)) == pytest.approx(delta, rel=5e-3)
    assert miss(slope, r * (1 + 1e-3)) == 0.0


@pytest.mark.parametrize("delta", [0.01, 0.001])
def test_the_multiplier_without_assumptions_is_attained_on_one_side(delta):
    slope = np.where(-ndtri(delta) >= U, ndtr(U) / PHI, 0.0)
    r = float(isoperimetric_multiplier(delta, v=np.inf))
    assert miss(slope, r * (1 - 1e-3)) == pytest.approx(delta, rel=5e-3)
    assert miss(slope, r * (1 + 1e-3)) == 0.0


@pytest.mark.parametrize("delta", np.geomspace(1e-6, 0.5, 9).tolist())
def test_the_multiplier_without_assumptions_is_the_largest_over_all_splits(delta):
    """The closed form uses two splits; here the integral is computed for many, with the best lam of each."""
    worst = 0.0
    for share in np.concatenate([np.geomspace(1e-8, 0.05, 16), np.linspace(0.1, 0.5, 9)]):
        z1, z2 = -ndtri(delta * (1 - share)), -ndtri(delta * share)
        a = integrate.quad(lambda u: ndtr(u) ** 2 / norm.pdf(u), -z2, z1)[0]
        b = integrate.quad(lambda u: ndtr(u) * ndtr(-u) / norm.pdf(u), -z2, z1)[0]
        c = integrate.quad(lambda u: ndtr(-u) ** 2 / norm.pdf(u), -z2, z1)[0]
        e = integrate.quad(lambda u: ndtr(u) ** 2 / norm.pdf(u), -12.0, -z2)[0]
        g = np.clip((a - b + 2 * e) / (a - 2 * b + c + 4 * e), 0.0, 0.5)
        worst = max(worst, (1 - g) ** 2 * a + 2 * g * (1 - g) * b + g**2 * c + (1 - 2 * g) ** 2 * e)
    assert float(isoperimetric_multiplier(delta, v=np.inf)) >= np.sqrt(worst) * (1 - 1e-7)


def random_slopes(seed: int) -> np.ndarray:
    """A positive slope on the grid: exponentials of smooth functions, kinks, plateaus."""
    rng = np.random.default_rng(seed)
    slope = np.exp(rng.normal() * U * 0.3 + rng.normal() * 0.15 * U**2 * (rng.random() < 0.5))
    slope = slope * (1 + rng.random() * np.tanh(rng.normal(scale=2) * (U - rng.normal())))
    if rng.random() < 0.5:
        slope = np.where(rng.normal(scale=1.5) > U, slope, slope * rng.random())
    if rng.random() < 0.3:
        slope = np.where(np.abs(U - rng.normal()) < rng.random() * 2, slope, 0.05 * slope)
    return np.clip(slope, 1e-6, 50.0)


def sub_gamma_pair(slope: np.ndarray, c: float) -> float:
    """Return the least v with ``ln E exp(a (W - E W)) <= a^2 v^2 / (2 (1 - c a))`` for 0 < a < 1/c, over E W = 1."""
    W = slope**2 / (np.sum(slope**2 * PHI) * STEP)
    a = np.linspace(1e-3, 1 / c * (1 - 1e-3), 100)
    with np.errstate(over="ignore"):
        log_moment = np.array([np.log(np.sum(np.exp(each * (W[::4] - 1)) * PHI[::4]) * 4 * STEP) for each in a])
    return float(np.sqrt(np.max(2 * (1 - c * a) * log_moment / a**2)))


@pytest.mark.parametrize("seed", range(8))
def test_no_monotone_function_misses_more_than_delta_under_its_own_tail(seed):
    slope = random_slopes(seed)
    W = slope**2 / (np.sum(slope**2 * PHI) * STEP)
    sd = float(np.sqrt(np.sum((W - 1) ** 2 * PHI) * STEP))
    for delta in (0.2, 0.05, 0.01):
        assert miss(slope, float(isoperimetric_multiplier(delta, v=np.inf))) <= delta
        assert miss(slope, float(isoperimetric_multiplier(delta, sd=sd))) <= delta
        assert miss(slope, float(np.sqrt(W.max()) * isoperimetric_multiplier(delta))) <= delta
        for c in (0.1, 0.5):
            v = sub_gamma_pair(slope, c)
            if np.isfinite(v):
                assert miss(slope, float(isoperimetric_multiplier(delta, v=v, c=c))) <= delta


@pytest.mark.parametrize("kind", ["network", "polynomial", "exponential"])
@pytest.mark.parametrize("dimension", [2, 5, 20])
def test_no_function_of_several_normals_misses_more_than_delta(kind, dimension):
    """With E W known, whatever the tail, and with the standard deviation of W: 40,000 draws, four standard errors."""
    rng = np.random.default_rng(dimension)
    Z = rng.standard_normal((40_000, dimension))
    A = rng.standard_normal((dimension, 5)) / np.sqrt(dimension)
    b = rng.standard_normal(5)
    inner = Z @ A
    value, slopes = {
        "network": (np.tanh(inner) @ b, b / np.cosh(inner) ** 2),
        "polynomial": ((inner**3) @ b + inner @ b, b * (3 * inner**2 + 1)),
        "exponential": (np.exp(0.4 * inner) @ b, 0.4 * b * np.exp(0.4 * inner)),
    }[kind]
    W = np.sum((slopes @ A.T) ** 2, axis=1)
    for delta in (0.1, 0.05, 0.01):
        for options in ({"v": np.inf}, {"sd": W.std() / W.mean()}):
            radius = float(isoperimetric_multiplier(delta, **options)) * np.sqrt(W.mean())
            missed = np.mean(np.abs(value - value.mean()) > radius)
            assert missed <= delta + 4 * np.sqrt(delta * (1 - delta) / len(Z))


@pytest.mark.parametrize(("df", "expected"), [(3, 3.193), (5, 2.574), (10, 2.229), (20, 2.086)])
def test_estimated_noise_has_the_reference_multiplier_just_above_students(df, expected):
    found = float(isoperimetric_multiplier(0.05, df=df))
    assert found == pytest.approx(expected, abs=6e-4)
    assert t.ppf(0.975, df) <= found <= 1.005 * t.ppf(0.975, df)


@pytest.mark.parametrize("df", [3, 8, 40])
def test_estimated_noise_keeps_the_level_of_the_extremal_function(df):
    """``min(U, z)`` at the multiplier of many z, over an independent estimate of the noise: never above delta."""
    rng = np.random.default_rng(df)
    draws = 200_000
    z_score = rng.standard_normal(draws)
    estimate = np.sqrt(rng.chisquare(df, draws) / df)
    for delta in (0.1, 0.05, 0.01):
        multiplier = float(isoperimetric_multiplier(delta, df=df))
        for z in (0.5, 1.0, 1.5, 2.0, np.inf):
            values = np.minimum(z_score, z)
            mean = 0.0 if np.isinf(z) else z - (z * ndtr(z) + norm.pdf(z))
            missed = np.mean(np.abs(values - mean) > multiplier * estimate)
            assert missed <= delta + 4 * np.sqrt(delta * (1 - delta) / draws)


def test_more_is_never_narrower():
    """The multiplier grows with the tail, falls with delta and with degrees of freedom, and is bounded by no tail."""
    tails = np.linspace(0.0, 2.0, 21)
    for df in (None, 12):
        along = isoperimetric_multiplier(0.05, v=0.5 * tails, c=0.25 * tails, df=df)
        assert np.all(np.diff(along) >= 0)
        assert np.all(along <= isoperimetric_multiplier(0.05, v=np.inf, df=df) * 1.01)
    levels = isoperimetric_multiplier(np.geomspace(1e-6, 0.5, 9), v=0.5, c=0.25)
    assert np.all(np.diff(levels) < 0)
    freedom = isoperimetric_multiplier(0.05, v=0.5, c=0.25, df=np.array([3.0, 5.0, 10.0, 100.0]))
    assert np.all(np.diff(freedom) < 0)


def test_rows_do_not_depend_on_their_neighbours():
    rng = np.random.default_rng(0)
    x = rng.random(300)
    for df in (None, 7.5):
        together = isoperimetric_multiplier(0.05, v=0.5 * x, c=0.25 * x, df=df)
        alone = [float(isoperimetric_multiplier(0.05, v=0.5 * each, c=0.25 * each, df=df)) for each in x[:20]]
        np.testing.assert_array_equal(together[:20], alone)


def test_the_half_width_has_the_unit_of_the_noise():
    norms = np.array([0.1, 1.0, 30.0])
    one = isoperimetric(norms, 50, 0.2, 0.05, v=0.5 * norms, c=0.25 * norms, observation_noise=0.2)
    other = isoperimetric(norms, 50, 200.0, 0.05, v=0.5 * norms, c=0.25 * norms, observation_noise=200.0)
    np.testing.assert_allclose(other, 1000 * one, rtol=1e-12)


def test_an_observation_adds_its_own_variance():
    """V = 0: the normal quantile's neighbour; V large: that of the mean."""
    only_noise = float(isoperimetric(0.0, 50, 0.2, 0.05, v=0.0, observation_noise=0.2))
    assert only_noise == pytest.approx(0.2 * float(isoperimetric_multiplier(0.05)), rel=1e-12)
    V = 1e8
    for_mean = float(isoperimetric(V, 50, 0.2, 0.05, v=V / 2, c=V / 4))
    assert float(isoperimetric(V, 50, 0.2, 0.05, v=V / 2, c=V / 4, observation_noise=0.2)) == pytest.approx(
        for_mean, rel=1e-6
    )
    # E W of a tenth of the new noise: reference values.
    for delta, expected in ((0.1, 1.675), (0.05, 1.995)):
        V = 5.0
        found = float(isoperimetric(V, 50, 1.0, delta, v=V / 2, c=V / 4, observation_noise=1.0)) / np.sqrt(1.1)
        assert found == pytest.approx(expected, rel=0.005)


def test_it_is_narrower_than_tight_at_the_usual_levels():
    ratios = [
        float(isoperimetric(1.0, 10, 1.0, delta, v=0.5, c=0.25) / bounds.tight(1.0, 10, 1.0, delta))
        for delta in (0.1, 0.05, 0.01)
    ]
    np.testing.assert_allclose(ratios, [0.77, 0.825, 0.95], atol=0.006)


def test_nan_stays_and_nothing_becomes_nothing():
    found = isoperimetric([0.0, np.nan, 1.0], 10, 1.0, 0.05, v=[0.1, 0.1, np.nan], c=0.0)
    assert found[0] == 0.0
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delta": 1.5}, "delta"),
        ({"v": -1.0}, "v must not be negative"),
        ({"sd": -1.0}, "sd must not be negative"),
        ({"df": 0.0}, "df must be positive"),
        ({"observation_noise": -1.0}, "observation_noise must not be negative"),
    ],
)
def test_what_cannot_be_used_is_refused(options, words):
    arguments = {"delta": 0.05} | options
    with pytest.raises(InputError, match=words):
        isoperimetric(1.0, 10, 1.0, **arguments)


@pytest.mark.parametrize("options", [{}, {"v": 0.5, "c": 0.25}, {"v": np.inf}, {"sd": 0.3}])
@pytest.mark.parametrize("delta", [1e-12, 1e-100])
def test_a_tiny_delta_has_a_finite_multiplier(delta, options):
    found = float(isoperimetric_multiplier(delta, **options))
    assert -ndtri(delta / 2) * (1 - 1e-12) <= found < np.inf  # rounding of the root


@pytest.mark.parametrize(("delta", "options"), [(1e-200, {}), (1e-12, {"df": 5.0}), (1e-12, {"df": 5.0, "v": 0.5})])
def test_a_delta_beyond_the_tables_is_refused(delta, options):
    with pytest.raises(InputError, match="the smallest of the isoperimetric bound"):
        isoperimetric_multiplier(delta, **options)
