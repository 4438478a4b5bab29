"""Bounds against brute force, exact distributions and simulation.

The functions of Gaussians used as truth have n = 1 and noise = 1, so that W = |grad F|^2 plays the part of V.

For the quadratic form F = sum a_i z_i^2 / 2 the gradient is a_i z_i, hence W = sum a_i^2 z_i^2 and, term by
term, ln E exp(s (a^2 z^2 - a^2)) = -s a^2 - ln(1 - 2 s a^2)/2 <= s^2 a^4 / (1 - 2 s a^2). So W is sub-gamma
on the right with v^2 = 2 sum a_i^4 and c = 2 max a_i^2, and on the left with the same v and c = 0. The square
F = z^2 is a = 2: E W = 4, v = 4 sqrt(2), c = 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import chi2, norm

from vhat import bounds
from vhat.bounds import formulas
from vhat.errors import InputError

SQUARE = {"v": 4 * np.sqrt(2), "c": 8.0}
EPS = np.finfo(float).eps


def rho_by_search(u: float, m: float, w: float, k: float) -> float:
    """min over a > 1/2 of ln E exp(a u^2 W) / ((2 a - 1) u^2), the sub-gamma bound in place of ln E."""

    def value(log_b: float) -> float:
        a = (1 + np.exp(log_b)) / 2
        room = 1 - k * a * u * u
        return float(np.inf) if room <= 0 else float((a * m + a * a * u * u * w * w / (2 * room)) / (2 * a - 1))

    top = np.log(2 / (k * u * u) - 1) if k > 0 else 40.0
    return float(minimize_scalar(value, bounds=(-40.0, top), method="bounded", options={"xatol": 1e-10}).fun)


def tight_by_search(m: float, w: float, k: float, delta: float) -> float:
    """Chernoff's bound minimised over s, Herbst's integral by quadrature, the entropy bound by search."""
    level = np.log(2 / delta)

    def half_width(log_s: float) -> float:
        s = np.exp(log_s)
        return float(level / s + quad(rho_by_search, 0, s, args=(m, w, k), epsabs=0, epsrel=1e-9, limit=200)[0])

    top = 0.5 * np.log(2 / k) - 1e-9 if k > 0 else 0.5 * np.log(2 * level / m) + 1e-3
    return float(minimize_scalar(half_width, bounds=(top - 6, top), method="bounded", options={"xatol": 1e-7}).fun)


def tight_by_equation(m: float, w: float, k: float, delta: float) -> float:
    """The closed rho, the root of s^2 rho(s) = l by bracketing, the integral by adaptive quadrature."""
    level = np.log(2 / delta)

    def rho(u: float) -> float:
        q, E = u * u * w * w / 2, 1 - k * u * u / 2
        return float(((np.sqrt(q) + np.sqrt(q + 2 * m * E)) / (2 * E)) ** 2)

    unit = np.sqrt(2 / k) if k > 0 else 1e3 * np.sqrt(level / (m + w))
    s = brentq(lambda x: (x * unit) ** 2 * rho(x * unit) - level, 1e-9, 1 - 1e-13, xtol=1e-16, rtol=4 * EPS) * unit
    return float(level / s + quad(rho, 0, s, epsabs=0, epsrel=1e-12, limit=400, points=[0.01 * s, 0.9 * s])[0])


@pytest.mark.parametrize(
    ("m", "w", "k"), [(4.0, 5.66, 8.0), (1.0, 0.3, 0.0), (1.0, 0.1, 0.02), (0.2, 1.0, 0.05), (1.0, 0.05, 3.0)]
)
def test_tight_is_the_best_that_entropy_herbst_and_chernoff_give(m: float, w: float, k: float) -> None:
    assert bounds.tight(m, 1, 1.0, 0.02, v=w, c=k) == pytest.approx(tight_by_search(m, w, k, 0.02), rel=2e-6)


@pytest.mark.parametrize("delta", [0.5, 0.05, 1e-6])
def test_tight_solves_its_equation_to_ten_digits_for_any_mixture_of_tails(delta: float) -> None:
    rng = np.random.default_rng(3)
    sizes = 10.0 ** rng.uniform(-3, 3, size=(40, 3))
    sizes[::7, 0], sizes[1::7, 1], sizes[2::7, 2] = 0.0, 0.0, 0.0
    expected = [tight_by_equation(m, w, k, delta) for m, w, k in sizes]
    np.testing.assert_allclose(
        bounds.tight(sizes[:, 0], 1, 1.0, delta, v=sizes[:, 1], c=sizes[:, 2]), expected, rtol=1e-10
    )


def test_the_two_ways_of_integrating_agree_to_rounding_where_they_meet() -> None:
    rng = np.random.default_rng(0)
    share = rng.uniform(0, 1, 200)
    K = rng.uniform(0.2, 0.3, 200)
    A, B = share * (1 - K), (1 - share) * (1 - K)
    np.testing.assert_allclose(formulas._herbst_quadrature(A, B, K), formulas._herbst_closed(A, B, K), rtol=100 * EPS)


def test_without_a_tail_tight_is_the_gaussian_chernoff_bound() -> None:
    V = np.array([0.0, 1e-30, 0.3, 7.0, 1e30])
    expected = 0.1 * np.sqrt(2 * np.log(2 / 0.05) * V / 50)
    np.testing.assert_allclose(bounds.tight(V, 50, 0.1, 0.05), expected, rtol=4 * EPS)


def test_tight_lies_between_half_and_all_of_its_simple_majorant() -> None:
    V, v, c = np.random.default_rng(1).uniform(0, 1, size=(3, 500)) ** 6
    level = np.log(2 / 0.01)
    simple = np.sqrt(2 * level * (V + v * np.sqrt(2 * level) + c * level))
    ratio = bounds.tight(V, 1, 1.0, 0.01, v=v, c=c) / simple
    assert ratio.min() >= 0.5
    assert ratio.max() <= 1 + 4 * EPS


@pytest.mark.parametrize("dims", [1, 3, 30])
@pytest.mark.parametrize("delta", [0.2, 0.05, 1e-3, 1e-6])
def test_tight_never_misses_more_than_delta_on_a_chi_square(dims: int, delta: float) -> None:
    half = bounds.tight(4.0 * dims, 1, 1.0, delta, v=4 * np.sqrt(2 * dims), c=8.0)
    missed = chi2.sf(dims + half, dims) + chi2.cdf(dims - half, dims)
    assert missed <= delta


def test_tight_never_misses_more_than_delta_on_an_uneven_quadratic_form() -> None:
    a = np.array([1.0, -0.7, 0.5, 0.5, -0.2, 0.1])
    draws, delta = 400_000, 0.02
    z = np.random.default_rng(7).standard_normal((draws, a.size))
    gap = z**2 @ a / 2 - a.sum() / 2
    half = bounds.tight(np.sum(a**2), 1, 1.0, delta, v=np.sqrt(2 * np.sum(a**4)), c=2 * np.max(a**2))
    assert np.mean(np.abs(gap) > half) <= delta + 4 * np.sqrt(delta / draws)


def test_tight_is_half_pi_narrower_than_theorem_as_the_tail_goes_to_zero() -> None:
    V, tail = 2.0, np.array([1e-6, 1e-9, 1e-12])
    ratio = bounds.theorem(V, 100, 0.1, 0.05, v=tail, c=tail) / bounds.tight(V, 100, 0.1, 0.05, v=tail, c=tail)
    np.testing.assert_allclose(ratio, np.pi / 2, rtol=1e-5)
    assert bounds.theorem(V, 100, 0.1, 0.05) / bounds.tight(V, 100, 0.1, 0.05) == pytest.approx(np.pi / 2)


@pytest.mark.parametrize("name", ["theorem", "sharp"])
def test_published_bounds_miss_more_than_delta_where_tight_does_not(name: str) -> None:
    """f(x1) = theta, f(x) = theta^2, theta* = 0: the prediction is (sigma z)^2 and V = 4 sigma^2 z^2."""
    sigma, delta = 0.01, 1e-4
    arguments = {"v": sigma**2 * SQUARE["v"], "c": sigma**2 * SQUARE["c"]}

    def missed(half: np.ndarray) -> float:
        low, high = 1 - half / sigma**2, 1 + half / sigma**2
        return float(2 * norm.sf(np.sqrt(high)) + 2 * (norm.cdf(np.sqrt(np.maximum(low, 0.0))) - 0.5))

    published = missed(getattr(bounds, name)(4 * sigma**2, 1, sigma, delta, **arguments))
    assert delta < published
    assert published == pytest.approx(1.08e-4, rel=5e-3)
    assert missed(bounds.tight(4 * sigma**2, 1, sigma, delta, **arguments)) <= delta


def test_plugging_in_the_observed_norm_misses_14_percent_on_the_square_of_a_gaussian() -> None:
    """|z^2 - 1| <= r |z| holds for |z| between (-r + sqrt(r^2 + 4))/2 and (r + sqrt(r^2 + 4))/2."""
    r = bounds.tight(4.0, 1, 1.0, 0.05)
    low, high = (np.sqrt(r**2 + 4) - r) / 2, (np.sqrt(r**2 + 4) + r) / 2
    z = np.array([0.99 * low, 1.01 * low, 0.99 * high, 1.01 * high])
    inside = np.abs(z**2 - 1) <= bounds.tight(4 * z**2, 1, 1.0, 0.05)
    assert inside.tolist() == [False, True, True, False]
    assert 2 * (norm.cdf(low) - 0.5) + 2 * norm.sf(high) == pytest.approx(0.14, abs=0.002)


@pytest.mark.parametrize("delta", [0.2, 0.05, 0.005])
@pytest.mark.parametrize("split", [0.2, 0.5, 0.9])
def test_empirical_pays_for_the_observed_norm_and_keeps_its_level(delta: float, split: float) -> None:
    z = np.linspace(-9, 9, 200_001)
    half = bounds.empirical(4 * z**2, 1, 1.0, delta, split=split, **SQUARE)
    missed = np.trapezoid(norm.pdf(z) * (np.abs(z**2 - 1) > half), z)
    assert missed <= delta


@pytest.mark.parametrize("name", ["tight", "theorem", "sharp", "chebyshev"])
def test_empirical_is_the_named_bound_at_the_raised_norm(name: Any) -> None:
    V, v, c, delta, split = 2.0, 0.3, 0.2, 0.05, 0.4
    t = np.log(1 / (0.6 * delta))
    raised = V + np.sqrt(2 * v**2 * t) + c * t
    tail = {} if name == "chebyshev" else {"v": v, "c": c}
    expected = getattr(bounds, name)(raised, 50, 0.3, 0.4 * delta, **tail)
    assert bounds.empirical(V, 50, 0.3, delta, v=v, c=c, bound=name, split=split) == pytest.approx(expected)


def test_theorem_is_the_printed_formula() -> None:
    V, n, sigma, delta, v, c = 1.7, 40, 0.3, 0.01, 0.6, 0.9
    level = np.log(2 / delta)
    expected = (
        sigma * np.sqrt(np.pi**2 / 2 * level / n * V) + sigma**2 * (np.sqrt(2 * level) * v + 2 / 3 * level * c) / n
    )
    assert bounds.theorem(V, n, sigma, delta, v=v, c=c) == pytest.approx(expected, rel=1e-14)


def test_sharp_inverts_the_published_tail_probability() -> None:
    """2 exp(-t^2 / ((pi^2/2) E W + 2 w^2 + (2/3) k t)) = delta at t, for W = sigma^2 V / n."""
    V, n, sigma, delta, v, c = 1.7, 40, 0.3, 0.01, 0.6, 0.9
    unit = sigma**2 / n
    t = bounds.sharp(V, n, sigma, delta, v=v, c=c)
    exponent = t**2 / (np.pi**2 / 2 * unit * V + 2 * (unit * v) ** 2 + 2 / 3 * unit * c * t)
    assert 2 * np.exp(-exponent) == pytest.approx(delta, rel=1e-10)


def test_sharp_is_never_wider_than_theorem() -> None:
    V, v, c = np.random.default_rng(2).lognormal(0, 3, size=(3, 300))
    wide = bounds.theorem(V, 30, 0.5, 0.05, v=v, c=c)
    assert np.all(bounds.sharp(V, 30, 0.5, 0.05, v=v, c=c) <= wide * (1 + 4 * EPS))


@pytest.mark.parametrize("dims", [1, 3])
@pytest.mark.parametrize("delta", [0.2, 0.05, 1e-3])
def test_chebyshev_never_misses_more_than_delta_without_knowing_the_tail(dims: int, delta: float) -> None:
    half = bounds.chebyshev(4.0 * dims, 1, 1.0, delta)
    assert half == pytest.approx(np.sqrt(4 * dims / delta))
    assert chi2.sf(dims + half, dims) + chi2.cdf(dims - half, dims) <= delta


def test_asymptotic_covers_a_linear_prediction_exactly() -> None:
    half = bounds.asymptotic(3.0, 20, 0.4, np.array([0.5, 0.05, 1e-12]))
    missed = 2 * norm.sf(half / (0.4 * np.sqrt(3 / 20)))
    np.testing.assert_allclose(missed, [0.5, 0.05, 1e-12], rtol=1e-10)


def test_student_quantiles_match_their_closed_forms() -> None:
    tail = np.array([0.05, 1e-3, 1e-8])
    np.testing.assert_allclose(bounds.asymptotic(1.0, 1, 1.0, tail, df=1), 1 / np.tan(np.pi * tail / 2), rtol=1e-10)
    p = 1 - tail / 2
    two = (1 - tail) * np.sqrt(2 / (4 * p * tail / 2))
    np.testing.assert_allclose(bounds.asymptotic(1.0, 1, 1.0, tail, df=2), two, rtol=1e-10)
    normal = bounds.asymptotic(1.0, 1, 1.0, tail)
    np.testing.assert_allclose(bounds.asymptotic(1.0, 1, 1.0, tail, df=np.inf), normal, rtol=1e-12)


def ridge_problem() -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
    rng = np.random.default_rng(5)
    return rng.standard_normal((30, 4)), rng.standard_normal((6, 4)), np.array([1.0, -2, 0.5, 3]), 0.05, 0.3


def test_ridge_holds_the_exact_bias_and_at_least_the_exact_spread() -> None:
    X, x, theta, lam, sigma = ridge_problem()
    weights = x @ np.linalg.inv(X.T @ X / 30 + lam * np.eye(4)) @ X.T / 30
    bias = np.abs(weights @ X @ theta - x @ theta)
    spread = sigma * np.linalg.norm(weights, axis=1)
    half = bounds.ridge(x, X, lam, sigma, 0.05, theta_star=theta)
    noise_only = bounds.ridge(x, X, lam, sigma, 0.05)
    np.testing.assert_allclose(half - noise_only, bias, rtol=1e-10)
    missed = norm.sf((half - bias) / spread) + norm.sf((half + bias) / spread)
    assert np.all(missed <= 0.05)
    assert np.all(noise_only >= spread * np.sqrt(np.pi**2 / 2 * np.log(40)))


def test_ridge_takes_one_point_or_many() -> None:
    X, x, theta, lam, sigma = ridge_problem()
    many = bounds.ridge(x, X, lam, sigma, 0.05, theta_star=theta)
    assert many.shape == (6,)
    one = bounds.ridge(x[2], X, lam, sigma, 0.05, theta_star=theta)
    assert one.shape == ()
    assert one == pytest.approx(many[2], rel=1e-12)


def test_ridge_refuses_what_it_cannot_use() -> None:
    X, x, theta, lam, sigma = ridge_problem()
    with pytest.raises(InputError, match="shape"):
        bounds.ridge(x[:, :2], X, lam, sigma, 0.05)
    with pytest.raises(InputError, match="theta_star"):
        bounds.ridge(x, X, lam, sigma, 0.05, theta_star=theta[:2])
    with pytest.raises(InputError, match="singular"):
        bounds.ridge([1.0, 0.0], [[1.0, 0.0]], 0.0, sigma, 0.05)
    with pytest.raises(InputError, match="NaN"):
        bounds.ridge(x, X * np.nan, lam, sigma, 0.05)


@pytest.mark.parametrize("name", ["tight", "theorem", "sharp"])
def test_uniform_is_a_union_bound_over_the_cover(name: Any) -> None:
    eps, d, delta, lip = 0.1, 3, 0.05, 2.0
    tail = {"v": 0.2, "c": 0.1}
    cover = (3 / eps) ** d
    expected = getattr(bounds, name)(1.5, 100, 0.1, delta / cover, **tail) + lip * eps
    got = bounds.uniform(1.5, 100, 0.1, delta, dimension=d, lipschitz=lip, eps=eps, bound=name, **tail)
    assert got == pytest.approx(expected, rel=1e-12)


def test_uniform_survives_dimensions_whose_cover_overflows() -> None:
    half = bounds.uniform(1.0, 100, 0.1, 0.05, dimension=5000, lipschitz=10.0)
    level = np.log(2 / 0.05) + 5000 * np.log(3 * 100 * 10 / 0.1)
    assert half == pytest.approx(0.1 * np.sqrt(2 * level / 100) + 0.1 / 100, rel=1e-12)


def test_uniform_covers_a_rotated_gaussian_gap_everywhere_on_the_circle() -> None:
    """The gap is z1 x1 + z2 x2: V = 1 at every point, the supremum is |z|, and |z|^2 is chi-square with 2 df.

    Its Lipschitz constant is |z| itself, bounded by 6 but for a probability of 1.5e-8.
    """
    half = bounds.uniform(1.0, 1, 1.0, 0.05, dimension=2, lipschitz=6.0)
    assert chi2.sf(half**2, 2) + chi2.sf(36.0, 2) <= 0.05


def test_uniform_does_not_depend_on_the_unit_of_the_response() -> None:
    half = bounds.uniform(1.0, 100, 0.1, 0.05, dimension=3, lipschitz=2.0)
    scaled = bounds.uniform(1.0, 100, 1e6 * 0.1, 0.05, dimension=3, lipschitz=1e6 * 2.0)
    assert scaled == pytest.approx(1e6 * half, rel=1e-12)


def test_uniform_with_a_flat_gap_needs_one_cover_of_radius_one() -> None:
    expected = bounds.tight(1.0, 100, 0.1, 0.05 / 3**4)
    assert bounds.uniform(1.0, 100, 0.1, 0.05, dimension=4, lipschitz=0.0) == pytest.approx(expected)


def test_observation_adds_the_new_noise_at_the_rest_of_delta() -> None:
    half = bounds.observation(lambda d: bounds.tight([1.0, 2.0], 50, 0.2, d), noise=[0.2, 0.5], delta=0.1, split=0.3)
    expected = bounds.tight([1.0, 2.0], 50, 0.2, 0.03) + np.array([0.2, 0.5]) * norm.isf(0.035)
    np.testing.assert_allclose(half, expected, rtol=1e-12)


def test_lipschitz_bound_holds_for_random_networks() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        weights = [rng.standard_normal(shape) for shape in [(5, 3), (4, 5), (1, 4)]]
        lam = 10 ** rng.uniform(-4, 0)
        objective = rng.exponential() + lam / 2 * sum(np.sum(W**2) for W in weights)
        product = np.prod([np.linalg.norm(W, 2) for W in weights])
        assert product <= bounds.lipschitz_network(objective, lam, 3)


def test_lipschitz_bound_is_attained_by_a_chain_of_equal_weights_so_the_factor_two_is_needed() -> None:
    w, layers, lam = 1.7, 4, 0.01
    objective = lam / 2 * layers * w**2
    assert bounds.lipschitz_network(objective, lam, layers) == pytest.approx(w**layers)
    assert (objective / (lam * layers)) ** (layers / 2) < w**layers


def test_gap_may_move_twice_as_fast_as_the_network() -> None:
    assert bounds.lipschitz_gap(0.3, 0.01, 3) == 2 * bounds.lipschitz_network(0.3, 0.01, 3)


def test_lipschitz_bound_overflows_to_infinity_without_a_warning() -> None:
    assert bounds.lipschitz_network(1e300, 1e-300, 50) == np.inf


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e6), st.integers(1, 10**6), st.integers(1, 10**8), st.floats(-2, 2))
def test_fisher_damping_satisfies_its_own_inequality(
    noise: float, curvature: float, n: int, p: int, eigenvalue: float
) -> None:
    damping = bounds.fisher_damping(noise, curvature, n, p, eigenvalue)
    count = n * np.sqrt(2 * p)
    assert damping.scale == pytest.approx(2 * noise * curvature / np.sqrt(n))
    needed = damping.scale * np.sqrt(max(0.0, np.log(count / damping.alpha)))
    assert damping.alpha >= needed * (1 - 4 * EPS)
    assert damping.value + eigenvalue >= damping.alpha * (1 - 1e-9) - 4 * EPS * abs(eigenvalue)  # of the difference
    if count >= np.e * damping.scale:
        assert damping.alpha == pytest.approx(damping.scale * np.sqrt(np.log(count / damping.scale)))


def test_the_published_damping_does_not_satisfy_that_inequality() -> None:
    sigma, C, n, p = 0.1, 1.0, 1000, 500
    alpha = np.sqrt(2 * n**2 * p / (n**3 * p / (C * sigma**2) + 1))
    needed = 2 * sigma * np.sqrt(C * np.log(n * np.sqrt(2 * p) / alpha) / n)
    assert alpha < needed


def test_a_model_without_curvature_needs_no_damping() -> None:
    assert bounds.fisher_damping(0.1, 0.0, 100, 10, 0.3) == bounds.Damping(0.0, 0.0, 0.0)


def test_fisher_comparison_holds_at_the_damping_by_simulation() -> None:
    """E M(theta*) <= I(theta*)^-1 + I/n for curvatures of norm C, the mean over draws of the noise."""
    rng = np.random.default_rng(11)
    n, p, sigma, draws = 40, 3, 0.3, 4000
    G = rng.standard_normal((n, p)) * np.array([1.0, 0.3, 0.05])
    B = rng.standard_normal((n, p, p))
    B = B + B.transpose(0, 2, 1)
    B /= np.linalg.norm(B, 2, axis=(1, 2))[:, None, None]
    fisher = G.T @ G / n
    total = np.zeros((p, p))
    for z in sigma * rng.standard_normal((draws, n)):
        R = np.tensordot(z, B, axes=1) / n
        damping = bounds.fisher_damping(sigma, 1.0, n, p, float(np.linalg.eigvalsh(R)[0]))
        inverse = np.linalg.inv(fisher + R + damping.value * np.eye(p))
        total += inverse @ fisher @ inverse / draws
    assert np.linalg.eigvalsh(np.linalg.inv(fisher) + np.eye(p) / n - total)[0] >= 0


positive = st.floats(1e-4, 1e4)
factor = st.floats(-12, 12).map(lambda exponent: 10.0**exponent)
share = st.floats(0, 10)
level = st.floats(1e-9, 0.9)


@given(positive, share, share, level, factor)
def test_the_width_scales_with_the_unit_of_the_response(V: float, v: float, c: float, delta: float, a: float) -> None:
    plain = bounds.tight(V, 30, 0.7, delta, v=v * V, c=c * V)
    assert bounds.tight(V, 30, a * 0.7, delta, v=v * V, c=c * V) == pytest.approx(a * plain, rel=1e-14)


@given(positive, share, share, level, factor)
def test_the_width_scales_with_the_unit_of_the_functional(V: float, v: float, c: float, delta: float, a: float) -> None:
    """Scaling q by a scales V, v and c by a^2."""
    plain = bounds.tight(V, 30, 0.7, delta, v=v * V, c=c * V)
    scaled = bounds.tight(a**2 * V, 30, 0.7, delta, v=a**2 * v * V, c=a**2 * c * V)
    assert scaled == pytest.approx(a * plain, rel=1e-13)


@settings(max_examples=200)
@given(positive, share, share, level, st.floats(1.0, 3.0))
def test_the_width_never_shrinks_with_more_norm_more_tail_or_less_delta(
    V: float, v: float, c: float, delta: float, more: float
) -> None:
    plain = bounds.tight(V, 30, 0.7, delta, v=v * V, c=c * V) * (1 - 1e-14)
    assert bounds.tight(more * V, 30, 0.7, delta, v=v * V, c=c * V) >= plain
    assert bounds.tight(V, 30, 0.7, delta, v=more * v * V, c=c * V) >= plain
    assert bounds.tight(V, 30, 0.7, delta, v=v * V, c=more * c * V) >= plain
    assert bounds.tight(V, 30, 0.7, delta / more, v=v * V, c=c * V) >= plain


@pytest.mark.parametrize("name", ["tight", "theorem", "sharp"])
def test_bounds_broadcast_over_every_argument(name: str) -> None:
    rng = np.random.default_rng(0)
    V, noise, v, c = (
        rng.uniform(0.1, 1, 5),
        rng.uniform(0.1, 1, (3, 1)),
        rng.uniform(size=5),
        rng.uniform(size=5),
    )
    bound = getattr(bounds, name)
    table = bound(V, 20, noise, 0.1, v=v, c=c)
    assert table.shape == (3, 5)
    for i, j in np.ndindex(3, 5):
        assert table[i, j] == pytest.approx(bound(V[j], 20, noise[i, 0], 0.1, v=v[j], c=c[j]), rel=1e-14)
    assert bound([], 20, 1.0, 0.1).shape == (0,)
    assert isinstance(bound(1.0, 20, 1.0, 0.1), np.ndarray)


def test_no_variance_and_no_tail_is_no_width() -> None:
    assert bounds.tight(0.0, 10, 1.0, 0.05) == 0.0


@pytest.mark.parametrize("name", ["tight", "theorem", "sharp"])
def test_no_variance_but_a_tail_is_a_finite_width(name: str) -> None:
    for v, c in [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1e-200, 1e-100), (1e100, 1e-100)]:
        half = getattr(bounds, name)(0.0, 10, 1.0, 0.05, v=v, c=c)
        assert np.isfinite(half)
        assert half > 0


def test_a_pure_scale_tail_is_the_limit_of_small_norms() -> None:
    """With V = v = 0 the integral vanishes and l/s is least at the end s = sqrt(2/k): l sqrt(k/2)."""
    limit = np.log(2 / 0.05) * np.sqrt(3.0 / 2)
    assert bounds.tight(0.0, 1, 1.0, 0.05, c=3.0) == pytest.approx(limit, rel=1e-14)
    assert bounds.tight(1e-14, 1, 1.0, 0.05, v=1e-14, c=3.0) == pytest.approx(limit, rel=1e-12)


@pytest.mark.parametrize("name", ["tight", "theorem", "sharp", "chebyshev", "asymptotic"])
def test_nan_norm_stays_nan_and_infinite_norm_infinite(name: str) -> None:
    half = getattr(bounds, name)([np.nan, 1.0, np.inf], 10, 1.0, 0.05)
    assert np.isnan(half[0])
    assert np.isfinite(half[1])
    assert half[2] == np.inf


def test_nan_tails_stay_nan() -> None:
    half = bounds.tight([1.0, 1.0, 1.0], 10, 1.0, 0.05, v=[np.nan, 0.1, 0.1], c=[0.1, np.nan, 0.1])
    assert np.isnan(half).tolist() == [True, True, False]


def test_the_smallest_delta_of_floating_point_is_still_a_level() -> None:
    tiny = np.nextafter(0.0, 1.0)
    assert bounds.tight(1.0, 1, 1.0, tiny) == pytest.approx(np.sqrt(2 * (np.log(2) - np.log(tiny))))


@pytest.mark.parametrize("name", ["tight", "theorem", "sharp", "chebyshev", "asymptotic"])
@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.5, np.nan])
def test_delta_outside_its_range_is_refused(name: str, delta: float) -> None:
    with pytest.raises(InputError, match="delta"):
        getattr(bounds, name)(1.0, 10, 1.0, delta)


@pytest.mark.parametrize("name", ["tight", "theorem", "sharp", "chebyshev", "asymptotic"])
@pytest.mark.parametrize("noise", [0.0, -1.0, np.nan, np.inf, [1.0, 0.0]])
def test_noise_that_is_not_positive_is_refused(name: str, noise: float) -> None:
    with pytest.raises(InputError, match="noise"):
        getattr(bounds, name)([1.0, 2.0], 10, noise, 0.05)


@pytest.mark.parametrize("name", ["tight", "theorem", "sharp"])
def test_negative_norms_and_tails_are_refused_by_name(name: str) -> None:
    bound = getattr(bounds, name)
    with pytest.raises(InputError, match=r"v must not be negative; found -0\.1"):
        bound(1.0, 10, 1.0, 0.05, v=[0.1, -0.1])
    with pytest.raises(InputError, match="c must not be negative"):
        bound(1.0, 10, 1.0, 0.05, c=-1.0)
    with pytest.raises(InputError, match="norm must not be negative"):
        bound([np.nan, -1.0], 10, 1.0, 0.05)
    with pytest.raises(InputError, match="n must be positive"):
        bound(1.0, 0, 1.0, 0.05)


def test_options_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="bound='loose' is not known"):
        bounds.empirical(1.0, 10, 1.0, 0.05, v=0.1, c=0.1, bound="loose")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="split"):
        bounds.empirical(1.0, 10, 1.0, 0.05, v=0.1, c=0.1, split=1.0)
    with pytest.raises(InputError, match="eps"):
        bounds.uniform(1.0, 10, 1.0, 0.05, dimension=2, lipschitz=1.0, eps=1.5)
    with pytest.raises(InputError, match="dimension"):
        bounds.uniform(1.0, 10, 1.0, 0.05, dimension=0, lipschitz=1.0)
    with pytest.raises(InputError, match="df"):
        bounds.asymptotic(1.0, 10, 1.0, 0.05, df=0)
    with pytest.raises(InputError, match="layers"):
        bounds.lipschitz_network(1.0, 0.1, 0)
    with pytest.raises(InputError, match="lam"):
        bounds.lipschitz_network(1.0, 0.0, 2)
    with pytest.raises(InputError, match="smallest_eigenvalue"):
        bounds.fisher_damping(0.1, 1.0, 10, 3, np.nan)
