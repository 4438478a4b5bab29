"""The bootstrap against SciPy's and the textbook's formulas for a mean, and against ridge in closed form."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import vhat
from tests.methods.cases import constant, data, ridge, ridge_solution, torch_recipe
from vhat.fitted.model import FittedModel
from vhat.methods import Bootstrap
from vhat.methods.base.resampling import draw_pairs

ONE = [[1.0]]
rng = np.random.default_rng(5)
Y = rng.gamma(2.0, size=24)  # skewed, so that the limits of the different kinds differ
X = np.zeros((24, 1))


def scipy_interval(draws, method, delta):
    """SciPy's limits for the mean of Y from a bootstrap distribution that is given to it."""
    given = SimpleNamespace(bootstrap_distribution=draws)
    options = {"n_resamples": 0, "confidence_level": 1 - delta, "method": method, "bootstrap_result": given}
    return stats.bootstrap((Y,), np.mean, **options).confidence_interval


@pytest.mark.parametrize(("limits", "method"), [("percentile", "percentile"), ("bca", "BCa")])
def test_the_bootstrap_of_a_mean_is_scipys(limits, method):
    fit = Bootstrap(resamples=60, limits=limits).fit(constant, X, Y, seed=3)
    counts = fit.resampled.weights
    assert counts.shape == (60, 24)
    assert np.all(counts.sum(axis=1) == 24)
    for delta in (0.05, 0.3):
        band = fit.interval(ONE, delta)
        expected = scipy_interval(counts @ Y / 24, method, delta)
        np.testing.assert_allclose([band.lower[0], band.upper[0]], expected, rtol=1e-9)
        assert band.center[0] == pytest.approx(Y.mean())
        assert band.standard_error[0] == pytest.approx((counts @ Y / 24).std(ddof=1))


def test_studentised_limits_of_a_mean_are_the_textbooks():
    fit = Bootstrap(resamples=40, limits="studentised").fit(constant, X, Y, seed=1)
    counts, delta = fit.resampled.weights, 0.2
    means = counts @ Y / 24
    errors = np.sqrt([(count * (Y - mean) ** 2).sum() for count, mean in zip(counts, means, strict=True)]) / 24
    t = (means - Y.mean()) / errors
    error = np.sqrt(((Y - Y.mean()) ** 2).sum()) / 24
    expected = Y.mean() - np.quantile(t, [1 - delta / 2, delta / 2]) * error
    band = fit.interval(ONE, delta)
    np.testing.assert_allclose([band.lower[0], band.upper[0]], expected, rtol=1e-8)


def test_draws_of_rows_have_the_moments_of_the_multinomial():
    counts = draw_pairs(10, 20_000, np.random.default_rng(0)).weights
    assert abs(counts.mean() - 1) < 1e-12
    # var 0.9; the standard error of a variance over 20,000 draws is about 0.01
    assert abs(counts[:, 3].var() - 0.9) < 0.05


@pytest.mark.parametrize("resampling", ["residual", "wild", "parametric"])
def test_refits_are_ridge_on_resampled_responses(resampling):
    Z, y = data()
    x = np.random.default_rng(1).normal(size=(4, 2))
    fit = Bootstrap(resamples=6, resampling=resampling).fit(ridge(0.1), Z, y, seed=2)
    targets = fit.resampled.targets
    draws = np.stack([x @ ridge_solution(Z, target, 0.1) for target in targets])
    band = fit.interval(x, 0.3)
    np.testing.assert_allclose(band.lower, np.quantile(draws, 0.15, axis=0), rtol=1e-9)
    np.testing.assert_allclose(band.upper, np.quantile(draws, 0.85, axis=0), rtol=1e-9)


def test_residual_worlds_use_residuals_adjusted_by_the_leverage():
    Z, y = data()
    fitted = Z @ ridge_solution(Z, y, 0.1)
    leverage = np.diag(Z @ np.linalg.solve(Z.T @ Z / 30 + 0.1 * np.eye(2), Z.T) / 30)
    raw = y - fitted
    for adjust, expected in ((True, raw / np.sqrt(1 - leverage)), (False, raw)):
        wild = Bootstrap(resamples=3, resampling="wild", adjust=adjust).fit(ridge(0.1), Z, y).resampled
        np.testing.assert_allclose(np.abs(wild.targets - fitted), np.abs([expected] * 3), rtol=1e-9)
        drawn = Bootstrap(resamples=3, resampling="residual", adjust=adjust).fit(ridge(0.1), Z, y).resampled
        pool = expected - expected.mean()
        assert all(np.min(np.abs(pool - value)) < 1e-9 for value in (drawn.targets - fitted).ravel())


def test_parametric_worlds_have_the_noise_that_was_given():
    Z, y = data()
    resampled = Bootstrap(resamples=300, resampling="parametric", noise=0.7).fit(ridge(0.1), Z, y).resampled
    errors = resampled.targets - Z @ ridge_solution(Z, y, 0.1)
    # 9,000 normal draws: the standard error of their standard deviation is 0.7 / sqrt(18,000) = 0.005
    assert abs(errors.std() - 0.7) < 4 * 0.7 / np.sqrt(18_000)


def test_an_observation_is_wider_by_the_noise_in_quadrature():
    Z, y = data()
    fit = Bootstrap(resamples=20, noise=0.5).fit(ridge(0.1), Z, y)
    mean, new = (fit.interval([[0.3, 0.1]], 0.1, target=target) for target in ("mean", "observation"))
    expected = np.hypot(mean.half_width, stats.norm.ppf(0.95) * 0.5)
    np.testing.assert_allclose(new.half_width, expected, rtol=1e-12)
    np.testing.assert_allclose(new.lower + new.upper, mean.lower + mean.upper)
    assert new.noise == 0.5


@pytest.mark.parametrize("limits", ["percentile", "bca", "studentised"])
def test_units_of_y_scale_the_limits_and_a_point_does_not_see_its_neighbours(limits):
    Z, y = data()
    x = np.array([[0.3, 0.1], [2.0, -1.0]])
    method = Bootstrap(resamples=30, limits=limits)
    fit = method.fit(ridge(0.1), Z, y)
    together, alone = fit.interval(x, 0.2), fit.interval(x[1:], 0.2)
    scaled = method.fit(ridge(0.1), Z, 1000 * y).interval(x, 0.2)
    for name in ("center", "lower", "upper"):
        np.testing.assert_allclose(getattr(together, name)[1:], getattr(alone, name), rtol=1e-9)
        np.testing.assert_allclose(getattr(scaled, name), 1000 * getattr(together, name), rtol=1e-7)


@pytest.mark.parametrize("limits", ["percentile", "bca", "studentised"])
def test_several_outputs_are_each_on_their_own_for_a_linear_model(limits):
    Z, y = data(outputs=2)
    x = np.array([[0.3, 0.1], [2.0, -1.0]])
    method = Bootstrap(resamples=25, limits=limits)
    both = method.fit(ridge(0.1), Z, y).interval(x, 0.2)
    for k in range(2):
        one = method.fit(ridge(0.1), Z, y[:, k]).interval(x, 0.2)
        np.testing.assert_allclose(both.lower[:, k], one.lower, rtol=1e-7)
        np.testing.assert_allclose(both.upper[:, k], one.upper, rtol=1e-7)


def test_a_users_own_torch_loop_works():
    x = np.linspace(-1, 1, 20)[:, None]
    y = np.sin(2 * x[:, 0])
    fit = Bootstrap(resamples=3).fit(torch_recipe, x, y, seed=4)
    band = fit.interval(x[:5], 0.3)
    counts = fit.resampled.weights
    draws = np.stack([torch_recipe(x, y, seed=4, sample_weight=count).predict(x[:5]) for count in counts])
    np.testing.assert_allclose(band.lower, np.quantile(draws, 0.15, axis=0), rtol=1e-9)
    np.testing.assert_allclose(band.upper, np.quantile(draws, 0.85, axis=0), rtol=1e-9)
    assert band.center.shape == (5, 1)


def test_network_recipes_are_refitted_in_one_batch_as_they_would_be_alone():
    x = np.linspace(-1, 1, 12)[:, None]
    recipe = vhat.fit.Adam(vhat.fit.Network((1, 3, 1)), weight_decay=1e-2, steps=50)
    fit = Bootstrap(resamples=2).fit(recipe, x, x[:, 0] ** 2, seed=1)
    for refit, count in zip(fit.refits, fit.resampled.weights, strict=True):
        alone = recipe(x, x[:, 0] ** 2, seed=1, sample_weight=count)
        np.testing.assert_allclose(refit.predict(x), alone.predict(x), rtol=1e-5, atol=1e-6)


def test_the_sentence_owns_up_to_few_resamples():
    fit = Bootstrap(resamples=10).fit(constant, X, Y)
    assert "10 RESAMPLES WILL DO, WHICH RESOLVE NO MORE THAN 81.8%" in fit.interval(ONE, 0.05).guarantee
    assert "RESAMPLES" not in fit.interval(ONE, 0.2).guarantee


def test_what_cannot_be_given_is_said():
    with pytest.raises(vhat.InputError, match="belongs to resampling"):
        Bootstrap(limits="bca", resampling="wild")
    with pytest.raises(vhat.InputError, match="at least 2"):
        Bootstrap(resamples=1)
    with pytest.raises(vhat.InputError, match="standard deviation of y"):
        Bootstrap(noise=-1.0)
    fit = Bootstrap(resamples=3).fit(constant, X, Y)
    with pytest.raises(vhat.InputError, match="target='noise'"):
        fit.interval(ONE, target="noise")
    with pytest.raises(vhat.InputError, match="not between 0 and 1"):
        fit.interval(ONE, 1.5)
    with pytest.raises(vhat.InputError, match="knows nothing of what is unsupported"):
        fit.interval(ONE).abstain(max_unsupported=0.5)
    assert "curvature" not in repr(fit.interval(ONE))


def test_a_point_without_a_finite_correction_is_reported():
    high = np.r_[np.zeros(23), 1e3]

    def shifted(X, y, *, seed, sample_weight=None):  # a training that is biased: refits all lie below the fit
        fitted = constant(X, y, seed=seed, sample_weight=sample_weight)
        return fitted if sample_weight is None else FittedModel(fitted.problem.at(fitted.problem.theta - 1e6))

    fit = Bootstrap(resamples=5, limits="bca").fit(shifted, X, high)
    with pytest.warns(vhat.ConvergenceWarning, match="row 0.*one side of the fit"):
        band = fit.interval(ONE)
    assert band.status[0] == "not finite"
    assert np.isnan(band.lower[0])


def without_zeros(X, y, *, seed, sample_weight=None):
    """Ridge that leaves rows of weight zero out, as many libraries do: the mean over fewer rows, in which they count
    more."""
    if sample_weight is None:
        return ridge(0.1)(X, y, seed=seed)
    kept = sample_weight > 0
    share = kept.mean()
    return ridge(0.1)(X[kept], y[kept], seed=seed, sample_weight=share * sample_weight[kept])


def with_copies(X, y, *, seed, sample_weight=None):
    """Ridge that knows no weights, and takes copies of rows in their place."""
    rows = np.arange(len(y)) if sample_weight is None else np.repeat(np.arange(len(y)), sample_weight.astype(int))
    return ridge(0.1)(X[rows], y[rows], seed=seed)


@pytest.mark.parametrize("recipe", [without_zeros, with_copies])
@pytest.mark.parametrize("limits", ["percentile", "bca", "studentised"])
def test_rows_that_a_resample_left_out_may_be_dropped_and_copies_may_stand_for_weights(recipe, limits):
    """Three ways to write one objective have the same limits."""
    Z, y = data()
    method = Bootstrap(resamples=25, limits=limits)
    band, expected = (method.fit(each, Z, y).interval([[0.3, 0.1]], 0.2) for each in (recipe, ridge(0.1)))
    np.testing.assert_allclose([band.lower, band.upper], [expected.lower, expected.upper], rtol=1e-7)


def test_an_estimator_that_drops_rows_of_weight_zero_has_studentised_limits():
    Z, y = data(20)

    def recipe(X, y, *, seed, sample_weight=None):
        return vhat.NetworkRegressor((), weight_decay=1e-2, random_state=seed).fit(X, y, sample_weight).fitted_

    fit = Bootstrap(resamples=3, limits="studentised", noise=0.3).fit(recipe, Z, y)
    assert all(
        refit.problem.n == np.count_nonzero(w) for refit, w in zip(fit.refits, fit.resampled.weights, strict=True)
    )
    point = np.array([[0.3, 0.1]])
    means = np.array([refit.predict(point)[0] for refit in fit.refits])
    errors = []
    for refit, counts in zip(fit.refits, fit.resampled.weights, strict=True):
        kept = counts > 0
        slope = refit.sensitivity(point)[0]  # of all copies of a row together
        errors.append(np.sqrt(np.sum((slope * (y[kept] - refit.predict(Z[kept]))) ** 2 / counts[kept])))
    own = np.sqrt(np.sum((fit.base.sensitivity(point)[0] * (y - fit.base.predict(Z))) ** 2))
    t = (means - fit.base.predict(point)[0]) / errors
    band = fit.interval(point, 0.2)
    expected = fit.base.predict(point)[0] - np.quantile(t, [0.9, 0.1]) * own
    np.testing.assert_allclose([band.lower[0], band.upper[0]], expected, rtol=1e-6)


def test_a_recipe_that_does_not_follow_its_weights_is_refused():
    Z, y = data()

    def ignores(X, y, *, seed, sample_weight=None):
        return ridge(0.1)(X, y, seed=seed)

    def keeps_them_to_itself(X, y, *, seed, sample_weight=None):
        theta = ridge_solution(X, y, 0.1, sample_weight)
        return vhat.from_numpy(lambda q, Z: Z @ q, theta, X, y, jac=lambda q, Z: Z, weight_decay=0.1)

    def only_tells(X, y, *, seed, sample_weight=None):
        theta = ridge_solution(X, y, 0.1)
        return vhat.from_numpy(
            lambda q, Z: Z @ q, theta, X, y, jac=lambda q, Z: Z, weight_decay=0.1, sample_weight=sample_weight
        )

    for recipe in (ignores, keeps_them_to_itself):
        with pytest.raises(vhat.InputError, match="does not hold the sample weights"):
            Bootstrap(resamples=4).fit(recipe, Z, y)
        Bootstrap(resamples=4, resampling="wild").fit(recipe, Z, y)
    with pytest.raises(vhat.InputError, match=r"one and the same model.*sample_weight"):
        Bootstrap(resamples=4).fit(only_tells, Z, y)


def test_weights_that_a_recipe_has_of_its_own_multiply_the_counts():
    Z, y = data()
    own = np.linspace(0.5, 2.0, 30)

    def recipe(X, y, *, seed, sample_weight=None):
        return ridge(0.1)(X, y, seed=seed, sample_weight=own if sample_weight is None else own * sample_weight)

    fit = Bootstrap(resamples=5).fit(recipe, Z, y)
    draws = [Z[0] @ ridge_solution(Z, y, 0.1, own * counts) for counts in fit.resampled.weights]
    assert fit.interval(Z[:1], 0.2).lower[0] == pytest.approx(np.quantile(draws, 0.1))


@pytest.mark.parametrize("limits", ["bca", "studentised"])
def test_limits_that_need_residuals_are_refused_before_any_refit_where_there_are_none(limits):
    Z, y = data()
    fits = []

    def logistic(X, y, *, seed, sample_weight=None):
        fits.append(seed)
        return vhat.from_numpy(
            lambda q, Z: Z @ q,
            np.zeros(2),
            X,
            y,
            jac=lambda q, Z: Z,
            weight_decay=0.1,
            loss=lambda f, t: np.logaddexp(0.0, f) - t * f,
            sample_weight=sample_weight,
        )

    with pytest.raises(vhat.InputError, match=f'limits="{limits}" needs predictions on the scale of y'):
        Bootstrap(resamples=4, limits=limits).fit(logistic, Z, (y > 0).astype(float))
    assert len(fits) == 1
