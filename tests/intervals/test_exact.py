"""Models that are linear in their parameters by structure: the textbook's intervals, exactly, and what may be said."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy import stats

import vhat
from vhat.fit import Minimum, Network, choose_weight_decay

N, P, LAM, SIGMA = 40, 3, 0.05, 0.3


def table(seed=0, n=N):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, P))
    return X, X @ [1.0, -2.0, 0.5] + SIGMA * rng.standard_normal(n), rng.normal(size=(5, P))


def ridge(X, y, lam, weights=None):
    """theta and d f(x)/d y of a ridge regression, in closed form."""
    n = len(y)
    w = np.ones(n) if weights is None else weights
    A = (X.T * w) @ X / n + lam * np.eye(X.shape[1])
    return np.linalg.solve(A, X.T @ (w * y) / n), lambda x: x @ np.linalg.solve(A, X.T * w) / n


def by_jax(X, y, lam, theta, **options):
    return vhat.from_jax(lambda q, Z: Z @ q, theta, X, y, weight_decay=lam, **options)


def by_torch(X, y, lam, theta, **options):
    head = torch.nn.Linear(X.shape[1], 1, bias=False).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor(theta)[None])
    module = torch.nn.Sequential(head, torch.nn.Flatten(0))
    return vhat.from_torch(module, X, y, weight_decay=lam, **options)


def by_numpy(X, y, lam, theta, **options):
    return vhat.from_numpy(lambda q, Z: Z @ q, theta, X, y, jac=lambda Z: Z, weight_decay=lam, **options)


FRAMEWORKS = {"jax": by_jax, "torch": by_torch, "numpy": by_numpy}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("target", ["mean", "observation"])
def test_known_noise_gives_the_normal_interval_of_ridge_regression(framework, target):
    X, y, points = table()
    theta, rows = ridge(X, y, LAM)
    band = FRAMEWORKS[framework](X, y, LAM, theta).interval(points, 0.1, noise=SIGMA, target=target)
    variance = SIGMA**2 * np.sum(rows(points) ** 2, axis=1) + (SIGMA**2 if target == "observation" else 0)
    np.testing.assert_allclose(band.half_width, stats.norm.ppf(0.95) * np.sqrt(variance), rtol=1e-9)
    assert band.bound == "exact"
    assert band.tail == "constant"
    assert band.guarantee.startswith("Guaranteed 90%")
    assert "V in place of its mean" not in band.guarantee
    assert "a weight decay fixed before these responses were seen" in band.guarantee
    by_test = framework == "numpy"
    assert ("linear in its parameters as tested at two other parameter vectors" in band.guarantee) == by_test
    assert ("that predict is linear in theta everywhere, as jac(X) says" in band.guarantee) == by_test
    assert ("linear in its parameters by structure" in band.guarantee) != by_test


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_estimated_noise_gives_the_t_interval_of_ordinary_least_squares(framework):
    X, y, points = table()
    theta, _ = ridge(X, y, 0.0)
    fitted = FRAMEWORKS[framework](X, y, 0.0, theta)
    found = sm.OLS(y, X).fit().get_prediction(points)
    for target, observed in (("mean", False), ("observation", True)):
        band = fitted.interval(points, 0.05, target=target)
        limits = found.conf_int(obs=observed, alpha=0.05)
        np.testing.assert_allclose(np.column_stack([band.lower, band.upper]), limits, rtol=1e-8)
    assert band.df == pytest.approx(N - P)
    assert band.guarantee.startswith("Guaranteed 95%")
    assert "Student's t" in band.guarantee


FUNCTIONALS = {
    "jax": lambda q: jnp.stack([q[0] - q[1], 2 * q[2] + 1]),
    "torch": lambda t: torch.stack([t["0.weight"][0, 0] - t["0.weight"][0, 1], 2 * t["0.weight"][0, 2] + 1]),
}


@pytest.mark.parametrize("framework", FUNCTIONALS)
def test_an_affine_functional_of_a_linear_model_is_exact(framework):
    """A contrast and a multiple of a weight, as statsmodels answers them."""
    X, y, _ = table()
    theta, _ = ridge(X, y, 0.0)
    contrasts = np.array([[1.0, -1.0, 0.0], [0.0, 0.0, 2.0]])
    fitted = FRAMEWORKS[framework](X, y, 0.0, theta)
    band = fitted.functional(FUNCTIONALS[framework], 0.05)
    limits = sm.OLS(y, X).fit().t_test(contrasts).conf_int(alpha=0.05) + np.array([[0.0], [1.0]])
    np.testing.assert_allclose(np.column_stack([band.lower, band.upper]), limits, rtol=1e-8)
    assert band.bound == "exact"
    assert band.guarantee.startswith("Guaranteed 95%")
    assert "for a model and a functional that are linear in its parameters" in band.guarantee
    known = fitted.functional(FUNCTIONALS[framework], 0.1, noise=SIGMA)
    spread = SIGMA * np.sqrt(np.diag(contrasts @ np.linalg.solve(X.T @ X, contrasts.T)))
    np.testing.assert_allclose(known.half_width, stats.norm.ppf(0.95) * spread, rtol=1e-9)


@pytest.mark.parametrize(
    ("framework", "q"),
    [
        ("jax", lambda q: q[0] / q[1]),
        ("jax", lambda q: jnp.abs(q[0])),
        ("jax", lambda q: q[0] if q[1] < 0 else 2 * q[0]),  # a branch on a parameter
        ("torch", lambda t: t["0.weight"][0, 0] / t["0.weight"][0, 1]),
        ("torch", lambda t: t["0.weight"][0].abs().sum()),
        ("torch", lambda t: t["0.weight"][0, 0] * (1 if t["0.weight"][0, 1] < 0 else 2)),
        ("torch", lambda t: t["0.weight"][0, 0] * t["0.weight"][0, 1].item()),
        ("numpy", lambda q: q[0] - q[1]),  # affine, but nothing shows it
    ],
)
def test_a_functional_that_is_not_known_to_be_affine_is_not_exact(framework, q):
    X, y, _ = table()
    theta, _ = ridge(X, y, LAM)
    band = FRAMEWORKS[framework](X, y, LAM, theta).functional(q, noise=SIGMA)
    assert band.bound == "isoperimetric"
    assert band.guarantee.startswith("Nominal")


def test_weights_of_an_estimator_are_not_exact():
    """Their unit is the standard deviation of the responses, which varies with the noise."""
    X, y, points = table()
    fitted = vhat.NetworkRegressor((), weight_decay=0.0).fit(X, y).fitted_
    assert fitted.interval(points).bound == "exact"
    band = fitted.functional(lambda params: jnp.ravel(jax.tree.leaves(params)[0])[0])
    assert band.bound == "isoperimetric"


def test_estimated_noise_with_decay_is_what_no_parameter_explains():
    """The width of ridge regression, with the residual variance of ordinary least squares: independent of the fit."""
    X, y, points = table()
    theta, rows = ridge(X, y, LAM)
    scale = sm.OLS(y, X).fit().scale
    expected = stats.t.ppf(0.975, N - P) * np.sqrt(scale * np.sum(rows(points) ** 2, axis=1))
    band = by_jax(X, y, LAM, theta).interval(points)
    np.testing.assert_allclose(band.half_width, expected, rtol=1e-9)
    assert "exact if the truth is in the model and too large otherwise" in band.guarantee


@pytest.mark.slow
@pytest.mark.parametrize("df", [3, 5, 10])
def test_ridge_with_few_degrees_of_freedom_keeps_its_level(df):
    """2000 redraws by linear algebra, twenty of them through the library: misses within three binomial errors."""
    rng = np.random.default_rng(df)
    n = P + df
    X, points = rng.normal(size=(n, P)), rng.normal(size=(4, P))
    truth = X @ [1.0, -2.0, 0.5]
    _, rows = ridge(X, truth, LAM)
    S = rows(points)
    projection = X @ np.linalg.pinv(X)
    Y = truth + SIGMA * rng.standard_normal((2000, n))
    scale = np.sqrt(np.sum((Y - Y @ projection) ** 2, axis=1) / df)
    for delta in (0.1, 0.05, 0.01):
        half = stats.t.ppf(1 - delta / 2, df) * scale[:, None] * np.sqrt(np.sum(S**2, axis=1))
        missed = np.mean(np.abs(Y @ S.T - truth @ S.T) > half, axis=0)
        assert np.all(np.abs(missed - delta) <= 3.5 * np.sqrt(delta * (1 - delta) / 2000))
        for y, width in zip(Y[:20], half, strict=False):
            theta, _ = ridge(X, y, LAM)
            band = by_numpy(X, y, LAM, theta).interval(points, delta)
            np.testing.assert_allclose(band.half_width, width, rtol=1e-8)


def test_weights_that_match_the_noise_give_weighted_least_squares_and_others_no_guarantee():
    X, _, points = table()
    rng = np.random.default_rng(7)
    spread = np.where(X[:, 0] > 0, 2.0, 0.2)
    y = X @ [1.0, -2.0, 0.5] + spread * rng.standard_normal(N)
    weights = 1 / spread**2
    theta, _ = ridge(X, y, 0.0, weights)
    fitted = by_jax(X, y, 0.0, theta, sample_weight=weights)
    limits = sm.WLS(y, X, weights=weights).fit().get_prediction(points).conf_int(obs=False, alpha=0.05)
    band = fitted.interval(points, noise="weights")
    np.testing.assert_allclose(np.column_stack([band.lower, band.upper]), limits, rtol=1e-8)
    assert band.guarantee.startswith("Guaranteed")
    assert fitted.interval(points, noise="equal").guarantee.startswith("Nominal")
    assert fitted.interval(points, noise=spread).guarantee.startswith("Guaranteed")  # known noise needs no match


@pytest.mark.parametrize(
    "fitted",
    [
        lambda X, y, theta: vhat.from_numpy(lambda q, Z: Z @ q, theta, X, y, weight_decay=LAM),
        lambda X, y, theta: vhat.from_jax(
            lambda q, Z: Z @ q, theta, X, y, weight_decay=LAM, loss=lambda f, t: 0.5 * jnp.sum((f - t) ** 2)
        ),
    ],
    ids=["a function without structure", "a loss of one's own"],
)
def test_what_structure_does_not_show_is_not_claimed(fitted):
    X, y, points = table()
    theta, _ = ridge(X, y, LAM)
    band = fitted(X, y, theta).interval(points, noise=SIGMA)
    assert band.bound == "isoperimetric"
    assert band.guarantee.startswith("Nominal")
    assert "V in place of its mean" in band.guarantee


def test_parameters_off_the_minimum_are_not_guaranteed():
    X, y, points = table()
    theta, _ = ridge(X, y, LAM)
    with pytest.warns(vhat.NotMinimumWarning):
        band = by_jax(X, y, LAM, theta + 0.5).interval(points, noise=SIGMA)
    assert band.guarantee.startswith("Nominal")


def test_an_estimator_chooses_its_penalty_with_the_responses_and_guarantees_nothing():
    X, y, points = table()
    network = vhat.NetworkRegressor((), weight_decay=1e-3).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.SupportWarning)
        band = network.predict_interval(points)
    assert band.bound == "exact"
    assert band.guarantee.startswith("Nominal")
    assert "beware: the weight decay, or its unit, was taken from these responses" in band.guarantee
    free = vhat.NetworkRegressor((), weight_decay=0.0).fit(X, y).predict_interval(points)
    assert free.guarantee.startswith("Guaranteed")  # without decay the scaling of the responses changes nothing
    design = np.column_stack([X, np.ones(N)])
    found = sm.OLS(y, design).fit().get_prediction(np.column_stack([points, np.ones(5)])).conf_int(alpha=0.05)
    np.testing.assert_allclose(np.column_stack([free.lower, free.upper]), found, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::vhat.SelectionWarning")
def test_a_decay_that_the_library_chose_with_the_responses_is_not_guaranteed(tmp_path):
    """The mark stays through polish, another decay, and save and load."""
    X, y, points = table()
    chosen = choose_weight_decay(Minimum(Network((P, 1)), weight_decay=1e-3), X, y, grid=[1e-3, 1e-2, 1e-1]).trained
    chosen.save(tmp_path / "model")
    for fitted in (chosen, chosen.polish(), vhat.load(tmp_path / "model"), chosen.scale_weight_decay(1.0)):
        band = fitted.interval(points, noise=SIGMA)
        assert band.bound == "exact"
        assert band.guarantee.startswith("Nominal")
        assert "WHICH IT DOES" in band.guarantee


def test_a_weight_that_no_row_moves_and_that_is_not_at_its_minimum_is_not_guaranteed():
    """The last column is zero in every row, so that the penalty alone decides its weight: 0 at the minimum, not 0.8."""
    X, y, _ = table()
    X = np.column_stack([X, np.zeros(N)])
    theta, _ = ridge(X, y, 1e-7)
    moved = theta + np.array([0.0, 0.0, 0.0, 0.8])
    points = np.eye(4)
    at = by_numpy(X, y, 1e-7, theta).interval(points, noise=SIGMA)
    off = by_numpy(X, y, 1e-7, moved).interval(points, noise=SIGMA)
    assert at.guarantee.startswith("Guaranteed")
    assert off.guarantee.startswith("Nominal")
    assert "1 of 4 values are not yet where the minimum would put it" in off.guarantee


def test_the_exact_answer_is_not_asked_for_by_name():
    X, y, points = table()
    with pytest.raises(vhat.InputError, match=r"cannot be asked for.*jac="):
        by_numpy(X, y, LAM, ridge(X, y, LAM)[0]).interval(points, bound="exact")


def test_a_tail_that_was_given_is_used_as_given_and_redraws_are_not_needed():
    X, y, points = table()
    theta, rows = ridge(X, y, LAM)
    fitted = by_jax(X, y, LAM, theta)
    V = N * np.sum(rows(points) ** 2, axis=1)
    band = fitted.interval(points, noise=SIGMA, tail="any")
    np.testing.assert_allclose(band.half_width, vhat.bounds.isoperimetric(V, N, SIGMA, 0.05, v=np.inf), rtol=1e-9)
    assert fitted.interval(points, noise=SIGMA, tail="estimated").bound == "exact"


def test_many_features_leave_the_noise_to_the_residuals_of_the_penalised_fit():
    """195 features, 200 rows, a strong decay: five degrees of freedom of the projection, some hundred of the fit."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 195))
    y = X[:, 0] + SIGMA * rng.standard_normal(200)
    theta, rows = ridge(X, y, 3.0)
    band = by_jax(X, y, 3.0, theta).interval(X[:3])
    S = rows(X)
    assert band.df == pytest.approx(np.linalg.norm(np.eye(200) - S) ** 2, rel=1e-6)
    assert band.bound == "exact"
    assert band.guarantee.startswith("Nominal")
    assert "as if it were independent of the fit" in band.guarantee
