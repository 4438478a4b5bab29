"""KernelRidge, GaussianProcess, NeuralTangent and LastLayer against scikit-learn and closed forms by NumPy."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

import vhat
from tests.methods.cases import data, ridge, ridge_solution, torch_recipe
from vhat.methods import GaussianProcess, KernelRidge, LastLayer, NeuralTangent

X, Y = data(n=30, d=2)
POINTS = np.random.default_rng(9).normal(size=(5, 2))


def matern(a, b, length):
    """Smoothness 3/2, by hand."""
    r = np.sqrt(3) * np.linalg.norm(a[:, None] - b, axis=2) / length
    return (1 + r) * np.exp(-r)


class ByHand:
    """Kernel ridge regression with a matern kernel, by explicit inverses."""

    def __init__(self, lam, length):
        self.K, self.k = matern(X, X, length), matern(POINTS, X, length)
        inverse = np.linalg.inv(self.K + 30 * lam * np.eye(30))
        self.w, self.S, alpha = self.k @ inverse, self.K @ inverse, inverse @ Y
        self.norm = np.sqrt(alpha @ self.K @ alpha)
        self.error = np.linalg.norm(self.w, axis=1)
        self.power = np.sqrt(1 - 2 * np.sum(self.w * self.k, 1) + np.einsum("ij,jk,ik->i", self.w, self.K, self.w))
        self.spread = np.sqrt(1 - np.einsum("ij,jk,ik->i", self.k, inverse, self.k))


# -- kernel ridge ---------------------------------------------------------------------------


def test_the_pointwise_band_is_noise_plus_the_worst_bias_in_the_ball():
    hand = ByHand(0.02, 1.5)
    band = KernelRidge(1.5, weight_decay=0.02, norm=2.0, noise=0.3).fit(None, X, Y).interval(POINTS, 0.1)
    np.testing.assert_allclose(band.center, hand.w @ Y, rtol=1e-10)
    np.testing.assert_allclose(band.standard_error, 0.3 * hand.error, rtol=1e-10)
    expected = 2.0 * hand.power + stats.norm.ppf(0.95) * 0.3 * hand.error
    np.testing.assert_allclose(band.half_width, expected, rtol=1e-8)
    assert not band.guarantee.startswith("Nominal")


def test_no_function_in_the_ball_has_a_larger_bias():
    hand, rng = ByHand(0.02, 1.5), np.random.default_rng(0)
    at = KernelRidge(1.5, weight_decay=0.02).fit(None, X, Y).regression.predict(hand.k, np.ones(5))
    everywhere = np.r_[X, POINTS]
    gram = matern(everywhere, everywhere, 1.5)
    for _ in range(50):
        c = rng.normal(size=35)
        f = gram @ c / np.sqrt(c @ gram @ c)
        assert np.all(np.abs(hand.w @ f[:30] - f[30:]) <= at.power * (1 + 1e-9))
    # the representer of the error at the first point reaches it
    c = np.r_[hand.w[0], -np.eye(5)[0]]
    f = gram @ c / np.sqrt(c @ gram @ c)
    assert abs(hand.w[0] @ f[:30] - f[30]) == pytest.approx(at.power[0], rel=1e-8)


@pytest.mark.parametrize("band", ["pointwise", "uniform"])
def test_a_new_response_is_covered_at_the_worst_truth_of_the_ball(band):
    """There the error is a bias of norm times power plus normal noise, so that the coverage is known exactly."""
    hand, sigma, norm, delta = ByHand(0.02, 1.5), 0.3, 2.0, 0.1
    options = KernelRidge(1.5, weight_decay=0.02, norm=norm, noise=sigma, band=band)
    new, mean = (options.fit(None, X, Y).interval(POINTS, delta, target=each) for each in ("observation", "mean"))
    law = stats.norm(norm * hand.power, sigma * np.hypot(hand.error, 1))
    covered = law.cdf(new.half_width) - law.cdf(-new.half_width)
    assert np.all(covered >= 1 - delta)
    # in quadrature, as if the bias were random, it would not be
    short = np.hypot(mean.half_width, stats.norm.ppf(1 - delta / 2) * sigma)
    if band == "pointwise":
        assert np.any(law.cdf(short) - law.cdf(-short) < 1 - delta)
        expected = norm * hand.power + stats.norm.ppf(1 - delta / 2) * sigma * np.hypot(hand.error, 1)
        np.testing.assert_allclose(new.half_width, expected, rtol=1e-8)
    assert "for a new response," in new.guarantee
    assert "no bias" not in new.guarantee


def test_the_uniform_band_is_the_self_normalised_one():
    hand, lam = ByHand(0.02, 1.5), 30 * 0.02
    options = KernelRidge(1.5, weight_decay=0.02, norm=2.0, noise=0.3, band="uniform")
    band = options.fit(None, X, Y).interval(POINTS, 0.1)
    _, log_det = np.linalg.slogdet(np.eye(30) + hand.K / lam)
    expected = hand.spread * (2.0 + 0.3 * np.sqrt((log_det + 2 * np.log(10)) / lam))
    np.testing.assert_allclose(band.half_width, expected, rtol=1e-9)
    assert "all points at once" in band.guarantee


def test_noise_and_norm_are_plugged_in_and_owned_up_to():
    hand = ByHand(0.02, 1.0)
    band = KernelRidge(weight_decay=0.02).fit(None, X, Y).interval(POINTS, 0.1)
    freedom = np.sum((np.eye(30) - hand.S) ** 2)
    sigma = np.linalg.norm(Y - hand.S @ Y) / np.sqrt(freedom)
    assert band.noise == pytest.approx(sigma)
    assert band.df == pytest.approx(freedom)
    expected = hand.norm * hand.power + stats.t.ppf(0.95, freedom) * sigma * hand.error
    np.testing.assert_allclose(band.half_width, expected, rtol=1e-8)
    assert "ONLY THE NORM OF THE FIT" in band.guarantee
    assert band.guarantee.startswith("Nominal")


def test_the_decay_is_that_of_true_leave_one_out():
    found = KernelRidge().fit(None, X, Y).regression

    def refitted(lam):
        K, total = matern(X, X, 1.0), 0.0
        for i in range(30):
            rest = np.delete(np.arange(30), i)
            alpha = np.linalg.solve(K[np.ix_(rest, rest)] + 30 * lam * np.eye(29), Y[rest])
            total += (Y[i] - K[i, rest] @ alpha) ** 2
        return total

    assert np.sum(found.left_out**2) == pytest.approx(refitted(found.decay), rel=1e-8)
    assert refitted(found.decay) < min(refitted(0.3 * found.decay), refitted(3 * found.decay))


# -- Gaussian process ---------------------------------------------------------------------------


def test_the_process_is_scikit_learns_own():
    fit = GaussianProcess(length_scale=1.5, amplitude=2.0, noise=0.3).fit(None, X, Y)
    kernel = ConstantKernel(4.0) * Matern(1.5, nu=1.5)
    mean = Y.mean()
    alone = GaussianProcessRegressor(kernel, alpha=0.3**2, optimizer=None).fit(X, Y - mean)
    center, error = alone.predict(POINTS, return_std=True)
    band = fit.interval(POINTS, 0.1)
    np.testing.assert_allclose(band.center, center + mean, rtol=1e-8)
    np.testing.assert_allclose(band.half_width, stats.norm.ppf(0.95) * error, rtol=1e-8)
    new = fit.interval(POINTS, 0.1, target="observation")
    np.testing.assert_allclose(new.half_width, stats.norm.ppf(0.95) * np.hypot(error, 0.3), rtol=1e-8)


def test_tuning_is_scikit_learns_own():
    spread = np.sqrt(X.var(axis=0).mean())
    length = Matern(spread, (1e-3 * spread, 1e4 * spread), nu=1.5)
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * length + WhiteKernel(0.1, (1e-8, 1e1))
    whole = GaussianProcessRegressor(kernel, alpha=1e-12, normalize_y=True).fit(X, Y)
    center, error = whole.predict(POINTS, return_std=True)  # of a new response: the noise is in its kernel
    band = GaussianProcess().fit(None, X, Y).interval(POINTS, 0.1, target="observation")
    np.testing.assert_allclose(band.center, center, rtol=1e-6)
    np.testing.assert_allclose(band.half_width, stats.norm.ppf(0.95) * error, rtol=1e-6)


def test_the_unit_of_the_inputs_does_not_matter_to_tuning_and_tuning_is_owned_up_to():
    band = GaussianProcess().fit(None, X, Y).interval(POINTS)
    for unit in (1e-6, 1e5):
        scaled = GaussianProcess().fit(None, unit * X, Y).interval(unit * POINTS)
        np.testing.assert_allclose(scaled.half_width, band.half_width, rtol=1e-5)
    assert "length_scale, amplitude, noise known beforehand, WHICH WERE TUNED TO THESE DATA" in band.guarantee
    known = GaussianProcess(length_scale=1.0, amplitude=1.0, noise=0.3).fit(None, X, Y).interval(POINTS)
    assert "TUNED" not in known.guarantee


def test_an_edge_of_tuning_is_said():
    with pytest.warns(vhat.ConvergenceWarning, match="edge of what is tried"):
        GaussianProcess(amplitude=1.0).fit(None, X, X[:, 0])


# -- tangent kernel --------------------------------------------------------------------------------


def ridge_by_hand(lam, sigma, delta, size=None):
    A = X.T @ X / 30 + lam * np.eye(2)
    theta = ridge_solution(X, Y, lam)
    w = np.linalg.solve(A, POINTS.T).T @ X.T / 30
    bias = lam * np.linalg.norm(np.linalg.solve(A, POINTS.T), axis=0)
    size = np.linalg.norm(theta) if size is None else size
    return POINTS @ theta, size * bias + stats.norm.ppf(1 - delta / 2) * sigma * np.linalg.norm(w, axis=1)


@pytest.mark.parametrize("norm", [None, 3.0])
def test_the_tangent_of_a_linear_model_is_ridge_regression(norm):
    center, half = ridge_by_hand(0.1, 0.3, 0.1, norm)
    band = NeuralTangent(noise=0.3, norm=norm).fit(ridge(0.1), X, Y).interval(POINTS, 0.1)
    np.testing.assert_allclose(band.center, center, rtol=1e-9)
    np.testing.assert_allclose(band.half_width, half, rtol=1e-8)
    assert "WHICH TRAINED ONES DO" in band.guarantee


def test_the_tangent_of_a_linear_network_is_ridge_wherever_it_stands():
    """At initialisation too, and with an intercept: the bias of the network, which decays like the rest."""
    recipe = vhat.fit.Minimum(vhat.fit.Network((2, 1)), weight_decay=0.1)
    bands = [NeuralTangent(at, noise=0.3).fit(recipe, X, Y).interval(POINTS) for at in ("initialisation", "trained")]
    Z, z = np.c_[X, np.ones(30)], np.c_[POINTS, np.ones(5)]
    np.testing.assert_allclose(bands[0].center, z @ ridge_solution(Z, Y, 0.1), rtol=1e-8)
    np.testing.assert_allclose(bands[0].half_width, bands[1].half_width, rtol=1e-8)


def test_a_split_is_ridge_regression_on_the_rows_that_the_features_have_not_seen():
    fit = NeuralTangent("split", noise=0.3, norm=2.0).fit(ridge(0.1), X, Y, seed=4)
    band = fit.interval(POINTS, 0.1)
    assert len(fit.rows) == 15
    Z, y = X[fit.rows], Y[fit.rows]
    A = Z.T @ Z / 15 + 0.1 * np.eye(2)
    back = np.linalg.solve(A, POINTS.T)
    np.testing.assert_allclose(band.center, POINTS @ ridge_solution(Z, y, 0.1), rtol=1e-9)
    half = 2.0 * 0.1 * np.linalg.norm(back, axis=0)
    half += stats.norm.ppf(0.95) * 0.3 * np.linalg.norm(Z @ back / 15, axis=0)
    np.testing.assert_allclose(band.half_width, half, rtol=1e-8)
    assert not band.guarantee.startswith("Nominal")
    assert "features from other rows" in band.guarantee


@pytest.mark.slow
def test_the_split_of_a_network_has_the_gradients_of_the_half_that_trained_it():
    """Other responses of the regression's rows move nothing but the regression."""
    network = vhat.fit.Network((2, 3, 1), initial=vhat.fit.glorot(bias=0.5))
    recipe = vhat.fit.Minimum(network, weight_decay=0.05)
    method = NeuralTangent("split", noise=0.3, norm=2.0)
    fit = method.fit(recipe, X, Y, seed=3)
    other = Y.copy()
    other[fit.rows] += 5.0
    again = method.fit(recipe, X, other, seed=3)
    np.testing.assert_array_equal(fit.fitted.predict(X), again.fitted.predict(X))
    np.testing.assert_allclose(again.interval(POINTS).half_width, fit.interval(POINTS).half_width, rtol=1e-9)
    assert np.all(again.interval(POINTS).center != fit.interval(POINTS).center)
    with pytest.raises(vhat.InputError, match="two parts"):
        NeuralTangent("split", share=0.95).fit(recipe, X, Y)


def test_the_tangent_kernel_of_a_network_is_the_product_of_its_gradients():
    network = vhat.fit.Network((2, 4, 1), initial=vhat.fit.glorot(bias=0.5))
    recipe = vhat.fit.Adam(network, weight_decay=0.05)
    fit = NeuralTangent("initialisation", norm=2.0, noise=0.3).fit(recipe, X, Y, seed=3)
    (first, last), h = network.init(3), 1e-5

    def predict(flat, rows):
        W, b, v, c = np.split(flat, [8, 12, 16])
        return np.tanh(rows @ W.reshape(2, 4) + b) @ v + c[0]

    flat = np.concatenate([each.ravel() for each in (first["w"], first["b"], last["w"], last["b"])])
    slopes = [(predict(flat + h * e, X) - predict(flat - h * e, X)) / (2 * h) for e in np.eye(17)]
    J = np.stack(slopes, axis=1)
    np.testing.assert_allclose(
        fit.regression.vectors * fit.regression.values @ fit.regression.vectors.T, J @ J.T, rtol=1e-6, atol=1e-8
    )
    assert not fit.interval(X).guarantee.startswith("Nominal")


# -- last layer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [None, 3.0])
def test_on_linear_features_the_last_layer_is_the_ridge_interval(norm):
    fit = LastLayer(leaves=1, noise=0.3, norm=norm).fit(ridge(0.1), X, Y, seed=4)
    Z, t = X[fit.rows], Y[fit.rows]
    S = Z.T @ Z / 15 + 0.1 * np.eye(2)
    theta, back = ridge_solution(Z, t, 0.1), np.linalg.solve(S, POINTS.T).T
    bias = 0.1 * (np.abs(back @ theta) if norm is None else norm * np.linalg.norm(back, axis=1))
    noise = 0.3 * np.sqrt(np.pi**2 / 2 * np.log(20) / 15) * np.sqrt(np.sum(back * POINTS, axis=1))
    band = fit.interval(POINTS, 0.1)
    np.testing.assert_allclose(band.center, POINTS @ theta, rtol=1e-8)
    np.testing.assert_allclose(band.half_width, bias + noise, rtol=1e-8)
    assert band.guarantee.startswith("Nominal") == (norm is None)


def test_features_are_what_the_last_layer_sees():
    network = vhat.fit.Network((2, 4, 1))
    fit = LastLayer(noise=0.3).fit(vhat.fit.Adam(network, weight_decay=0.05, steps=20), X, Y)
    first = fit.fitted.params[0]
    hidden = np.tanh(X[fit.rows] @ first["w"] + first["b"])
    kernel = hidden @ hidden.T + 1
    np.testing.assert_allclose(fit.Z @ fit.Z.T, kernel, rtol=1e-9)


def doubled_ridge(X, y, *, seed, sample_weight=None):
    """The minimum of ridge(0.1): twice the loss, and twice the decay."""
    loss = lambda f, t: np.sum((f - t) ** 2)  # noqa: E731
    theta = ridge_solution(X, y, 0.1)
    return vhat.from_numpy(lambda q, Z: Z @ q, theta, X, y, jac=lambda q, Z: Z, weight_decay=0.2, loss=loss)


def test_a_loss_of_another_scale_has_the_same_last_layer():
    one, other = (
        LastLayer(leaves=1, noise=0.3).fit(recipe, X, Y).interval(POINTS) for recipe in (ridge(0.1), doubled_ridge)
    )
    np.testing.assert_allclose(other.center, one.center, rtol=1e-6)
    np.testing.assert_allclose(other.half_width, one.half_width, rtol=1e-6)
    given = LastLayer(leaves=1, noise=0.3, weight_decay=0.2).fit(doubled_ridge, X, Y).interval(POINTS)
    np.testing.assert_allclose(given.half_width, one.half_width, rtol=1e-6)


@pytest.mark.parametrize("weight_decay", [None, 0.03])
def test_the_last_layer_of_an_estimator_is_ridge_on_deviations_from_the_mean_of_its_rows(weight_decay):
    """The estimator standardises inside; features, mean and unit of its rows are computed by hand."""
    y = 300 + 70 * Y

    def estimator(X, y, *, seed, sample_weight=None):
        return vhat.NetworkRegressor((4,), weight_decay=0.05, random_state=seed).fit(X, y).fitted_

    fit = LastLayer(noise=20.0, norm=2.0, weight_decay=weight_decay).fit(estimator, X, y)
    rows = np.setdiff1d(np.arange(30), fit.rows)
    mean, spread, shift, unit = X[rows].mean(0), X[rows].std(0), y[rows].mean(), y[rows].std()
    first = fit.fitted.params[0]

    def features(x):
        hidden = np.tanh((x - mean) / spread @ np.asarray(first["w"]) + np.asarray(first["b"]))
        return np.c_[hidden, np.ones(len(x))]

    Z, z, lam = features(X[fit.rows]), features(POINTS), 0.05 if weight_decay is None else weight_decay
    S, theta = Z.T @ Z / 15 + lam * np.eye(5), ridge_solution(Z, (y[fit.rows] - shift) / unit, lam)
    back = np.linalg.solve(S, z.T).T
    noise = 20.0 * np.sqrt(np.pi**2 / 2 * np.log(20) / 15) * np.sqrt(np.sum(back * z, axis=1))
    band = fit.interval(POINTS, 0.1)
    np.testing.assert_allclose(band.center, shift + unit * z @ theta, rtol=1e-7)
    np.testing.assert_allclose(band.half_width, 2.0 * unit * lam * np.linalg.norm(back, axis=1) + noise, rtol=1e-7)


def test_a_torch_recipe_gives_features_too():
    fit = LastLayer(noise=0.3).fit(torch_recipe, X[:, :1], Y)
    assert fit.Z.shape == (15, 7)
    assert fit.interval(X[:3, :1]).center.shape == (3, 1)


def test_a_model_that_is_not_linear_in_its_last_arrays_is_refused():
    def bent(X, y, *, seed, sample_weight=None):
        return vhat.from_numpy(lambda q, Z: np.exp(Z @ q), np.full(2, 0.1), X, y, weight_decay=0.1)

    with pytest.raises(vhat.InputError, match="not linear in its last"):
        LastLayer(leaves=1).fit(bent, X, Y)
    with pytest.raises(vhat.InputError, match="only 1 parameter arrays"):
        LastLayer(leaves=2).fit(ridge(0.1), X, Y)


# -- all of them ---------------------------------------------------------------------------------------

METHODS = [
    KernelRidge(),
    KernelRidge(band="uniform", weight_decay=0.01),
    GaussianProcess(length_scale=1.0),
    NeuralTangent(),
    LastLayer(leaves=1),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_units_of_y_and_company_change_nothing(method):
    fit = method.fit(ridge(0.1), X, Y)
    for target in ("mean", "observation"):
        band = fit.interval(POINTS, target=target)
        scaled = method.fit(ridge(0.1), X, 1e6 * Y).interval(POINTS, target=target)
        np.testing.assert_allclose(scaled.half_width, 1e6 * band.half_width, rtol=1e-5)
        np.testing.assert_allclose(fit.interval(POINTS[3:], target=target).half_width, band.half_width[3:], rtol=1e-9)
    assert np.all(fit.interval(POINTS, target="observation").half_width > fit.interval(POINTS).half_width)


@pytest.mark.parametrize("method", METHODS[:3], ids=lambda method: type(method).__name__)
def test_each_output_is_a_regression_of_its_own(method):
    Z, both = data(n=30, d=2, outputs=2)
    band = method.fit(None, Z, 100 * both).interval(POINTS, target="observation")
    if not isinstance(method, KernelRidge) or method.weight_decay is not None:  # else the decay is chosen for both
        alone = method.fit(None, Z, 100 * both[:, 1]).interval(POINTS, target="observation")
        np.testing.assert_allclose(band.half_width[:, 1], alone.half_width, rtol=1e-9)
    assert band.center.shape == (5, 2)
    again = pickle.loads(pickle.dumps(method.fit(None, Z, 100 * both))).interval(POINTS, target="observation")
    np.testing.assert_array_equal(again.lower, band.lower)


def test_what_cannot_be_given_is_said():
    Z, both = data(n=30, d=2, outputs=2)
    for method in (NeuralTangent(), LastLayer(leaves=1)):
        with pytest.raises(vhat.InputError, match="one output, and there are 2"):
            method.fit(ridge(0.1), Z, both)
    with pytest.raises(vhat.InputError, match="decay on every parameter"):
        NeuralTangent().fit(ridge(), X, Y)
    with pytest.raises(vhat.InputError, match="does not say where its training begins"):
        NeuralTangent("initialisation").fit(ridge(0.1), X, Y)
    with pytest.raises(vhat.InputError, match="each needs at least 5"):
        LastLayer().fit(ridge(0.1), X[:8], Y[:8])
    with pytest.raises(vhat.InputError, match="Give weight_decay="):
        LastLayer(leaves=1).fit(ridge(), X, Y)
    with pytest.raises(vhat.InputError, match="at least two rows"):
        KernelRidge().fit(None, X[:1], Y[:1])
    with pytest.raises(vhat.InputError, match="not all the same"):
        GaussianProcess().fit(None, X, np.ones(30))
    with pytest.raises(vhat.NoiseError, match="interpolates"):
        KernelRidge(weight_decay=1e-12).fit(None, X, Y).interval(POINTS)
    with pytest.raises(vhat.InputError, match=r"x has shape \(5, 1\)"):
        KernelRidge(weight_decay=0.1).fit(None, X, Y).interval(POINTS[:, :1])
    with pytest.raises(vhat.InputError, match="length_scale"):
        KernelRidge(length_scale=0.0)
    with pytest.raises(vhat.InputError, match="amplitude"):
        GaussianProcess(amplitude=-1.0)
