"""The Fisher information, its damping and the comparison with the sandwich, against matrices written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import eigh

import vhat

X = np.linspace(0.0, 4.0, 25)


def decay_curve(q, x):
    return q[0] * np.exp(-q[1] * x)


def jac(q, x):
    e = np.exp(-q[1] * x)
    return np.stack([e, -q[0] * x * e], axis=1)


def hess(q, x):
    """Second derivatives of every prediction, (n, 2, 2)."""
    e = np.exp(-q[1] * x)
    zero = np.zeros_like(x)
    return np.stack([np.stack([zero, -x * e], 1), np.stack([-x * e, q[0] * x**2 * e], 1)], 1)


def make(lam=0.0, noise=0.1, seed=0):
    y = decay_curve([2.0, 1.0], X) + noise * np.random.default_rng(seed).normal(size=len(X))
    # derivatives of the test's own make it exact, and fast
    return vhat.from_numpy(decay_curve, [2.0, 1.0], X, y, jac=jac, hess=hess, weight_decay=lam).polish(), y


@pytest.mark.parametrize("lam", [0.0, 0.02])
def test_every_number_is_that_of_explicit_matrices(lam):
    fitted, y = make(lam)
    found = fitted.fisher(noise=0.1)
    q = np.asarray(fitted.params)
    J, B, r = jac(q, X), hess(q, X), decay_curve(q, X) - y
    n = len(X)
    info = J.T @ J / n
    R = np.einsum("i,iab->ab", r, B) / n
    np.testing.assert_allclose(found.information, info, rtol=1e-6)
    assert found.smallest_eigenvalue == pytest.approx(np.linalg.eigvalsh(R)[0], rel=1e-4)
    C = max(np.linalg.norm(each, 2) for each in B)
    assert found.curvature_bound == pytest.approx(C, rel=1e-4)
    b = 2 * 0.1 * C / np.sqrt(n)
    alpha = b * np.sqrt(np.log(n * np.sqrt(2 * 2) / b))
    assert found.damping.alpha == pytest.approx(alpha, rel=1e-4)
    assert found.damping.value == pytest.approx(alpha + max(0.0, -np.linalg.eigvalsh(R)[0]), rel=1e-4)
    for value, shift in ((found.ratio, lam), (found.damped_ratio, found.damping.value)):
        inverse = np.linalg.inv(info + R + shift * np.eye(2))
        M = inverse @ info @ inverse
        assert value == pytest.approx(eigh(M, np.linalg.inv(info), eigvals_only=True)[-1], rel=1e-4)


def test_the_damped_sandwich_is_below_the_inverse_information_for_every_residual():
    """R + lam_hat >= 0 gives H + lam_hat >= I, hence M <= (H + lam_hat)^-1 <= I^-1: no expectation is needed."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        y = decay_curve([2.0, 1.0], X) + rng.normal(size=len(X))
        fitted = vhat.from_numpy(decay_curve, [2.0, 1.0], X, y, jac=jac, hess=hess, weight_decay=0.1)
        found = fitted.fisher(noise=1.0, curvature="ggn")
        assert found.damped_ratio <= 1 + 1e-12
        none = fitted.fisher(noise=1.0, curvature="ggn", curvature_bound=0.0)
        assert none.damping.alpha == 0.0
        assert none.damped_ratio <= 1 + 1e-12


def test_the_expected_sandwich_at_the_truth_is_below_the_bound_of_the_proposition():
    """E M(theta*) <= I(theta*)^-1 + I/n at the data-dependent damping, by Monte Carlo over the noise."""
    q, n, sigma = np.array([2.0, 1.0]), len(X), 0.3
    J, B = jac(q, X), hess(q, X)
    info = J.T @ J / n
    C = max(np.linalg.norm(each, 2) for each in B)
    rng = np.random.default_rng(5)
    total = np.zeros((2, 2))
    for _ in range(500):
        R = np.einsum("i,iab->ab", -sigma * rng.normal(size=n), B) / n
        damping = vhat.bounds.fisher_damping(sigma, C, n, 2, float(np.linalg.eigvalsh(R)[0]))
        inverse = np.linalg.inv(info + R + damping.value * np.eye(2))
        total += inverse @ info @ inverse / 500
    excess = np.linalg.eigvalsh(total - np.linalg.inv(info) - np.eye(2) / n)
    assert excess[-1] < 0


def test_a_linear_model_without_decay_has_the_inverse_information_itself():
    A = np.random.default_rng(1).normal(size=(30, 3))
    y = A @ [1.0, -2.0, 0.5] + 0.1 * np.random.default_rng(2).normal(size=30)
    fitted = vhat.from_numpy(lambda q, x: x @ q, np.linalg.lstsq(A, y, rcond=None)[0], A, y, jac=lambda x: x)
    found = fitted.fisher()
    assert found.curvature_bound == 0.0
    assert found.damping.value == 0.0
    assert found.ratio == pytest.approx(1.0)
    assert found.noise_source.startswith("estimated")


def test_weights_outputs_and_memory_are_refused_in_words():
    y = decay_curve([2.0, 1.0], X)
    weighted = vhat.from_numpy(decay_curve, [2.0, 1.0], X, y, weight_decay=0.1, sample_weight=1 + X)
    with pytest.raises(vhat.InputError, match="sample weights"):
        weighted.fisher(noise=0.1)
    wide = vhat.from_numpy(
        lambda q, x: x @ q, np.ones(400), np.ones((5, 400)), np.ones(5), weight_decay=0.1, memory=6e6
    )
    with pytest.raises(vhat.MemoryBudgetError, match="400 x 400"):
        wide.fisher(noise=0.1)
