"""V from random probes: its distribution is known, and the level accounts for it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import vhat
from tests.sketch.cases import curve, network, points, sampled, tangent
from vhat.intervals.half_width import Values, half_widths
from vhat.intervals.sampled_variance import delta_of_sampled
from vhat.intervals.tail import MODERATE


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["curve", "two outputs", "weights", "linearised"])
def test_sampled_over_exact_norm_is_chi_square_over_its_degrees_of_freedom(kind, monkeypatch):
    if kind == "curve":
        fitted, x, options = curve(), np.array([0.5, 5.0]), {}
    elif kind == "two outputs":
        fitted, x, options = network(outputs=2, n=30, width=3), points(m=2), {"noise": np.array([[0.1, 0.3]])}
    elif kind == "weights":
        sigma = np.random.default_rng(3).uniform(0.05, 0.2, 30)
        fitted, x, options = network(n=30, width=3, sample_weight=1 / sigma**2), points(m=2), {"noise": sigma}
    else:
        fitted, x, options = tangent(n=40)[0], points(3, m=2), {}
    exact = fitted.sketch(**options).weighted_norm(x).value
    seeds = 200
    K = 16
    ratios = np.array(
        [sampled(fitted, K, monkeypatch, seed=seed, **options).weighted_norm(x).value / exact for seed in range(seeds)]
    )
    for ratio in ratios.reshape(seeds, -1).T:
        assert stats.kstest(K * ratio, stats.chi2(K).cdf).pvalue > 1e-4
    # the relative standard deviation of sqrt(V), to four of its own standard errors
    spread = np.std(np.sqrt(ratios), axis=0)
    expected = np.sqrt(1 - stats.chi(K).mean() ** 2 / K)
    assert np.all(np.abs(spread / expected - 1) < 4 / np.sqrt(2 * seeds))


@pytest.mark.slow
@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
@pytest.mark.parametrize("solver", [vhat.Dual(), vhat.Primal(), vhat.CG()], ids=lambda each: each.name)
def test_every_solver_gives_the_same_probes(solver, curvature, monkeypatch):
    fitted = network(n=40, width=4)
    x = points(m=6)
    known = sampled(fitted, 16, monkeypatch, curvature=curvature, solver=vhat.Dense()).interval(x, bound="asymptotic")
    found = sampled(fitted, 16, monkeypatch, curvature=curvature, solver=solver).interval(x, bound="asymptotic")
    np.testing.assert_allclose(found.half_width, known.half_width, rtol=1e-5)
    np.testing.assert_allclose(found.unsupported, known.unsupported, atol=1e-5)


@pytest.mark.slow
def test_unsupported_is_estimated(monkeypatch):
    fitted = network(lam=0.3)
    x = points()
    found = sampled(fitted, 2000, monkeypatch, curvature="ggn").interval(x).unsupported
    known = fitted.interval(x, curvature="ggn").unsupported
    # the share a/(a + b) of two chi-squares: its standard deviation is at most 1/4 sqrt(2/K) sqrt(2)
    assert np.max(np.abs(found - known)) < 5 * 0.25 * np.sqrt(4 / 2000)


@pytest.mark.parametrize("probes", [8, 64, 256])
@pytest.mark.parametrize("delta", [0.1, 0.05, 1e-3])
def test_the_normal_multiplier_becomes_that_of_students_t(probes, delta):
    smaller = delta_of_sampled(lambda d: stats.norm.isf(d / 2), probes, delta, table=96)
    assert stats.norm.isf(smaller / 2) == pytest.approx(stats.t.isf(delta / 2, probes), rel=1e-3)


def test_chebyshevs_multiplier_has_a_closed_form():
    one = np.ones(1)
    found = half_widths(Values(one, 1, one, None, None, probes=64), "chebyshev", None, 0.05)
    assert found[0] == pytest.approx(np.sqrt(64 / 62 / 0.05), rel=2e-3)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("df", [None, 12.0])
def test_the_level_is_kept_over_seeds_and_noise(share, df):
    """Monte Carlo over probes, noise and estimated level; ``share`` is the fresh part of the variance."""
    draws = 400_000
    K = 16
    delta = 0.1
    rng = np.random.default_rng(1)
    V = (1 - share) * rng.chisquare(K, draws) / K
    level = np.ones(draws) if df is None else np.sqrt(rng.chisquare(df, draws) / df)
    fresh = None if share == 0 else np.sqrt(share) * level
    values = Values(V, 1, level, fresh, None if df is None else np.asarray(df), probes=K)
    missed = np.mean(np.abs(rng.standard_normal(draws)) > half_widths(values, "exact", "constant", delta))
    error = np.sqrt(delta * (1 - delta) / draws)
    assert missed < delta + 4 * error
    if share == 0:
        assert missed > delta - 4 * error


def test_the_isoperimetric_bound_is_widened_too():
    one = np.ones(1)
    plain = half_widths(Values(one, 1, one, None, None), "isoperimetric", MODERATE, 0.05)
    found = half_widths(Values(one, 1, one, None, None, probes=256), "isoperimetric", MODERATE, 0.05)
    assert 1.003 < found[0] / plain[0] < 1.008


@pytest.mark.slow
def test_limits_of_the_norm_hold_for_all_points_at_once(monkeypatch):
    fitted = curve()
    x = np.linspace(0, 6, 20)
    exact = fitted.weighted_norm(x).value
    failed = 0
    for seed in range(200):
        low, high = sampled(fitted, 16, monkeypatch, seed=seed).variance_limits(x, 0.1)
        failed += bool(np.any((exact < low) | (exact > high)))
    assert failed <= stats.binom.isf(1e-4, 200, 0.1)


def width(fitted, probes, monkeypatch, **options):
    return sampled(fitted, probes, monkeypatch, **options).interval([1.0], bound="asymptotic").half_width


def test_the_same_seed_gives_the_same_sketch_and_another_does_not(monkeypatch):
    fitted = curve()
    one, two, other = (
        sampled(fitted, 16, monkeypatch, seed=seed).interval([1.0], bound="asymptotic").half_width for seed in (0, 0, 1)
    )
    assert one == two
    assert one != other


def test_probes_do_not_depend_on_how_many_are_solved_together(monkeypatch):
    fitted = curve()
    whole = width(fitted, 20, monkeypatch)
    monkeypatch.setattr("vhat.sketch.roots._MOST_TOGETHER", 3)
    np.testing.assert_allclose(width(fitted, 20, monkeypatch), whole, rtol=1e-10)


def test_after_ctrl_c_a_second_call_goes_on(monkeypatch):
    from vhat.sketch import roots

    fitted = curve()
    whole = width(curve(), 20, monkeypatch)
    monkeypatch.setattr(roots, "_MOST_TOGETHER", 4)
    solved = roots._solve
    calls = []

    def stopping(problem, prepared, rows):
        calls.append(len(rows))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return solved(problem, prepared, rows)

    monkeypatch.setattr(roots, "_solve", stopping)
    with pytest.raises(vhat.Interrupted, match="8 of 60 probes were solved"):
        fitted.sketch(20)
    before = len(calls)
    found = fitted.sketch(20).interval([1.0], bound="asymptotic").half_width
    np.testing.assert_allclose(found, whole, rtol=1e-10)
    assert len(calls) - before == 1 + 3 + 5 + 5  # two gradients, what was left of the first set, two more sets


def test_the_sentence_names_the_probes(monkeypatch):
    band = sampled(curve(), 64, monkeypatch).interval([1.0])
    assert "64 random probes that V is estimated from (the sampling error of V is allowed for" in band.guarantee
    assert "Guaranteed" not in band.guarantee


def test_probes_that_do_not_fit_are_refused_before_any_work():
    fitted = network(memory=2**20)
    with pytest.raises(vhat.MemoryBudgetError, match="fewer probes"):
        fitted.sketch(100_000, solver=vhat.CG())


@pytest.mark.parametrize("probes", [7, 2.5, "many"])
def test_a_number_of_probes_that_makes_no_sense_is_refused(probes):
    with pytest.raises(vhat.InputError, match="probes="):
        curve().sketch(probes)


@pytest.mark.slow
def test_draws_by_matrix_products_are_those_by_vector_jacobian_products(monkeypatch):
    fitted = network(outputs=2, n=30, width=3)
    x = points(m=3)
    whole = sampled(fitted, 12, monkeypatch, noise=0.1).weighted_norm(x).value
    monkeypatch.setattr("vhat.sketch.roots._MOST_BY_ROWS", 0)
    np.testing.assert_allclose(sampled(fitted, 12, monkeypatch, noise=0.1).weighted_norm(x).value, whole, rtol=1e-9)


@pytest.mark.parametrize(("probes", "delta"), [(8, 1e-4), (16, 5e-6), (64, 1e-8)])
def test_a_delta_beyond_the_tables_is_refused_and_not_missed(probes, delta):
    """A level beyond the tables is refused rather than given a wrong multiplier."""
    one = np.ones(1)
    with pytest.raises(vhat.InputError, match="too small for a V that was estimated"):
        half_widths(Values(one, 1, one, None, None, probes=probes), "isoperimetric", "constant", delta)


def test_probes_are_not_the_noise_of_a_user_with_the_same_seed():
    from vhat.linalg.solvers.row_draws import RowDraws

    drawn = RowDraws(seed=0, kind=0, n=60, outputs=1).of(range(1), slice(0, 60)).ravel()
    assert not np.allclose(drawn, np.random.default_rng(0).standard_normal(60))
