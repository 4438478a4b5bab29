"""From a question to an interval: V is solved for once, and the multipliers of many points and few rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats

import vhat
from vhat.intervals import prepare, sup_t


def curve(q, x):
    return q[0] * np.exp(-q[1] * x)


@pytest.fixture
def fitted():
    x = np.linspace(0, 4, 30)
    y = 2.0 * np.exp(-x) + 0.05 * np.random.default_rng(0).standard_normal(30)
    return vhat.from_numpy(curve, [2.0, 1.0], x, y).polish()


@pytest.fixture
def solves(monkeypatch):
    """How often V is measured."""
    counted = []
    real = prepare.measure

    def measure(*args, **options):
        counted.append(1)
        return real(*args, **options)

    monkeypatch.setattr(prepare, "measure", measure)
    return counted


def test_v_of_the_same_rows_is_solved_for_once(fitted, solves):
    x = np.linspace(0, 4, 7)
    first = fitted.interval(x)
    for options in ({"delta": 0.01}, {"bound": "asymptotic"}, {"target": "observation"}, {"simultaneous": True}):
        again = fitted.interval(x.copy(), **options)
        np.testing.assert_array_equal(again.weighted_norm, first.weighted_norm)
    assert len(solves) == 1


def test_v_is_solved_for_again_where_rows_noise_curvature_or_solver_change(fitted, solves):
    x = np.linspace(0, 4, 7)
    fitted.interval(x)
    changed = x.copy()
    changed[3] += 1e-12
    fitted.interval(changed)
    fitted.interval(x, noise=0.3)
    fitted.interval(x, curvature="ggn")
    fitted.interval(x, solver=vhat.CG())
    assert len(solves) == 5


def test_noise_of_the_same_level_in_other_rows_is_another_noise(fitted, solves):
    x = np.linspace(0, 4, 7)
    levels = np.where(np.arange(30) < 15, 0.1, 0.3)
    for noise in (levels, levels[::-1], levels.copy()):
        fitted.interval(x, noise=noise)
    assert len(solves) == 2


def test_rows_changed_in_place_are_other_rows(fitted, solves):
    x = np.linspace(0, 4, 7)
    before = fitted.interval(x)
    x[:] = x[::-1].copy()
    after = fitted.interval(x)
    np.testing.assert_allclose(after.half_width, before.half_width[::-1], rtol=1e-12)
    assert len(solves) == 2


def test_the_index_of_a_frame_is_part_of_the_rows():
    """A model may read it: a time index, for one."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"u": rng.normal(size=40)}, index=0.1 * np.arange(40))

    def wave(q, Z):
        return q[0] * Z["u"].to_numpy() + q[1] * np.sin(q[2] * np.asarray(Z.index))

    fitted = vhat.from_numpy(wave, [1, 2, 0.9], rows, wave([1, 2, 0.9], rows) + 0.1 * rng.normal(size=40)).polish()
    early, late = (pd.DataFrame({"u": [0.0, 1.0]}, index=index) for index in ([0.5, 0.6], [9.5, 9.6]))
    fitted.interval(early, noise=0.1)
    found = fitted.interval(late, noise=0.1).half_width
    fitted.release()
    np.testing.assert_array_equal(fitted.interval(late, noise=0.1).half_width, found)


def test_only_a_few_questions_are_remembered_and_release_forgets_them(fitted, solves):
    for k in range(20):
        fitted.interval([0.1 * k])
    assert len(fitted.workspace._recent) <= 4
    fitted.release()
    fitted.interval([1.9])
    assert len(solves) == 21


# -- sup-t at small delta ------------------------------------------------------------------------------------
def test_a_delta_too_small_to_simulate_is_answered_by_the_union_bound(fitted):
    x = np.linspace(0, 4, 9)
    options = {"bound": "asymptotic", "noise": 0.05}
    small = fitted.interval(x, 1e-6, simultaneous="sup-t", **options)
    union = fitted.interval(x, 1e-6, simultaneous=True, **options)
    np.testing.assert_array_equal(small.half_width, union.half_width)
    assert "union bound: delta is too small to simulate sup-t" in small.guarantee
    usual = fitted.interval(x, 0.05, simultaneous="sup-t", **options)
    assert "(sup-t)" in usual.guarantee
    assert np.all(usual.half_width < fitted.interval(x, 0.05, simultaneous=True, **options).half_width)


@pytest.mark.parametrize("delta", [0.1, 0.01, 0.0025])
def test_simulated_quantiles_of_independent_points_keep_their_level(delta):
    """The largest of k independent normals is in closed form; the draws beyond the quantile bound its error."""
    quantile = sup_t.multiplier(np.eye(8), None, delta, seed=0)
    missed = 1 - (1 - 2 * stats.norm.sf(quantile)) ** 8
    assert abs(missed - delta) <= 4 * np.sqrt(delta * (1 - delta) / sup_t.DRAWS)


# -- an estimated noise level ---------------------------------------------------------------------------------
@pytest.mark.parametrize("df", [2.0, 5.0, 30.0])
@pytest.mark.parametrize("delta", [0.05, 1e-4])
def test_tight_with_estimated_noise_spends_exactly_delta_in_its_own_inequality(df, delta):
    """``2 E exp(-half^2 / (2 s^2-free variance))`` over ``s^2 = chi2_df / df``, by quadrature."""
    half = float(vhat.bounds.tight(1.0, 1, 1.0, delta, df=df))

    def missed(t):
        return 2 * np.exp(-(half**2) * t / 2) * stats.chi2.pdf(t * df, df) * df

    edges = [0, 1 / half**2, 10 / half**2, 100 / half**2, 100]
    miss = sum(integrate.quad(missed, *ends, epsabs=1e-14)[0] for ends in pairwise(sorted(edges)))
    assert miss == pytest.approx(delta, rel=1e-6)


def test_infinite_freedom_is_known_noise_for_every_bound():
    for name in ("tight", "theorem", "sharp", "chebyshev"):
        formula = getattr(vhat.bounds, name)
        np.testing.assert_array_equal(formula(2.0, 100, 0.1, 0.05, df=np.inf), formula(2.0, 100, 0.1, 0.05))


def test_bounds_by_name_allow_for_estimated_noise(fitted):
    x = [1.0, 2.0]
    for bound in ("tight", "theorem", "sharp", "chebyshev"):
        band = fitted.interval(x, bound=bound)
        formula = getattr(vhat.bounds, bound)
        expected = formula(band.weighted_norm, 30, band.noise, 0.05, df=band.df)
        np.testing.assert_allclose(band.half_width, expected, rtol=1e-12)
        assert np.all(band.half_width > fitted.interval(x, bound=bound, noise=band.noise).half_width)
        assert "allowed for as if it were independent of the fit" in band.guarantee


def test_chebyshev_with_v_plugged_in_misses_more_than_its_level():
    """F = z^2, W = 4 z^2 in place of 4: |z^2 - 1| > 2 |z| / sqrt(delta) for small |z|, 8.8% of the time at 0.05."""
    delta = 0.05
    z = np.sqrt(1 + 1 / delta) - np.sqrt(1 / delta)  # 1 - z^2 = 2 z / sqrt(delta)
    far = np.sqrt(1 + 1 / delta) + np.sqrt(1 / delta)
    missed = 1 - 2 * stats.norm.sf(z) + 2 * stats.norm.sf(far)
    assert missed == pytest.approx(0.088, abs=5e-4)
    for side in (0.999 * z, 1.001 * z):
        half = float(vhat.bounds.chebyshev(4 * side**2, 1, 1.0, delta))
        assert (abs(side**2 - 1) > half) == (side < z)


# -- parameters that are no minimum ---------------------------------------------------------------------------
def test_noise_estimated_away_from_a_minimum_is_said_to_be_doubtful(fitted):
    off = vhat.from_numpy(curve, np.asarray(fitted.params) * 1.3, fitted.problem.X, fitted.problem.targets[:, 0])
    with pytest.warns(vhat.NotMinimumWarning):
        band = off.interval([1.0])
    assert "may make it several times too large" in band.guarantee
    assert "may make it several times too large" not in off.interval([1.0], noise=0.05).guarantee
