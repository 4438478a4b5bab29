"""V/n is the sum of squared sensitivities: against refits with each response nudged, and unrolled descent."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import vhat

RNG = np.random.default_rng(5)
X = np.sort(RNG.uniform(-2, 2, 12))[:, None]
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.standard_normal(12)
POINTS = np.array([[-3.0], [-0.7], [0.1], [2.5]])
LAM = 1e-2
START = np.concatenate([RNG.normal(size=3), RNG.normal(size=3), RNG.normal(size=3)])


def predict(q, Z):
    return jnp.tanh(Z * q[:3] + q[3:6]) @ q[6:]


def objective(q, y):
    return 0.5 * jnp.mean((predict(q, jnp.asarray(X)) - y) ** 2) + 0.5 * LAM * jnp.sum(q**2)


@pytest.fixture(scope="module")
def fitted():
    return vhat.from_jax(predict, START, X, Y, weight_decay=LAM).polish()


def refit(theta, y):
    """Newton's method from the given minimum, by dense matrices of jax: nothing of vhat."""
    with jax.enable_x64(True):
        q, y = jnp.asarray(theta), jnp.asarray(y)
        for _ in range(12):
            q = q - jnp.linalg.solve(jax.hessian(objective)(q, y), jax.grad(objective)(q, y))
        assert float(jnp.linalg.norm(jax.grad(objective)(q, y))) < 1e-13
        return np.asarray(q)


def test_sensitivities_are_those_of_refits_with_one_response_nudged(fitted):
    theta = np.asarray(fitted.params)
    found = fitted.sensitivity(POINTS)
    nudge = 1e-4
    differences = np.empty_like(found)
    for i in range(len(Y)):
        e = nudge * np.eye(len(Y))[i]
        with jax.enable_x64(True):
            up, down = (np.asarray(predict(refit(theta, Y + s * e), jnp.asarray(POINTS))) for s in (1, -1))
        differences[:, i] = (up - down) / (2 * nudge)
    np.testing.assert_allclose(found, differences, rtol=1e-4, atol=1e-6)
    V = fitted.weighted_norm(POINTS).value
    np.testing.assert_allclose(V / len(Y), np.sum(differences**2, axis=1), rtol=1e-4)


def test_unrolled_gradient_descent_gives_the_same_sensitivities(fitted):
    """d theta_T / d y of plain gradient descent, differentiated step by step, at convergence."""
    with jax.enable_x64(True):
        theta0, y = jnp.asarray(np.asarray(fitted.params)) + 1e-3, jnp.asarray(Y)
        top = float(np.linalg.eigvalsh(jax.hessian(objective)(theta0, y)).max())

        def step(state, _):
            q, D = state
            slope = jax.grad(objective)(q, y)
            H = jax.hessian(objective)(q, y)
            mixed = jax.jacobian(jax.grad(objective), argnums=1)(q, y)
            return (q - slope / top, D - (H @ D + mixed) / top), None

        start = (theta0, jnp.zeros((9, len(Y))))
        (q, D), _ = jax.jit(lambda s: jax.lax.scan(step, s, None, length=60_000))(start)
        assert float(jnp.linalg.norm(jax.grad(objective)(q, y))) < 1e-10
        unrolled = np.asarray(jax.jacobian(predict)(q, jnp.asarray(POINTS)) @ D)
    np.testing.assert_allclose(fitted.sensitivity(POINTS), unrolled, rtol=1e-5, atol=1e-8)


def test_polish_reaches_the_minimum_that_scipy_finds(fitted):
    with jax.enable_x64(True):
        value = jax.jit(jax.value_and_grad(objective))

        def both(q):
            v, g = value(jnp.asarray(q), jnp.asarray(Y))
            return float(v), np.asarray(g)

        found = minimize(both, np.asarray(fitted.params) + 1e-2, jac=True, method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(np.asarray(fitted.params), found.x, atol=1e-6)
