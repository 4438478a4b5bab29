"""Minimum-norm solutions, compared with numpy's pseudo-inverse and with refits; and fits that do not interpolate."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.special import softmax

import vhat
from vhat.linalg.workspace import SolverWorkspace

N, P = 8, 20
K = np.arange(1, 7)


def wide(seed=0, weights=None):
    """Return an interpolating linear model, its design and responses."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(N, P)), rng.normal(size=N)
    fitted = vhat.from_numpy(lambda q, x: x @ q, np.linalg.pinv(X) @ y, X, y, jac=lambda x: x, sample_weight=weights)
    return fitted, X, y


def bent(q, x):
    s = np.sin(np.outer(x, K)) @ q
    return s + 0.2 * s**2 + 0.1 * q[0] * q[1]


def bent_jac(q, x):
    basis = np.sin(np.outer(x, K))
    extra = np.zeros_like(basis)
    extra[:, 0], extra[:, 1] = 0.1 * q[1], 0.1 * q[0]
    return basis * (1 + 0.4 * (basis @ q))[:, None] + extra


def settle(q, x, y):
    """Return an interpolating solution by minimum-norm Gauss-Newton steps, which is close to gradient descent."""
    for _ in range(60):
        q = q + np.linalg.pinv(bent_jac(q, x)) @ (y - bent(q, x))
    return q


def test_V_and_the_shortcut_are_those_of_the_pseudo_inverse():
    fitted, X, _ = wide()
    x = np.random.default_rng(1).normal(size=(5, P))
    found = fitted.weighted_norm(x, solver=vhat.MinimumNorm())
    plus = np.linalg.pinv(X)
    V = N * np.sum((x @ plus) ** 2, axis=1)
    np.testing.assert_allclose(found.value, V, rtol=1e-10)
    short = fitted.weighted_norm(x, solver=vhat.MinimumNorm(), shortcut=True)
    np.testing.assert_allclose(short.value, np.einsum("id,de,ie->i", x, N * np.linalg.pinv(X.T @ X), x), rtol=1e-9)
    np.testing.assert_allclose(short.value, V, rtol=1e-9)
    np.testing.assert_allclose(fitted.sensitivity(x, solver=vhat.MinimumNorm()), x @ plus, rtol=1e-9)
    outside = np.sum((x - x @ plus @ X) ** 2, axis=1) / np.sum(x**2, axis=1)
    np.testing.assert_allclose(found.unsupported, outside, rtol=1e-9)
    assert found.solver == "minimum norm"


def test_training_rows_are_wholly_supported_and_have_V_of_n():
    """The smoother of an interpolating fit is the identity: each prediction follows its own response."""
    fitted, X, _ = wide()
    found = fitted.weighted_norm(X, solver=vhat.MinimumNorm())
    np.testing.assert_allclose(found.value, N, rtol=1e-9)
    np.testing.assert_array_equal(found.unsupported, 0.0)


def test_it_is_the_limit_of_vanishing_decay():
    fitted, X, y = wide()
    x = np.random.default_rng(1).normal(size=(5, P))
    lam = 1e-6
    q = X.T @ np.linalg.solve(X @ X.T / N + lam * np.eye(N), y) / N
    ridge = vhat.from_numpy(lambda q, x: x @ q, q, X, y, jac=lambda x: x, weight_decay=lam)
    found = fitted.weighted_norm(x, solver=vhat.MinimumNorm()).value
    np.testing.assert_allclose(ridge.weighted_norm(x).value, found, rtol=1e-3)


def test_the_sensitivity_of_a_nonlinear_fit_is_that_of_nudged_refits():
    x = np.array([0.3, 1.1, 2.0, 2.6])
    rng = np.random.default_rng(2)
    y = rng.normal(size=4)
    q = settle(0.3 * rng.normal(size=6), x, y)
    assert np.abs(bent(q, x) - y).max() < 1e-12
    fitted = vhat.from_numpy(bent, q, x, y, jac=bent_jac)
    new = np.array([0.7, 1.7])
    found = fitted.sensitivity(new, solver=vhat.MinimumNorm())
    step = 1e-5
    for i in range(4):
        nudge = step * np.eye(4)[i]
        moved = bent(settle(q, x, y + nudge), new) - bent(settle(q, x, y - nudge), new)
        np.testing.assert_allclose(found[:, i], moved / (2 * step), rtol=1e-5, atol=1e-8)


def test_the_interval_has_its_level_and_says_what_it_rests_on():
    """400 draws of the noise; the mean of the minimum-norm prediction is that at the expected responses."""
    rng = np.random.default_rng(3)
    X, mean = rng.normal(size=(N, P)), rng.normal(size=N)
    x = rng.normal(size=(2, P))
    plus = np.linalg.pinv(X)
    fitted = vhat.from_numpy(lambda q, z: z @ q, plus @ mean, X, mean, jac=lambda z: z)
    band = fitted.interval(x, 0.1, noise=0.3, solver=vhat.MinimumNorm())
    draws = (mean + 0.3 * rng.normal(size=(4000, N))) @ plus.T @ x.T
    missed = np.mean(np.abs(draws - mean @ plus.T @ x.T) > band.half_width, axis=0)
    assert np.all(np.abs(missed - 0.1) < 4 * np.sqrt(0.1 * 0.9 / 4000))
    assert "the fit interpolates" in band.guarantee
    assert f"({N} of {P} directions)" in band.guarantee
    assert band.guarantee.startswith("Nominal")
    short = fitted.interval(x, 0.1, noise=0.3, solver=vhat.MinimumNorm(), shortcut=True)
    np.testing.assert_allclose(short.half_width, band.half_width, rtol=1e-9)
    assert "g'h in place of V" in short.guarantee


def test_the_shortcut_of_an_interval_is_above_V_with_decay():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(30, 3))
    y = X @ np.ones(3) + 0.1 * rng.normal(size=30)
    q = np.linalg.solve(X.T @ X / 30 + 0.1 * np.eye(3), X.T @ y / 30)
    fitted = vhat.from_numpy(lambda q, z: z @ q, q, X, y, jac=lambda z: z, weight_decay=0.1)
    plain, short = (fitted.interval(X[:3], noise=0.1, shortcut=each) for each in (False, True))
    A = X.T @ X / 30 + 0.1 * np.eye(3)
    np.testing.assert_allclose(short.weighted_norm, np.sum(X[:3] * np.linalg.solve(A, X[:3].T).T, axis=1), rtol=1e-9)
    assert np.all(short.half_width > plain.half_width)
    with pytest.raises(vhat.InputError, match="same in every row"):
        fitted.interval(X[:3], noise=np.linspace(0.1, 0.2, 30), shortcut=True)


def test_weights_and_several_outputs_are_those_of_explicit_matrices():
    weights = np.linspace(0.5, 2.0, N)
    fitted, X, _ = wide(weights=weights)
    x = np.random.default_rng(1).normal(size=(3, P))
    # an interpolating fit does not depend on the weights
    np.testing.assert_allclose(fitted.sensitivity(x, solver=vhat.MinimumNorm()), x @ np.linalg.pinv(X), rtol=1e-9)
    Q = np.linalg.pinv(X) @ np.random.default_rng(2).normal(size=(N, 2))
    two = vhat.from_numpy(lambda q, z: z @ q.reshape(P, 2), Q.ravel(), X, X @ Q)
    found = two.weighted_norm(x, solver=vhat.MinimumNorm()).value
    V = N * np.sum((x @ np.linalg.pinv(X)) ** 2, axis=1)
    np.testing.assert_allclose(found, np.stack([V, V], axis=1), rtol=1e-6)


def difference(f, y):
    return 0.5 * (0.7 * f[0] - 0.3 * f[1] - y[0]) ** 2


def cross_entropy(f, y):
    return jax.nn.logsumexp(f) - y @ f


@pytest.mark.parametrize("loss", [difference, cross_entropy])
def test_a_loss_with_singular_blocks_has_the_V_of_the_explicit_pseudo_inverse(loss):
    """Each loss is flat along one combination of the outputs, which no data determine."""
    rng = np.random.default_rng(7)
    outputs = 2 if loss is difference else 3
    X, x = rng.normal(size=(N, P)), rng.normal(size=(4, P))
    Q = rng.normal(size=(P, outputs)) / 4
    weights = rng.uniform(0.5, 2.0, N)
    f = X @ Q
    if loss is difference:
        y = np.stack([f @ [0.7, -0.3], np.zeros(N)], axis=1)
        C = np.tile([[0.49, -0.21], [-0.21, 0.09]], (N, 1, 1))
        cross = np.tile([[-0.7, 0.0], [0.3, 0.0]], (N, 1, 1))
    else:
        y = softmax(f, axis=1)
        C = y[:, :, None] * np.eye(3) - y[:, :, None] * y[:, None, :]
        cross = np.tile(-np.eye(3), (N, 1, 1))
    J, g = (np.einsum("ip,ab->iapb", Z, np.eye(outputs)).reshape(len(Z), outputs, -1) for Z in (X, x))
    A = np.einsum("iap,i,iab,ibq->pq", J, weights, C, J) / N
    h = g @ np.linalg.pinv(A, rcond=1e-11, hermitian=True)
    u = np.einsum("kcp,iap,i,iab->kcib", h, J, weights, cross)
    fitted = vhat.from_jax(lambda q, Z: Z @ q, Q, X, y, loss=loss, sample_weight=weights, weight_decay=0.0)
    found = fitted.weighted_norm(x, solver=vhat.MinimumNorm())
    np.testing.assert_allclose(found.value, np.sum(u**2, axis=(2, 3)) / N, rtol=1e-8)
    with fitted.problem.scope():
        prepared = vhat.MinimumNorm().prepare(SolverWorkspace(fitted.problem), "ggn")
    assert prepared.rank == N * (outputs - 1)


def test_the_threshold_says_which_singular_values_count():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, P))
    X[-1] = X[0] + 1e-7 * rng.normal(size=P)
    y = rng.normal(size=N)
    fitted = vhat.from_numpy(lambda q, z: z @ q, np.linalg.pinv(X) @ y, X, y, jac=lambda z: z)
    x = rng.normal(size=(2, P))
    for threshold in (None, 1e-4):
        plus = np.linalg.pinv(X) if threshold is None else np.linalg.pinv(X, rcond=threshold)
        found = fitted.weighted_norm(x, solver=vhat.MinimumNorm(threshold)).value
        np.testing.assert_allclose(found, N * np.sum((x @ plus) ** 2, axis=1), rtol=1e-5)


def test_every_other_solver_points_to_it_and_the_audit_says_whether_it_applies():
    fitted, X, y = wide()
    with pytest.raises(vhat.NotPositiveDefinite, match=r"vhat\.MinimumNorm\(\)"):
        fitted.interval(X, noise=0.1)
    line = fitted.audit(noise=0.1)["interpolation"]
    assert line.verdict == "holds"
    off = vhat.from_numpy(lambda q, z: z @ q, 0.5 * np.linalg.pinv(X) @ y, X, y, jac=lambda z: z)
    assert off.audit(noise=0.1)["interpolation"].verdict == "noted"
    with pytest.warns(vhat.NotMinimumWarning):
        band = off.interval(X[:1], noise=0.1, solver=vhat.MinimumNorm())
    assert "DOES NOT INTERPOLATE" in band.guarantee


def test_validation_rows_that_come_later_tell_its_noise():
    fitted, X, y = wide()
    with pytest.raises(vhat.NoiseError):
        fitted.interval(X, solver=vhat.MinimumNorm())
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(50, P))
    held_out = rows @ np.linalg.pinv(X) @ y + rng.normal(size=50)
    band = fitted.with_validation(rows, held_out).interval(X, solver=vhat.MinimumNorm())
    assert band.noise_source == "estimated from 50 validation rows"
    errors = rows @ np.linalg.pinv(X) @ y - held_out
    V = N * np.sum((rows @ np.linalg.pinv(X)) ** 2, axis=1)
    assert band.noise == pytest.approx(np.sqrt(np.mean(errors**2 / (1 + V / N))), rel=1e-9)


def test_what_it_is_not_for_is_refused_in_words():
    fitted, X, y = wide()
    with pytest.raises(vhat.NoiseError, match="interpolates"):
        fitted.interval(X, solver=vhat.MinimumNorm())
    with pytest.raises(vhat.InputError, match="Gauss-Newton"):
        fitted.weighted_norm(X, solver=vhat.MinimumNorm(), curvature="hessian")
    with pytest.raises(vhat.InputError, match="estimated"):
        fitted.interval(X, noise=0.1, solver=vhat.MinimumNorm(), tail="estimated")
    decayed = vhat.from_numpy(lambda q, z: z @ q, np.zeros(P), X, y, jac=lambda z: z, weight_decay=0.1)
    with pytest.raises(vhat.InputError, match="without weight decay"):
        decayed.weighted_norm(X, solver=vhat.MinimumNorm())
    with pytest.raises(vhat.InputError, match="threshold"):
        vhat.MinimumNorm(threshold=-1.0)
