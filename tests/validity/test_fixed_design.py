"""Networks at certified minima under redrawn noise: what sigma sqrt(V/n) says against what the predictions do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import vhat
from tests.validity.redraws import STATIONARY, Design, Refits, predictions, refit

pytestmark = pytest.mark.slow

NOISE, LAM, DELTA, REDRAWS = 0.1, 1e-3, 0.05, 240
FEW = 10
"""Redraws whose median standard error is compared with the Monte Carlo standard deviation."""


def narrow(q, Z):
    """One input, ten tanh units: p = 31."""
    return jnp.tanh(Z * q[:10] + q[10:20]) @ q[20:30] + q[30]


def wide(q, Z):
    """Two inputs, 24 tanh units: p = 97."""
    return jnp.tanh(Z @ q[:48].reshape(2, 24) + q[48:72]) @ q[72:96] + q[96]


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


@dataclass(frozen=True)
class Campaign:
    """One design, its refits, and vhat's answer at every one of them, (redraws, points) each."""

    design: Design
    refits: Refits
    x: np.ndarray
    values: np.ndarray
    standard_error: np.ndarray
    tight: np.ndarray
    asymptotic: np.ndarray
    noise: np.ndarray
    df: np.ndarray

    @property
    def deviation(self) -> np.ndarray:
        """The true standard deviation of each prediction over the noise."""
        return np.std(self.values, axis=0, ddof=1)

    def coverage(self, half_width: np.ndarray) -> tuple[float, float]:
        """The share of gaps within the half widths, and its standard error with redraws as independent units."""
        gaps = np.abs(self.values - self.values.mean(axis=0))
        each = np.mean(gaps <= half_width, axis=1)
        return float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))


def fitted_at(design: Design, theta: np.ndarray, y: np.ndarray) -> vhat.FittedModel:
    return vhat.from_jax(design.predict, theta, design.X, y, weight_decay=design.lam, sample_weight=design.weight)


@cache
def run(problem: Callable[[], tuple[Design, np.ndarray]]) -> Campaign:
    design, x = problem()
    design = design.settled()
    refits = refit(design, REDRAWS, seed=1)
    rows = []
    for theta, y in zip(refits.theta, refits.y, strict=True):
        fitted = fitted_at(design, theta, y)
        band = fitted.interval(x, DELTA, noise=NOISE, curvature="hessian")
        normal = fitted.interval(x, DELTA, noise=NOISE, curvature="hessian", bound="asymptotic")
        own = fitted.interval(x[:1], DELTA, curvature="hessian")
        rows.append((band.standard_error, band.half_width, normal.half_width, own.noise, own.df))
    return Campaign(design, refits, x, predictions(design, refits.theta, x), *map(np.array, zip(*rows, strict=True)))


@pytest.fixture(scope="module", params=[fewer_parameters_than_rows, more_parameters_than_rows], ids=["p<n", "p>n"])
def campaign(request) -> Campaign:
    return run(request.param)


def test_nearly_every_refit_is_a_certified_minimum(campaign):
    """At most 2% may be dropped, so that at least 200 remain and dropping cannot hide a tail of 5%."""
    assert campaign.refits.dropped <= 0.02 * REDRAWS
    assert len(campaign.refits.theta) >= 200
    assert campaign.refits.gradient.max() < STATIONARY
    assert campaign.refits.smallest.min() > 0


def test_standard_error_is_the_standard_deviation_over_the_noise(campaign):
    """Within [0.8, 1.25] at 80% of the points; 240 redraws know the standard deviation to 5%."""
    ratio = np.median(campaign.standard_error[:FEW], axis=0) / campaign.deviation
    assert len(ratio) >= 20
    assert np.mean((ratio >= 0.8) & (ratio <= 1.25)) >= 0.8
    assert 0.9 < np.median(ratio) < 1.1


def test_tight_covers_the_gaps(campaign):
    covered, _ = campaign.coverage(campaign.tight)
    assert covered >= 1 - DELTA


def test_tight_halved_does_not_cover_the_gaps(campaign):
    """The same check on a band that is too narrow fails, by far more than Monte Carlo error."""
    covered, error = campaign.coverage(campaign.tight / 2)
    assert covered + 3 * error < 1 - DELTA


def test_asymptotic_covers_at_its_level(campaign):
    """Within two points and two standard errors; the wide network's V varies much with the noise, so it covers less."""
    covered, error = campaign.coverage(campaign.asymptotic)
    assert abs(covered - (1 - DELTA)) <= 0.02 + 2 * error


def test_tight_covers_at_every_single_point(campaign):
    """Pointwise: no point is missed more often than 5% plus three binomial standard errors (4.2 points)."""
    gaps = np.abs(campaign.values - campaign.values.mean(axis=0))
    missed = np.mean(gaps > campaign.tight, axis=0)
    assert missed.max() <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / len(gaps))


def test_estimated_noise_is_the_noise_plus_squared_bias(campaign):
    """``E sigma^2_hat = sigma^2 + |bias|^2 / |I - S|_F^2``, to a twentieth; the bias is that of the refits' mean."""
    design = campaign.design
    bias = predictions(design, campaign.refits.theta, design.X).mean(axis=0) - design.truth
    excess = np.sum(bias**2) / np.mean(campaign.df)
    assert np.mean(campaign.noise**2) == pytest.approx(NOISE**2 + excess, rel=0.05)


def test_estimated_noise_of_a_network_with_little_bias_is_right_to_a_tenth():
    assert np.mean(run(fewer_parameters_than_rows).noise ** 2) == pytest.approx(NOISE**2, rel=0.1)


def test_exact_hessian_beats_gauss_newton_outside_the_data():
    """Gauss-Newton is off by up to 2 where the network extrapolates; the exact Hessian is not."""
    campaign = run(fewer_parameters_than_rows)
    outside = np.abs(campaign.x[:, 0]) > 2.1
    models = [fitted_at(campaign.design, campaign.refits.theta[k], campaign.refits.y[k]) for k in range(FEW)]
    bands = [model.interval(campaign.x[outside], noise=NOISE, curvature="ggn") for model in models]
    deviation = campaign.deviation[outside]
    gauss = np.median([band.standard_error for band in bands], axis=0) / deviation
    exact = np.median(campaign.standard_error[:FEW, outside], axis=0) / deviation
    assert np.all((exact > 0.8) & (exact < 1.25))
    assert np.max(np.abs(np.log(gauss))) > np.log(1.5)
    assert np.median(np.abs(np.log(gauss))) > 3 * np.median(np.abs(np.log(exact)))
