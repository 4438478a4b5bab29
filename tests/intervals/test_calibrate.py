"""Calibrated intervals: their level on a truth that the model cannot represent, and what they refuse."""

from __future__ import annotations

import pickle

import jax
import numpy as np
import pandas as pd
import pytest

import vhat

N, LAM, SIGMA = 40, 1e-3, 0.1


def truth(x):
    return np.sin(3 * x)


def line(q, x):
    return q[0] + q[1] * x


def rows(x):
    return np.column_stack([np.ones(len(x)), x])


def draw(rng, n):
    x = rng.uniform(-2, 2, n)
    return x, truth(x) + SIGMA * rng.standard_normal(n)


def fit(x, y):
    """A straight line through a sine, by ridge regression in closed form."""
    A = rows(x).T @ rows(x) / len(x) + LAM * np.eye(2)
    theta = np.linalg.solve(A, rows(x).T @ y / len(x))
    return vhat.from_numpy(
        line,
        theta,
        x,
        y,
        jac=lambda q, x: rows(x),
        hess=lambda q, x: np.zeros((len(x), 2, 2)),
        weight_decay=LAM,
    )


X, Y = draw(np.random.default_rng(0), N)


@pytest.fixture(scope="module")
def fitted():
    return fit(X, Y)


@pytest.fixture(scope="module")
def calibrated(fitted):
    return fitted.calibrate(*draw(np.random.default_rng(1), 60), noise=SIGMA)


# -- level -----------------------------------------------------------------------------------------------
def test_split_reaches_its_level_on_a_truth_that_the_model_cannot_represent_and_the_formula_does_not(fitted):
    """19 rows at delta = 0.1: the 18th smallest score covers 18/20 of new responses, whatever the model."""
    rng, times, new = np.random.default_rng(2), 400, 25
    covered, plain = np.empty(times), np.empty(times)
    for i in range(times):
        x, y = draw(rng, new)
        band = fitted.calibrate(*draw(rng, 19), noise=SIGMA).interval(x, 0.1)
        covered[i] = np.mean((band.lower <= y) & (y <= band.upper))
        usual = fitted.interval(x, 0.1, target="observation", noise=SIGMA)
        plain[i] = np.mean((usual.lower <= y) & (y <= usual.upper))
    error = np.std(covered) / np.sqrt(times)
    assert error < 0.006
    assert covered.mean() == pytest.approx(0.9, abs=4 * error)
    assert plain.mean() < 0.4


def test_leave_one_out_comes_near_its_level_on_the_same_truth():
    rng, covered = np.random.default_rng(3), []
    for _ in range(150):
        x, y = draw(rng, 20)
        band = fit(*draw(rng, N)).calibrate("loo", noise=SIGMA).interval(x, 0.1)
        covered.append(np.mean((band.lower <= y) & (y <= band.upper)))
    assert np.mean(covered) == pytest.approx(0.9, abs=4 * np.std(covered) / np.sqrt(150) + 0.01)


# -- scores --------------------------------------------------------------------------------------------
def test_scores_are_misses_in_the_spread_that_the_model_claims(fitted):
    x, y = draw(np.random.default_rng(4), 12)
    found = fitted.calibrate(x, y, noise=SIGMA)
    A = rows(X).T @ rows(X) / N + LAM * np.eye(2)
    leans = rows(x) @ np.linalg.solve(A, rows(X).T) / N
    spread = SIGMA * np.sqrt(1 + np.sum(leans**2, axis=1))
    expected = np.abs(y - line(np.linalg.solve(A, rows(X).T @ Y / N), x)) / spread
    np.testing.assert_allclose(found.scores, expected, rtol=1e-9)
    assert found.quantile(0.2) == np.sort(expected)[10]  # ceil(0.8 x 13) = 11th smallest
    band = found.interval(x[:3], 0.2)
    np.testing.assert_allclose(band.half_width, np.sort(expected)[10] * spread[:3], rtol=1e-9)
    np.testing.assert_allclose(band.upper - band.center, band.half_width, rtol=1e-12)
    assert (band.bound, band.target, band.delta) == ("split", "observation", 0.2)


def test_leave_one_out_scores_are_those_of_refits_with_their_own_spread(fitted):
    found = fitted.calibrate("loo", noise=SIGMA)
    for i in range(0, N, 7):
        x_, y_ = np.delete(X, i), np.delete(Y, i)
        A_ = rows(x_).T @ rows(x_) / N + LAM * np.eye(2)  # the refit keeps 1/n and lam
        leans = rows(X[i : i + 1]) @ np.linalg.solve(A_, rows(x_).T) / N
        expected = abs(Y[i] - (leans @ y_)[0]) / (SIGMA * np.sqrt(1 + np.sum(leans**2)))
        assert found.scores[i] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("m", "delta", "rank"), [(19, 0.05, 19), (19, 0.1, 18), (99, 0.05, 95), (9, 0.1, 9), (39, 0.1, 36)]
)
def test_the_rank_is_that_of_the_decimal_that_was_written(calibrated, m, delta, rank):
    scores = np.random.default_rng(m).permutation(np.arange(1.0, m + 1))
    assert vhat.Calibrated("split", scores, 0, calibrated.base).quantile(delta) == rank


def test_a_row_without_a_score_counts_as_missed(calibrated):
    scores = np.append(np.arange(1.0, 19.0), np.inf)
    found = vhat.Calibrated("split", scores, 0, calibrated.base)
    assert found.quantile(0.1) == 18
    assert found.finest == pytest.approx(0.1)
    with pytest.raises(vhat.InputError, match=r"smallest delta that they allow is 0\.1"):
        found.quantile(0.05)


def test_a_training_row_of_leverage_one_counts_as_missed():
    Z = np.column_stack([np.ones(12), np.arange(12) == 3]).astype(float)
    y = np.random.default_rng(0).normal(size=12)
    fitted = vhat.from_jax(lambda q, Z: Z @ q, np.linalg.lstsq(Z, y, rcond=None)[0], Z, y, weight_decay=0.0)
    with pytest.warns(vhat.LeverageWarning):
        found = fitted.calibrate("loo", noise=1.0)
    assert np.flatnonzero(np.isinf(found.scores)).tolist() == [3]


# -- what is claimed -----------------------------------------------------------------------------------
def test_each_kind_claims_what_it_has(fitted, calibrated):
    split, loo = calibrated.guarantee, fitted.calibrate("loo").guarantee
    assert "missed with probability at most delta" in split
    assert "exchangeable" in split
    assert "60 calibration rows" in split
    assert "in the mean over draws" in split
    assert "no finite-sample guarantee" in loo
    assert "at most 2 x delta" in loo
    assert "guaranteed" not in split + loo
    band = calibrated.interval(X[:2], 0.1)
    assert "missed with probability at most 0.1," in band.guarantee
    assert "Calibrated by split: 60 rows" in repr(calibrated)
    assert split in repr(calibrated)


def test_too_few_rows_for_the_delta_asked_are_refused_with_the_number_needed(fitted):
    few = fitted.calibrate(*draw(np.random.default_rng(5), 10))
    with pytest.raises(vhat.InputError, match=r"10 scores are too few for delta=0\.05.*0\.0909.*at least 19 rows"):
        few.interval(X[:1])
    assert np.all(np.isfinite(few.interval(X[:1], 0.1).half_width))
    with pytest.raises(vhat.InputError, match=r"delta=1\.5"):
        few.interval(X[:1], 1.5)


# -- training rows among the calibration rows ------------------------------------------------------------
def test_the_training_data_are_refused_as_calibration_data(fitted):
    with pytest.raises(vhat.InputError, match="every calibration row is also a training row"):
        fitted.calibrate(X, Y)
    with pytest.raises(vhat.InputError, match="every calibration row is also a training row"):
        fitted.calibrate(X[::-1][:7], Y[::-1][:7])


def test_some_training_rows_are_warned_of_and_said_in_the_sentence(fitted):
    x, y = draw(np.random.default_rng(6), 30)
    x[[2, 9]], y[[2, 9]] = X[:2], Y[:2]
    with pytest.warns(vhat.CalibrationWarning, match=r"2 of 30 calibration rows are also training rows.*rows 2, 9"):
        found = fitted.calibrate(x, y)
    assert "BUT 2 OF THEM ARE TRAINING ROWS TOO" in found.guarantee
    assert "BUT 2 OF THEM" in found.interval(X[:1], 0.1).guarantee


def test_a_repeated_input_with_a_new_response_is_no_training_row(fitted):
    found = fitted.calibrate(X, Y + SIGMA * np.random.default_rng(7).standard_normal(N))
    assert found.repeated == 0


@pytest.mark.parametrize("container", ["dict", "tuple", "frame of words"])
def test_training_rows_are_found_in_any_container(container):
    rng = np.random.default_rng(8)
    a, b = rng.normal(size=20), rng.integers(0, 3, 20)
    y = a + b + 0.1 * rng.standard_normal(20)
    if container == "frame of words":
        frame = pd.DataFrame({"a": a, "b": np.array(["x", "y", "z"])[b]})
        predict, data = (lambda q, f: q[0] * f["a"].to_numpy() + q[1] * (f["b"] == "y").to_numpy(), frame)
        fitted = vhat.from_numpy(predict, [1.0, 1.0], data, y).polish()
    else:
        data = {"a": a, "b": b} if container == "dict" else (a, b)
        keys = ("a", "b") if container == "dict" else (0, 1)
        fitted = vhat.from_jax(
            lambda q, d: q[0] * d[keys[0]] + q[1] * d[keys[1]], np.ones(2), data, y, weight_decay=1e-6
        ).polish()
    with pytest.raises(vhat.InputError, match="every calibration row"):
        fitted.calibrate(data, y, noise=0.1)
    assert fitted.calibrate(data, y + 1e-4, noise=0.1).repeated == 0


def test_a_container_of_the_users_own_is_calibrated_though_its_rows_cannot_be_compared():
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    jax.tree_util.register_pytree_node(Pair, lambda p: ((p.a, p.b), None), lambda _, parts: Pair(*parts))
    rng = np.random.default_rng(13)
    data = Pair(rng.normal(size=20), rng.normal(size=20))
    y = data.a + data.b + 0.1 * rng.standard_normal(20)
    fitted = vhat.from_jax(lambda q, p: q[0] * p.a + q[1] * p.b, np.ones(2), data, y, weight_decay=1e-6).polish()
    fresh = Pair(rng.normal(size=25), rng.normal(size=25))
    assert fitted.calibrate(fresh, fresh.a + fresh.b, noise=0.1).interval(fresh, 0.1).center.shape == (25,)


def test_training_rows_are_found_among_tensors():
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(1, 1)
    x = torch.tensor(X, dtype=torch.float32)[:, None]
    y = torch.tensor(Y, dtype=torch.float32)[:, None]
    fitted = vhat.from_torch(module, x, y, weight_decay=1e-3).polish()
    with pytest.raises(vhat.InputError, match="every calibration row"):
        fitted.calibrate(x, y)
    found = fitted.calibrate(x + 0.01, y)
    assert found.scores.shape == (N, 1)
    assert found.interval(x[:3], 0.1).center.shape == (3, 1)


# -- bad input -------------------------------------------------------------------------------------------
def test_data_that_cannot_be_used_are_refused_in_words(fitted):
    with pytest.raises(vhat.InputError, match=r"y_cal has shape \(3,\); the model predicts shape \(4,\)"):
        fitted.calibrate(X[:4], Y[:3])
    with pytest.raises(vhat.InputError, match="y_cal has NaN or infinite values in row 1"):
        fitted.calibrate(X[:3], [0.0, np.nan, 1.0])
    with pytest.raises(vhat.InputError, match=r"X_cal: .*NaN or infinite values in row 2"):
        fitted.calibrate([0.0, 1.0, np.nan], Y[:3])
    with pytest.raises(vhat.InputError, match=r"X_cal: .*no rows"):
        fitted.calibrate(np.empty(0), np.empty(0))
    with pytest.raises(vhat.InputError, match="needs the responses"):
        fitted.calibrate(X)
    with pytest.raises(vhat.InputError, match="'loo'"):
        fitted.calibrate("jackknife")
    with pytest.raises(vhat.InputError, match="neither y_cal"):
        fitted.calibrate("loo", Y)


def test_noise_that_differs_between_rows_asks_for_that_of_new_responses(fitted):
    sigma = np.linspace(0.05, 0.2, N)
    x, y = draw(np.random.default_rng(9), 30)
    with pytest.raises(vhat.InputError, match="observation_noise"):
        fitted.calibrate(x, y, noise=sigma)
    fresh = np.linspace(0.1, 0.3, 30)
    found = fitted.calibrate(x, y, noise=sigma, observation_noise=fresh)
    with pytest.raises(vhat.InputError, match=r"one observation_noise per calibration row.*Give interval\(x, obs"):
        found.interval(x, 0.1)
    se = fitted.interval(x, noise=sigma).standard_error
    np.testing.assert_allclose(found.scores, np.abs(y - fitted.predict(x)) / np.hypot(se, fresh), rtol=1e-9)
    width = found.interval(x, 0.1, observation_noise=fresh).half_width
    np.testing.assert_allclose(width, found.quantile(0.1) * np.hypot(se, fresh), rtol=1e-9)
    assert fitted.calibrate("loo", noise=sigma).scores.shape == (N,)


# -- the noise of new responses, once for the scores and once for the interval ----------------------------
LOUD = 1.0
"""Noise of the responses to calibrate by and to cover: ten times that of the training rows."""


def loud(rng, n):
    x = rng.uniform(-2, 2, n)
    return x, truth(x) + LOUD * rng.standard_normal(n)


def covered(calibrated, rng, new, **options):
    x, y = loud(rng, new)
    band = calibrated.interval(x, **options)
    return np.mean((band.lower <= y) & (y <= band.upper))


@pytest.mark.parametrize("given", [LOUD, [LOUD], np.float32(LOUD), "one per row"])
def test_the_level_holds_where_new_responses_are_noisier_than_the_training_rows(fitted, given):
    """39 rows at delta = 0.05: the 38th smallest score covers 38/40 of new responses."""
    rng, times, new = np.random.default_rng(14), 300, 20
    shares = np.empty(times)
    for i in range(times):
        x, y = loud(rng, 39)
        if isinstance(given, str):
            calibrated = fitted.calibrate(x, y, noise=SIGMA, observation_noise=np.full(39, LOUD))
            shares[i] = covered(calibrated, rng, new, observation_noise=np.full(new, LOUD))
        else:
            shares[i] = covered(fitted.calibrate(x, y, noise=SIGMA, observation_noise=given), rng, new)
    # binomial within a calibration, Beta(38, 2) between calibrations
    error = np.sqrt(0.95 * 0.05 / (times * new) + 38 * 2 / (40**2 * 41 * times))
    assert shares.mean() == pytest.approx(0.95, abs=4 * error)
    assert 4 * error < 0.014


def test_a_noise_level_that_was_given_for_all_rows_is_used_for_new_ones(fitted):
    x, y = loud(np.random.default_rng(15), 30)
    found = fitted.calibrate(x, y, noise=SIGMA, observation_noise=LOUD)
    se = fitted.interval(x, noise=SIGMA).standard_error
    np.testing.assert_allclose(found.scores, np.abs(y - fitted.predict(x)) / np.hypot(se, LOUD), rtol=1e-9)
    width = found.interval(x, 0.1).half_width
    np.testing.assert_allclose(width, found.quantile(0.1) * np.hypot(se, LOUD), rtol=1e-9)
    np.testing.assert_array_equal(found.interval(x, 0.1, observation_noise=LOUD).half_width, width)
    other = found.interval(x, 0.1, observation_noise=2 * LOUD).half_width  # that of these rows is known better
    np.testing.assert_allclose(other, found.quantile(0.1) * np.hypot(se, 2 * LOUD), rtol=1e-9)


@pytest.mark.parametrize("a", [1e-4, 1e5])
def test_the_unit_of_y_and_of_its_noise_scales_the_limits(a):
    x, y = loud(np.random.default_rng(16), 30)
    one = fit(X, Y).calibrate(x, y, noise=SIGMA, observation_noise=LOUD)
    other = fit(X, a * Y).calibrate(x, a * y, noise=a * SIGMA, observation_noise=a * LOUD)
    np.testing.assert_allclose(other.scores, one.scores, rtol=1e-8)
    np.testing.assert_allclose(other.interval(X, 0.1).lower, a * one.interval(X, 0.1).lower, rtol=1e-8)
    np.testing.assert_allclose(other.interval(X, 0.1).upper, a * one.interval(X, 0.1).upper, rtol=1e-8)


def test_a_noise_level_for_the_scores_or_for_the_interval_alone_is_refused_in_words(fitted):
    x, y = loud(np.random.default_rng(17), 30)
    for values in (np.full(30, LOUD), np.linspace(0.5, 1.5, 30)):
        found = fitted.calibrate(x, y, noise=SIGMA, observation_noise=values)
        with pytest.raises(vhat.InputError, match=r"one observation_noise per calibration row.*Give interval\(x, obs"):
            found.interval(X, 0.1)
        assert found.interval(X, 0.1, observation_noise=LOUD).center.shape == (N,)
    for values in (LOUD, np.full(N, LOUD)):
        with pytest.raises(vhat.InputError, match=r"not to calibrate\(\).*Give it to both.*or to neither"):
            fitted.calibrate(x, y, noise=SIGMA).interval(X, 0.1, observation_noise=values)
        with pytest.raises(vhat.InputError, match=r"calibrate\('loo'\).*Leave it out"):
            fitted.calibrate("loo", noise=SIGMA).interval(X, 0.1, observation_noise=values)
    uneven = fitted.calibrate("loo", noise=np.linspace(0.05, 0.2, N))
    with pytest.raises(vhat.InputError, match=r"noise of different sizes.*Give interval\(x, obs"):
        uneven.interval(X, 0.1)
    assert uneven.interval(X, 0.1, observation_noise=SIGMA).center.shape == (N,)


def test_a_noise_level_of_each_output_is_used_for_new_rows_too():
    rng = np.random.default_rng(18)
    Z, levels = rng.normal(size=(40, 3)), np.array([[2.0, 0.5]])
    Y2 = Z @ rng.normal(size=(3, 2)) + 0.1 * rng.standard_normal((40, 2))
    fitted = vhat.from_jax(lambda q, Z: Z @ q, np.linalg.lstsq(Z, Y2, rcond=None)[0], Z, Y2, weight_decay=0.0)
    fresh = rng.normal(size=(25, 3))
    y = fitted.predict(fresh) + levels * rng.standard_normal((25, 2))
    found = fitted.calibrate(fresh, y, noise=0.1, observation_noise=levels)
    width = found.interval(Z[:4], 0.1).half_width
    se = fitted.interval(Z[:4], noise=0.1).standard_error
    np.testing.assert_allclose(width, found.quantile(0.1) * np.hypot(se, levels), rtol=1e-9)
    with pytest.raises(vhat.InputError, match="Give interval"):
        fitted.calibrate(fresh, y, noise=0.1, observation_noise=np.ones((25, 1))).interval(Z[:4], 0.1)


# -- invariance --------------------------------------------------------------------------------------------
def test_the_unit_of_y_scales_the_interval_and_no_score():
    a, (x, y) = 1e5, draw(np.random.default_rng(10), 30)
    plain, scaled = fit(X, Y), fit(X, a * Y)
    for one, other in (
        (plain.calibrate(x, y), scaled.calibrate(x, a * y)),
        (plain.calibrate("loo"), scaled.calibrate("loo")),
    ):
        np.testing.assert_allclose(other.scores, one.scores, rtol=1e-8)
        np.testing.assert_allclose(other.interval(X, 0.1).half_width, a * one.interval(X, 0.1).half_width, rtol=1e-8)


def test_a_row_alone_has_the_interval_that_it_has_in_company(calibrated):
    company = calibrated.interval(X, 0.1)
    alone = [calibrated.interval(X[i : i + 1], 0.1) for i in range(3)]
    np.testing.assert_allclose([band.upper[0] for band in alone], company.upper[:3], rtol=1e-12)


def test_each_output_is_calibrated_on_its_own():
    rng = np.random.default_rng(11)
    Z = rng.normal(size=(40, 3))
    B, sizes = rng.normal(size=(3, 2)), np.array([0.1, 5.0])
    Y2 = Z @ B + sizes * rng.standard_normal((40, 2))
    fitted = vhat.from_jax(lambda q, Z: Z @ q, np.linalg.lstsq(Z, Y2, rcond=None)[0], Z, Y2, weight_decay=0.0)
    Z_cal = rng.normal(size=(50, 3))
    y_cal = Z_cal @ B + np.array([5.0, 1.0]) * sizes * rng.standard_normal((50, 2))  # the first noisier than trained
    found = fitted.calibrate(Z_cal, y_cal, noise=sizes[None, :])
    assert found.scores.shape == (50, 2)
    assert found.quantile(0.1)[0] > 2.5 * found.quantile(0.1)[1]
    assert "each output alone" in found.guarantee
    assert fitted.calibrate("loo").interval(Z[:5], 0.1).half_width.shape == (5, 2)


def test_pandas_in_another_order_of_columns_and_pickles_are_the_same():
    rng = np.random.default_rng(12)
    frame = pd.DataFrame(rng.normal(size=(30, 2)), columns=["a", "b"])
    y = frame["a"] - frame["b"] + pd.Series(0.1 * rng.standard_normal(30))
    theta = np.linalg.lstsq(frame.to_numpy(), y, rcond=None)[0]
    fitted = vhat.from_numpy(two_columns, theta, frame, y)
    other = pd.DataFrame(rng.normal(size=(25, 2)), columns=["b", "a"])
    y_cal = other["a"] - other["b"] + 0.1
    found = fitted.calibrate(other, y_cal)
    same = fitted.calibrate(other[["a", "b"]], y_cal.to_numpy())
    np.testing.assert_allclose(found.scores, same.scores, rtol=1e-12)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.interval(other, 0.1).upper, found.interval(other, 0.1).upper)
    noisy = fitted.calibrate(other, y_cal, observation_noise=0.5)
    again = pickle.loads(pickle.dumps(noisy))
    np.testing.assert_array_equal(again.interval(other, 0.1).upper, noisy.interval(other, 0.1).upper)


def two_columns(q, frame):
    return q[0] * frame["a"].to_numpy() + q[1] * frame["b"].to_numpy()


def test_weights_of_zero_are_not_scored():
    weight = np.ones(N)
    weight[:5] = 0.0
    fitted = vhat.from_jax(
        lambda q, x: q[0] + q[1] * x, np.zeros(2), X, Y, weight_decay=LAM, sample_weight=weight
    ).polish()
    assert fitted.calibrate("loo").scores.shape == (N - 5,)
    assert np.isfinite(fitted.calibrate("loo").scores).all()
