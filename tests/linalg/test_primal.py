"""The primal solver: the numbers of dense algebra, without images over the training rows, for any number of rows."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import vhat
from tests import oracle
from vhat.linalg.solvers import gram as module
from vhat.linalg.solvers.gram import make_gram
from vhat.linalg.solvers.interface import Norms, Stopped, replace_rows
from vhat.linalg.solvers.preconditioned_cg import Preconditioned
from vhat.linalg.workspace import SolverWorkspace


def network(q, X):
    return (jnp.tanh(X @ q["a"] + q["b"]) @ q["c"])[:, 0]


def fitted_network(n=90, *, noise=0.3, **options):
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(2, 6)), "b": rng.normal(size=6), "c": rng.normal(size=(6, 1))}
    X = rng.normal(size=(n, 2))
    y = np.asarray(network(params, X)) + noise * rng.normal(size=n)
    options = {"weight_decay": 1e-3} | options
    return vhat.from_jax(network, params, X, y, **options), params, X, y


POINTS = np.random.default_rng(1).normal(size=(7, 2)) * 1.5


@pytest.mark.parametrize("rows", [32, 64])
@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_blocks_of_any_length_sum_up_to_the_same(monkeypatch, rows, curvature):
    """90 rows in blocks that do not divide them."""
    monkeypatch.setattr(module, "_BLOCK_ROWS", rows)
    monkeypatch.setattr(module, "_LEAST_ROWS", 1)
    fitted, _, X, y = fitted_network()
    fitted = fitted.polish()
    V, _, unsupported, _ = oracle.dense(network, fitted.params, X, y, POINTS, 1e-3, curvature=curvature)
    found = fitted.weighted_norm(POINTS, solver=vhat.Primal(), curvature=curvature)
    assert found.solver == "primal"
    np.testing.assert_allclose(found.value, V, rtol=1e-5)
    np.testing.assert_allclose(found.unsupported, unsupported, atol=1e-5)


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_noise_of_unequal_shape_has_a_matrix_of_its_own(curvature):
    """Against the closed form ``1/n sum_i sigma_i^2 (J h)_i^2`` with the Jacobian of dense algebra."""
    fitted, *_ = fitted_network()
    fitted = fitted.polish()
    problem = fitted.problem
    sigma = np.random.default_rng(2).uniform(0.2, 3.0, size=(problem.n, 1))
    with problem.scope():
        work = SolverWorkspace(problem)
        g = problem.gradients(problem.inputs(POINTS))
        J = np.asarray(problem.gradients(problem.X))
        h = np.linalg.solve(work.matrix(curvature), np.asarray(g).T)
        prepared = vhat.Primal(rtol=1e-9).prepare(work, curvature)
        found = prepared.norms(g, sigma)
        equal = prepared.norms(g, np.full_like(sigma, 2.0))
    exact = np.mean((sigma * (J @ h)) ** 2, axis=0)
    np.testing.assert_allclose(found.variance, exact, rtol=1e-6)
    np.testing.assert_allclose(equal.variance, 4.0 * np.mean((J @ h) ** 2, axis=0), rtol=1e-6)
    np.testing.assert_allclose(equal.variance, 4.0 * equal.supported, rtol=1e-12)


def test_norms_are_those_that_images_give():
    """The same solver, by p x p matrices and by the training rows."""
    fitted, *_ = fitted_network(sample_weight=np.random.default_rng(5).uniform(0.5, 2.0, 90))
    problem = fitted.problem
    sigma = np.linspace(0.5, 1.5, 90)[:, None]
    with problem.scope():
        prepared = vhat.Primal().prepare(SolverWorkspace(problem), "ggn")
        g = problem.gradients(problem.inputs(POINTS))
        short, long = prepared.norms(g, sigma), Norms.of(problem, prepared.respond(g), sigma)
    for name in ("variance", "supported", "energy", "pull", "slope"):
        np.testing.assert_allclose(getattr(short, name), getattr(long, name), rtol=1e-9, atol=1e-14, err_msg=name)


def test_no_image_is_formed_for_norms(monkeypatch):
    fitted, *_ = fitted_network()
    problem = fitted.problem
    with problem.scope():
        prepared = vhat.Primal().prepare(SolverWorkspace(problem), "ggn")
        g = problem.gradients(problem.inputs(POINTS))
        monkeypatch.setattr(type(problem), "jvp", lambda *_: pytest.fail("an image was formed"))
        found = prepared.norms(g, np.ones((problem.n, 1)))
    assert np.all(found.status == "converged")


def test_predictions_that_the_data_hardly_hold_are_read_off_the_rows():
    """A direction with a support of 1e-5: rounding in ``h'Gh`` would be larger than V."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3)) * [1.0, 1.0, 1e-5]
    fitted = vhat.from_numpy(lambda q, Z: Z @ q, np.zeros(3), X, X[:, 0], jac=lambda Z: Z, weight_decay=1e-3)
    dark = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [1e-7, 0.0, 1.0]])
    A = X.T @ X / 50 + 1e-3 * np.eye(3)
    V = np.mean((X @ np.linalg.solve(A, dark.T)) ** 2, axis=0)
    found = fitted.weighted_norm(dark, solver=vhat.Primal(), curvature="ggn")
    np.testing.assert_allclose(found.value, V, rtol=1e-6)


def test_a_matrix_that_data_and_decay_leave_open_is_refused():
    X = np.random.default_rng(0).normal(size=(3, 5))
    fitted = vhat.from_numpy(lambda q, Z: Z @ q, np.zeros(5), X, X[:, 0], jac=lambda Z: Z, weight_decay=0.0)
    with pytest.raises(vhat.NotPositiveDefinite, match="singular"):
        fitted.weighted_norm(X, solver=vhat.Primal())
    with pytest.raises(vhat.NotPositiveDefinite, match="do not determine every parameter"):
        make_gram(fitted.problem, np.ones(5))


@pytest.mark.parametrize("name", ["Primal", "Dual"])
def test_a_loss_whose_curvature_turns_negative_is_corrected_for(name):
    """``log(1 + r^2 / 2)`` is not convex: negative weights are left out of P and put back by the corrections."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(80, 3))
    theta = np.array([1.0, -2.0, 0.5])
    y = X @ theta + 0.8 * rng.normal(size=80)
    y[:6] += 4.0
    fitted = vhat.from_jax(
        lambda q, Z: Z @ q,
        theta,
        X,
        y,
        weight_decay=0.1,
        loss=lambda f, t: jnp.log1p(0.5 * (f - t) ** 2),
    ).polish()
    r = X @ np.asarray(fitted.params) - y
    second = (1 - 0.5 * r**2) / (1 + 0.5 * r**2) ** 2
    assert second.min() < 0
    A = X.T @ (second[:, None] * X) / 80 + 0.1 * np.eye(3)
    x = rng.normal(size=(5, 3))
    u = (X @ np.linalg.solve(A, x.T)) * second[:, None]
    found = fitted.weighted_norm(x, solver=getattr(vhat, name)(), curvature="hessian")
    np.testing.assert_allclose(found.value, np.mean(u**2, axis=0), rtol=1e-5)


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_a_noise_matrix_that_does_not_fit_is_not_needed(curvature):
    """One output with unequal noise, in a budget for one matrix: V is computed from the training rows."""
    rng = np.random.default_rng(0)
    n, p = 300, 120
    X, sigma = rng.normal(size=(n, p)), rng.uniform(0.2, 3.0, size=n)
    x = rng.normal(size=(20, p))
    A = X.T @ X / n + 0.1 * np.eye(p)
    exact = np.sqrt(np.mean((sigma[:, None] * (X @ np.linalg.solve(A, x.T))) ** 2, axis=0) / n)
    for memory in (6e5, 1e9):
        fitted = vhat.from_jax(
            lambda q, Z: Z @ q, np.linalg.solve(A, X.T @ X[:, 0] / n), X, X[:, 0], weight_decay=0.1, memory=memory
        )
        band = fitted.interval(x, noise=sigma, solver=vhat.Primal(), curvature=curvature)
        assert band.solver == "primal"
        np.testing.assert_allclose(band.standard_error, exact, rtol=1e-6, err_msg=f"{memory:.0e}")


def test_rows_are_replaced_in_a_record_that_may_not_be_written_to():
    columns = [np.zeros(3) for _ in range(8)]
    columns[0].flags.writeable = False
    found = replace_rows(Norms(*columns), np.array([1]), Norms(*(np.ones(1) for _ in range(8))))
    for values in vars(found).values():
        np.testing.assert_array_equal(values, [0.0, 1.0, 0.0])


def test_a_solver_that_is_asked_for_makes_no_factorisation_but_its_own(monkeypatch):
    fitted, *_ = fitted_network()
    work = fitted.workspace
    monkeypatch.setattr(type(work), "solver", vhat.Primal())
    fitted.weighted_norm(POINTS, solver=vhat.Dual(), curvature="ggn")
    assert work.kept("kernel") is not None
    assert work.kept("gram") is None


def test_a_row_that_is_not_finite_says_so_when_ctrl_c_comes(monkeypatch):
    fitted, *_ = fitted_network()
    problem = fitted.problem
    with problem.scope():
        prepared = vhat.Nystrom(rows=30).prepare(SolverWorkspace(problem), "ggn")
        g = np.array(problem.gradients(problem.inputs(POINTS)))
        g[2, 0] = np.nan
        monkeypatch.setattr(Preconditioned, "_resume", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(Stopped) as stop:
            prepared.respond(problem.native(g))
    assert stop.value.partial.status[list(stop.value.rows).index(2)] == "not finite"


@pytest.mark.parametrize("small", [1e-8, 1e-11])
def test_lengths_of_what_the_data_hardly_see_are_those_of_the_training_rows(small):
    """A vector almost without support in the data: ``z'Gz`` in float64 is only rounding."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 12))
    fitted = vhat.from_numpy(lambda q, Z: Z @ q, np.zeros(12), X, X[:, 0], weight_decay=1e-8)
    seen, unseen = np.linalg.svd(X)[2][[0, -1]]
    z = unseen + small * seen
    with fitted.problem.scope():
        found = fitted.workspace.gram().lengths(z[None, None])
    np.testing.assert_allclose(found, np.linalg.norm(X @ z) / np.sqrt(40), rtol=1e-4)
