"""The ridge penalty of a linearisation: by the likelihood of validation rows, by retraining, by gradient descent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq, minimize_scalar

import vhat
from vhat.fitted.generalised_freedom import Retrainings
from vhat.variance import spectrum
from vhat.variance.ridge_by_validation import make_evidence

N, P, M = 60, 25, 80
GRID = np.logspace(-9, 3, 61)


def waves(X, seed=0, p=P):
    rng = np.random.default_rng(seed)
    return np.cos(X @ rng.normal(size=(2, p)) * 1.5 + rng.uniform(0, 6, size=p))


def made(seed=0, n=N, m=M, sigma=0.3):
    """Rows, a shrunken fit that has followed some of its noise, and rows that it did not fit."""
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
    truth = rng.normal(size=P) / 3
    y, t = (waves(W) @ truth + sigma * rng.normal(size=len(W)) for W in (X, Z))
    J = waves(X)
    theta = np.linalg.solve(J.T @ J / n + 0.02 * np.eye(P), J.T @ y / n)
    return X, y, Z, t, theta


def design(W):
    return waves(W)


def linear(X, y, theta, **options):
    return vhat.from_numpy(lambda q, W: waves(W) @ q, theta, X, y, jac=design, weight_decay=1e-3, **options)


def dense(J, lam):
    """Return the smoother of ridge regression and what turns gradients into sensitivities, without eigenvalues."""
    inverse = np.linalg.inv(J.T @ J / len(J) + lam * np.eye(J.shape[1]))
    return J @ inverse @ J.T / len(J), inverse @ J.T / len(J)


def by_hand(J, g, errors, residuals, lam):
    """The log-likelihood that the module describes, sigma profiled, with dense matrices."""
    S, to = (np.zeros((len(J), len(J))), np.zeros((J.shape[1], len(J)))) if np.isinf(lam) else dense(J, lam)
    spread = 1 + np.sum((g @ to) ** 2, axis=1)
    left = (np.eye(len(J)) - S).T @ (np.eye(len(J)) - S)
    mean, relative = np.trace(left), 2 * np.trace(left @ left) / np.trace(left) ** 2

    def surprise(log):
        density = stats.norm.logpdf(errors, scale=np.sqrt(spread * np.exp(log))).sum()
        return -density - stats.norm.logpdf(np.log(residuals @ residuals / mean) - log, scale=np.sqrt(relative))

    return -minimize_scalar(surprise, bounds=(-12, 6), method="bounded", options={"xatol": 1e-10}).fun


# -- the likelihood of validation rows ---------------------------------------------------------------
def test_the_penalty_has_the_upper_quartile_of_the_degrees_of_freedom_under_the_likelihood():
    """Against dense smoothers, scipy's densities and sums over a hundred thousand degrees of freedom."""
    X, y, Z, t, theta = made()
    fitted = linear(X, y, theta)
    refit = fitted.linearised(validation=(Z, t)).workspace.refit
    J, g = waves(X), waves(Z)
    top = np.linalg.eigvalsh(J.T @ J / N)[-1]
    errors, residuals = g @ theta - t, J @ theta - y
    found = np.array([by_hand(J, g, errors, residuals, lam) for lam in top * GRID])
    freedom = np.array([np.trace(dense(J, lam)[0]) for lam in top * GRID])
    each = np.linspace(freedom.min(), freedom.max(), 100_001)
    weights = np.exp(np.interp(each, freedom[::-1], found[::-1]) - found.max())
    mean = np.sum(weights * each) / weights.sum()
    np.testing.assert_allclose(refit.freedom_mean, mean, rtol=1e-3)
    error = np.sqrt(np.sum(weights * (each - mean) ** 2) / weights.sum())
    np.testing.assert_allclose(refit.freedom_error, error, rtol=1e-3)
    quartile = each[np.searchsorted(np.cumsum(weights) / weights.sum(), 0.75)]
    np.testing.assert_allclose(refit.freedom, quartile, rtol=1e-3)
    np.testing.assert_allclose(np.trace(dense(J, float(refit.weight_decay[0]))[0]), refit.freedom, rtol=1e-5)
    gain = 2 * (found.max() - by_hand(J, g, errors, residuals, np.inf))
    np.testing.assert_allclose(refit.gain, gain, rtol=1e-4)
    assert refit.identified
    assert f"{quartile:.3g} degrees of freedom, the upper quartile of {mean:.3g} +- {error:.2g}" in refit.told


@pytest.mark.slow
@pytest.mark.parametrize("student", [False, True], ids=["normal", "t3"])
def test_the_degrees_of_freedom_bound_those_of_a_ridge_regression_in_three_of_four(student):
    """Ridge regressions without bias, whose own degrees of freedom are drawn uniformly: an exact rate of .75 for the
    likelihood of independent normal errors; at least that, less three binomial standard deviations, with t3 noise.
    """
    seeds = 120
    bounded = 0
    for seed in range(seeds):
        rng = np.random.default_rng([9, seed])
        X, Z = rng.normal(size=(N, 2)), rng.normal(size=(M, 2))
        J = waves(X)
        spectrum_ = np.linalg.eigvalsh(J.T @ J / N)
        freedom = rng.uniform(0.5, P - 2.0)
        lam = np.exp(brentq(lambda log, s=spectrum_, f=freedom: np.sum(s / (s + np.exp(log))) - f, -40, 20))
        y, t = (rng.standard_t(3, size=rows) if student else rng.normal(size=rows) for rows in (N, M))
        theta = np.linalg.solve(J.T @ J / N + lam * np.eye(P), J.T @ y / N)
        chosen = linear(X, y, theta).linearised(validation=(Z, t)).workspace.refit.freedom
        bounded += chosen >= freedom
    allowance = 3 * np.sqrt(0.75 * 0.25 / seeds)
    assert bounded / seeds > 0.75 - allowance
    assert student or bounded / seeds < 0.75 + allowance


def test_auto_takes_the_likelihood_under_which_the_errors_are_likelier():
    """Against scipy's densities at scipy's most likely scales; outliers make it t4, whatever the units."""
    X, y, Z, t, theta = made()
    y_wild, t_wild = y.copy(), t.copy()
    y_wild[:3] += 4.0
    t_wild[:3] -= 4.0
    for responses, targets in ((y, t), (y_wild, t_wild)):
        errors, residuals = waves(Z) @ theta - targets, waves(X) @ theta - responses
        gain = 0.0
        for values in (errors, residuals):
            _, _, scale = stats.t.fit(values, fdf=4, floc=0)
            _, sigma = stats.norm.fit(values, floc=0)
            gain += np.sum(stats.t.logpdf(values, 4, scale=scale) - stats.norm.logpdf(values, scale=sigma))
        likelier = "t4" if gain > 0 else "normal"
        assert likelier == ("normal" if responses is y else "t4")
        for unit in (1.0, 1e-4):
            fitted = linear(X, unit * responses, unit * theta)
            auto = fitted.linearised(validation=(Z, unit * targets)).workspace.refit
            asked = fitted.linearised(validation=(Z, unit * targets), likelihood=likelier).workspace.refit
            assert auto.likelihood == likelier
            np.testing.assert_array_equal(auto.weight_decay, asked.weight_decay)
        told = fitted.linearised(validation=(Z, unit * targets)).interval(Z[:1]).guarantee
        assert ("by the t4 likelihood" in told) == (likelier == "t4")


def test_noise_that_was_judged_heavy_tailed_is_not_called_gaussian():
    """The sentence, the audit and the factors that they name, against scipy's quantiles."""
    X, y, Z, t, theta = made()
    plain = linear(X, y, theta).linearised(validation=(Z, t), likelihood="normal")
    heavy = linear(X, y, theta).linearised(validation=(Z, t), likelihood="t4")
    assert "assumed" in plain.interval(Z[:1]).guarantee
    assert "Gaussian noise," in plain.interval(Z[:1]).guarantee
    told = heavy.interval(Z[:1]).guarantee
    assert "Gaussian noise" not in told
    assert "heavier tails than a Gaussian (Student's t with 4 degrees of freedom" in told
    assert "nearly Gaussian all the same, as a sum over many responses" in told

    response = heavy.interval(Z[:1], target="observation").guarantee
    assert "right at 95% and a fifth too narrow at 99%" in response
    assert "too narrow at this level" not in response
    at99 = heavy.interval(Z[:1], delta=0.01, target="observation").guarantee
    assert "too narrow at this level for a new response (calibrate it: fitted.calibrate(X, y))" in at99.split(";")[1]
    ratio = [stats.norm.isf(a) / (stats.t.isf(a, 4) / np.sqrt(2)) for a in (0.025, 0.005)]
    np.testing.assert_allclose(ratio, [1.0, 0.8], atol=0.02)

    assert heavy.audit()["gaussian noise"].verdict == "noted"
    assert "Student's t" in heavy.audit()["gaussian noise"].remedy
    assert "right at 95%, a little too wide at 90%, where they cover 92%" in heavy.audit()["gaussian noise"].remedy
    covered = 1 - 2 * stats.t.sf(stats.norm.isf(0.05) * np.sqrt(2), 4)
    assert round(100 * covered) == 92
    assert plain.audit()["gaussian noise"].verdict == "assumed"


def test_the_noise_is_that_of_the_validation_errors_less_the_share_of_v():
    X, y, Z, t, theta = made()
    tangent = linear(X, y, theta).linearised(validation=(Z, t))
    _, to = dense(waves(X), float(tangent.workspace.refit.weight_decay[0]))
    spread = 1 + np.sum((waves(Z) @ to) ** 2, axis=1)
    band = tangent.interval(Z[:3])
    np.testing.assert_allclose(band.noise, np.sqrt(np.mean((waves(Z) @ theta - t) ** 2 / spread)), rtol=1e-8)
    assert band.noise_source == f"estimated from {M} validation rows"
    assert band.df == M
    assert f"by the likelihood of {M} validation rows beside the training residuals" in band.guarantee
    assert "degrees of freedom" in band.guarantee
    assert tangent.audit()["ridge penalty"].verdict == "holds"


def test_student_t_density_is_that_of_scipy():
    """Differences between two lam, in which constants cancel; the size of the residuals is their most likely scale."""
    X, y, Z, t, theta = made()
    t[:4] += 8.0
    fitted = linear(X, y, theta)
    rows = fitted.with_validation(Z, t).workspace.validation
    evidence = make_evidence(fitted.problem, rows, np.ones((N, 1)), np.ones(P), "t4", 0)
    J, g = waves(X), waves(Z)
    errors, residuals = g @ theta - t, J @ theta - y
    unit = np.sqrt(np.mean(errors**2))
    scale = minimize_scalar(
        lambda log: -stats.t.logpdf(residuals / unit, 4, scale=np.exp(log / 2)).sum(),
        bounds=(-14, 4),
        method="bounded",
        options={"xatol": 1e-10},
    ).x

    def by_scipy(lam):
        S, to = dense(J, lam)
        spread = 1 + np.sum((g @ to) ** 2, axis=1)
        left = (np.eye(N) - S) @ (np.eye(N) - S)
        relative = 3.5 * np.trace(left @ left) / np.trace(left) ** 2

        def surprise(log):
            density = stats.t.logpdf(errors / unit, 4, scale=np.sqrt(spread * np.exp(log))).sum()
            gap = scale - np.log(np.trace(left) / N) - log
            return -density - stats.norm.logpdf(gap, scale=np.sqrt(relative))

        return -minimize_scalar(surprise, bounds=(-14, 4), method="bounded", options={"xatol": 1e-10}).fun

    for one, other in ((1e-3, 1e-1), (1e-2, 10.0)):
        gap = evidence.log_likelihood(one) - evidence.log_likelihood(other)
        np.testing.assert_allclose(gap, by_scipy(one) - by_scipy(other), rtol=1e-5, atol=1e-6)


def test_outliers_move_the_penalty_of_t4_less():
    X, y, Z, t, theta = made()
    fitted = linear(X, y, theta)
    spoilt = t.copy()
    spoilt[:3] += 5.0
    moved = {}
    for likelihood in ("normal", "t4"):
        clean, dirty = (
            fitted.linearised(validation=(Z, each), likelihood=likelihood).workspace.refit.freedom
            for each in (t, spoilt)
        )
        moved[likelihood] = abs(np.log(dirty / clean))
    assert moved["t4"] < 0.3 * moved["normal"]


@pytest.mark.parametrize("wide", [False, True], ids=["more rows", "more parameters"])
def test_weights_and_several_outputs_enter_v_and_the_residuals(wide):
    """Against dense sensitivities: V of each output holds the noise of the other, and weights that do not match it."""
    rng = np.random.default_rng(4)
    n, p = (14, 40) if wide else (40, 9)
    X, Z = rng.normal(size=(n, 2)), rng.normal(size=(6, 2))
    mixing = rng.normal(size=(p, 2, p)) / p

    def both(W):
        return np.einsum("np,pkq->nkq", waves(W, p=p), mixing)

    weights = rng.uniform(0.5, 2.0, size=n)
    y = rng.normal(size=(n, 2)) * [1.0, 5.0]
    fitted = vhat.from_numpy(
        lambda q, W: both(W) @ q, np.zeros(p), X, y, jac=both, weight_decay=1e-2, sample_weight=weights
    )
    t = rng.normal(size=(6, 2)) * [1.0, 5.0]
    rows = fitted.with_validation(Z, t).workspace.validation
    evidence = make_evidence(fitted.problem, rows, np.ones((n, 2)), np.ones(p), "normal", 0)
    level = np.sqrt(np.mean(t**2, axis=0))
    J, C = both(X).reshape(-1, p), np.repeat(weights, 2)
    for lam in (1e-3, 0.1):
        A = J.T @ (C[:, None] * J) / n + lam * np.eye(p)
        to = np.linalg.solve(A, J.T * C) / n
        sigma = np.tile(level, n)
        variance = np.sum((both(Z).reshape(-1, p) @ to * sigma) ** 2, axis=1)
        np.testing.assert_allclose(evidence.shares(lam), variance / np.tile(level**2, 6), rtol=1e-7)
        left = np.sqrt(C)[:, None] * (np.eye(2 * n) - J @ to) * sigma
        np.testing.assert_allclose(evidence.residual_moments(lam)[0], np.sum(left**2), rtol=1e-7)
    np.testing.assert_allclose(evidence.size, np.sum(C * y.reshape(-1) ** 2), rtol=1e-12)


def test_units_of_the_responses_do_not_matter():
    X, y, Z, t, theta = made()
    one = linear(X, y, theta).linearised(validation=(Z, t)).workspace.refit
    other = linear(X, 1e3 * y, 1e3 * theta).linearised(validation=(Z, 1e3 * t)).workspace.refit
    np.testing.assert_allclose(other.weight_decay, one.weight_decay, rtol=1e-6)
    np.testing.assert_allclose([other.gain, other.freedom], [one.gain, one.freedom], rtol=1e-6)


def test_few_rows_identify_nothing_and_it_is_said():
    X, y, Z, t, theta = made(seed=1)
    tangent = linear(X, y, theta).linearised(validation=(Z[:6], t[:6]))
    refit = tangent.workspace.refit
    assert refit.gain < 3.84
    assert not refit.identified
    told = tangent.interval(Z[:2]).guarantee
    assert "WHICH 6 validation rows DO NOT IDENTIFY" in told
    assert "the width may be far off" in told
    assert "polish()" not in told
    line = tangent.audit()["ridge penalty"]
    assert line.verdict == "fails"
    assert "recipe=" in line.remedy


def test_a_last_layer_whose_refit_is_not_identified_is_sent_to_polish():
    X, y, Z, t, theta = made(seed=1)
    head = torch.nn.Linear(P, 1, bias=False).double()
    with torch.no_grad():
        head.weight[:] = torch.tensor(theta)
    module = torch.nn.Sequential(head, torch.nn.Flatten(0))
    fitted = vhat.from_torch(module, waves(X), y, weight_decay=1e-3, parameters="last")
    told = fitted.linearised(validation=(waves(Z[:6]), t[:6])).interval(waves(Z[:2])).guarantee
    assert "the width may be far off (a last layer is linear in its parameters: in place of linearised(), " in told
    assert "fitted.polish() finds its minimum by one solve" in told


def test_traces_by_lanczos_are_those_of_the_eigenvalues(monkeypatch):
    """What is done where all rows cannot be decomposed, on a case where they can: one standard error is some 5%."""
    X, y, _, _, theta = made(n=400)
    problem = linear(X, y, theta).problem
    exact = spectrum.find_spectrum(problem, np.ones(P))
    monkeypatch.setattr(spectrum, "_MOST_PARAMETERS", 10)
    estimate = spectrum.find_spectrum(problem, np.ones(P))
    assert len(estimate.values) != len(exact.values)
    for lam in (1e-4, 1e-2, 0.1):
        np.testing.assert_allclose(estimate.freedom(lam), exact.freedom(lam), rtol=0.15)
        np.testing.assert_allclose(exact.penalty(exact.freedom(lam)), lam, rtol=1e-6)


def test_a_sample_of_training_rows_gives_v_of_all_of_them(monkeypatch):
    """V/n with n of all rows: the sample stands for the second moments of the gradients, not for the number of rows."""
    X, y, Z, _, theta = made(n=3000)
    problem = linear(X, y, theta).problem
    whole = spectrum.compute_path(problem, Z, np.ones(P), np.ones((3000, 1)))
    monkeypatch.setattr(spectrum, "_MOST_PARAMETERS", 10)
    monkeypatch.setattr(spectrum, "_MOST_ROWS", 1500)
    part = spectrum.compute_path(problem, Z, np.ones(P), np.ones((3000, 1)))
    assert (whole.rows, part.rows) == (3000, 1500)
    ratio = part.norms(0.05) / whole.norms(0.05)
    assert 0.95 < np.median(ratio) < 1.05
    assert np.all(np.abs(ratio - 1) < 0.25)


@pytest.mark.parametrize("likelihood", ["auto", "normal", "t4"])
def test_residuals_of_rows_that_were_not_fitted_are_not_the_size_of_residuals(likelihood):
    """Where only rows of weight zero have residuals, there is none: as where these rows are met as well."""
    X, _, Z, t, theta = made()
    y = waves(X) @ theta
    weights = np.ones(N)
    weights[:10] = 0.0
    met = linear(X, y, theta, sample_weight=weights).linearised(validation=(Z, t), likelihood=likelihood)
    y[:10] += 1.0
    missed = linear(X, y, theta, sample_weight=weights).linearised(validation=(Z, t), likelihood=likelihood)
    found, expected = missed.workspace.refit, met.workspace.refit
    np.testing.assert_allclose(found.weight_decay, expected.weight_decay, rtol=1e-12)
    np.testing.assert_allclose(found.freedom, expected.freedom, rtol=1e-12)


# -- retraining --------------------------------------------------------------------------------------
class Ridge:
    """A recipe that is ridge regression: its degrees of freedom are a trace."""

    def __init__(self, lam, stop_at=None):
        self.lam, self.stop_at, self.calls = lam, stop_at, 0

    def __call__(self, X, y, *, seed, sample_weight=None):
        self.calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        J, w = waves(X), np.ones(len(y)) if sample_weight is None else sample_weight
        theta = np.linalg.solve(J.T @ (w[:, None] * J) / len(y) + self.lam * np.eye(P), J.T @ (w * y) / len(y))
        return linear(X, y, theta, sample_weight=sample_weight)


def test_retraining_matches_the_degrees_of_freedom_of_a_linear_smoother():
    """Of a linear smoother each retraining gives e'Se exactly, whose mean over signs e is the trace."""
    X, y, Z, _, _ = made()
    recipe = Ridge(0.05)
    fitted = recipe(X, y, seed=0)
    S, _ = dense(waves(X), 0.05)
    tangent = fitted.linearised(recipe=recipe)
    refit = tangent.workspace.refit
    signs = [Retrainings(recipe, np.ones((N, 1)), 0).signs(number)[:, 0] for number in range(1, 7)]
    assert {*np.ravel(signs)} == {-1.0, 1.0}
    exact = [e @ S @ e for e in signs]
    np.testing.assert_allclose(refit.freedom, np.mean(exact), rtol=1e-8)
    np.testing.assert_allclose(refit.freedom_error, np.std(exact, ddof=1) / np.sqrt(6), rtol=1e-6)
    assert abs(refit.freedom - np.trace(S)) < 3 * refit.freedom_error
    assert refit.reproduced < 1e-10
    matched, _ = dense(waves(X), float(refit.weight_decay[0]))
    np.testing.assert_allclose(np.trace(matched), refit.freedom, rtol=1e-8)
    told = tangent.interval(Z[:2]).guarantee
    assert "degrees of freedom that 6 retrainings under nudged responses gave" in told
    assert "read off rows that training fitted" not in told
    assert tangent.audit()["ridge penalty"].verdict == "holds"


def test_an_interrupted_retraining_goes_on():
    X, y, _, _, theta = made()
    fitted = linear(X, y, theta)
    recipe = Ridge(0.05, stop_at=4)
    with pytest.raises(vhat.Interrupted, match="3 of 7 trainings, which are kept") as stopped:
        fitted.linearised(recipe=recipe)
    assert stopped.value.record.estimates.size == 2
    refit = fitted.linearised(recipe=recipe).workspace.refit
    assert recipe.calls == 8  # the one that was stopped is trained again, and none before it
    whole = linear(X, y, theta).linearised(recipe=Ridge(0.05)).workspace.refit
    np.testing.assert_array_equal(refit.weight_decay, whole.weight_decay)
    assert refit.reproduced > 0.1  # the model is another than the recipe trains


def test_an_interrupted_retraining_of_a_linearisation_goes_on():
    """Of the linearisation of a linearisation, whose original model nobody else may hold."""
    X, y, _, _, theta = made()
    tangent = linear(X, y, theta).linearised(0.1)
    recipe = Ridge(0.05, stop_at=4)
    with pytest.raises(vhat.Interrupted, match="3 of 7 trainings, which are kept"):
        tangent.linearised(recipe=recipe)
    refit = tangent.linearised(recipe=recipe).workspace.refit
    assert recipe.calls == 8
    whole = linear(X, y, theta).linearised(recipe=Ridge(0.05)).workspace.refit
    np.testing.assert_array_equal(refit.weight_decay, whole.weight_decay)


def test_retrainings_are_those_of_the_noise_level_that_validation_rows_give():
    """Its unit is by hand; retrainings in another unit are not used again."""
    X, y, Z, t, theta = made()
    recipe = Ridge(0.05)
    fitted = linear(X, y, theta)
    J = waves(X)
    retrained = np.linalg.solve(J.T @ J / N + 0.05 * np.eye(P), J.T @ y / N)
    gap = np.sqrt(np.mean((J @ (retrained - theta)) ** 2))
    residual = np.sqrt(np.mean((J @ theta - y) ** 2))
    near = np.sqrt(np.mean((waves(Z) @ theta - t) ** 2))
    far = np.sqrt(np.mean((waves(Z) @ theta - 5 * t) ** 2))
    cases = [
        (lambda: fitted.linearised(recipe=recipe), residual, 7),
        (lambda: fitted.linearised(validation=(Z, t), recipe=recipe), near, 14),
        (lambda: fitted.linearised(validation=(Z, t), recipe=recipe), near, 14),  # nothing is trained again
        (lambda: fitted.linearised(validation=(Z, 5 * t), recipe=recipe), far, 21),
        (lambda: fitted.with_validation(Z, t).linearised(recipe=recipe), near, 28),
        (lambda: fitted.with_validation(Z, 5 * t).linearised(recipe=recipe), far, 28),
    ]
    for call, unit, calls in cases:
        refit = call().workspace.refit
        np.testing.assert_allclose(refit.reproduced, gap / unit, rtol=1e-8)
        assert recipe.calls == calls


def test_weights_go_to_the_recipe():
    X, y, _, _, theta = made()
    weights = np.linspace(0.2, 3.0, N)
    recipe = Ridge(0.05)
    refit = linear(X, y, theta, sample_weight=weights).linearised(recipe=recipe, retrainings=2).workspace.refit
    J = waves(X)
    S = J @ np.linalg.solve(J.T @ (weights[:, None] * J) / N + 0.05 * np.eye(P), J.T * weights) / N
    signs = [Retrainings(recipe, np.ones((N, 1)), 0).signs(number)[:, 0] for number in (1, 2)]
    np.testing.assert_allclose(refit.freedom, np.mean([e @ S @ e for e in signs]), rtol=1e-8)


class Copies(Ridge):
    """The same with every row repeated by its weight, and no weights."""

    def __call__(self, X, y, *, seed, sample_weight=None):
        theta = super().__call__(X, y, seed=seed, sample_weight=sample_weight).params
        rows = np.repeat(np.arange(len(y)), sample_weight.astype(int))
        return linear(X[rows], y[rows], theta)


@pytest.mark.parametrize("counts", [[1, 2, 3], [0, 1, 2]])
def test_copies_of_a_row_have_one_response_and_count_once(counts):
    """The trace of df/dy, with a response for each row that came and not for each copy."""
    X, y, _, _, theta = made()
    weights = np.tile(np.array(counts, dtype=float), N // 3)
    recipe = Copies(0.05)
    refit = linear(X, y, theta, sample_weight=weights).linearised(recipe=recipe, retrainings=2).workspace.refit
    J, held = waves(X), weights > 0
    to = np.linalg.solve(J.T @ (weights[:, None] * J) / N + 0.05 * np.eye(P), J.T * weights) / N
    signs = [Retrainings(recipe, np.ones((N, 1)), 0).signs(number)[:, 0] for number in (1, 2)]
    np.testing.assert_allclose(refit.freedom, np.mean([e[held] @ J[held] @ to @ e for e in signs]), rtol=1e-8)
    residual = np.sqrt(np.mean((J @ theta - y) ** 2))
    gap = np.sqrt(np.mean((J @ (to @ y - theta))[held] ** 2))
    np.testing.assert_allclose(refit.reproduced, gap / residual, rtol=1e-8)


@pytest.mark.slow
def test_a_recipe_of_vhat_trains_all_at_once():
    X, y, _, _, _ = made()
    recipe = vhat.fit.Minimum(vhat.fit.Network((2, 3, 1)), weight_decay=0.05)
    fitted = recipe(X, y, seed=0)
    refit = fitted.linearised(recipe=recipe).workspace.refit
    assert refit.rows == 6
    assert refit.reproduced < 1e-6
    assert 0 < refit.freedom < 13


# -- given -------------------------------------------------------------------------------------------
def test_gradient_descent_has_its_penalty_from_step_size_and_steps():
    X, y, Z, _, theta = made()
    tangent = linear(X, y, theta).linearised(vhat.EarlyStopping(step_size=0.1, steps=200))
    np.testing.assert_allclose(tangent.workspace.refit.weight_decay, 1 / 20 + 1e-3)
    told = tangent.interval(Z[:2], noise=1.0).guarantee
    assert "lam = 0.051 by 1/(step size x steps) of gradient descent" in told
    for wrong in ({"step_size": 0.0, "steps": 5}, {"step_size": 0.1, "steps": 0}):
        with pytest.raises(vhat.InputError, match="not a"):
            vhat.EarlyStopping(**wrong)


def test_refusals_name_what_to_do():
    X, y, Z, t, theta = made()
    fitted = linear(X, y, theta)
    with pytest.raises(vhat.InputError, match='Leave weight_decay at "auto"'):
        fitted.linearised(0.1, recipe=Ridge(0.1))
    with pytest.raises(vhat.InputError, match="one per parameter of the flat vector"):
        fitted.linearised(np.ones(3))
    with pytest.raises(vhat.InputError, match="likelihood='cauchy' is not known"):
        fitted.linearised(validation=(Z, t), likelihood="cauchy")
    with pytest.raises(vhat.InputError, match="trains nothing"):
        fitted.linearised(recipe="ridge")
    with pytest.raises(vhat.InputError, match=r"Is the recipe the one that trained this model.*retrainings="):
        fitted.linearised(recipe=lambda X, y, *, seed, sample_weight=None: linear(X, y, theta))
    through = linear(X, waves(X) @ theta, theta)
    with pytest.raises(vhat.InputError, match=r"passes through its responses.*validation=\(X, y\)"):
        through.linearised(recipe=Ridge(0.1))


@pytest.mark.slow
def test_a_recipe_is_a_training_loop_of_torch_as_its_owner_wrote_it():
    """Gradients are recorded while it runs; its model is trained on the responses as they are nudged."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=80)

    def recipe(X, y, *, seed, sample_weight=None):
        torch.manual_seed(seed)
        module = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1), torch.nn.Flatten(0))
        optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
        inputs, responses = torch.as_tensor(X).float(), torch.as_tensor(y).float()
        for _ in range(60):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(module(inputs), responses).backward()
            optimizer.step()
        return vhat.from_torch(module, X, y, weight_decay=0.0)

    tangent = recipe(X, y, seed=0).linearised(recipe=recipe)
    assert "that 6 retrainings under nudged responses gave" in tangent.interval(X[:2], noise=0.1).guarantee


# -- units -------------------------------------------------------------------------------------------
def two_layers(first, last, rows, responses, held, unit=1.0):
    """Return the linearisation of a ReLU network with given matrices, trained without weight decay."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1), torch.nn.Flatten(0))
    with torch.no_grad():
        for layer, (weight, bias) in zip((module[0], module[2]), (first, last), strict=True):
            layer.weight.copy_(torch.as_tensor(weight))
            layer.bias.copy_(torch.as_tensor(bias))
    module.double()
    fitted = vhat.from_torch(module, rows, unit * responses, weight_decay=0.0)
    return fitted.linearised(validation=(held[0], unit * held[1]))


def network_rows():
    rng = np.random.default_rng(3)
    X, Z = rng.normal(size=(80, 2)), rng.normal(size=(60, 2))
    y, t = (np.sin(W[:, 0]) + 0.3 * rng.normal(size=len(W)) for W in (X, Z))
    first = rng.normal(size=(8, 2)), rng.normal(size=8)
    hidden = np.maximum(X @ first[0].T + first[1], 0.0)
    design_ = np.column_stack([hidden, np.ones(80)])
    last = np.linalg.solve(design_.T @ design_ / 80 + 0.05 * np.eye(9), design_.T @ y / 80)
    # exact in float32, in which the module is made
    first = tuple(part.astype(np.float32).astype(np.float64) for part in first)
    last = last.astype(np.float32).astype(np.float64)
    return first, (last[None, :8], last[8:]), X, y, (Z, t)


@pytest.mark.parametrize("unit", [2.0**-10, 2.0**10])
def test_the_same_network_in_other_units_of_the_responses_has_the_same_refit(unit):
    """The last layer takes the unit, as it does when trained parameters are converted. Powers of two round nothing."""
    first, last, X, y, held = network_rows()
    x = np.array([[0.0, 0.0], [1.0, -1.0], [6.0, 5.0]])
    one = two_layers(first, last, X, y, held)
    other = two_layers(first, tuple(unit * part for part in last), X, y, held, unit)
    np.testing.assert_allclose(other.workspace.refit.freedom, one.workspace.refit.freedom, rtol=1e-6)
    before, after = one.interval(x), other.interval(x)
    np.testing.assert_allclose(after.half_width, unit * before.half_width, rtol=1e-6)
    np.testing.assert_allclose(after.unsupported, before.unsupported, rtol=1e-6)


def test_a_factor_moved_from_one_layer_to_the_next_changes_nothing():
    """A ReLU network is the same function with its first layer doubled and its last weights halved."""
    first, last, X, y, held = network_rows()
    x = np.array([[0.0, 0.0], [1.0, -1.0], [6.0, 5.0]])
    factor = 64.0
    moved = tuple(factor * part for part in first), (last[0] / factor, last[1])
    one = two_layers(first, last, X, y, held).interval(x)
    other = two_layers(*moved, X, y, held).interval(x)
    np.testing.assert_allclose(other.half_width, one.half_width, rtol=1e-6)


@pytest.mark.parametrize("factor", [1e-6, 1e5])
def test_the_unit_of_one_entry_of_a_vector_changes_nothing(factor):
    """The parameters of a curve have units of their own, and so has each entry of the only vector."""
    X, y, Z, t, theta = made()
    unit = np.ones(P)
    unit[3] = factor
    given = {"weight_decay": 0.0}
    one = vhat.from_numpy(lambda q, W: waves(W) @ q, theta, X, y, jac=design, **given)
    other = vhat.from_numpy(
        lambda q, W: waves(W) @ (unit * q), theta / unit, X, y, jac=lambda W: waves(W) * unit, **given
    )
    bands = [fitted.linearised(validation=(Z, t)).interval(Z) for fitted in (one, other)]
    np.testing.assert_allclose(bands[1].half_width, bands[0].half_width, rtol=1e-6)


def test_a_layer_that_no_training_row_reaches_is_unsupported_and_moves_no_variance():
    """Its penalty is the mean of the others', on which V does not depend."""
    first, last, X, y, held = network_rows()
    dead = (np.zeros_like(first[0]), -np.ones_like(first[1]))
    band = two_layers(dead, last, X, y, held).interval(X[:2])
    assert np.all(np.isfinite(band.half_width))
    mean = np.sqrt(band.noise**2 / len(X))  # only the last bias is left: the standard error of a shrunken mean
    assert np.all(band.standard_error <= 1.0001 * mean)
