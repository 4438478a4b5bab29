"""The traces of a smoother from p x p matrices, compared with those from the rows."""

import numpy as np
import pytest

import vhat
from vhat.linalg.solvers.alike_rows import rows_alike
from vhat.variance.noise import measure_freedom


def fitted(weights=None):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.sin(X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=60)
    network = vhat.NetworkRegressor((4,), weight_decay=1e-2).fit(X, y, sample_weight=weights)
    return network.fitted_


@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
@pytest.mark.parametrize("weight", [None, 2.5])
def test_the_traces_of_alike_rows_are_those_of_the_rows(curvature, weight):
    model = fitted(None if weight is None else np.full(60, weight))
    work = model.workspace
    assert rows_alike(model.problem, work.shape)
    found = work.freedom(curvature, 0)
    by_rows = measure_freedom(model.problem, work.own_solver(curvature), work.shape)
    np.testing.assert_allclose(found.effective, by_rows.effective, rtol=1e-10)
    np.testing.assert_allclose(found.residual, by_rows.residual, rtol=1e-10)
    np.testing.assert_allclose(found.own, by_rows.own, rtol=1e-10)
    assert (found.rows, found.method) == (by_rows.rows, by_rows.method)


def test_rows_of_different_weight_are_not_alike():
    model = fitted(np.linspace(0.5, 2.0, 60))
    assert not rows_alike(model.problem, model.workspace.shape)
