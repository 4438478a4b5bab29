"""Sums over blocks of training rows, compared with the whole Jacobian and with numpy's least squares."""

import numpy as np
import pytest

import vhat
from vhat.linalg.solvers import choose
from vhat.linalg.solvers.primal import Primal
from vhat.variance import noise as noise_module
from vhat.variance import row_blocks

RNG = np.random.default_rng(0)
N = 300
X = RNG.standard_normal((N, 3))
SHAPE = RNG.uniform(0.5, 2.0, (N, 2))


def design(x):
    """Two outputs that share parameters; the fourth and the fifth column are the same, and the last is empty."""
    columns = np.stack([np.ones(len(x)), x[:, 0], x[:, 1], x[:, 2], x[:, 2], 0 * x[:, 0]], axis=1)
    return np.stack([columns, np.roll(columns, 1, axis=1)], axis=1)


@pytest.fixture
def fitted():
    y = design(X) @ np.arange(6.0) + SHAPE * RNG.standard_normal((N, 2))
    weights = np.where(np.arange(N) % 7 == 0, 0.0, 1.0)
    return vhat.from_numpy(
        lambda q, x: design(x) @ q, np.ones(6), X, y, jac=design, weight_decay=0.1, sample_weight=weights
    ).polish()


def small_blocks(monkeypatch):
    monkeypatch.setattr(row_blocks, "_MAX_JACOBIAN_BYTES", 0)
    monkeypatch.setattr(row_blocks, "_BLOCK_BYTES", 8 * 6 * 2 * 41)


def test_noise_from_blocks_is_that_of_least_squares(fitted, monkeypatch):
    small_blocks(monkeypatch)
    found = noise_module.projected_noise(fitted.problem, SHAPE)
    seen = np.arange(N) % 7 != 0
    for k in range(2):
        J, y = design(X)[seen, k] / SHAPE[seen, k, None], fitted.problem.targets[seen, k] / SHAPE[seen, k]
        left = y - J @ np.linalg.lstsq(J, y, rcond=None)[0]
        rank = np.linalg.matrix_rank(J)
        assert found.df[k] == seen.sum() - rank
        level = np.sqrt(left @ left / found.df[k])
        np.testing.assert_allclose(found.values[:, k], level * SHAPE[:, k], rtol=1e-10)


def test_traces_from_blocks_are_those_of_the_dense_smoother(fitted, monkeypatch):
    prepared = Primal().prepare(fitted.workspace, "ggn")
    whole = noise_module.measure_freedom(fitted.problem, prepared, SHAPE)
    small_blocks(monkeypatch)
    parts = noise_module.measure_freedom(fitted.problem, prepared, SHAPE)
    np.testing.assert_allclose(parts.effective, whole.effective, rtol=1e-10)
    np.testing.assert_allclose(parts.residual, whole.residual, rtol=1e-10)
    assert (parts.method, parts.rows) == (whole.method, whole.rows)
    seen = np.arange(N) % 7 != 0
    J = design(X).reshape(-1, 6)
    w = np.repeat(seen, 2).astype(float)
    S = J @ np.linalg.solve((J.T * w) @ J / N + 0.1 * np.eye(6), J.T * w) / N
    own = np.diag(S).reshape(N, 2)[seen].sum(axis=0)
    np.testing.assert_allclose(parts.effective, own, rtol=1e-10)


def test_a_long_linear_model_is_answered_by_the_matrix_as_by_the_rows(monkeypatch):
    from vhat.linalg.solvers import plan

    x = RNG.standard_normal((400, 2))
    y = x @ [1.0, 2.0] + 0.1 * RNG.standard_normal(400)
    matrix = lambda x: np.column_stack([np.ones(len(x)), x])  # noqa: E731
    make = lambda: vhat.from_numpy(lambda q, x: matrix(x) @ q, np.zeros(3), x, y, jac=matrix, weight_decay=0.1)  # noqa: E731
    rows = make().polish().interval(x[:5])
    monkeypatch.setattr(plan, "_MANY_ROWS", 400)
    fitted = make().polish()
    assert choose(fitted.problem).solver == Primal()
    band = fitted.interval(x[:5])
    assert (rows.solver, band.solver, band.bound) == ("dense", "primal", "exact")
    np.testing.assert_allclose(band.half_width, rows.half_width, rtol=1e-10)
