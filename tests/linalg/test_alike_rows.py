"""Norms by one matrix product, compared with single solves."""

from dataclasses import fields

import numpy as np
import pytest

import vhat
from vhat.linalg.solvers.alike_rows import rows_alike
from vhat.linalg.solvers.interface import FromImages


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = 5 + 20 * (np.sin(X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=80))
    return vhat.NetworkRegressor((6,), weight_decay=1e-3).fit(X, y).fitted_


@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
def test_the_norms_are_those_of_the_solutions(model, curvature):
    problem = model.problem
    solver = model.workspace.own_solver(curvature)
    sigma = np.full((problem.n, 1), 2.5)
    assert rows_alike(problem, sigma)
    g = problem.gradients(np.random.default_rng(1).normal(size=(40, 3)))
    found, solved = solver.norms(g, sigma), FromImages.norms(solver, g, sigma)
    for each in ("variance", "supported", "energy"):
        np.testing.assert_allclose(getattr(found, each), getattr(solved, each), rtol=1e-9, err_msg=each)
    for each in ("pull", "slope"):
        want = getattr(solved, each)
        np.testing.assert_allclose(getattr(found, each), want, atol=1e-9 * np.abs(solved.pull).max(), err_msg=each)
    assert all(len(getattr(found, field.name)) == 40 for field in fields(found))
    np.testing.assert_array_equal(found.status, solved.status)
    assert np.all(solved.residual <= found.residual)  # the bound holds for every row
    assert found.residual.max() < 1e-9


def test_a_row_that_is_not_finite_is_told_by_its_status(model):
    problem = model.problem
    g = problem.gradients(np.zeros((2, 3)))
    g[1, 0] = np.nan
    found = model.workspace.own_solver("hessian").norms(g, np.ones((problem.n, 1)))
    assert list(found.status) == ["converged", "not finite"]
