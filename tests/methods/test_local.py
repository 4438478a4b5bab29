"""Proposed, Wald and Laplace on linear models, where statsmodels, scikit-learn and closed forms know the answer."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import optimize, stats
from sklearn.linear_model import BayesianRidge

import vhat
from tests.methods.cases import data, jax_ridge, ridge, ridge_solution
from vhat.methods import Bootstrap, LinearizedLaplace, PerturbedResponses, Proposed, Wald
from vhat.methods.base.marginal_likelihood import log_evidence, spectrum

X, Y = data(n=25, d=3)
POINTS = np.random.default_rng(9).normal(size=(5, 3))
OLS = sm.OLS(Y, X).fit()


def posterior_variance(lam, sigma):
    """Of Bayesian linear regression whose prior has variance sigma^2 / (n lam)."""
    precision = X.T @ X / sigma**2 + len(X) * lam / sigma**2 * np.eye(3)
    return np.einsum("ij,jk,ik->i", POINTS, np.linalg.inv(precision), POINTS)


# -- the library's own ---------------------------------------------------------------------


def test_proposed_is_the_interval_of_the_fitted_model():
    fit = Proposed(bound="chebyshev", noise=0.3, bias="plug-in", curvature="ggn").fit(ridge(0.1), X, Y)
    band = fit.interval(POINTS, 0.1)
    # Chebyshev by hand: sigma |d f / d y| / sqrt(delta), plus the pull of the penalty
    A = X.T @ X / 25 + 0.1 * np.eye(3)
    slope = np.linalg.solve(A, POINTS.T).T @ X.T / 25
    pull = np.abs(np.linalg.solve(A, POINTS.T).T @ (0.1 * ridge_solution(X, Y, 0.1)))
    np.testing.assert_allclose(band.half_width, 0.3 * np.linalg.norm(slope, axis=1) / np.sqrt(0.1) + pull, rtol=1e-9)
    assert band.bound == "chebyshev"


def test_proposed_checks_its_options_when_made():
    with pytest.raises(vhat.InputError, match="bound="):
        Proposed(bound="loose")
    with pytest.raises(vhat.InputError, match="sup-t"):
        Proposed(simultaneous="sup-t")


# -- Wald ------------------------------------------------------------------------------------


def test_wald_with_fisher_information_is_ordinary_least_squares():
    band = Wald().fit(ridge(), X, Y).interval(POINTS, 0.1)
    expected = OLS.get_prediction(POINTS)
    np.testing.assert_allclose(band.standard_error, expected.se_mean, rtol=1e-8)
    np.testing.assert_allclose(np.c_[band.lower, band.upper], expected.conf_int(alpha=0.1), rtol=1e-7)
    new = Wald().fit(ridge(), X, Y).interval(POINTS, 0.1, target="observation")
    np.testing.assert_allclose(np.c_[new.lower, new.upper], expected.conf_int(obs=True, alpha=0.1), rtol=1e-7)
    assert new.df == pytest.approx(22)


@pytest.mark.parametrize("kind", ["hc0", "hc3"])
def test_the_sandwich_is_that_of_statsmodels(kind):
    band = Wald(covariance=kind).fit(ridge(), X, Y).interval(POINTS, 0.1)
    covariance = getattr(OLS, f"cov_{kind.upper()}")
    error = np.sqrt(np.einsum("ij,jk,ik->i", POINTS, covariance, POINTS))
    np.testing.assert_allclose(band.standard_error, error, rtol=1e-8)
    np.testing.assert_allclose(band.half_width, stats.norm.ppf(0.95) * error, rtol=1e-8)


def test_the_sandwich_of_a_penalised_model_is_the_closed_form():
    band = Wald(covariance="hc0").fit(ridge(0.2), X, Y).interval(POINTS)
    inverse = np.linalg.inv(X.T @ X / 25 + 0.2 * np.eye(3))
    residual = Y - X @ ridge_solution(X, Y, 0.2)
    covariance = inverse @ (X.T * residual**2) @ X @ inverse / 25**2
    np.testing.assert_allclose(band.standard_error**2, np.einsum("ij,jk,ik->i", POINTS, covariance, POINTS), rtol=1e-8)


def test_fisher_information_knows_nothing_of_the_decay():
    band = Wald(noise=0.3).fit(ridge(0.2), X, Y).interval(POINTS)
    free = 0.3**2 * np.einsum("ij,jk,ik->i", POINTS, np.linalg.inv(X.T @ X), POINTS)
    np.testing.assert_allclose(band.standard_error**2, free, rtol=1e-8)
    np.testing.assert_allclose(band.center, POINTS @ ridge_solution(X, Y, 0.2), rtol=1e-9)


def test_wald_says_what_it_cannot_give():
    wide = np.random.default_rng(0).normal(size=(5, 8))
    fit = Wald(noise=0.3).fit(ridge(0.1), wide, wide[:, 0])
    with pytest.raises(vhat.NotPositiveDefinite, match="do not determine every parameter"):
        fit.interval(wide)
    robust = Wald(covariance="hc0").fit(ridge(0.1), X, Y)
    with pytest.raises(vhat.InputError, match="lets the noise differ between rows"):
        robust.interval(POINTS, target="observation")
    with pytest.raises(vhat.InputError, match="covariance="):
        Wald(covariance="hc9")


def test_a_fit_that_is_no_minimum_is_owned_up_to():
    def early(X, y, *, seed, sample_weight=None):
        fitted = ridge(0.1)(X, y, seed=seed, sample_weight=sample_weight)
        return vhat.from_numpy(
            lambda q, Z: Z @ q, 0.5 * np.asarray(fitted.params), X, y, jac=lambda q, Z: Z, weight_decay=0.1
        )

    for method in (Wald(noise=0.3), LinearizedLaplace(noise=0.3)):
        assert "WHICH THEY ARE NOT" in method.fit(early, X, Y).interval(POINTS).guarantee
        assert "WHICH THEY ARE NOT" not in method.fit(ridge(0.1), X, Y).interval(POINTS).guarantee


# -- Laplace -----------------------------------------------------------------------------------


def test_laplace_is_the_posterior_of_bayesian_linear_regression():
    fit = LinearizedLaplace(noise=0.3).fit(ridge(0.2), X, Y)
    error = np.sqrt(posterior_variance(0.2, 0.3))
    band = fit.interval(POINTS, 0.1)
    np.testing.assert_allclose(band.standard_error, error, rtol=1e-8)
    np.testing.assert_allclose(band.half_width, stats.norm.ppf(0.95) * error, rtol=1e-8)
    new = fit.interval(POINTS, 0.1, target="observation")
    np.testing.assert_allclose(new.half_width, stats.norm.ppf(0.95) * np.hypot(error, 0.3), rtol=1e-8)


def test_without_decay_laplace_is_wald():
    bands = [method.fit(ridge(), X, Y).interval(POINTS) for method in (LinearizedLaplace(noise=0.3), Wald(noise=0.3))]
    np.testing.assert_allclose(bands[0].half_width, bands[1].half_width, rtol=1e-8)


def test_under_strong_decay_laplace_keeps_the_priors_spread_and_the_sandwich_loses_its_own():
    lam = 1e6
    laplace = LinearizedLaplace(noise=0.3).fit(ridge(lam), X, Y).interval(POINTS)
    prior = 0.3 * np.linalg.norm(POINTS, axis=1) / np.sqrt(25 * lam)
    np.testing.assert_allclose(laplace.standard_error, prior, rtol=1e-5)
    sandwich = Wald(covariance="hc0").fit(ridge(lam), X, Y).interval(POINTS)
    assert np.all(sandwich.standard_error < 1e-2 * laplace.standard_error)


def test_the_evidence_is_the_density_of_the_responses():
    lam, sigma = 0.2, 0.3
    values, along = spectrum(ridge(lam)(X, Y, seed=0), np.array([sigma]))
    K = X @ X.T / (25 * lam)

    def density(factor):
        return stats.multivariate_normal(np.zeros(25), sigma**2 * (np.eye(25) + K / factor)).logpdf(Y)

    heights = [log_evidence(factor, values, along) for factor in (0.1, 1.0, 30.0)]
    np.testing.assert_allclose(np.diff(heights), np.diff([density(factor) for factor in (0.1, 1.0, 30.0)]), rtol=1e-9)


def test_the_evidence_chooses_the_decay_of_bayesian_ridge():
    options = {"alpha_1": 0, "alpha_2": 0, "lambda_1": 0, "lambda_2": 0, "fit_intercept": False, "tol": 1e-12}
    bayes = BayesianRidge(max_iter=5000, **options).fit(X, Y)
    sigma = bayes.alpha_**-0.5
    fit = LinearizedLaplace(evidence=True, noise=float(sigma)).fit(ridge(0.2), X, Y)
    assert fit.factor * 0.2 == pytest.approx(bayes.lambda_ * sigma**2 / 25, rel=1e-5)
    _, spread = bayes.predict(POINTS, return_std=True)
    band = fit.interval(POINTS, target="observation", delta=0.1)
    np.testing.assert_allclose(band.half_width, stats.norm.ppf(0.95) * spread, rtol=1e-5)


def test_laplace_says_what_it_cannot_give():
    def bent(X, y, *, seed, sample_weight=None):
        loss = lambda f, t: np.log(np.cosh(f - t))  # noqa: E731
        return vhat.from_numpy(lambda q, Z: Z @ q, np.zeros(3), X, y, jac=lambda q, Z: Z, weight_decay=0.1, loss=loss)

    with pytest.raises(vhat.InputError, match="another loss"):
        LinearizedLaplace(noise=0.3).fit(bent, X, Y)
    with pytest.raises(vhat.InputError, match="decay on every parameter"):
        LinearizedLaplace(evidence=True, noise=0.3).fit(ridge(), X, Y)
    with pytest.raises(vhat.InputError, match="neither True nor False"):
        LinearizedLaplace(evidence="yes")


@pytest.mark.parametrize(
    "method",
    [
        Wald(),
        Wald(covariance="hc0"),
        LinearizedLaplace(),
        LinearizedLaplace(evidence=True),
        Bootstrap(3, "residual"),
        Bootstrap(3, "parametric", "studentised"),
        Bootstrap(15, limits="bca"),
        PerturbedResponses(3),
    ],
    ids=str,
)
def test_in_jax_the_answer_is_the_same_to_nine_digits(method):
    both = [method.fit(recipe(0.1), X, Y).interval(POINTS, 0.4) for recipe in (ridge, jax_ridge)]
    np.testing.assert_allclose(both[1].lower, both[0].lower, rtol=1e-9)
    np.testing.assert_allclose(both[1].upper, both[0].upper, rtol=1e-9)


@pytest.mark.parametrize("method", [Wald(), Wald(covariance="hc3"), LinearizedLaplace(), Proposed()])
def test_units_of_y_and_company_change_nothing(method):
    fit = method.fit(ridge(0.1), X, Y)
    band = fit.interval(POINTS)
    scaled = method.fit(ridge(0.1), X, 1e3 * Y).interval(POINTS)
    np.testing.assert_allclose(scaled.half_width, 1e3 * band.half_width, rtol=1e-8)
    np.testing.assert_allclose(fit.interval(POINTS[3:]).half_width, band.half_width[3:], rtol=1e-10)


def test_two_outputs_of_a_linear_model_are_each_their_own_regression():
    Z, both = data(n=25, d=3, outputs=2)
    for kind in ("fisher", "hc0", "hc3"):
        band = Wald(covariance=kind).fit(ridge(), Z, both).interval(POINTS)
        for k in range(2):
            alone = Wald(covariance=kind).fit(ridge(), Z, both[:, k]).interval(POINTS)
            np.testing.assert_allclose(band.half_width[:, k], alone.half_width, rtol=1e-6)


# -- outputs that differ in noise ------------------------------------------------------------------

LOUD = np.array([0.1, 10.0])
TOGETHER = X @ np.array([[1.0, 3.0], [-0.5, 2.0], [0.3, 1.0]]) + LOUD * np.random.default_rng(3).normal(size=(25, 2))
SHARED = np.random.default_rng(21).standard_normal((40, 2, 4))


def shared_features(lam):
    """A linear model whose outputs share every parameter, f_k(x_i) = a_ik' theta, fitted with equal weights."""

    def recipe(A, y, *, seed, sample_weight=None):
        J = A.reshape(-1, 4)
        theta = np.linalg.solve(J.T @ J / len(A) + lam * np.eye(4), J.T @ y.ravel() / len(A))
        return vhat.from_numpy(lambda q, Z: Z @ q, theta, A, y, jac=lambda q, Z: Z, weight_decay=lam)

    return recipe


@pytest.mark.parametrize("target", ["mean", "observation"])
def test_outputs_of_different_noise_that_share_no_parameter_have_the_laplace_that_each_has_alone(target):
    band = LinearizedLaplace().fit(ridge(0.1), X, TOGETHER).interval(POINTS, target=target)
    for k in range(2):
        alone = LinearizedLaplace().fit(ridge(0.1), X, TOGETHER[:, k]).interval(POINTS, target=target)
        np.testing.assert_allclose(band.half_width[:, k], alone.half_width, rtol=1e-6)
        assert band.noise[k] == pytest.approx(alone.noise)
    assert "at the noise that each output meets" in band.guarantee


def test_outputs_that_share_parameters_have_the_error_of_the_fit_that_was_made():
    """Both with noise of both outputs and the truth drawn anew, 40,000 times: a deviation is known to 0.4%."""
    lam, n = 0.05, len(SHARED)
    y = SHARED @ np.ones(4) + np.array([0.2, 1.0]) * np.random.default_rng(5).normal(size=(n, 2))
    points = np.random.default_rng(6).normal(size=(3, 2, 4))
    band = LinearizedLaplace().fit(shared_features(lam), SHARED, y).interval(points)
    J, rng = SHARED.reshape(-1, 4), np.random.default_rng(7)
    back = np.linalg.solve(J.T @ J / n + lam * np.eye(4), J.T / n)
    noise = np.tile(band.noise, n) * rng.standard_normal((40_000, 2 * n))
    unit = rng.standard_normal((40_000, 4)) / np.sqrt(n * lam)
    for k in range(2):
        truth = band.noise[k] * unit
        error = ((truth @ J.T + noise) @ back.T - truth) @ points[:, k].T
        np.testing.assert_allclose(band.standard_error[:, k], np.sqrt(np.mean(error**2, axis=0)), rtol=0.02)
    # as if every output had its own noise in all of them, it would not be
    own = band.noise * np.sqrt(
        np.einsum("mki,ij,mkj->mk", points, np.linalg.inv(J.T @ J / n + lam * np.eye(4)), points)
    )
    assert np.all(band.standard_error[:, 0] > 1.5 * own[:, 0] / np.sqrt(n))


def test_the_evidence_of_outputs_that_differ_in_noise_is_the_product_of_theirs():
    fit = LinearizedLaplace(evidence=True).fit(ridge(0.2), X, TOGETHER)
    sizes = fit.interval(POINTS).noise

    def cost(log_factor):
        K = np.eye(25) + X @ X.T / (25 * 0.2 * np.exp(log_factor))
        laws = [stats.multivariate_normal(np.zeros(25), sizes[k] ** 2 * K) for k in range(2)]
        return -sum(law.logpdf(TOGETHER[:, k]) for k, law in enumerate(laws))

    best = optimize.minimize_scalar(cost, bounds=(-15, 15), method="bounded", options={"xatol": 1e-9}).x
    assert np.log(fit.factor) == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("evidence", [False, True])
def test_laplace_of_an_estimator_has_the_units_of_the_table(evidence):
    """The estimator standardises inside: Bayesian linear regression on standardised columns is the oracle."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2)) * [1.0, 50.0]
    y = 300 + 70 * (X[:, 0] - X[:, 1] / 50) + 20 * rng.standard_normal(40)
    lam, sigma, points = 0.05, 20.0, np.array([[0.5, -40.0], [2.0, 100.0]])
    network = vhat.NetworkRegressor((), weight_decay=lam).fit(X, y)
    laplace = LinearizedLaplace(noise=sigma, evidence=evidence).fit(lambda *_, **__: network.fitted_, X, y)
    mean, spread = X.mean(axis=0), X.std(axis=0)
    J = np.column_stack([(X - mean) / spread, np.ones(40)])
    g = np.column_stack([(points - mean) / spread, np.ones(2)])
    P = J.T @ J / 40 + lam * laplace.factor * np.eye(3)
    expected = sigma * np.sqrt(np.sum(g * np.linalg.solve(P, g.T).T, axis=1) / 40)
    np.testing.assert_allclose(laplace.interval(points).standard_error, expected, rtol=1e-6)
    if evidence:
        z = (y - y.mean()) / y.std()
        noise = sigma / y.std()

        def cost(log_factor):
            K = noise**2 * (np.eye(40) + J @ J.T / (40 * lam * np.exp(log_factor)))
            return np.linalg.slogdet(K)[1] + z @ np.linalg.solve(K, z)

        assert np.log(laplace.factor) == pytest.approx(optimize.minimize_scalar(cost).x, abs=1e-4)


def test_the_shortcut_has_no_unit():
    rng = np.random.default_rng(1)
    X, points = rng.normal(size=(30, 2)), rng.normal(size=(4, 2))
    y = X @ [1.0, -1.0] + 0.1 * rng.standard_normal(30)
    norms = [
        vhat.NetworkRegressor((), weight_decay=0.05).fit(X, unit * y).fitted_.weighted_norm(points, shortcut=True).value
        for unit in (1.0, 1000.0)
    ]
    np.testing.assert_allclose(*norms, rtol=1e-7)
