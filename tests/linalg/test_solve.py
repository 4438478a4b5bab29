"""Solvers compared with dense linear algebra: every row has a status, and failed rows have no number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg

import vhat
from tests import oracle
from vhat.linalg.curvature import Operator, assemble, scale
from vhat.linalg.workspace import SolverWorkspace
from vhat.models.jax import jax_problem

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def problem():
    params = oracle.random_params(RNG, 4, 12, None)
    predict = oracle.network("tanh", None)
    X = RNG.normal(size=(60, 4))
    with jax.enable_x64(True):
        y = np.asarray(predict(params, jnp.asarray(X))) + 0.001 * RNG.standard_normal(60)
    return jax_problem(predict, params, X, y, weight_decay=1e-3)


@pytest.fixture(scope="module")
def sides(problem):
    with problem.scope():
        return problem.native(RNG.standard_normal((23, problem.p)))


@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
@pytest.mark.parametrize(
    "solver",
    [vhat.Dense(), vhat.CG(rtol=1e-10), vhat.CG(rtol=1e-10, block=5), vhat.Dual(rtol=1e-11), vhat.Primal(rtol=1e-11)],
)
def test_solutions_equal_dense_linear_algebra(problem, sides, curvature, solver):
    with problem.scope():
        matrix = assemble(problem, curvature)
        found = solver.prepare(SolverWorkspace(problem), curvature).solve(sides)
        exact = np.linalg.solve(matrix, np.asarray(sides).T).T
        np.testing.assert_allclose(np.asarray(found.h), exact, rtol=1e-6, atol=1e-7 * np.abs(exact).max())
        true = np.asarray(sides) - np.asarray(found.h) @ matrix
        unit = np.asarray(scale(problem))
        relative = np.linalg.norm(true / unit, axis=1) / np.linalg.norm(np.asarray(sides) / unit, axis=1)
    if not isinstance(solver, vhat.Dual | vhat.Primal):  # whose residual is in the Gauss-Newton metric
        np.testing.assert_allclose(found.residual, relative, rtol=0.5, atol=1e-11)
    assert relative.max() < 1e-7
    assert np.all(found.status == "converged")


def test_steps_are_those_of_scipy_on_the_same_preconditioned_system(problem, sides):
    """Because rows of a block stop separately, each takes as many steps as alone."""
    with problem.scope():
        unit = np.asarray(scale(problem))
        scaled = assemble(problem, "ggn") / np.outer(unit, unit)
        found = vhat.CG(rtol=1e-8).prepare(SolverWorkspace(problem), "ggn").solve(sides)
        for row in (0, 7, 22):
            steps = []
            scipy.sparse.linalg.cg(scaled, np.asarray(sides)[row] / unit, rtol=1e-8, atol=0, callback=steps.append)
            assert found.steps[row] == pytest.approx(len(steps), rel=0.1)


def test_rows_that_stop_early_are_named_and_have_no_number(problem):
    fitted = vhat.FittedModel(problem)
    x = np.vstack([np.asarray(problem.X)[:3], RNG.normal(size=(4, 4))])
    full = fitted.weighted_norm(x, solver=vhat.CG())
    least = int(np.sort(full.steps)[3])
    with pytest.warns(vhat.ConvergenceWarning, match="have no interval"):
        part = fitted.weighted_norm(x, solver=vhat.CG(max_steps=least, restarts=0))
    stopped = full.steps > least
    assert stopped.any()
    assert not stopped.all()
    np.testing.assert_array_equal(part.status == "not converged", stopped)
    np.testing.assert_array_equal(np.isnan(part.value), stopped)
    np.testing.assert_allclose(part.value[~stopped], full.value[~stopped], rtol=1e-9)
    with pytest.warns(vhat.ConvergenceWarning, match=r"row"), pytest.warns(vhat.NotMinimumWarning):
        band = fitted.interval(x, noise=0.001, curvature="ggn", solver=vhat.CG(max_steps=1, restarts=0))
    assert np.all(np.isnan(band.half_width))
    assert band.abstain().all()


def saddle():
    """Return a network that has not been trained; its Hessian has negative eigenvalues."""
    rng = np.random.default_rng(3)
    params = oracle.random_params(rng, 2, 8, None)
    X = rng.normal(size=(40, 2))
    return oracle.network("tanh", None), params, X, 3 * rng.standard_normal(40)


def test_an_indefinite_hessian_raises_by_name_and_warns_under_auto():
    predict, params, X, y = saddle()
    assert oracle.dense(predict, params, X, y, X[:1], 1e-3)[3].min() < 0
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=1e-3)
    with pytest.raises(vhat.NotPositiveDefinite, match="polish"):
        fitted.weighted_norm(X[:4], curvature="hessian")
    with pytest.warns(vhat.CurvatureWarning, match="negative eigenvalue"):
        found = fitted.weighted_norm(X[:4])
    assert found.curvature == "ggn"
    V = oracle.dense(predict, params, X, y, X[:4], 1e-3, curvature="ggn")[0]
    np.testing.assert_allclose(found.value, V, rtol=1e-8)
    assert fitted.audit()["smallest eigenvalue"].verdict == "fails"


def test_conjugate_gradients_meet_negative_curvature_and_say_so():
    predict, params, X, y = saddle()
    problem = jax_problem(predict, params, X, y, weight_decay=1e-3)
    with problem.scope():
        found = vhat.CG().prepare(SolverWorkspace(problem), "hessian").solve(problem.gradients(problem.inputs(X)))
    assert np.any(found.status == "indefinite")
    assert set(found.status) <= {"indefinite", "converged"}


def test_a_singular_gauss_newton_matrix_is_refused_in_words():
    X = np.ones((10, 2))
    fitted = vhat.from_jax(lambda q, Z: Z @ q, np.zeros(2), X, np.arange(10.0), weight_decay=0.0)
    with pytest.raises(vhat.NotPositiveDefinite, match="do not determine"):
        fitted.interval(X[:1])
    dead = vhat.from_jax(lambda q, Z: Z[:, 0] * q[0] + 0 * q[1], np.zeros(2), X, np.arange(10.0), weight_decay=0.0)
    with pytest.raises(vhat.NotPositiveDefinite, match="neither influence"):
        dead.interval(X[:1])


def test_the_operator_applies_what_assemble_forms(problem):
    with problem.scope():
        v = problem.native(RNG.standard_normal((3, problem.p)))
        for curvature in ("hessian", "ggn"):
            matrix = assemble(problem, curvature, block=7)
            np.testing.assert_allclose(np.asarray(Operator(problem, curvature)(v)), np.asarray(v) @ matrix, rtol=1e-9)


def test_a_row_that_is_not_finite_spoils_no_other(problem, sides):
    with problem.scope():
        broken = sides.at[4, 0].set(jnp.nan)
        for solver in (vhat.Dense(), vhat.CG()):
            found = solver.prepare(SolverWorkspace(problem), "ggn").solve(broken)
            assert found.status[4] == "not finite"
            assert np.all(np.delete(found.status, 4) == "converged")
            clean = solver.prepare(SolverWorkspace(problem), "ggn").solve(sides)
            np.testing.assert_allclose(np.delete(found.h, 4, 0), np.delete(clean.h, 4, 0), rtol=1e-9)


def test_the_plan_says_what_it_takes_and_refuses_what_does_not_fit(problem):
    fitted = vhat.FittedModel(problem)
    plan = fitted.plan(np.asarray(problem.X))
    assert isinstance(plan.solver, vhat.Dense)
    assert "gradients of the loss" in str(plan)
    small = vhat.from_jax(
        oracle.network("tanh", None),
        problem.params,
        np.asarray(problem.X),
        problem.targets[:, 0],
        weight_decay=1e-3,
        memory=1e4,
    )
    assert isinstance(small.plan(np.asarray(problem.X)).solver, vhat.CG)
    with pytest.raises(vhat.MemoryBudgetError, match=r"needs 0.128 MB .* the budget is 0.01 MB"):
        small.weighted_norm(np.asarray(problem.X)[:1], solver=vhat.Dense(), curvature="ggn")


@pytest.mark.parametrize("options", [{"rtol": 0}, {"rtol": 2.0}, {"max_steps": 0}, {"block": 0}, {"restarts": -1}])
def test_options_out_of_range_are_refused_where_they_are_made(options):
    with pytest.raises(vhat.InputError):
        vhat.CG(**options)
