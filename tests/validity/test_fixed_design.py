"""Networks at certified minima under redrawn noise: what sigma sqrt(V/n) and the bounds say, and what predictions do.

Refits and standard errors come from dense matrices (``redraws.py``), half widths from ``vhat.bounds``; at some redraws
both are compared with what the library answers, so that its intervals are what is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import vhat
from tests.validity.redraws import STATIONARY, Answers, Design, Refits, answers, predictions, refit
from vhat import bounds

pytestmark = pytest.mark.slow

NOISE, LAM, DELTA, REDRAWS = 0.1, 1e-3, 0.05, 500
LEVELS = np.array([0.1, 0.2])
"""Noise of the two outputs."""
FEW = 10
"""Redraws at which the library is asked, and whose median standard error is compared with the standard deviation."""
RATIOS = {0.1: 0.78, 0.05: 0.83, 0.01: 0.96}
"""Largest width of the default bound over that of `tight` without a tail, by delta."""


def narrow(q, Z):
    """One input, ten tanh units: p = 31."""
    return jnp.tanh(Z * q[:10] + q[10:20]) @ q[20:30] + q[30]


def wide(q, Z):
    """Two inputs, 24 tanh units: p = 97."""
    return jnp.tanh(Z @ q[:48].reshape(2, 24) + q[48:72]) @ q[72:96] + q[96]


def short(q, Z):
    """One input, eight tanh units: p = 25."""
    return jnp.tanh(Z * q[:8] + q[8:16]) @ q[16:24] + q[24]


def forked(q, Z):
    """One input, six tanh units that two outputs share: p = 26."""
    return jnp.tanh(Z * q[:6] + q[6:12]) @ q[12:24].reshape(6, 2) + q[24:]


def fewer_parameters_than_rows() -> tuple[Design, np.ndarray]:
    """p = 31, n = 64 on [-2, 2]; test points on [-3.5, 3.5]."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-2, 2, 64))[:, None]
    start = np.concatenate([2 * rng.normal(size=20), rng.normal(size=10) / np.sqrt(10), [0.0]])
    return Design(narrow, X, np.sin(2 * X[:, 0]), NOISE, LAM, start), np.linspace(-3.5, 3.5, 29)[:, None]


def more_parameters_than_rows() -> tuple[Design, np.ndarray]:
    """p = 97, n = 48 on a square of side 3; 16 test points inside it, 12 on a circle around it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.5, 1.5, (48, 2))
    truth = np.sin(2 * X[:, 0]) + 0.5 * X[:, 0] * X[:, 1]
    start = np.concatenate([rng.normal(size=72), rng.normal(size=25) / np.sqrt(24)])
    angle = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    around = 2.8 * np.column_stack([np.cos(angle), np.sin(angle)])
    return Design(wide, X, truth, NOISE, LAM, start), np.concatenate([rng.uniform(-1.5, 1.5, (16, 2)), around])


def unequal_noise() -> tuple[Design, np.ndarray]:
    """p = 25, n = 60 on [-2, 2]; the noise grows sevenfold from left to right."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-2, 2, 60))[:, None]
    start = np.concatenate([2 * rng.normal(size=16), rng.normal(size=8) / np.sqrt(8), [0.0]])
    noise = NOISE * np.exp(0.5 * X[:, 0])
    return Design(short, X, np.sin(2 * X[:, 0]), noise, LAM, start), np.linspace(-3, 3, 25)[:, None]


def two_outputs() -> tuple[Design, np.ndarray]:
    """p = 26, n = 60 on [-2, 2], noise of a different size in each output."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-2, 2, 60))[:, None]
    truth = np.column_stack([np.sin(2 * X[:, 0]), np.cos(1.5 * X[:, 0])])
    start = np.concatenate([2 * rng.normal(size=12), rng.normal(size=12) / np.sqrt(6), [0.0, 0.0]])
    return Design(forked, X, truth, LEVELS[None, :], LAM, start), np.linspace(-3, 3, 15)[:, None]


@dataclass(frozen=True)
class Campaign:
    """One design, its certified refits, and what they say about the points x."""

    design: Design
    refits: Refits
    x: np.ndarray
    found: Answers

    @property
    def deviation(self) -> np.ndarray:
        """The true standard deviation of each prediction over the noise."""
        return np.std(self.found.value, axis=0, ddof=1)

    def half_width(self, bound: str, delta: float) -> np.ndarray:
        """Half widths of every redraw, (redraws, points, ...), in units where ``sigma^2 / n = 1``."""
        V = self.found.standard_error**2
        if bound == "isoperimetric":
            return bounds.isoperimetric(V, 1, 1.0, delta, v=V / 2, c=V / 4)
        return getattr(bounds, bound)(V, 1, 1.0, delta)

    def covered(self, half_width: np.ndarray) -> np.ndarray:
        """Which gaps from the mean over the redraws are within the half widths, (redraws, points * outputs)."""
        gaps = np.abs(self.found.value - self.found.value.mean(axis=0))
        return (gaps <= half_width).reshape(len(gaps), -1)

    def coverage(self, half_width: np.ndarray) -> tuple[float, float]:
        """The share of gaps within the half widths, and its standard error with redraws as independent units."""
        each = self.covered(half_width).mean(axis=1)
        return float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))


def fitted_at(design: Design, theta: np.ndarray, y: np.ndarray) -> vhat.FittedModel:
    return vhat.from_jax(design.predict, theta, design.X, y, weight_decay=design.lam, sample_weight=design.weight)


def models(campaign: Campaign) -> list[vhat.FittedModel]:
    """The library's models of the first few redraws."""
    refits = campaign.refits
    return [fitted_at(campaign.design, refits.theta[k], refits.y[k]) for k in range(FEW)]


@cache
def run(problem: Callable[[], tuple[Design, np.ndarray]]) -> Campaign:
    design, x = problem()
    design = design.settled()
    refits = refit(design, REDRAWS, seed=1)
    return Campaign(design, refits, x, answers(design, refits, x))


PROBLEMS = {
    "p<n": fewer_parameters_than_rows,
    "p>n": more_parameters_than_rows,
    "unequal noise": unequal_noise,
    "two outputs": two_outputs,
}


@pytest.fixture(scope="module", params=PROBLEMS)
def campaign(request) -> Campaign:
    return run(PROBLEMS[request.param])


def test_nearly_every_refit_is_a_certified_minimum(campaign):
    """At most 2% may be dropped, so that dropping cannot hide a tail of 5%."""
    assert campaign.refits.dropped <= 0.02 * REDRAWS
    assert len(campaign.refits.theta) >= 490
    assert campaign.refits.gradient.max() < STATIONARY
    assert campaign.refits.smallest.min() > 0


def test_the_library_answers_as_the_dense_matrices_do(campaign):
    """Center, standard error, and the half widths of three bounds: to 1e-6."""
    for k, fitted in enumerate(models(campaign)):
        for bound in ("isoperimetric", "tight", "asymptotic"):
            band = fitted.interval(campaign.x, DELTA, noise=campaign.design.noise, curvature="hessian", bound=bound)
            np.testing.assert_allclose(band.center, campaign.found.value[k], rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(band.standard_error, campaign.found.standard_error[k], rtol=1e-6)
            np.testing.assert_allclose(band.half_width, campaign.half_width(bound, DELTA)[k], rtol=1e-6)


def test_standard_error_is_the_standard_deviation_over_the_noise(campaign):
    """Within [0.8, 1.25] at 80% of the points; 500 redraws know the standard deviation to 3%."""
    ratio = np.median(campaign.found.standard_error[:FEW], axis=0) / campaign.deviation
    assert len(ratio) >= 15
    assert np.mean((ratio >= 0.8) & (ratio <= 1.25)) >= 0.8
    assert 0.9 < np.median(ratio) < 1.1


# -- the default bound ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("delta", RATIOS)
def test_the_default_covers_the_mean_of_the_prediction(campaign, delta):
    """V is plugged in and its tail assumed, so that this is evidence, not a theorem."""
    covered, _ = campaign.coverage(campaign.half_width("isoperimetric", delta))
    assert covered >= 1 - delta


@pytest.mark.parametrize("delta", RATIOS)
def test_the_default_covers_at_the_worst_points_nearly_as_often(campaign, delta):
    """The tenth of the points that are covered least: within four points of the level."""
    each = np.sort(campaign.covered(campaign.half_width("isoperimetric", delta)).mean(axis=0))
    worst = each[: int(np.ceil(0.1 * len(each)))]
    assert worst.mean() >= 1 - delta - 0.04


@pytest.mark.parametrize("delta", RATIOS)
def test_the_default_is_narrower_than_tight(campaign, delta):
    widths = [campaign.half_width(bound, delta).mean() for bound in ("isoperimetric", "tight")]
    assert widths[0] <= RATIOS[delta] * widths[1]


@pytest.mark.parametrize("delta", RATIOS)
def test_the_default_halved_does_not_cover(campaign, delta):
    """The checks of coverage can fail: half the width misses by far more than Monte Carlo error."""
    covered, error = campaign.coverage(campaign.half_width("isoperimetric", delta) / 2)
    assert covered + 3 * error < 1 - delta


# -- other bounds --------------------------------------------------------------------------------------------------
def test_tight_covers_the_gaps(campaign):
    covered, _ = campaign.coverage(campaign.half_width("tight", DELTA))
    assert covered >= 1 - DELTA


def test_tight_halved_does_not_cover_the_gaps(campaign):
    """The same check on a band that is too narrow fails, by far more than Monte Carlo error."""
    covered, error = campaign.coverage(campaign.half_width("tight", DELTA) / 2)
    assert covered + 3 * error < 1 - DELTA


def test_tight_covers_at_every_single_point(campaign):
    """Pointwise: no point is missed more often than 5% plus three binomial standard errors (2.9 points)."""
    covered = campaign.covered(campaign.half_width("tight", DELTA))
    assert np.max(1 - covered.mean(axis=0)) <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / len(covered))


def test_asymptotic_covers_at_its_level(campaign):
    """Within two points and two standard errors; the wide network's V varies much with the noise, so it covers less."""
    covered, error = campaign.coverage(campaign.half_width("asymptotic", DELTA))
    assert abs(covered - (1 - DELTA)) <= 0.02 + 2 * error


# -- the noise -----------------------------------------------------------------------------------------------------
ONE_LEVEL = (fewer_parameters_than_rows, more_parameters_than_rows)


@pytest.mark.parametrize("problem", ONE_LEVEL)
def test_estimated_noise_is_the_noise_plus_squared_bias(problem):
    """``E sigma^2_hat = sigma^2 + |bias|^2 / |I - S|_F^2``, to a twentieth; the bias is that of the refits' mean."""
    campaign = run(problem)
    design = campaign.design
    bias = predictions(design, campaign.refits.theta, design.X).mean(axis=0) - design.truth
    excess = np.sum(bias**2) / np.mean(campaign.found.df)
    squares = campaign.found.residual_square / campaign.found.df
    assert np.mean(squares) == pytest.approx(NOISE**2 + excess, rel=0.05)


@pytest.mark.parametrize("problem", ONE_LEVEL)
def test_the_library_estimates_the_noise_as_the_dense_matrices_do(problem):
    campaign = run(problem)
    squares = campaign.found.residual_square / campaign.found.df
    for k, fitted in enumerate(models(campaign)):
        band = fitted.interval(campaign.x[:1], DELTA, curvature="hessian")
        assert band.noise**2 == pytest.approx(squares[k], rel=1e-6)
        assert band.df == pytest.approx(campaign.found.df[k], rel=1e-6)


def test_estimated_noise_of_a_network_with_little_bias_is_right_to_a_tenth():
    found = run(fewer_parameters_than_rows).found
    assert np.mean(found.residual_square / found.df) == pytest.approx(NOISE**2, rel=0.1)


def test_exact_hessian_beats_gauss_newton_outside_the_data():
    """Gauss-Newton is off by up to 2 where the network extrapolates; the exact Hessian is not."""
    campaign = run(fewer_parameters_than_rows)
    outside = np.abs(campaign.x[:, 0]) > 2.1
    bands = [fitted.interval(campaign.x[outside], noise=NOISE, curvature="ggn") for fitted in models(campaign)]
    deviation = campaign.deviation[outside]
    gauss = np.median([band.standard_error for band in bands], axis=0) / deviation
    exact = np.median(campaign.found.standard_error[:FEW, outside], axis=0) / deviation
    assert np.all((exact > 0.8) & (exact < 1.25))
    assert np.max(np.abs(np.log(gauss))) > np.log(1.5)
    assert np.median(np.abs(np.log(gauss))) > 3 * np.median(np.abs(np.log(exact)))
