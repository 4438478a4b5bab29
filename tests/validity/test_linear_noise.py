"""The noise that no parameter explains, over redraws: its law, its independence of the fit, and Student's t."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

import vhat
from tests.validity.linear import estimator
from vhat.variance.noise import projected_noise, weights_match

P, LAM, REDRAWS = 4, 0.3, 2000


class Redraws(NamedTuple):
    """Closed forms for every redraw: the estimated noise, the prediction at a point and its standard error."""

    noise: np.ndarray
    prediction: np.ndarray
    expected: float
    error: np.ndarray


class Experiment:
    """A weighted ridge fit with noise ``0.7 shape_i`` in row i."""

    def __init__(self, df: int, seed: int, bias: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.df, self.rng = P + df, df, rng
        self.X = rng.standard_normal((self.n, P))
        self.shape = rng.uniform(0.5, 2.0, self.n)
        self.weight = 1 / self.shape**2
        self.x = rng.standard_normal(P)
        wrong = rng.standard_normal(self.n)
        wrong -= self.X @ np.linalg.lstsq(self.X, wrong, rcond=None)[0]
        self.truth = self.X @ np.array([1.0, -2.0, 0.5, 3.0]) + bias * wrong

    def draw(self, count: int) -> np.ndarray:
        return self.truth + 0.7 * self.shape * self.rng.standard_normal((count, self.n))

    def closed_form(self, ys: np.ndarray) -> Redraws:
        reduced, responses = self.X / self.shape[:, None], ys / self.shape
        basis = np.linalg.qr(reduced)[0]
        left = responses - responses @ basis @ basis.T
        noise = np.sqrt(np.sum(left**2, axis=1) / self.df)
        row = self.x @ estimator(self.X, LAM, self.weight)
        return Redraws(noise, ys @ row, float(self.truth @ row), noise * np.linalg.norm(row * self.shape))

    def fitted(self, y: np.ndarray) -> vhat.FittedModel:
        theta = estimator(self.X, LAM, self.weight) @ y
        return vhat.from_numpy(
            lambda q, x: x @ q,
            theta,
            self.X,
            y,
            jac=lambda x: x,
            weight_decay=LAM,
            sample_weight=self.weight,
        )


def test_the_library_gives_the_closed_form_of_every_redraw():
    experiment = Experiment(5, seed=0)
    ys = experiment.draw(4)
    expected = experiment.closed_form(ys)
    for number, y in enumerate(ys):
        fitted = experiment.fitted(y)
        found = projected_noise(fitted.problem, experiment.shape[:, None])
        assert weights_match(fitted.problem, experiment.shape[:, None])
        assert found.values[:, 0] == pytest.approx(expected.noise[number] * experiment.shape, rel=1e-10)
        assert found.df == pytest.approx([5])
        band = fitted.interval(experiment.x[None], noise=found.values[:, 0], bound="asymptotic")
        assert band.center == pytest.approx([expected.prediction[number]], rel=1e-9)
        assert band.standard_error == pytest.approx([expected.error[number]], rel=1e-9)


@pytest.mark.parametrize("df", [3, 5, 10])
def test_it_is_chi_square_and_independent_of_a_penalised_fit(df):
    experiment = Experiment(df, seed=df)
    found = experiment.closed_form(experiment.draw(REDRAWS))
    squares = df * (found.noise / 0.7) ** 2
    assert stats.kstest(squares, stats.chi2(df).cdf).pvalue > 0.01
    deviation = found.prediction - found.expected
    for one, other in ((squares, deviation), (squares, np.abs(deviation)), (np.log(squares), deviation**2)):
        assert abs(stats.spearmanr(one, other).statistic) < 3 / np.sqrt(REDRAWS)


@pytest.mark.parametrize("df", [3, 5, 10])
@pytest.mark.parametrize("delta", [0.05, 0.2])
def test_students_t_covers_the_expected_prediction_exactly_with_decay(df, delta):
    experiment = Experiment(df, seed=100 + df)
    found = experiment.closed_form(experiment.draw(REDRAWS))
    half = stats.t(df).ppf(1 - delta / 2) * found.error
    misses = int(np.sum(np.abs(found.prediction - found.expected) > half))
    assert stats.binomtest(misses, REDRAWS, delta).pvalue > 0.01


def test_a_model_that_is_wrong_makes_it_larger_and_the_interval_wider():
    """A truth outside the model adds a noncentrality: ``E s^2 = sigma^2 + |(I - P) truth|^2 / df``, fewer misses."""
    experiment = Experiment(5, seed=7, bias=1.5)
    found = experiment.closed_form(experiment.draw(REDRAWS))
    outside = experiment.truth / experiment.shape
    reduced = experiment.X / experiment.shape[:, None]
    outside = outside - reduced @ np.linalg.lstsq(reduced, outside, rcond=None)[0]
    excess = float(outside @ outside)
    expected, spread = 0.49 + excess / 5, np.sqrt(2 * 5 * 0.49**2 + 4 * 0.49 * excess) / 5
    assert np.mean(found.noise**2) == pytest.approx(expected, abs=3 * spread / np.sqrt(REDRAWS))
    half = stats.t(5).ppf(0.975) * found.error
    misses = np.mean(np.abs(found.prediction - found.expected) > half)
    assert misses < 0.05 - 3 * np.sqrt(0.05 * 0.95 / REDRAWS)


def test_weights_that_do_not_match_the_noise_tie_it_to_the_fit():
    """Why :func:`weights_match` is asked: with equal weights and unequal noise the two are correlated."""
    experiment = Experiment(5, seed=8)
    experiment.weight = np.ones(experiment.n)
    experiment.shape = np.where(np.arange(experiment.n) < 3, 10.0, 0.1)
    found = experiment.closed_form(experiment.draw(REDRAWS))
    row = experiment.x @ estimator(experiment.X, LAM)
    reduced = experiment.X / experiment.shape[:, None]
    left = np.eye(experiment.n) - reduced @ np.linalg.pinv(reduced)
    covariance = left @ (row * experiment.shape)
    assert np.linalg.norm(covariance) > 0.1 * np.linalg.norm(row * experiment.shape)
    assert stats.kstest(5 * (found.noise / 0.7) ** 2, stats.chi2(5).cdf).pvalue > 0.01
    assert not weights_match(experiment.fitted(experiment.truth).problem, experiment.shape[:, None])
