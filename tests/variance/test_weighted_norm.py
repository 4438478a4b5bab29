"""V compared with the dense Hessian, for every accepted kind of model, loss, decay and weight."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import vhat
from tests import oracle

LOSSES = {"half_mse": oracle.half_square, "log_cosh": oracle.log_cosh, "coupled": oracle.coupled}


def case(activation="tanh", outputs=None, seed=0, n=40, d=3, width=6, slip=1e-4):
    """A network, data that it nearly generated (so that H is close to Gauss-Newton and positive), and test points."""
    rng = np.random.default_rng(seed)
    params = oracle.random_params(rng, d, width, outputs)
    predict = oracle.network(activation, outputs)
    X = rng.normal(size=(n, d))
    with jax.enable_x64(True):
        f = np.asarray(predict(params, jnp.asarray(X)))
    y = f + slip * rng.normal(size=f.shape)
    return predict, params, X, y, rng.normal(size=(7, d)) * 2


def decay_of(kind, params):
    """Return the user's argument and the flat vector that it stands for."""
    if kind == "scalar":
        return 0.05, 0.05
    tree = {"w": 0.05, "b": 0.0, "v": 0.02 * np.ones_like(params["v"]), "c": 0.0}
    flat = [np.broadcast_to(tree[name], np.shape(params[name])).ravel() for name in sorted(params)]
    return tree, np.concatenate(flat)


def loss_of(name, outputs):
    if name == "half_mse":
        return name
    function = LOSSES[name]
    return (lambda f, y: function(f[None], y[None])) if outputs is None else function


@pytest.mark.parametrize("decay", ["scalar", "per parameter with zeros"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("activation", "outputs", "loss"),
    [
        ("tanh", None, "half_mse"),
        ("softplus", None, "half_mse"),
        ("relu", None, "half_mse"),
        ("tanh", 2, "half_mse"),
        ("relu", 2, "half_mse"),
        ("softplus", None, "log_cosh"),
        ("tanh", 2, "log_cosh"),
        ("tanh", 2, "coupled"),
    ],
)
def test_v_equals_the_dense_hessian(activation, outputs, loss, weighted, decay):
    predict, params, X, y, x = case(activation, outputs)
    weight = np.random.default_rng(1).uniform(0.2, 3.0, len(y)) if weighted else None
    given, flat = decay_of(decay, params)
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=given, loss=loss_of(loss, outputs), sample_weight=weight)
    V, _, unsupported, eigenvalues = oracle.dense(predict, params, X, y, x, flat, LOSSES[loss], weight)
    assert eigenvalues.min() > 0
    for solver in (vhat.Dense(), vhat.Dual(rtol=1e-10)):
        found = fitted.weighted_norm(x, curvature="hessian", solver=solver)
        assert found.value.shape == ((7,) if outputs is None else (7, 2))
        np.testing.assert_allclose(found.value.ravel(), V, rtol=1e-8)
        np.testing.assert_allclose(found.unsupported.ravel(), unsupported, rtol=1e-7, atol=1e-9)
        assert np.all(found.status == "converged")


@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
@pytest.mark.parametrize("outputs", [None, 2])
def test_conjugate_gradients_and_cholesky_agree_with_the_oracle(curvature, outputs):
    predict, params, X, y, x = case(outputs=outputs)
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=0.01)
    V = oracle.dense(predict, params, X, y, x, 0.01, curvature=curvature)[0]
    for solver, rtol in (
        (vhat.Dense(), 1e-9),
        (vhat.CG(rtol=1e-11), 1e-8),
        (vhat.CG(rtol=1e-11, block=3), 1e-8),
    ):
        found = fitted.weighted_norm(x, solver=solver, curvature=curvature)
        np.testing.assert_allclose(found.value.ravel(), V, rtol=rtol)


def test_many_chunks_give_the_same_v_as_one():
    predict, params, X, y, x = case(n=2500)
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=0.05)
    assert fitted.problem.linearised.data.w.shape[0] > 1
    V = oracle.dense(predict, params, X, y, x, 0.05)[0]
    np.testing.assert_allclose(fitted.weighted_norm(x).value, V, rtol=1e-8)


def test_mse_means_outputs_times_decay_over_two():
    predict, params, X, y, x = case(outputs=3)
    twice = vhat.from_jax(predict, params, X, y, weight_decay=0.04, loss="mse").weighted_norm(x)
    V = oracle.dense(predict, params, X, y, x, 0.04 * 3 / 2)[0]
    np.testing.assert_allclose(twice.value.ravel(), V, rtol=1e-8)


def test_a_mean_reducing_callable_is_the_named_mse():
    predict, params, X, y, x = case(outputs=3)
    named = vhat.from_jax(predict, params, X, y, weight_decay=0.04, loss="mse")
    called = vhat.from_jax(predict, params, X, y, weight_decay=0.04, loss=lambda f, y: jnp.mean((f - y) ** 2))
    np.testing.assert_allclose(named.weighted_norm(x).value, called.weighted_norm(x).value, rtol=1e-9)


def test_a_direction_that_no_row_has_is_unsupported_and_silent():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=30), np.zeros(30)])
    y = X[:, 0] + 0.1 * rng.normal(size=30)
    theta = np.linalg.solve(X.T @ X / 30 + 1e-3 * np.eye(2), X.T @ y / 30)
    fitted = vhat.from_jax(lambda q, Z: Z @ q, theta, X, y, weight_decay=1e-3)
    seen, unseen = (fitted.weighted_norm(np.array([point])) for point in ([1.0, 0.0], [0.0, 1.0]))
    assert seen.unsupported[0] < 0.01
    assert unseen.unsupported[0] == pytest.approx(1.0)
    assert unseen.value[0] == pytest.approx(0.0, abs=1e-20)


def test_a_prediction_that_no_parameter_moves_has_no_variance_and_no_support():
    predict, params, X, y, _ = case()
    fitted = vhat.from_jax(lambda q, Z: predict(q, Z) * (jnp.abs(Z[:, 0]) < 50), params, X, y, weight_decay=0.05)
    found = fitted.weighted_norm(np.array([[100.0, 0.0, 0.0]]))
    assert found.value[0] == 0
    assert found.unsupported[0] == 1


def test_shortcut_is_v_at_interpolation_and_above_it_with_decay():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(30, 4))
    theta = rng.normal(size=4)
    x = rng.normal(size=(5, 4))
    exact = vhat.from_jax(lambda q, Z: Z @ q, theta, X, X @ theta, weight_decay=0.0)
    np.testing.assert_allclose(exact.weighted_norm(x, shortcut=True).value, exact.weighted_norm(x).value, rtol=1e-9)
    damped = vhat.from_jax(lambda q, Z: Z @ q, theta, X, X @ theta, weight_decay=0.5)
    assert np.all(damped.weighted_norm(x, shortcut=True).value > damped.weighted_norm(x).value)


@pytest.mark.parametrize("weight", [0.5, 2.0, 1e3])
def test_the_shortcut_is_the_same_whatever_one_weight_all_rows_have(weight):
    """Rows of weight zero and a rescaled loss change neither V nor the shortcut."""
    rng = np.random.default_rng(2)
    X, theta, x = rng.normal(size=(30, 4)), rng.normal(size=4), rng.normal(size=(5, 4))
    for lam in (0.0, 0.5):
        plain = vhat.from_jax(lambda q, Z: Z @ q, theta, X[:20], X[:20] @ theta, weight_decay=lam)
        weights = weight * (np.arange(30) < 20)
        heavy = vhat.from_jax(
            lambda q, Z: Z @ q, theta, X, X @ theta, weight_decay=lam * weight * 2 / 3, sample_weight=weights
        )
        for shortcut in (False, True):
            expected = plain.weighted_norm(x, shortcut=shortcut).value
            assert np.all(expected > 0)
            found = heavy.weighted_norm(x, shortcut=shortcut).value
            np.testing.assert_allclose(found / 30, expected / 20, rtol=1e-9)  # V/n is the variance


def test_ridge_equals_its_closed_form():
    rng = np.random.default_rng(3)
    X, y, x = rng.normal(size=(50, 6)), rng.normal(size=50), rng.normal(size=(9, 6))
    S = X.T @ X / 50 + 0.1 * np.eye(6)
    theta = np.linalg.solve(S, X.T @ y / 50)
    fitted = vhat.from_jax(lambda q, Z: Z @ q, theta, X, y, weight_decay=0.1)
    M = np.linalg.solve(S, np.linalg.solve(S, X.T @ X / 50).T)
    np.testing.assert_allclose(fitted.weighted_norm(x).value, np.einsum("kp,pq,kq->k", x, M, x), rtol=1e-10)
    sigma = np.linalg.norm(y - X @ np.linalg.lstsq(X, y, rcond=None)[0]) / np.sqrt(50 - 6)
    band = fitted.interval(x)
    assert band.noise == pytest.approx(sigma, rel=1e-10)
    np.testing.assert_allclose(fitted.sensitivity(x), x @ np.linalg.solve(S, X.T) / 50, rtol=1e-9, atol=1e-13)


def test_covariance_is_the_sandwich():
    predict, params, X, y, _ = case(width=3, outputs=2)
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=0.05).polish()
    sigma = np.random.default_rng(0).uniform(0.5, 2.0, (len(y), 2))
    parameter = fitted.functional(lambda q: ravel_pytree(q)[0], noise=sigma)
    covariance = fitted.covariance(noise=sigma)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), parameter.standard_error, rtol=1e-9)
    np.testing.assert_allclose(covariance, covariance.T)
    x = X[:4]
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(fitted.params)
        g = np.asarray(jax.jacobian(lambda t: predict(unravel(t), x))(flat)).reshape(8, -1)
    spread = np.sqrt(np.einsum("kp,pq,kq->k", g, covariance, g)).reshape(4, 2)
    np.testing.assert_allclose(fitted.interval(x, noise=sigma).standard_error, spread, rtol=1e-9)
