"""The tail of V from redrawn responses: against laws known in closed form and against refits by dense Newton steps."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import vhat
from vhat.errors import PolishError
from vhat.evidence.minimise.polish import polish
from vhat.intervals import estimated_tail, monte_carlo_limits, prepare
from vhat.intervals.estimated_tail import fit_pair

ROWS, SIGMA = 4, 0.5


def square(q, X):
    """The training rows see q; the point x = 1 asks for q^2."""
    return np.where(X == 1.0, q[0] ** 2, q[0])


def fit_square(mean):
    """q is the mean of the responses, N(q*, sigma^2/n), and V(1) = 4 q^2: a noncentral chi-square."""
    return vhat.from_numpy(
        square,
        [mean],
        np.zeros(ROWS),
        np.full(ROWS, mean),
        jac=lambda q, X: np.where(X == 1.0, 2 * q[0], 1.0)[:, None],
        hess=lambda q, X: np.where(X == 1.0, 2.0, 0.0)[:, None, None],
    )


# -- the pair of given draws -------------------------------------------------------------------------------
def test_draws_of_a_gamma_law_give_its_own_pair():
    """Gamma(k, s): variance k s^2, and ln E exp(a(V - EV)) <= a^2 k s^2 / (2 (1 - s a)), sharp at both ends."""
    shapes, scale = np.array([0.5, 2.0, 8.0]), 3.0
    v, c = fit_pair(np.random.default_rng(0).gamma(shapes, scale, size=(40_000, 3)))
    np.testing.assert_allclose(v, np.sqrt(shapes) * scale, rtol=0.1)
    np.testing.assert_allclose(c, scale, rtol=0.2)


def test_the_inequality_holds_for_the_draws_themselves():
    rng = np.random.default_rng(1)
    draws = np.stack(
        [rng.lognormal(0, 1, 200), rng.uniform(0, 1, 200), rng.standard_t(3, 200), -rng.gamma(1, 1, 200)], 1
    )
    v, c = fit_pair(draws)
    assert np.all(v >= np.std(draws, axis=0))
    assert c[3] == 0.0  # leans to the left
    assert v[1] <= 0.55  # Hoeffding: 1/2 for a law on [0, 1]
    for k in range(4):
        centred = draws[:, k] - draws[:, k].mean()
        for a in np.geomspace(0.02, 50, 60) / np.std(centred):
            if a * c[k] < 1:
                psi = np.log(np.mean(np.exp(a * centred)))
                assert psi <= a**2 * v[k] ** 2 / (2 * (1 - c[k] * a)) * 1.03 + 1e-12


def test_a_norm_that_does_not_move_has_no_tail_and_one_that_is_missing_has_none_to_give():
    draws = np.column_stack([np.full(20, 2.0), np.arange(20.0), np.append(np.arange(19.0), np.nan)])
    v, c = fit_pair(draws)
    assert (v[0], c[0]) == (0.0, 0.0)
    assert v[1] > 0
    assert np.isnan(v[2])
    scaled = fit_pair(1e6 * draws[:, :2])
    np.testing.assert_allclose(scaled, 1e6 * np.array([v[:2], c[:2]]), rtol=1e-9)


# -- known laws of V -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("centre", [0.3, 1.0, 3.0])
def test_the_estimate_is_within_a_factor_two_of_a_known_pair(centre):
    """V = 4 (q* + tau z)^2 has v = 4 tau^2 sqrt(2 + 4 m^2) and c = 8 tau^2, m = q*/tau; q-hat is half a tau off."""
    tau = SIGMA / np.sqrt(ROWS)
    fitted = fit_square((centre + 0.5) * tau)
    tail = fitted.interval([1.0], tail="estimated", noise=SIGMA).tail
    assert tail.redraws == 100
    v, c = 4 * tau**2 * np.sqrt(2 + 4 * centre**2), 8 * tau**2
    assert 0.5 < tail.v[0] / v < 2
    assert 0.5 < tail.c[0] / c < 2
    assert tail.mean[0] == pytest.approx(4 * tau**2 * (1 + (centre + 0.5) ** 2), rel=0.5)


def test_the_plug_in_interval_covers_with_the_estimated_tail_and_not_without():
    """E q^2 = tau^2 at q* = 0. Over fifty equally likely sizes of the noise, V alone is too small in one of seven."""
    tau, sizes = SIGMA / np.sqrt(ROWS), stats.norm.ppf(0.5 + (np.arange(50) + 0.5) / 100)
    held = np.zeros((50, 2), dtype=bool)
    for i, z in enumerate(sizes):
        fitted = fit_square(tau * z)
        for j, tail in enumerate((None, vhat.Redraws(25))):
            band = fitted.interval([1.0], 0.05, tail=tail, noise=SIGMA)
            held[i, j] = band.lower[0] <= tau**2 <= band.upper[0]
    without, estimated = held.mean(axis=0)
    assert without < 0.9
    assert estimated >= 0.95


RNG = np.random.default_rng(5)
TIMES = np.linspace(0, 3, 25)
RESPONSES = 2 * np.exp(-TIMES) + 0.5 + 0.2 * RNG.standard_normal(25)
LAM = 1e-3


def curve(q, x):
    return q[0] * jnp.exp(-q[1] * x) + q[2]


@pytest.fixture(scope="module")
def fitted():
    return vhat.from_jax(curve, np.array([2.0, 1.0, 0.5]), TIMES, RESPONSES, weight_decay=LAM).polish()


POINTS = np.array([0.0, 1.0, 4.0])


def test_v_moves_as_it_does_in_refits_by_newton_along_the_noise(fitted):
    """Independent redraws, refitted by dense Newton steps of jax; V from explicit matrices."""
    redraws, sigma = 400, 0.08

    def objective(q, y):
        return 0.5 * jnp.mean((curve(q, TIMES) - y) ** 2) + 0.5 * LAM * jnp.sum(q**2)

    def norm(y, q):
        def step(i, q):  # the minimum followed as the responses move from the old ones to the new
            now = RESPONSES + jnp.minimum(i / 80, 1.0) * (y - RESPONSES)
            return q - jnp.linalg.solve(jax.hessian(objective)(q, now), jax.grad(objective)(q, now))

        q = jax.lax.fori_loop(0, 100, step, q)
        J, g = jax.jacobian(curve)(q, TIMES), jax.jacobian(curve)(q, POINTS)
        h = jnp.linalg.solve(jax.hessian(objective)(q, y), g.T)
        return jnp.mean((J @ h) ** 2, axis=0), jnp.linalg.norm(jax.grad(objective)(q, y))

    with jax.enable_x64(True):
        q = jnp.asarray(fitted.params)
        y = curve(q, TIMES) + sigma * np.random.default_rng(9).standard_normal((redraws, 25))
        V, slopes = jax.jit(jax.vmap(norm, in_axes=(0, None)))(y, q)
        assert float(slopes.max()) < 1e-12
    V = np.asarray(V)
    tail = fitted.interval(POINTS, tail=vhat.Redraws(100), noise=sigma).tail
    error = V.std(axis=0) * np.sqrt(1 / 100 + 1 / redraws)
    assert np.all(np.abs(tail.mean - V.mean(axis=0)) < 4 * error)
    np.testing.assert_allclose(tail.v, V.std(axis=0), rtol=0.25)
    assert np.all(V.std(axis=0) > 0.03 * V.mean(axis=0))  # there is something to estimate
    assert tail.lost == 0


# -- what is said ---------------------------------------------------------------------------------------------
def test_the_band_says_that_its_tail_was_estimated_and_pays_for_it(fitted):
    plain = fitted.interval(POINTS, noise=0.2)
    band = fitted.interval(POINTS, tail=vhat.Redraws(20), noise=0.2)
    assert "E[V] and the standard deviation of V as estimated from 20 redraws" in band.guarantee
    assert "V in place of its mean" not in band.guarantee
    assert "does not vary with the noise" not in band.guarantee
    assert isinstance(band.tail, vhat.EstimatedTail)
    assert "from 20 redraws" in repr(band.tail)
    # A twentieth of delta pays for the Monte Carlo error of the mean, another for that of the spread.
    mean = monte_carlo_limits.mean_limit(band.tail.draws, 0.05 / 20)
    sd = monte_carlo_limits.sd_limit(band.tail.draws, 0.05 / 20)
    assert np.all(mean > band.tail.draws.mean(axis=0))
    expected = vhat.bounds.isoperimetric(mean, 25, 0.2, 0.05 * 0.9, sd=sd)
    np.testing.assert_allclose(band.half_width, expected, rtol=1e-12)
    tight = fitted.interval(POINTS, tail=band.tail, noise=0.2, bound="tight")
    expected = vhat.bounds.tight(mean, 25, 0.2, 0.05 * 0.9, v=band.tail.v, c=band.tail.c)
    np.testing.assert_allclose(tight.half_width, expected, rtol=1e-12)
    assert plain.guarantee != band.guarantee
    again = fitted.interval(POINTS, tail=band.tail, noise=0.2)
    np.testing.assert_array_equal(again.half_width, band.half_width)
    assert again.guarantee == band.guarantee
    for points, noise in ((POINTS[:2], 0.2), (POINTS[::-1].copy(), 0.2), (POINTS, 0.3)):
        with pytest.raises(vhat.InputError, match="A tail belongs to its points"):
            fitted.interval(points, tail=band.tail, noise=noise)


def test_a_linear_model_has_no_tail_to_estimate():
    X = RNG.normal(size=(20, 3))
    fitted = vhat.from_jax(lambda q, Z: Z @ q, np.zeros(3), X, X.sum(axis=1), weight_decay=0.1).polish()
    band, plain = fitted.interval(X, tail=vhat.Redraws(10), noise=1.0), fitted.interval(X, noise=1.0)
    np.testing.assert_allclose(band.half_width, plain.half_width, rtol=1e-6)


# -- invariance --------------------------------------------------------------------------------------------------
def test_a_row_alone_has_the_tail_that_it_has_in_company_and_a_prediction_is_a_functional(fitted):
    options = {"tail": vhat.Redraws(12), "noise": 0.2}
    company = fitted.interval(POINTS, **options)
    alone = fitted.interval(POINTS[1:2], **options)
    np.testing.assert_allclose(alone.half_width[0], company.half_width[1], rtol=1e-9)
    functional = fitted.functional(lambda q: curve(q, jnp.asarray(POINTS)), **options)
    np.testing.assert_allclose(functional.half_width, company.half_width, rtol=1e-9)
    assert fitted.functional(lambda q: q[0] / q[1], **options).tail.v.shape == ()


def test_the_unit_of_y_scales_the_interval_and_not_the_tail(fitted):
    a = 1e4
    theta = np.asarray(fitted.params) * [a, 1.0, a]
    scaled = vhat.from_jax(curve, theta, TIMES, a * RESPONSES, weight_decay=np.array([LAM, a * a * LAM, LAM]))
    one = fitted.interval(POINTS, tail=vhat.Redraws(12), noise=0.2)
    other = scaled.interval(POINTS, tail=vhat.Redraws(12), noise=a * 0.2)
    np.testing.assert_allclose(other.half_width, a * one.half_width, rtol=1e-6)
    np.testing.assert_allclose(other.tail.v, one.tail.v, rtol=1e-5)


def test_two_outputs_have_a_pair_each():
    def both(q, x):
        return jnp.stack([q[0] * jnp.exp(-q[1] * x), q[1] * x], axis=1)

    y = np.stack([2 * np.exp(-TIMES), TIMES], axis=1) + 0.1 * RNG.standard_normal((25, 2))
    fitted = vhat.from_jax(both, np.array([2.0, 1.0]), TIMES, y, weight_decay=1e-4).polish()
    band = fitted.interval(POINTS, tail=vhat.Redraws(10))
    assert band.tail.v.shape == band.half_width.shape == (3, 2)
    assert np.all(np.isfinite(band.half_width))


# -- refusals ------------------------------------------------------------------------------------------------------
def test_what_cannot_be_estimated_is_refused_in_words(fitted):
    for tail in ("guessed", 3.0):
        with pytest.raises(vhat.InputError, match="Use None, 'estimated'"):
            fitted.interval(POINTS, tail=tail)
    with pytest.raises(vhat.InputError, match="takes no tail"):
        fitted.interval(POINTS, tail="estimated", bound="asymptotic")
    with pytest.raises(vhat.InputError, match="count=5 is not a whole number of at least 10"):
        vhat.Redraws(5)
    off = vhat.from_jax(curve, np.array([3.0, 0.5, 0.1]), TIMES, RESPONSES, weight_decay=LAM)
    with pytest.warns(vhat.NotMinimumWarning), pytest.raises(vhat.InputError, match=r"Call fitted\.polish\(\) first"):
        off.interval(POINTS, tail="estimated", noise=0.2, curvature="ggn")


def test_a_loss_without_residuals_has_no_responses_to_redraw():
    fitted = vhat.from_jax(
        lambda q, Z: q * jnp.ones(len(Z)),
        np.log(2.0),
        np.zeros((5, 1)),
        np.array([1.0, 2.0, 0.0, 3.0, 4.0]),
        weight_decay=0.0,
        loss=lambda f, t: jnp.sum(jnp.exp(f) - t * f),
    )
    with pytest.raises(vhat.InputError, match="not a function of f - y"):
        fitted.interval(np.zeros((1, 1)), tail="estimated", noise=1.0)


@pytest.mark.parametrize("every", [4, 15])
def test_redraws_without_a_minimum_are_counted_and_too_many_are_refused(fitted, monkeypatch, every):
    tried = []

    def sometimes(problem, **options):
        tried.append(1)
        if len(tried) % every == 0:
            raise PolishError("a fold")
        return polish(problem, **options)

    monkeypatch.setattr("vhat.intervals.estimated_tail.polish", sometimes)
    options = {"tail": vhat.Redraws(16), "noise": 0.2, "seed": every}
    if every == 4:
        with pytest.raises(vhat.InputError, match="4 of 16 redraws of the responses led to no certified minimum"):
            fitted.interval(POINTS, **options)
    else:
        band = fitted.interval(POINTS, **options)
        assert band.tail.lost == 1
        assert "from 15 redraws of the responses about this fit (1 more reached no minimum)" in band.guarantee


def test_a_point_without_a_tail_has_no_interval_and_says_so(fitted, monkeypatch):
    real = estimated_tail.measure

    def hole(*args, **options):
        found = real(*args, **options)
        return replace(found, variance=np.where(np.arange(found.variance.size) == 1, np.nan, found.variance))

    monkeypatch.setattr(estimated_tail, "measure", hole)
    with pytest.warns(vhat.ConvergenceWarning, match="row 1"):
        band = fitted.interval(POINTS, tail=vhat.Redraws(10), noise=0.2)
    assert list(band.status) == ["converged", "not converged", "converged"]
    assert np.isnan(band.upper).tolist() == [False, True, False]


@pytest.mark.parametrize("bound", ["isoperimetric", "tight"])
def test_a_point_whose_own_solve_failed_has_no_interval_whatever_the_redraws_say(fitted, monkeypatch, bound):
    real = prepare.measure

    def fail(*args, **options):
        found = real(*args, **options)
        failed = np.arange(found.variance.size) == 1
        status = np.where(failed, "not converged", found.status)
        return replace(found, variance=np.where(failed, np.nan, found.variance), status=status)

    monkeypatch.setattr(prepare, "measure", fail)
    with pytest.warns(vhat.ConvergenceWarning, match="row 1"):
        band = fitted.interval(POINTS, tail=vhat.Redraws(10), noise=0.21, bound=bound)
    assert np.isnan(band.half_width).tolist() == [False, True, False]
