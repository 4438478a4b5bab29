"""The noise of several outputs, by dense matrices, and what a level says of where it comes from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vhat
from vhat.variance.noise import estimate_noise, given_noise, held_out_noise, measure_freedom, own_noise

N, K, P = 12, 2, 3


def outputs_together(seed):
    """Two outputs with common parameters, the first with fifty times the noise of the second."""
    rng = np.random.default_rng(seed)
    J = rng.normal(size=(N, K, P))
    y = rng.normal(size=(N, K)) * [5.0, 0.1]
    theta = np.linalg.lstsq(J.reshape(N * K, P), y.reshape(-1), rcond=None)[0]

    def rows(x):
        return J[np.asarray(x).astype(int)]

    return J, y, vhat.from_numpy(lambda q, x: rows(x) @ q, theta, np.arange(float(N)), y, jac=rows)


def by_hand(J, y):
    """Return ``|(I - S)_kj|_F^2`` and ``|r_k|^2``, by the hat matrix of all responses together."""
    flat = J.reshape(N * K, P)
    left = (np.eye(N * K) - flat @ np.linalg.pinv(flat)).reshape(N, K, N, K)
    return np.sum(left**2, axis=(0, 2)), np.sum(np.einsum("ikjl,jl->ik", left, y) ** 2, axis=0)


@pytest.mark.parametrize("separated", [True, False])
def test_the_noise_of_outputs_does_not_depend_on_their_units(separated):
    """Also where the unbiased estimate of one is negative, and each is given all of its own residuals."""
    for seed in range(100):
        J, y, fitted = outputs_together(seed)
        M, squares = by_hand(J, y)
        variance = np.linalg.solve(M, squares)
        if np.all(variance > 0) == separated:
            break
    expected = variance if separated else squares / np.diag(M)
    solver = fitted.workspace.own_solver("ggn")
    for units in ([1.0, 1.0], [1.0, 1e3], [1e-3, 1.0]):
        shape = np.ones((N, K)) * units
        found = estimate_noise(fitted.problem, measure_freedom(fitted.problem, solver, shape), shape)
        assert ("not separated" in found.source) != separated
        np.testing.assert_allclose(found.level, np.sqrt(expected), rtol=1e-8)
        np.testing.assert_allclose(found.df, np.minimum(squares / expected, N - by_hand_freedom(J)), rtol=1e-8)


def by_hand_freedom(J):
    flat = J.reshape(N * K, P)
    return np.diag(flat @ np.linalg.pinv(flat)).reshape(N, K).sum(axis=0)


def test_whether_a_level_was_estimated_does_not_depend_on_its_words():
    _, _, fitted = outputs_together(0)
    kinds = {
        "given": given_noise(0.3, fitted.problem),
        "estimated": held_out_noise(np.ones(K), np.ones((N, K)), 20),
        "own": own_noise(np.ones((N, K))),
    }
    for kind, noise in kinds.items():
        told = replace(noise, source="in other words")
        assert [name for name in kinds if getattr(told, name)] == [kind]
