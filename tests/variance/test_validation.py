"""Validation rows: the noise estimated from them, and their other uses."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import curve_fit

import vhat
from vhat.evidence.minimise.validation_error import compare_errors

N, M = 40, 30


def line(seed=0, n=N):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=n)
    return x, 1.0 + 0.5 * x + 0.3 * rng.normal(size=n)


def design(x):
    return np.column_stack([np.ones_like(x), x, x**2])


def polynomial(x, y, **options):
    theta = np.linalg.lstsq(design(x), y, rcond=None)[0]
    return vhat.from_numpy(lambda q, z: design(z) @ q, theta, x, y, jac=design, **options)


def held_out_level(x, y, z, t):
    """Return the level by its formula: the variance of an error is sigma^2 (1 + g (J'J)^-1 g')."""
    J, g = design(x), design(z)
    theta = np.linalg.lstsq(J, y, rcond=None)[0]
    share = np.einsum("ij,jk,ik->i", g, np.linalg.inv(J.T @ J), g)
    return np.sqrt(np.mean((g @ theta - t) ** 2 / (1 + share)))


def test_noise_is_the_size_of_held_out_errors_less_the_share_of_the_prediction():
    (x, y), (z, t) = line(0), line(1, M)
    fitted = polynomial(x, y).with_validation(z, t)
    band = fitted.interval([0.5])
    np.testing.assert_allclose(band.noise, held_out_level(x, y, z, t), rtol=1e-10)
    assert band.noise_source == f"estimated from {M} validation rows"
    assert band.df == M
    assert f"its level estimated from {M} validation rows with {M} degrees of freedom" in band.guarantee
    np.testing.assert_allclose(fitted.interval([0.5], noise=0.7).noise, 0.7)
    np.testing.assert_allclose(fitted.calibrate("loo").interval([0.5]).noise, band.noise)


def test_few_validation_rows_say_how_uncertain_the_level_is():
    (x, y), (z, t) = line(0), line(1, M)
    few = polynomial(x, y, validation=(z[:5], t[:5]))
    told = "the noise level is known to about 32% (one standard error) from 5 validation rows (give more of them, or"
    assert told in few.interval([0.5]).guarantee
    level = few.audit()["noise"]
    assert level.verdict == "undecided"
    assert "So few rows tell it to about 32% (one standard error)" in level.remedy
    many = polynomial(x, y, validation=(z, t))
    assert "known to about" not in many.interval([0.5]).guarantee
    assert "known to about" not in few.interval([0.5], noise=0.3).guarantee
    assert many.audit()["noise"].verdict == "holds"


def test_every_front_end_takes_validation_rows():
    (x, y), (z, t) = line(0), line(1, M)
    theta = np.linalg.lstsq(design(x), y, rcond=None)[0]
    level = held_out_level(x, y, z, t)
    in_jax = vhat.from_jax(
        lambda q, v: q[0] + q[1] * v[:, 0] + q[2] * v[:, 0] ** 2,
        theta,
        x[:, None],
        y,
        weight_decay=0.0,
        validation=(z[:, None], t),
    )
    np.testing.assert_allclose(in_jax.interval([[0.5]]).noise, level, rtol=1e-8)
    in_numpy = polynomial(x, y, validation=(z, t))
    np.testing.assert_allclose(in_numpy.interval([0.5]).noise, level, rtol=1e-10)
    popt, _ = curve_fit(lambda v, a, b, c: a + b * v + c * v**2, x, y)
    by_scipy = vhat.from_curve_fit(lambda v, a, b, c: a + b * v + c * v**2, popt, x, y).with_validation(z, t)
    np.testing.assert_allclose(by_scipy.interval([0.5]).noise, level, rtol=1e-6)


@pytest.mark.parametrize("source", ["pair", "loader", "dataset"])
def test_a_torch_module_takes_a_pair_a_loader_or_a_dataset(source):
    (x, y), (z, t) = line(0), line(1, M)
    theta = np.linalg.lstsq(design(x), y, rcond=None)[0]
    module = torch.nn.Sequential(torch.nn.Linear(3, 1, bias=False), torch.nn.Flatten(0)).double()
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor(theta[None, :]))
    rows = torch.utils.data.TensorDataset(torch.tensor(design(z)), torch.tensor(t))
    given = {
        "pair": (design(z), t),
        "dataset": rows,
        "loader": torch.utils.data.DataLoader(rows, batch_size=7, shuffle=True),
    }[source]
    fitted = vhat.from_torch(module, design(x), y, weight_decay=0.0, validation=given)
    np.testing.assert_allclose(fitted.interval(design(z[:2])).noise, held_out_level(x, y, z, t), rtol=1e-8)


def test_several_outputs_have_a_level_each():
    """Outputs without common parameters: each level is that of the output alone."""
    (x, y), (z, t) = line(0), line(1, M)
    Y, T = np.column_stack([y, -8 * y]), np.column_stack([t, 8 * t + np.sin(40 * z)])
    theta = np.linalg.lstsq(design(x), Y, rcond=None)[0]

    def both(v):
        return np.einsum("kj,ni->nkij", np.eye(2), design(v)).reshape(len(v), 2, 6)

    fitted = vhat.from_numpy(lambda q, v: both(v) @ q, theta.reshape(-1), x, Y, jac=both, validation=(z, T))
    band = fitted.interval([0.5])
    each = [held_out_level(x, Y[:, k], z, T[:, k]) for k in (0, 1)]
    np.testing.assert_allclose(band.noise, each, rtol=1e-8)


def test_outputs_that_share_parameters_settle_on_common_levels():
    """The levels solve ``s_k^2 = mean r_k^2 / (1 + var f_k / s_k^2)`` with var f_k under both of them."""
    rng = np.random.default_rng(3)
    X, Z = rng.normal(size=(12, 4)), rng.normal(size=(50, 4))
    mixing = rng.normal(size=(4, 2, 3))

    def both(v):
        return np.einsum("np,pkq->nkq", v, mixing)

    Y, T = (rng.normal(size=(len(v), 2)) * [1.0, 3.0] for v in (X, Z))
    fitted = vhat.from_numpy(lambda q, v: both(v) @ q, np.zeros(3), X, Y, jac=both).polish().with_validation(Z, T)
    level = np.asarray(fitted.interval(Z[:1], noise=None).noise)
    J, g = both(X).reshape(-1, 3), both(Z).reshape(-1, 3)
    moved = g @ np.linalg.solve(J.T @ J, J.T) * np.tile(level, 12)
    share = np.sum(moved**2, axis=1).reshape(50, 2) / level**2
    np.testing.assert_allclose(level**2, np.mean((fitted.predict(Z) - T) ** 2 / (1 + share), axis=0), rtol=0.01)


def test_rows_of_unequal_noise_are_taken_as_average_ones():
    (x, y), (z, t) = line(0), line(1, M)
    sigma = np.linspace(0.5, 2.0, N)
    popt, _ = curve_fit(lambda v, a, b: a + b * v, x, y, sigma=sigma)
    fitted = vhat.from_curve_fit(lambda v, a, b: a + b * v, popt, x, y, sigma).with_validation(z, t)
    band = fitted.interval([0.5])
    assert "as if their noise were that of an average training row" in band.noise_source
    weights = 1 / sigma**2
    J, g = (np.column_stack([np.ones_like(v), v]) for v in (x, z))
    to = np.linalg.solve(J.T @ (weights[:, None] * J), J.T * weights)
    shape = sigma / np.sqrt(np.mean(sigma**2))
    share = np.sum((g @ to * shape) ** 2, axis=1)
    np.testing.assert_allclose(band.noise, np.sqrt(np.mean((g @ popt - t) ** 2 / (1 + share))), rtol=1e-5)


def test_of_many_rows_v_is_computed_at_some_and_all_tell_the_size(monkeypatch):
    from vhat.variance import validation

    (x, y), (z, t) = line(0), line(1, 400)
    exact = polynomial(x, y, validation=(z, t)).interval([0.5]).noise
    monkeypatch.setattr(validation, "_MOST_SOLVED", 100)
    some = polynomial(x, y, validation=(z, t)).interval([0.5])
    np.testing.assert_allclose(some.noise, exact, rtol=0.02)
    assert some.noise != exact
    assert some.df == 400


def test_rows_are_carried_on():
    (x, y), (z, t) = line(0), line(1, M)
    fitted = polynomial(x, y + 0.01, weight_decay=1e-6, validation=(z, t))
    for moved in (fitted.polish(), fitted.scale_weight_decay(2.0), fitted.linearised(1e-3)):
        assert moved.interval([0.5]).noise_source == f"estimated from {M} validation rows"
    again = fitted.with_validation(z[:10], t[:10])
    assert again.interval([0.5]).noise_source == "estimated from 10 validation rows"
    assert fitted.interval([0.5]).df == M  # the model itself is unchanged


def test_training_rows_are_noticed_or_refused():
    x, y = line(0)
    fitted = polynomial(x, y)
    with pytest.raises(vhat.InputError, match="every validation row is also a training row"):
        fitted.with_validation(x[:5], y[:5])
    with pytest.warns(vhat.CalibrationWarning, match=r"2 of 4 validation rows are also training rows.*rows 2, 3"):
        fitted.with_validation(np.r_[9.0, 8.0, x[:2]], np.r_[1.0, 2.0, y[:2]])
    with pytest.raises(vhat.InputError, match=r"validation: y has shape \(3,\)"):
        fitted.with_validation(x[:5] + 1, y[:3])
    with pytest.raises(vhat.InputError, match=r"Give the pair \(X, y\)"):
        fitted.with_validation(x[:5] + 1)
    with pytest.raises(vhat.InputError, match=r"validation rows take no weights. Give the pair \(X, y\)"):
        polynomial(x, y, validation=(x + 1, y, np.ones(len(x))))
    perfect = polynomial(x, design(x) @ [1.0, 2.0, 3.0]).with_validation([5.0], [1.0 + 2 * 5.0 + 3 * 25.0])
    with pytest.raises(vhat.NoiseError, match=r"validation.*Give noise="):
        perfect.with_validation([0.0], perfect.predict([0.0])).interval([0.5])
    logistic = vhat.from_numpy(
        lambda q, v: design(v) @ q,
        np.zeros(3),
        x,
        (y > 1).astype(float),
        loss=lambda f, t: np.logaddexp(0, f) - t * f,
        weight_decay=1e-2,
    )
    with pytest.raises(vhat.InputError, match=r"not a function of f - y.*noise="):
        logistic.with_validation(x + 1, y)


# -- who else uses them ------------------------------------------------------------------------------
def test_calibration_says_which_of_its_rows_told_the_noise():
    (x, y), (z, t) = line(0), line(1, M)
    fitted = polynomial(x, y, validation=(z, t))
    fresh = line(2, M)
    assert "VALIDATION ROWS" not in fitted.calibrate(*fresh).guarantee
    mixed = fitted.calibrate(np.r_[z[:4], fresh[0]], np.r_[t[:4], fresh[1]])
    assert mixed.reused == 4
    assert "beware: 4 OF THEM ARE VALIDATION ROWS, which told the noise" in mixed.guarantee
    assert "beware: 4 OF THEM ARE VALIDATION ROWS" in str(mixed.interval([0.5]))  # in what is printed, too


def test_residual_lines_of_the_audit_are_those_of_validation_rows():
    (x, y), (z, t) = line(0), line(1, 60)
    spoilt = t.copy()
    spoilt[7] += 5.0
    audit = polynomial(x, y, validation=(z, spoilt)).audit()
    assert audit["outliers"].verdict == "fails"
    assert "validation row 7" in audit["outliers"].remedy
    assert "validation residuals" in audit["lack of fit"].meaning
    bent = polynomial(x, y, validation=(z, t + np.where(z > 1.2, 1.5, 0.0))).audit()
    assert bent["lack of fit"].verdict == "fails"
    assert "top fifth" in bent["lack of fit"].remedy
    good = polynomial(x, y, validation=(z, t)).audit()
    assert good["lack of fit"].verdict == good["outliers"].verdict == good["unequal noise"].verdict == "holds"
    large = polynomial(x, y, validation=(z, t)).audit(noise=0.1)  # given, so that their size is judged too
    assert large["lack of fit"].verdict == "fails"


def wiggly(steps):
    """Return a flexible model on few rows: descent fits the noise, and the validation error shows it."""
    rng = np.random.default_rng(5)
    x, z = np.linspace(-1, 1, 30), rng.uniform(-1, 1, size=200)
    y, t = (np.sin(3 * v) + 0.5 * rng.normal(size=len(v)) for v in (x, z))
    waves = rng.normal(size=25) * 6
    shifts = rng.uniform(0, 6, size=25)

    def features(v):
        return np.cos(np.outer(v, waves) + shifts)

    J, theta = features(x), np.zeros(25)
    for _ in range(steps):
        theta = theta - 0.1 * J.T @ (J @ theta - y) / len(y)
    return vhat.from_numpy(
        lambda q, v: features(v) @ q, theta, x, y, jac=features, weight_decay=1e-6, validation=(z, t)
    ), (features, x, y, z, t, theta)


def test_early_stopping_is_seen_before_polish_undoes_it():
    fitted, (features, x, y, z, t, theta) = wiggly(60)
    J = features(x)
    least = np.linalg.solve(J.T @ J / 30 + 1e-6 * np.eye(25), J.T @ y / 30)
    before, after = (np.sqrt(np.mean((features(z) @ q - t) ** 2)) for q in (theta, least))
    line = fitted.audit()["early stopping"]
    np.testing.assert_allclose(line.value, after / before, rtol=1e-4)
    assert line.verdict == "fails"
    assert "linearised()" in line.remedy
    told = rf"polish makes this model worse.*{before:.3g} before and {after:.3g} at the minimum.*linearised\(\)"
    with pytest.warns(vhat.EarlyStoppingWarning, match=told):
        polished = fitted.polish()
    again = polished.audit()["early stopping"]
    np.testing.assert_allclose(again.value, after / before, rtol=1e-6)
    assert again.verdict == "fails"
    np.testing.assert_allclose(polished.interval([0.1]).center, features(np.array([0.1])) @ least, rtol=1e-6)


def curved(steps, rows=200):
    """The rich model of :func:`wiggly` in other parameters, so that it is not linear and polish has a way to go."""
    _, (features, x, y, z, t, theta) = wiggly(steps)
    start = np.arcsinh(theta)
    return vhat.from_numpy(
        lambda q, v: features(v) @ np.sinh(q),
        start,
        x,
        y,
        jac=lambda q, v: features(v) * np.cosh(q),
        hess=lambda q, v: features(v)[:, :, None] * np.diag(np.sinh(q)),
        weight_decay=1e-4,
        validation=(z[:rows], t[:rows]),
    ), start


def test_polish_stops_where_the_validation_error_rises_and_leaves_the_model_as_it_is():
    fitted, start = curved(60)
    told = r"polish has stopped after (\d+) steps.*200 validation errors is ([\d.]+) for this model and ([\d.]+) on the"
    with pytest.raises(vhat.PolishError, match=told) as caught:
        fitted.polish()
    steps, before, after = re.search(told, str(caught.value)).groups()
    assert float(after) > 1.05 * float(before)
    assert "fitted.linearised() takes it as it is" in caught.value.remedy
    assert "fitted.polish(beyond_early_stopping=True)" in caught.value.remedy
    np.testing.assert_array_equal(fitted.params, start)
    with pytest.warns(vhat.EarlyStoppingWarning, match=rf"{before} before"):
        polished = fitted.polish(beyond_early_stopping=True)
    assert polished.audit()["stationarity"].verdict == "holds"
    assert int(steps) < polished.polished.steps + polished.polished.warmup_steps
    fitted.linearised(1e-2).interval([0.1])  # what the message advises


def test_a_minimum_that_is_refused_at_the_end_is_kept_in_the_error():
    """A descent too short to be given up on the way ends at a minimum that validation rows predict worse."""
    fitted, start = curved(3000)
    with pytest.raises(vhat.PolishError, match=r"polish would make this model worse.*refusal\.record") as caught:
        fitted.polish()
    np.testing.assert_array_equal(fitted.params, start)
    kept = caught.value.record
    with pytest.warns(vhat.EarlyStoppingWarning):
        asked = fitted.polish(beyond_early_stopping=True)
    np.testing.assert_allclose(kept.params, asked.params, rtol=1e-6)
    assert kept.audit()["stationarity"].verdict == "holds"
    assert kept.audit()["early stopping"].verdict == "fails"


@pytest.mark.parametrize(("size", "rise"), [(0.005, "none"), (0.03, "chance"), (0.2, "clear")])
def test_one_rule_says_whether_validation_errors_rise(size, rise):
    """Against scipy's paired t test of the squared errors."""
    rng = np.random.default_rng(0)
    before = rng.normal(size=(60, 1))
    after = before * (1 + size + 0.3 * rng.normal(size=(60, 1)) * (size > 0.01))
    after *= (1 + size) * np.sqrt(np.mean(before**2) / np.mean(after**2))
    found = compare_errors(before, after)
    np.testing.assert_allclose(found.ratio, 1 + size)
    test = stats.ttest_rel((after**2).ravel(), (before**2).ravel(), alternative="greater")
    np.testing.assert_allclose(found.in_standard_errors, test.statistic)
    assert found.rise() == rise
    assert (rise != "chance") == (test.pvalue < 0.01)  # a small rise counts for nothing, however certain it is


def test_a_rise_that_one_row_shows_stops_nothing():
    fitted, _ = curved(60, rows=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.EarlyStoppingWarning)
        assert fitted.polish().polished.status == "converged"


def test_a_descent_along_which_the_validation_error_falls_goes_to_its_end():
    fitted, _ = curved(1)
    near = np.linspace(-1, 1, 30) + 1e-3  # rows like those of training: the further down, the better
    few = fitted.with_validation(near, fitted.problem.targets[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert few.polish().polished.status == "converged"


def test_a_minimum_that_is_as_good_raises_nothing():
    (x, y), (z, t) = line(0), line(1, M)
    fitted = polynomial(x, y, weight_decay=1e-6, validation=(z, t))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        polished = fitted.polish()
    assert fitted.audit()["early stopping"].verdict == "holds"
    assert polished.audit()["early stopping"].verdict == "holds"
    with pytest.raises(KeyError):
        polynomial(x, y).audit()["early stopping"]


def test_the_linearisation_of_a_stopped_model_keeps_it_and_says_by_construction():
    fitted, (features, x, y, z, t, theta) = wiggly(60)
    tangent = fitted.linearised()
    np.testing.assert_array_equal(tangent.predict(z), fitted.predict(z))
    line = tangent.audit()["early stopping"]
    assert line.verdict == "by construction"
    ratio = np.sqrt(np.mean((features(z) @ theta - t) ** 2) / np.mean((features(x) @ theta - y) ** 2))
    np.testing.assert_allclose(line.value, ratio, rtol=1e-8)
    assert tangent.polish() is tangent


def test_levels_of_outputs_that_share_parameters_and_do_not_settle_are_said_to_be_too_large():
    """Two outputs of one parameter vector, one sixty times as noisy: its noise is most of the errors of the other."""
    rng = np.random.default_rng(0)
    design = rng.normal(size=(140, 2, 6))
    theta = rng.normal(size=6)
    y = design @ theta + rng.normal(size=(140, 2)) * [0.05, 3.0]
    X, rows = design[:40].reshape(40, -1), (design[40:].reshape(100, -1), y[40:])
    fitted = vhat.from_numpy(lambda q, Z: Z.reshape(-1, 2, 6) @ q, theta, X, y[:40]).polish()
    band = fitted.with_validation(*rows).interval(X[:1])
    assert "TOO LARGE for outputs with less noise" in band.noise_source
    assert "TOO LARGE" in band.guarantee
