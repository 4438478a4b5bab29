"""The paper's claim on cost: conjugate gradients end within sqrt(1 + B^2/lam) ln(1/eps) iterations."""

from __future__ import annotations

import numpy as np
import pytest

import vhat
from vhat.study.paper_cg import descend

pytestmark = pytest.mark.slow

TOLERANCE = 1e-8


def steps_of(values, decay):
    """Iterations on a ridge regression whose matrix X'X/n has these eigenvalues, and B^2, the largest squared row."""
    rng = np.random.default_rng(0)
    p = len(values)
    left, _ = np.linalg.qr(rng.normal(size=(4 * p, p)))
    right, _ = np.linalg.qr(rng.normal(size=(p, p)))
    X = np.sqrt(4 * p) * left * np.sqrt(values) @ right.T
    y = rng.normal(size=4 * p)
    theta = np.linalg.solve(X.T @ X / (4 * p) + decay * np.eye(p), X.T @ y / (4 * p))
    problem = vhat.from_numpy(lambda q, Z: Z @ q, theta, X, y, jac=lambda Z: Z, weight_decay=decay).problem
    with problem.scope():
        found = descend(problem, problem.gradients(problem.inputs(X[:5])), tolerance=TOLERANCE, iterations=10_000)
    assert found.residual.max() < 1e-7
    return found.steps, float(np.max(np.sum(X**2, axis=1)))


@pytest.mark.parametrize("decay", [1.0, 1e-2, 1e-3])
def test_iterations_stay_below_the_bound_of_chebyshev_polynomials(decay):
    steps, largest = steps_of(np.linspace(1e-3, 1.0, 60), decay)
    root = np.sqrt(1 + largest / decay)
    assert steps.max() <= 0.5 * root * np.log(2 * root / TOLERANCE) + 1


def test_iterations_grow_as_the_root_where_the_spectrum_is_spread_evenly():
    # with eigenvalues on the nodes of Chebyshev's polynomial the bound is nearly attained, until steps reach p
    nodes = 0.5 * (1 - np.cos(np.pi * (np.arange(200) + 0.5) / 200))
    few, many = (np.median(steps_of(nodes, decay)[0]) for decay in (1e-1, 1e-3))
    roots = np.sqrt((1 + 1 / 1e-3) / (1 + 1 / 1e-1))
    assert 0.6 * roots < many / few < 1.4 * roots
