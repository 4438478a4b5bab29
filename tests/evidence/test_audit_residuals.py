"""The audit's lines on residuals: what they find, what they call it, and how rarely they are wrong."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
from scipy import stats

import vhat
from vhat.evidence.audit import audit
from vhat.evidence.audit.column_tests import just_significant
from vhat.evidence.audit.lack_of_fit import _standard_errors
from vhat.evidence.audit.row_groups import Groups
from vhat.evidence.audit.standardised_residuals import REDRAWS, standardised_residuals

LINES = ("lack of fit", "unequal noise", "outliers")


def design(Z):
    return np.column_stack([np.ones(len(Z)), Z])


def fit(X, y, lam=0.0, **options):
    """Fit a line with an offset by ridge regression, in closed form."""
    A = design(X)
    n, p = A.shape
    theta = np.linalg.solve(A.T @ A / n + lam * np.eye(p), A.T @ y / n)
    return given(theta, X, y, lam, **options)


def given(theta, X, y, lam=0.0, **options):
    return vhat.from_numpy(
        lambda q, Z: design(np.asarray(Z)) @ q,
        theta,
        X,
        y,
        weight_decay=lam,
        jac=lambda q, Z: design(np.asarray(Z)),
        hess=lambda q, Z: np.zeros((len(Z), len(q), len(q))),
        **options,
    )


def lines(fitted, noise=None, *, minimum=True):
    """Return the three lines without the rest of the audit."""
    work = fitted.workspace
    with fitted.problem.scope():
        level = work.noise(noise, "ggn", 0)
        found = audit.residual_lines(work, "ggn", level, 0, minimum)
    assert tuple(line.name for line in found) == LINES
    return {line.name: line for line in found}


def verdicts(found):
    return {name: found[name].verdict for name in LINES}


def straight(n=200, d=2, seed=0, noise=None):
    """Return rows on a plane, with standard normal noise times ``noise(X)``."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    scale = 1.0 if noise is None else noise(X)
    return X, 1.0 + X.sum(axis=1) + scale * rng.standard_normal(n)


# -- the numbers -------------------------------------------------------------------------------------
def hat(X):
    A = design(X)
    return A @ np.linalg.solve(A.T @ A, A.T)


def test_standardised_residuals_of_least_squares_are_the_studentised_ones_and_redraws_lie_in_the_residual_space():
    X, y = straight(30, 4)
    fitted = fit(X, y)
    level = fitted.workspace.noise(None, "ggn", 0)
    found = standardised_residuals(fitted.workspace, "ggn", level, 0, minimum=True)
    H = hat(X)
    residual, left = y - H @ y, 1 - np.diag(H)
    expected = residual / np.sqrt(np.sum(residual**2) / 25 * left)
    assert sorted(found.rows) == list(range(30))
    np.testing.assert_allclose(found.values[:, 0], expected[found.rows], rtol=1e-8)
    np.testing.assert_allclose(found.everywhere[:, 0], expected, rtol=1e-8)
    scaled = found.redraws[:, 0] * np.sqrt(left[found.rows])[:, None]
    np.testing.assert_allclose(design(X)[found.rows].T @ scaled, 0.0, atol=1e-9)
    # unit variance: 299 draws of 30 rows, each known to sqrt(2/299)
    np.testing.assert_allclose(np.mean(found.redraws[:, 0] ** 2, axis=1), 1.0, atol=5 * np.sqrt(2 / 299))


def test_residuals_of_ridge_regression_are_those_of_refits_without_the_row():
    X, y = straight(24, 3)
    lam, sigma = 0.2, 0.7
    fitted = fit(X, y, lam)
    level = fitted.workspace.noise(sigma, "ggn", 0)
    found = standardised_residuals(fitted.workspace, "ggn", level, 0, minimum=True)
    A = design(X)
    for i in (0, 7, 23):
        rest = np.delete(np.arange(24), i)
        G = np.linalg.solve(A[rest].T @ A[rest] + 24 * lam * np.eye(4), A[rest].T)
        expected = (y[i] - A[i] @ G @ y[rest]) / (sigma * np.sqrt(1 + np.sum((A[i] @ G) ** 2)))
        assert found.everywhere[i, 0] == pytest.approx(expected, rel=1e-8)


def test_outliers_are_judged_by_externally_studentised_residuals_with_bonferroni():
    X, y = straight(60, 3)
    y[17] += 6.0
    line = lines(fit(X, y))["outliers"]
    H = hat(X)
    rest = np.delete(np.arange(60), 17)
    A = design(X)
    theta = np.linalg.lstsq(A[rest], y[rest], rcond=None)[0]
    sigma = np.sqrt(np.sum((y[rest] - A[rest] @ theta) ** 2) / 55)
    expected = abs(y[17] - A[17] @ theta) / (sigma / np.sqrt(1 - H[17, 17]))
    assert line.value == pytest.approx(expected, rel=1e-8)
    assert line.threshold == pytest.approx(stats.t.isf(0.01 / 120, 55), rel=1e-10)
    assert line.verdict == "fails"
    assert "does not explain row 17: up to" in line.remedy


def test_mean_of_a_fifth_and_its_noise_are_those_of_the_table():
    X, y = straight(200, 1, noise=lambda X: np.exp(0.7 * X[:, 0]))
    fitted = fit(X, y)
    found = lines(fitted)
    level = fitted.workspace.noise(None, "ggn", 0)
    z = standardised_residuals(fitted.workspace, "ggn", level, 0, minimum=True).everywhere[:, 0]
    fifth = pd.qcut(X[:, 0], 5, labels=False)
    gaps = z - pd.Series(z).groupby(fifth).transform("mean").to_numpy()
    sizes = pd.Series(np.abs(gaps) / np.sqrt(1 - 1 / 40)).groupby(fifth).mean()
    ratios = sizes / sizes.mean()
    assert found["unequal noise"].verdict == "fails"
    assert found["unequal noise"].value == pytest.approx(ratios.max(), rel=1e-9)
    assert found["unequal noise"].remedy.startswith("Rows with the input in its top fifth (40 of them)")
    # the statistic behind the factor is Levene's, group by group
    levene = stats.levene(*(z[fifth == k] for k in range(5)), center="mean")
    assert levene.pvalue < 1e-6


def test_the_statistic_along_a_column_is_the_f_test_of_its_group_means_against_zero():
    """Where every group scatters alike; a noisier group has its own standard error instead."""
    rng = np.random.default_rng(4)
    part = np.repeat(np.arange(5), 12)
    scatter = rng.normal(size=12)
    z = np.concatenate([mean + rng.permutation(scatter - scatter.mean()) for mean in (0.3, -0.2, 0.0, 0.5, -0.6)])
    members = (part[:, None] == np.arange(5)).astype(float)
    groups = Groups(members, tuple("abcde"), np.full(5, -1), np.zeros(5, dtype=int), {})
    means = groups.means(z[:, None])
    found = np.sum((means / _standard_errors(groups, means, groups.means(z[:, None] ** 2))) ** 2) / 5
    assert found == pytest.approx(float(sm.OLS(z, members).fit().f_test(np.eye(5)).fvalue), rel=1e-10)
    centred = stats.f_oneway(*(z[part == k] for k in range(5))).statistic * 4
    assert found * 5 == pytest.approx(centred + len(z) * z.mean() ** 2 / scatter.var(ddof=1), rel=1e-10)


def test_a_statistic_that_redraws_exceed_is_not_significant_and_one_that_none_reaches_is():
    rng = np.random.default_rng(0)
    members = np.repeat(np.eye(5), 12, axis=0)
    groups = Groups(members, tuple("abcde"), np.full(5, -1), np.zeros(5, dtype=int), {})
    redrawn = rng.normal(size=(5, 1, REDRAWS))
    third = np.sort(np.sum(redrawn[:, 0] ** 2, axis=0))[-3]  # exceeded in 1% under the null
    for scale in (0.5, 0.999, 1.001, 2.0):
        deviations = np.sqrt(scale * third / 5) * np.ones((5, 1))
        factor = just_significant(groups, deviations, redrawn, 3 / 300, lost=0)
        np.testing.assert_allclose(factor, 1 / np.sqrt(scale), rtol=1e-9)


def test_repeated_rows_give_the_classical_test_of_lack_of_fit():
    rng = np.random.default_rng(0)
    x = np.repeat(np.linspace(-1, 1, 8), 5)
    y = x + 3 * x**2 + 0.5 * rng.standard_normal(40)
    fitted = fit(x[:, None], y)
    means = np.repeat(y.reshape(8, 5).mean(axis=1), 5)
    within = np.sum((y - means) ** 2)
    total = np.sum((y - hat(x[:, None]) @ y) ** 2)
    ratio = ((total - within) / 6) / (within / 32)
    line = lines(fitted)["lack of fit"]
    assert stats.f.sf(ratio, 6, 32) < 1e-3
    assert line.verdict == "fails"
    assert line.value == pytest.approx(np.sqrt(6 * (ratio - 1) / 40), rel=1e-8)
    assert line.threshold == pytest.approx(np.sqrt(6 * (stats.f.isf(1 / 300, 6, 32) - 1) / 40), rel=1e-8)
    assert "32 degrees of freedom of pure error" in line.meaning
    assert "Repeated input rows agree with each other better than with the model" in line.remedy


def test_copies_of_rows_are_no_repeated_measurement():
    X, y = straight(60, 2)
    twice = np.concatenate([X, X[:30]]), np.concatenate([y, y[:30]])
    assert lines(fit(*twice))["lack of fit"].verdict == "holds"


# -- what is found, and what it is called ------------------------------------------------------------
@pytest.mark.parametrize("seed", range(3))
def test_noise_that_grows_along_a_column_is_found_and_the_column_named(seed):
    X, y = straight(300, 3, seed, noise=lambda X: np.exp(0.5 * X[:, 1]))
    found = lines(fit(pd.DataFrame(X, columns=["age", "bmi", "dose"]), y))
    assert verdicts(found)["unequal noise"] == "fails"
    assert found["lack of fit"].verdict == "holds"
    assert "ows with column bmi in its" in found["unequal noise"].remedy
    assert "noise=" in found["unequal noise"].remedy
    assert found["unequal noise"].remedy.startswith("Rows with column bmi")


def test_columns_without_names_are_counted_from_0():
    X, y = straight(300, 3, noise=lambda X: np.exp(0.6 * X[:, 1]))
    assert "with column 1 (counted from 0) in its" in lines(fit(X, y))["unequal noise"].remedy


def test_noise_that_grows_with_the_prediction_is_found_where_inputs_are_no_table():
    X, y = straight(300, 2, noise=lambda X: np.exp(0.4 * X.sum(axis=1)))
    theta = np.linalg.lstsq(design(X), y, rcond=None)[0]
    images = X[:, :, None]
    fitted = vhat.from_numpy(lambda q, Z: q[0] + Z[:, :, 0] @ q[1:], theta, images, y)
    line = lines(fitted)["unequal noise"]
    assert line.verdict == "fails"
    assert line.remedy.startswith("Rows whose prediction is in its top fifth (60 of them) have")


def test_values_of_a_column_with_few_are_named():
    X, y = straight(120, 2)
    X[:, 1] = np.arange(120) % 2
    y = X[:, 0] + np.where(X[:, 1] == 1, 3.0, 1.0) * np.random.default_rng(3).standard_normal(120)
    line = lines(fit(X, y))["unequal noise"]
    assert line.verdict == "fails"
    assert "with column 1 (counted from 0) equal to" in line.remedy


def test_a_missing_square_is_found_and_the_way_it_misses_is_said():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 2))
    y = X[:, 0] + 0.5 * X[:, 1] ** 2 + 0.5 * rng.standard_normal(200)
    line = lines(fit(X, y))["lack of fit"]
    assert line.verdict == "fails"
    assert "with column 1 (counted from 0) in its" in line.remedy
    assert "above their predictions on average" in line.remedy or "below their predictions on average" in line.remedy
    assert "lower weight_decay" in line.remedy


def test_decay_that_holds_a_model_back_is_found():
    X, y = straight(200, 2, noise=lambda X: 0.3)
    assert lines(fit(X, y, 1e-3))["lack of fit"].verdict == "holds"
    assert lines(fit(X, y, 1.0))["lack of fit"].verdict == "fails"


def test_a_noise_level_that_is_given_too_small_shows_as_lack_of_fit_and_one_too_large_does_not():
    X, y = straight(100, 2)
    assert lines(fit(X, y), 1.0)["lack of fit"].verdict == "holds"
    assert lines(fit(X, y), 3.0)["lack of fit"].verdict == "holds"
    line = lines(fit(X, y), 0.5)["lack of fit"]
    assert line.verdict == "fails"
    assert line.value == pytest.approx(2.0, rel=0.3)
    assert "times what the noise level says" in line.remedy


def test_several_outliers_do_not_hide_each_other():
    X, y = straight(100, 2)
    wild = [3, 40, 41, 99]
    y[wild] += 9.0
    line = lines(fit(X, y))["outliers"]
    assert line.verdict == "fails"
    assert "does not explain rows 3, 40, 41, 99: up to" in line.remedy


def test_rows_that_the_loss_does_not_see_are_not_looked_at():
    X, y = straight(100, 2)
    y[5] += 50.0
    weights = np.ones(100)
    weights[5] = 0.0
    A = design(X) * weights[:, None]
    theta = np.linalg.lstsq(A, y * weights, rcond=None)[0]
    found = lines(given(theta, X, y, sample_weight=weights))
    assert set(verdicts(found).values()) == {"holds"}


def test_the_worst_of_several_outputs_is_named():
    X, y = straight(200, 2)
    rng = np.random.default_rng(7)
    both = np.column_stack([y, X[:, 0] + np.exp(0.8 * X[:, 1]) * rng.standard_normal(200)])
    theta = np.linalg.lstsq(design(X), both, rcond=None)[0]
    fitted = vhat.from_numpy(lambda q, Z: design(Z) @ q.reshape(3, 2), theta.ravel(), X, both)
    line = lines(fitted)["unequal noise"]
    assert line.verdict == "fails"
    assert "column 1 (counted from 0)" in line.remedy
    assert "output 1 (counted from 0)" in line.remedy


def test_a_trifle_does_not_fail_however_many_rows_show_it():
    rng = np.random.default_rng(0)
    n = 900
    X = rng.normal(size=(n, 1))
    top = X[:, 0] > np.quantile(X[:, 0], 0.8)
    # the mean of a fifth off by 0.2 and its noise by 1.15, estimated without error: a sample of exact normal scores
    scores = stats.norm.ppf((np.arange(n) + 0.5) / n)
    y = np.where(top, 1.15, 1.0) * rng.permutation(scores)
    y[top] += 0.2 - y[top].mean()
    fitted = given(np.zeros(2), X, y)
    assert stats.ttest_1samp(y[top], 0.0).pvalue < 0.02
    found = lines(fitted, 1.0)
    assert found["lack of fit"].verdict == found["unequal noise"].verdict == "holds"
    assert found["lack of fit"].value < 1.25
    y[top] += 0.3
    assert lines(given(np.zeros(2), X, y), 1.0)["lack of fit"].verdict == "fails"


# -- what must change nothing ------------------------------------------------------------------------
def test_units_and_the_order_of_rows_change_no_verdict_and_no_number():
    X, y = straight(80, 3, noise=lambda X: np.exp(0.5 * X[:, 1]))
    y[11] += 7.0
    base = lines(fit(X, y))
    order = np.random.default_rng(5).permutation(80)
    others = {
        "order": fit(X[order], y[order]),
        "y": fit(X, 1e6 * y),
        "x": fit(X * [1e-5, 1.0, 1e4], y),
        "shifted": fit(X + np.array([3.0, -1.0, 20.0]), y - 40.0),
    }
    for name, fitted in others.items():
        found = lines(fitted)
        for line in LINES:
            assert found[line].verdict == base[line].verdict, (name, line)
            assert found[line].value == pytest.approx(base[line].value, rel=1e-6), (name, line)
            assert found[line].threshold == pytest.approx(base[line].threshold, rel=1e-6), (name, line)
    assert base["outliers"].verdict == "fails"
    named, moved = (_named(found["outliers"].remedy) for found in (base, lines(others["order"])))
    assert 11 in named
    assert sorted(order[moved]) == named


def _named(remedy):
    """Return the rows that a remedy names."""
    return [int(row) for row in re.search(r"explain rows? ([\d, ]+):", remedy)[1].split(", ")]


# -- many rows -----------------------------------------------------------------------------------------
def test_many_rows_are_sampled_and_said_to_be_and_an_outlier_outside_the_sample_is_found():
    X, y = straight(1300, 1)
    fitted = fit(X, y)
    level = fitted.workspace.noise(None, "ggn", 0)
    found = standardised_residuals(fitted.workspace, "ggn", level, 0, minimum=True)
    assert len(found.rows) == 1000
    outside = int(np.setdiff1d(np.arange(1300), found.rows)[0])
    assert "(1,000 of 1,300 rows)" in lines(fitted)["lack of fit"].meaning
    y = y.copy()
    y[outside] += 30.0
    assert f"does not explain row {outside}: up to" in lines(fit(X, y))["outliers"].remedy


# -- tables ----------------------------------------------------------------------------------------------
def test_the_estimator_calls_rows_and_columns_as_the_table_does(tmp_path):
    rng = np.random.default_rng(2)
    index = pd.Index([f"P{row}" for row in range(60)], name="patient")
    X = pd.DataFrame(rng.normal(size=(60, 2)), columns=["age", "bmi"], index=index)
    y = X["age"] + np.exp(X["bmi"]) * rng.standard_normal(60)
    y.iloc[20] += 40.0
    network = vhat.NetworkRegressor((), weight_decay=1e-6).fit(X, y)
    found = network.audit()
    assert "patient P20" in found["outliers"].remedy
    network.save(tmp_path / "model")
    assert vhat.NetworkRegressor.load(tmp_path / "model").audited_["outliers"].remedy == found["outliers"].remedy
    network = vhat.NetworkRegressor((), weight_decay=1e-6).fit(
        X, X["age"] + np.exp(1.2 * X["bmi"]) * rng.normal(size=60)
    )
    assert "ows with column bmi in its top fifth" in network.audit()["unequal noise"].remedy


def module_of(X, y, outputs):
    """Return a linear torch module at its least-squares fit of y, with further outputs that are zero."""
    module = torch.nn.Linear(X.shape[1], outputs).double()
    theta = np.linalg.lstsq(design(X), y, rcond=None)[0]
    with torch.no_grad():
        module.weight.zero_()
        module.bias.zero_()
        module.weight[0] = torch.tensor(theta[1:])
        module.bias[0] = theta[0]
    return module


def test_advice_on_unequal_noise_names_only_calls_that_help():
    grows = {"d": 2, "noise": lambda X: np.exp(X[:, 1])}
    X, y = straight(200, **grows)
    Z, t = straight(200, seed=1, **grows)
    module = torch.nn.Sequential(module_of(X, y, 1), torch.nn.Flatten(0))
    plain = vhat.from_torch(module, X, y, weight_decay=1e-6)
    remedy = lines(plain)["unequal noise"].remedy
    assert 'loss="gaussian_nll"' in remedy
    assert "sample_weight=1/noise^2" in remedy
    told = plain.linearised(1e-3, validation=(Z, t)).audit()["unequal noise"]
    assert told.verdict == "fails"
    assert told.remedy.index('loss="gaussian_nll"') < told.remedy.index("fitted.calibrate(X_cal, y_cal)")
    assert "sample_weight=" not in told.remedy
    assert "noise=" not in told.remedy
    without_torch = fit(X, y, 1e-3).linearised(1e-3, validation=(Z, t)).audit()["unequal noise"].remedy
    assert "gaussian_nll" not in without_torch
    assert "Call fitted.calibrate(X_cal, y_cal)" in without_torch


def test_remedies_of_a_last_layer_say_that_its_inputs_were_not_tested():
    X, y = straight(200, 2, noise=lambda X: np.exp(X[:, 1]))
    module = torch.nn.Sequential(module_of(X, y, 1), torch.nn.Flatten(0))
    note = "the model's own inputs were not tested"
    bent = X[:, 0] ** 2 + 0.3 * np.random.default_rng(2).standard_normal(200)
    for responses, name in ((y, "unequal noise"), (bent, "lack of fit")):
        last = vhat.from_torch(module, X, responses, weight_decay=1e-6, parameters="last").polish()
        line = lines(last)[name]
        assert line.verdict == "fails"
        assert line.remedy.count(note) == 1
    assert note not in lines(vhat.from_torch(module, X, y, weight_decay=1e-6))["unequal noise"].remedy


def test_a_variance_head_that_does_not_match_is_not_called_one_common_noise_level():
    grows = {"d": 2, "noise": lambda X: np.exp(X[:, 1])}
    X, y = straight(200, **grows)
    Z, t = straight(200, seed=1, **grows)
    fitted = vhat.from_torch(module_of(X, y, 2), X, y, weight_decay=1e-6, loss="gaussian_nll")
    for told in (lines(fitted, minimum=False), lines(fitted.with_validation(Z, t), minimum=False)):
        line = told["unequal noise"]
        assert line.verdict == "fails"
        assert "one common noise level" not in line.remedy
        assert "the head's noise does not match the residuals" in line.remedy
        assert "gaussian_nll" not in line.remedy


def test_advice_on_the_command_line_names_what_it_has():
    from vhat.cli.advice import AUDIT, in_options

    X, y = straight(200, 2, noise=lambda X: np.exp(X[:, 1]))
    told = in_options(lines(fit(X, y))["unequal noise"].remedy, AUDIT)
    assert "fit with --weights COLUMN, and give --noise weights" in told
    assert "noise=" not in told
    assert "from vhat calibrate hold for this group" in told
    assert "fitted_" not in told


# -- where nothing can be told -------------------------------------------------------------------------
def test_few_rows_are_not_judged_by_groups():
    X, y = straight(12, 1)
    found = lines(fit(X, y), 1.0)
    assert found["unequal noise"].verdict == "assumed"
    assert "12 usable rows are too few" in found["unequal noise"].remedy


def test_a_loss_that_has_no_residuals_is_not_tested():
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    y = rng.poisson(np.exp(0.3 * x)).astype(float)
    fitted = vhat.from_jax(
        lambda q, Z: q[0] + q[1] * Z, np.array([0.2, 0.3]), x, y, weight_decay=0.1, loss=lambda f, y: np.e**f - y * f
    )
    for line in lines(fitted, 1.0).values():
        assert line.verdict == "assumed"
        assert "not a function of f - y" in line.remedy


# -- where the parameters are no minimum ---------------------------------------------------------------
def early(n=40, p=34):
    """Return a fit of many parameters that was stopped before it had begun: residuals 0.35, freedom for a few."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, p - 1))
    y = rng.standard_normal(n)
    y *= 0.35 / np.sqrt(np.mean(y**2))
    return X, y


def test_the_noise_of_a_fit_that_was_stopped_early_is_not_said_to_hold_and_both_numbers_are_told():
    X, y = early()
    found = given(np.zeros(34), X, y).audit()
    assert found["stationarity"].verdict == "fails"
    line = found["noise"]
    assert line.verdict == "undecided"
    assert f"{0.35 * np.sqrt(40 / 6):.4g}" in line.remedy  # |r|^2 over n - p
    assert "root mean square of 0.35." in line.remedy
    assert "fitted.with_validation(X, y)" in line.remedy
    assert "noise= from replicates" in line.remedy
    assert line.remedy.startswith("Settle stationarity first, which fails")
    assert given(np.zeros(34), X, y).audit(noise=0.35)["noise"].verdict == "assumed"
    assert fit(X, y).audit()["noise"].verdict == "holds"


def test_residuals_of_what_is_no_minimum_are_taken_as_they_are_and_advice_waits_for_polish():
    X, y = straight(200, 2, noise=lambda X: np.exp(0.8 * X[:, 1]))
    theta = np.linalg.lstsq(design(X), y, rcond=None)[0] + [0.5, 0.0, 0.0]
    found = given(theta, X, y).audit()
    assert found["stationarity"].verdict == "fails"
    assert "residuals as fitted" in found["unequal noise"].meaning
    assert found["unequal noise"].verdict == "fails"
    assert found["unequal noise"].remedy.startswith("Settle stationarity first, which fails")


# -- how often the lines are wrong ---------------------------------------------------------------------
REPEATS = {30: 400, 200: 200, 2000: 24}
DESIGNS = 4


def redrawn(fitted, seed):
    """Return the same least-squares fit to other responses."""
    rng = np.random.default_rng(seed)
    problem = fitted.problem
    A = design(problem.X)
    y = A.sum(axis=1) + rng.standard_normal(len(A))
    return vhat.FittedModel(problem.with_targets(y[:, None]).at(np.linalg.lstsq(A, y, rcond=None)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 20])
@pytest.mark.parametrize("n", REPEATS)
def test_false_alarms_are_as_rare_as_stated(n, d):
    """Each line at most 1%: the count of alarms stays below the 99.9% quantile of the binomial."""
    alarms = {(name, noise): 0 for name in LINES for noise in (None, 1.0)}
    for which in range(DESIGNS):
        first = fit(*straight(n, d, (n, d, which)))
        for repeat in range(REPEATS[n] // DESIGNS):
            fitted = redrawn(first, (n, d, which, 1 + repeat))
            for noise in (None, 1.0):
                for name, line in lines(fitted, noise).items():
                    assert line.verdict in ("holds", "fails")
                    alarms[name, noise] += line.verdict == "fails"
    most = stats.binom.ppf(0.999, REPEATS[n], 0.01)
    assert max(alarms.values()) <= most, alarms


@pytest.mark.slow
def test_a_right_linear_model_with_strong_decay_has_no_outliers():
    """Its noise is what no parameter explains, and its residuals are mostly not: false alarms stay about 1%."""
    n, p, fits = 12, 6, 40
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, p))
    alarms = 0
    for _ in range(fits):
        y = rng.standard_normal(n)
        theta = np.linalg.solve(X.T @ X / n + np.eye(p), X.T @ y / n)
        work = vhat.from_numpy(lambda q, Z: Z @ q, theta, X, y, jac=lambda Z: Z, weight_decay=1.0).workspace
        outliers = audit.residual_lines(work, "ggn", work.noise(None, "ggn", 0), 0, True)[2]
        alarms += outliers.verdict == "fails"
    assert alarms <= fits * 0.01 + 4 * np.sqrt(fits * 0.01)


def test_rows_of_filled_cells_are_named_as_such_and_not_by_the_value_that_fills_them():
    """Where a gap is filled the model misses what the cell would say: the gap is to be named, not the middle fifth."""
    rng = np.random.default_rng(0)
    n = 400
    area = rng.uniform(0, 10, n)
    y = 3 * area + 0.3 * rng.normal(size=n)
    frame = pd.DataFrame({"area": np.where(np.arange(n) % 10 == 0, np.nan, area), "other": rng.normal(size=n)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = vhat.NetworkRegressor(hidden_layer_sizes=(), weight_decay=1e-6).fit(frame, y)
    line = {each.name: each for each in network.audit()}["unequal noise"]
    assert line.verdict == "fails"
    assert "in which column area is missing" in f"{line.meaning} {line.remedy}"
    assert "fifth" not in line.meaning
