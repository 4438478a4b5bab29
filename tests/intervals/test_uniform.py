"""The bound over a region: its largest V, its Lipschitz constants and its cover, against closed forms and draws."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import vhat
from vhat.fit import Network
from vhat.models.lipschitz import SLOPES, steepness


def linear(d, n=40, lam=0.05, seed=0):
    """Return a ridge regression, its design, and the matrix M of V(x) = x'Mx."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.linspace(1, 2, d)
    y = X @ np.ones(d) + 0.1 * rng.normal(size=n)
    gram = X.T @ X / n
    inverse = np.linalg.inv(gram + lam * np.eye(d))
    q = inverse @ X.T @ y / n
    fitted = vhat.from_numpy(lambda q, x: x @ q, q, X, y, jac=lambda x: x, weight_decay=lam)
    return fitted, X, inverse @ gram @ inverse


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_the_largest_norm_on_the_sphere_is_the_largest_eigenvalue(d):
    fitted, _, M = linear(d)
    found = fitted.uniform(0.05, lipschitz=1.0, noise=0.1)
    top = np.linalg.eigvalsh(M)[-1]
    assert found.norm <= top * (1 + 1e-12)
    assert found.norm == pytest.approx(top, rel=1e-3)
    assert np.linalg.norm(found.where) == pytest.approx(1.0)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_the_largest_norm_over_a_box_is_at_a_corner_of_a_linear_model(d):
    fitted, _, M = linear(d)
    lower, upper = -np.arange(1.0, d + 1), np.full(d, 0.5)
    found = fitted.uniform(0.05, region=(lower, upper), lipschitz=1.0, noise=0.1)
    corners = np.array(list(product(*zip(lower, upper, strict=True))))
    assert found.norm == pytest.approx(np.max(np.einsum("id,de,ie->i", corners, M, corners)), rel=1e-9)


@pytest.mark.slow
def test_a_search_in_many_dimensions_finds_nearly_the_largest_of_random_points():
    """A network has no closed form: no point of a brute-force sample is far above what was found."""
    network = Network((3, 5, 1), "tanh")
    rng = np.random.default_rng(2)
    X = rng.normal(size=(30, 3))
    fitted = vhat.from_jax(network, network.init(0), X, rng.normal(size=30), weight_decay=0.1)
    with pytest.warns(vhat.NotMinimumWarning):
        found = fitted.uniform(0.05, noise=0.1, curvature="ggn")
    points = rng.normal(size=(4000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    brute = fitted.weighted_norm(points, curvature="ggn").value.max()
    assert found.norm > brute * (1 - 1e-3)
    assert "lower estimate" in found.guarantee
    assert "WHICH THEY ARE NOT" in found.guarantee


def test_the_half_width_is_the_formula_of_its_parts():
    fitted, X, _ = linear(3)
    found = fitted.uniform(0.1, lipschitz=2.0, noise=0.1, tail=vhat.Tail(0.5, 0.1))
    assert found.eps == pytest.approx(0.1 / (len(X) * 2.0))
    at_cover = vhat.bounds.tight(found.norm, len(X), 0.1, 0.1 / (3 / found.eps) ** 3, v=0.5, c=0.1)
    assert found.at_cover == pytest.approx(float(at_cover), rel=1e-9)
    assert found.half_width == pytest.approx(found.at_cover + 2.0 * found.eps)
    assert found.log_cover == pytest.approx(3 * np.log(3 / found.eps))


def test_the_gap_of_a_linear_model_is_covered_on_the_whole_sphere():
    """sup over the sphere of |x'(q - Eq)| is |q - Eq|, and so is its Lipschitz constant: 4 deviations are given."""
    fitted, X, M = linear(3)
    n, lam = len(X), 0.05
    spread = 0.1 * np.sqrt(np.trace(M) / n)
    half = fitted.uniform(0.1, lipschitz=4 * spread, noise=0.1).half_width
    inverse = np.linalg.inv(X.T @ X / n + lam * np.eye(3))
    z = 0.1 * np.random.default_rng(3).normal(size=(4000, n))
    gaps = np.linalg.norm(z @ X @ inverse / n, axis=1)
    assert np.mean(gaps > half) <= 0.1
    assert half < 8 * np.quantile(gaps, 0.9)  # and it is no number out of all proportion


def test_the_grid_of_a_box_leaves_no_point_further_than_eps():
    sides, eps = np.array([1.0, 2.0, 0.0]), 0.17
    from vhat.bounds.covers import log_grid

    counts = [int(np.ceil(s * np.sqrt(2) / (2 * eps))) for s in sides[:2]]
    assert log_grid(sides, eps) == pytest.approx(np.log(counts[0] * counts[1]))
    axes = [(np.arange(k) + 0.5) * s / k for k, s in zip(counts, sides, strict=False)]
    centers = np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)
    x = np.random.default_rng(4).uniform(0, sides[:2], size=(2000, 2))
    nearest = np.min(np.linalg.norm(x[:, None] - centers[None], axis=2), axis=1)
    assert nearest.max() <= eps


def test_an_estimated_noise_level_widens_the_bound():
    fitted, _, _ = linear(2)
    estimated = fitted.uniform(0.05, lipschitz=1.0)
    known = fitted.uniform(0.05, lipschitz=1.0, noise=estimated.noise)
    assert estimated.half_width > known.half_width
    assert "estimated" in estimated.guarantee


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "gelu", "silu"])
def test_no_slope_of_a_network_exceeds_the_constant_from_its_weights(activation):
    network = Network((2, 6, 6, 1), activation)
    params = network.init(1)
    rng = np.random.default_rng(5)
    X = rng.normal(size=(20, 2))
    fitted = vhat.from_jax(network, params, X, rng.normal(size=20), weight_decay=0.1)
    steep = steepness(fitted.problem)
    norms = [np.linalg.svd(layer["w"], compute_uv=False)[0] for layer in params]
    assert steep.weights == pytest.approx(np.prod(norms) * SLOPES[activation] ** 2, rel=1e-6)
    a = 3 * rng.normal(size=(500, 2))
    b = a + 1e-3 * rng.normal(size=(500, 2))
    slopes = np.abs(fitted.predict(a) - fitted.predict(b)) / np.linalg.norm(a - b, axis=1)
    assert slopes.max() <= steep.weights


def test_the_slopes_of_the_activations_are_below_their_bounds():
    import jax

    from vhat.models.networks import ACTIVATIONS

    x = np.linspace(-10, 10, 20_001)
    for name, bound in SLOPES.items():
        values = np.asarray(ACTIVATIONS[name](jax.numpy.asarray(x)), dtype=float)
        assert np.max(np.abs(np.diff(values) / np.diff(x))) <= bound + 1e-3


@pytest.mark.slow
def test_a_constant_from_the_objective_is_above_that_from_the_weights():
    network = Network((2, 4, 1), "tanh")
    rng = np.random.default_rng(6)
    X = rng.normal(size=(20, 2))
    y = rng.normal(size=20)
    params = network.init(0)
    fitted = vhat.from_jax(network, params, X, y, weight_decay=0.1)
    with pytest.warns(vhat.NotMinimumWarning):
        found = fitted.uniform(0.05, noise=0.1, lipschitz="objective", curvature="ggn")
    objective = 0.5 * np.mean((fitted.predict(X) - y) ** 2)
    objective += 0.05 * sum(float(np.sum(part**2)) for layer in params for part in layer.values())
    assert found.lipschitz == pytest.approx(2 * (2 * objective / (0.1 * 2)), rel=1e-5)
    assert found.lipschitz > fitted.uniform(0.05, noise=0.1, curvature="ggn").lipschitz


def test_an_estimator_has_its_constant_in_the_units_of_its_table():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(40, 2)) * [1.0, 100.0]
    y = 50 * np.tanh(X[:, 0]) + rng.normal(size=40)
    network = vhat.NetworkRegressor((4,), weight_decay=0.01, random_state=0).fit(X, y)
    found = network.fitted_.uniform(0.05, region=([-1.0, -100.0], [1.0, 100.0]))
    a = rng.uniform([-1, -100], [1, 100], size=(300, 2))
    b = a + 1e-4 * rng.normal(size=(300, 2))
    slopes = np.abs(network.predict(a) - network.predict(b)) / np.linalg.norm(a - b, axis=1)
    assert 2 * slopes.max() <= found.lipschitz


def test_what_cannot_be_bounded_is_refused_in_words():
    fitted, _, _ = linear(2)
    with pytest.raises(vhat.InputError, match="Give lipschitz="):
        fitted.uniform(0.05, noise=0.1)
    with pytest.raises(vhat.InputError, match="region"):
        fitted.uniform(0.05, noise=0.1, lipschitz=1.0, region="ball")
    with pytest.raises(vhat.InputError, match="lower <= upper"):
        fitted.uniform(0.05, noise=0.1, lipschitz=1.0, region=([1.0, 1.0], [0.0, 2.0]))
    with pytest.raises(vhat.InputError, match=r"Tail\.relative"):
        fitted.uniform(0.05, noise=0.1, lipschitz=1.0, tail=vhat.Tail.sd(0.3))
    X = np.ones((4, 1)) * np.arange(1.0, 5.0)[:, None]
    two = vhat.from_numpy(lambda q, x: x @ q.reshape(1, 2), [1.0, 1.0], X, np.ones((4, 2)), weight_decay=0.1)
    with pytest.raises(vhat.InputError, match="one output"):
        two.uniform(0.05, noise=0.1, lipschitz=1.0)
