"""The kernel in single precision: refined to the accuracy of dense linear algebra, or replaced with a warning."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vhat
from tests import oracle
from tests.sketch import cases
from vhat.linalg.solvers import block_cholesky, choose, single_kernel
from vhat.linalg.solvers.jacobian_factors import Features, find_structure, read_features
from vhat.linalg.solvers.kernel import kernel_bytes
from vhat.linalg.solvers.refinement import refine
from vhat.linalg.solvers.single_kernel import TooFewDigits, make_single_kernel, single_bytes
from vhat.linalg.workspace import SolverWorkspace
from vhat.models.jax import jax_problem
from vhat.variance.weighted_norm import gradient_blocks, measure

SINGLE = vhat.Dual(precision="single")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
POINTS = 2 * RNG.normal(size=(9, 4))


def data(outputs=None, width=9, seed=1):
    """A tanh network with one hidden layer, and responses near its predictions."""
    rng = np.random.default_rng(seed)
    predict, params = oracle.network("tanh", outputs), oracle.random_params(rng, 4, width, outputs)
    with jax.enable_x64(True):
        y = np.asarray(predict(params, jnp.asarray(X)))
    return predict, params, y + 1e-2 * rng.normal(size=y.shape)


# -- refinement ------------------------------------------------------------------------------------
@pytest.mark.parametrize("largest", [1e1, 1e4, 1e8])
@pytest.mark.parametrize("shift", [0.0, 1.0, 100.0])
def test_the_residual_bounds_the_error_of_every_column(largest, shift):
    rng = np.random.default_rng(2)
    vectors = np.linalg.qr(rng.normal(size=(50, 50)))[0]
    values = 1.0 + np.append(np.geomspace(1e-3, largest, 40), np.zeros(10))
    B = (vectors * values) @ vectors.T
    rough = np.linalg.inv(B + shift * np.eye(50))
    w = rng.normal(size=(50, 7))
    w[:, 3] = 0.0
    found = refine(lambda v: B @ v, lambda v: rough @ v, w, 1e-7, 200)
    exact = (vectors / values) @ (vectors.T @ w)
    off = np.linalg.norm(found.u - exact, axis=0)
    size = np.linalg.norm(found.u, axis=0)
    rounding = 1e-15 * largest * size
    assert np.all(off <= 1.001 * found.error * size + rounding)
    assert np.all(found.error <= 1e-7 + 1e-15 * largest)
    assert found.error[3] == 0.0
    np.testing.assert_allclose(found.residual, w - B @ found.u, atol=1e-14 * largest * size.max())


def test_a_preconditioner_that_leads_nowhere_is_given_up():
    rng = np.random.default_rng(3)
    B = np.diag(np.geomspace(1.0, 1e12, 400))
    calls = []

    def product(v):
        calls.append(1)
        return B @ v

    found = refine(product, lambda v: v, rng.normal(size=(400, 2)), 1e-12, 200)
    assert found.error.max() > 1e-12
    assert found.products == len(calls) <= 200


def test_a_factorisation_by_blocks_is_that_of_lapack():
    rng = np.random.default_rng(6)
    root = rng.normal(size=(50, 50)).astype(np.float32)
    A = root @ root.T + 50 * np.eye(50, dtype=np.float32)
    factor = np.where(np.tri(50, dtype=bool), A, np.nan).astype(np.float32)  # what is above is never read
    assert block_cholesky.factorise(factor, block=16)
    np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(A.astype(float)), atol=1e-4)
    b = rng.normal(size=(50, 3))
    found = block_cholesky.solve(factor, b.astype(np.float32), block=16)
    np.testing.assert_allclose(found, np.linalg.solve(A.astype(float), b), atol=1e-5)
    assert not block_cholesky.factorise(A - 200 * np.eye(50, dtype=np.float32), block=16)


# -- blocks ----------------------------------------------------------------------------------------
def test_blocks_that_are_computed_again_multiply_like_the_kernel_itself():
    predict, params, y = data()
    decay = {"w": 0.1, "b": RNG.uniform(0.1, 1.0, 9), "v": 0.3, "c": 0.0}
    problem = jax_problem(predict, params, X, y, weight_decay=decay)
    with problem.scope():
        features = read_features(problem)
        J, lam = np.asarray(problem.gradients(problem.X)), problem.numpy(problem.decay)
    held = lam > 0
    K = (J[:, held] / lam[held]) @ J[:, held].T
    V = RNG.normal(size=(60, 5))
    np.testing.assert_allclose(features.gram_times(V, block=17), K @ V, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(features.squares(), np.diag(K), rtol=1e-12)


def test_the_blocks_are_computed_once_for_all_points(monkeypatch):
    predict, params, y = data(width=40)
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=1e-2)
    columns = []
    original = Features.gram_times
    monkeypatch.setattr(Features, "gram_times", lambda self, V: columns.append(V.shape[1]) or original(self, V))
    x = np.random.default_rng(4).normal(size=(300, 4))
    fitted.weighted_norm(x, curvature="ggn", solver=SINGLE)
    assert columns[0] == 300
    assert len(columns) <= 4


# -- V, support and offsets ------------------------------------------------------------------------
@pytest.mark.parametrize("lam", [1.0, 1e-3, 1e-6, 1e-9])
def test_v_and_support_are_those_of_dense_linear_algebra(lam):
    predict, params, y = data()
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=lam)
    V, _, unsupported, _ = oracle.dense(predict, params, X, y, POINTS, lam, curvature="ggn")
    found = fitted.weighted_norm(POINTS, curvature="ggn", solver=SINGLE)
    np.testing.assert_allclose(found.value, V, rtol=1e-5)
    np.testing.assert_allclose(found.unsupported, unsupported, atol=1e-6)
    assert np.all(found.status == "converged")
    assert found.solver == "dual, single precision"


def test_a_small_decay_takes_more_products_and_no_digits():
    predict, params, y = data()
    steps = []
    for lam in (1.0, 1e-8):
        fitted = vhat.from_jax(predict, params, X, y, weight_decay=lam)
        found = fitted.weighted_norm(POINTS, curvature="ggn", solver=SINGLE)
        steps.append(found.steps.max())
        assert np.all(found.residual <= 1e-5)
    assert steps[0] <= 3 < steps[1]


@pytest.mark.slow
@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_coupled_outputs_weights_and_parameters_without_decay(curvature):
    predict, params, y = data(outputs=2)
    rng = np.random.default_rng(3)
    weight = rng.uniform(0.2, 2.0, len(X)) * (rng.uniform(size=len(X)) < 0.8)
    decay = {"w": 1e-2, "b": 2e-2, "v": 5e-3, "c": 0.0}
    flat = np.concatenate([np.full(params[leaf].size, decay[leaf]) for leaf in sorted(params)])
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=decay, loss=oracle.coupled, sample_weight=weight)
    options = {"loss": oracle.coupled, "weight": weight, "curvature": curvature}
    V, _, unsupported, _ = oracle.dense(predict, params, X, y, POINTS, flat, **options)
    found = fitted.weighted_norm(POINTS, curvature=curvature, solver=SINGLE)
    np.testing.assert_allclose(found.value.ravel(), V, rtol=1e-5)
    np.testing.assert_allclose(found.unsupported.ravel(), unsupported, atol=1e-6)


def test_offsets_and_sensitivities_are_those_of_the_explicit_inverse():
    predict, params, y = data(outputs=2)
    decay = {"w": 1e-2, "b": 2e-2, "v": 5e-3, "c": 0.0}
    problem = jax_problem(predict, params, X, y, weight_decay=decay)
    with problem.scope():
        inputs = problem.inputs(POINTS)
        solver = SINGLE.prepare(SolverWorkspace(problem), "ggn")
        sigma = np.ones((60, 2))
        found = measure(problem, solver, gradient_blocks(problem, inputs), sigma, rows=True)
        J, g = (np.asarray(problem.gradients(problem.inputs(Z))) for Z in (X, POINTS))
        lam, pull = problem.numpy(problem.decay), problem.numpy(problem.penalty_gradient())
        slope = problem.numpy(problem.gradient())
    h = np.linalg.solve(J.T @ J / 60 + np.diag(lam), g.T).T
    np.testing.assert_allclose(found.bias, h @ pull, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(found.offset, h @ (pull + slope), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(found.shortcut, np.sum(g * h, axis=1), rtol=1e-9)
    expected = (h @ J.T).reshape(18, 60, 2) / 60
    np.testing.assert_allclose(found.sensitivity, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.slow
def test_a_point_whose_gradient_is_no_outer_product_is_answered_from_its_gradient():
    def gated(q, Z):
        later = jnp.where(Z[:, 0] > 4, 1.0, 0.0) * jnp.sum(jnp.sin(Z @ q["w"]), axis=1)
        return jnp.tanh(Z @ q["w"]) @ q["v"] + later

    params = {"w": RNG.normal(size=(4, 5)), "v": RNG.normal(size=5)}
    y = RNG.normal(size=60)
    fitted = vhat.from_jax(gated, params, X, y, weight_decay=0.1)
    x = np.vstack([POINTS, [[5.0, 1.0, -1.0, 0.5]]])
    assert not np.any(X[:, 0] > 4)
    V, _, unsupported, _ = oracle.dense(gated, params, X, y, x, 0.1, curvature="ggn")
    found = fitted.weighted_norm(x, curvature="ggn", solver=SINGLE)
    np.testing.assert_allclose(found.value, V, rtol=1e-5)
    np.testing.assert_allclose(found.unsupported, unsupported, atol=1e-6)


@pytest.mark.slow
def test_a_sketch_is_that_of_double_precision(monkeypatch):
    monkeypatch.setattr("vhat.sketch.sketch.MOST_EXACT", 0)
    fitted = cases.network()
    options = {"noise": 0.1, "curvature": "ggn"}
    single, double = (fitted.sketch(16, solver=solver, **options) for solver in (SINGLE, vhat.Dual()))
    np.testing.assert_allclose(single.roots.variance, double.roots.variance, rtol=1e-5, atol=1e-8)
    found, expected = (sketch.weighted_norm(cases.points()) for sketch in (single, double))
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-6)
    np.testing.assert_allclose(found.unsupported, expected.unsupported, atol=1e-6)


# -- where float32 has too few digits --------------------------------------------------------------
def test_a_factorisation_that_breaks_down_is_repeated_with_more_on_its_diagonal(monkeypatch):
    predict, params, y = data()
    problem = jax_problem(predict, params, X, y, weight_decay=1e-8)
    monkeypatch.setattr(single_kernel, "_SHIFTS", (0.0, 4.0))
    with problem.scope():
        kernel = make_single_kernel(problem)
    assert kernel.shift > 0
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=1e-8)
    V = oracle.dense(predict, params, X, y, POINTS, 1e-8, curvature="ggn")[0]
    np.testing.assert_allclose(fitted.weighted_norm(POINTS, curvature="ggn", solver=SINGLE).value, V, rtol=1e-5)


def test_a_kernel_without_digits_is_handed_over_to_a_sample_in_words(monkeypatch):
    predict, params, y = data()
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=1e-4)
    monkeypatch.setattr(single_kernel, "_LARGEST_SHIFT", 0.0)
    with pytest.warns(
        vhat.ConditioningWarning, match=r"single precision leaves no digits. Conjugate gradients .*vhat.Nystrom"
    ):
        found = fitted.weighted_norm(POINTS, curvature="ggn", solver=SINGLE)
    V = oracle.dense(predict, params, X, y, POINTS, 1e-4, curvature="ggn")[0]
    assert found.solver == "nystrom"
    np.testing.assert_allclose(found.value, V, rtol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        fitted.weighted_norm(POINTS + 0.1, curvature="ggn", solver=SINGLE)


def test_a_kernel_that_overflows_float32_is_handed_over_too():
    predict, params, y = data()
    problem = jax_problem(predict, params, X, y, weight_decay=1e-60)
    with problem.scope(), pytest.warns(vhat.ConditioningWarning, match="no digits"):
        assert SINGLE._single_kernel(SolverWorkspace(problem)) is None


def test_rows_that_are_not_refined_go_to_conjugate_gradients(monkeypatch):
    predict, params, y = data()
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=1e-6)
    V = oracle.dense(predict, params, X, y, POINTS, 1e-6, curvature="ggn")[0]
    monkeypatch.setattr(single_kernel, "_MOST_PRODUCTS", 1)
    found = fitted.weighted_norm(POINTS, curvature="ggn", solver=SINGLE)
    good = found.status == "converged"
    np.testing.assert_allclose(found.value[good], V[good], rtol=1e-4)
    assert np.all(np.isnan(found.value[~good]))


def test_parameters_that_the_data_cannot_tell_apart_are_named():
    predict = lambda q, Z: Z @ q["a"] + q["b"] + q["c"]  # noqa: E731
    params = {"a": np.ones(4), "b": np.ones(()), "c": np.ones(())}
    problem = jax_problem(predict, params, X, X[:, 0], weight_decay={"a": 0.1, "b": 0.0, "c": 0.0})
    with problem.scope(), pytest.raises(TooFewDigits, match="hardly separates the 2 parameters without decay"):
        make_single_kernel(problem)


# -- the plan --------------------------------------------------------------------------------------
def sizes(n, memory, outputs=1):
    """The part of a wide network's problem that a plan uses."""
    leaves = ((10, 1500), (1500,), (1500, outputs), (outputs,))
    p = sum(int(np.prod(shape)) for shape in leaves)
    return SimpleNamespace(
        n=n,
        p=p,
        outputs=outputs,
        memory=int(memory),
        linear=False,
        leaves=leaves,
        outer_leaves=frozenset({0, 2}),
        decay=np.full(p, 1e-3),
        numpy=np.asarray,
        autodiff=SimpleNamespace(framework="numpy"),
    )


def test_auto_takes_single_precision_where_double_does_not_fit():
    names = []
    for memory in np.linspace(0.3e9, 2e9, 30):
        plans = [choose(sizes(9_000, memory), rows) for rows in (1, 10_000)]
        assert plans[0].solver == plans[1].solver
        assert plans[0].fits
        names.append(plans[0].solver.name)
        if names[-1] == "dual, single precision":
            assert "fits in single precision, refined by its blocks" in plans[0].reason
            assert not choose(sizes(9_000, memory), 10_000, vhat.Dual()).fits
    order = list(dict.fromkeys(names))
    assert order == ["nystrom", "dual, single precision", "dual"]


def test_single_precision_takes_little_more_than_half():
    problem = sizes(40_000, 1e10)
    structure = find_structure(problem)
    without_rows = replace(structure, leaves=())
    assert single_bytes(problem, without_rows) < 0.57 * kernel_bytes(problem, without_rows)


def test_a_kernel_that_does_not_fit_is_refused_in_words():
    x = np.linspace(-1, 1, 200_000)[:, None]
    fitted = vhat.from_jax(lambda q, Z: Z @ q, np.ones(1), x, x[:, 0], weight_decay=0.1, memory=8e9)
    said = r"precision='single'\) needs 16\d GB here; the budget is 8 GB. That is enough for about 4\d,\d\d\d rows"
    with pytest.raises(vhat.MemoryBudgetError, match=said):
        fitted.interval(x[:1], solver=SINGLE)
    with pytest.raises(vhat.MemoryBudgetError, match=r"200,000 x 200,000 kernel"):
        make_single_kernel(fitted.problem)
