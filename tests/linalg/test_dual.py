"""The dual solver: kernels compared with explicit Jacobians, the structure of gradients, and refusals."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.linalg import block_diag, eigh

import vhat
from tests import oracle
from vhat.linalg import workspace
from vhat.linalg.curvature import scale
from vhat.linalg.curvature.definiteness import smallest_eigenvalue
from vhat.linalg.curvature.inner_product import Jacobi
from vhat.linalg.solvers.cg_loop import Iteration
from vhat.linalg.solvers.corrected import Corrected
from vhat.linalg.solvers.dual_gauss_newton import GaussNewton
from vhat.linalg.solvers.factorised import ACCEPTED_ERROR
from vhat.linalg.solvers.interface import Solution, Stopped
from vhat.linalg.solvers.jacobian_factors import compress, find_structure, read_features
from vhat.linalg.solvers.kernel import make_kernel
from vhat.linalg.solvers.kernel_terms import kernel_terms
from vhat.linalg.solvers.preconditioned_cg import Preconditioned
from vhat.linalg.solvers.softest_direction import SoftDirection
from vhat.linalg.workspace import SolverWorkspace
from vhat.models.jax import jax_problem

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4))
POINTS = 2 * RNG.normal(size=(6, 4))


def two_layers(q, Z):
    hidden = jnp.tanh(jnp.tanh(Z @ q["a"] + q["b"]) @ q["c"] + q["d"])
    return hidden @ q["e"]


def two_layer_params(rng):
    shapes = {"a": (4, 9), "b": (9,), "c": (9, 7), "d": (7,), "e": (7,)}
    return {name: rng.normal(size=shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}


def tied(q, Z):
    """One square matrix used twice: its gradient is a sum of two outer products."""
    return jnp.tanh(jnp.tanh(Z @ q["w"]) @ q["w"]) @ q["v"]


def gated(q, Z):
    """Rank one wherever the second use of the matrix is switched off, as it is on every training row."""
    return jnp.tanh(Z @ q["w"]) @ q["v"] + jnp.where(Z[:, 0] > 4, 1.0, 0.0) * jnp.sum(jnp.sin(Z @ q["w"]), axis=1)


def near(predict, params, slip=1e-3):
    with jax.enable_x64(True):
        return np.asarray(predict(params, jnp.asarray(X))) + slip * RNG.standard_normal(len(X))


def jacobian(problem):
    with problem.scope():
        return np.asarray(problem.gradients(problem.X))


@pytest.mark.parametrize("decay", ["one number", "one a leaf, zeros and entries among them"])
def test_the_kernel_equals_the_explicit_jacobian(decay):
    params = two_layer_params(RNG)
    each = {"a": 0.1, "b": 0.0, "c": RNG.uniform(0.1, 1.0, (9, 7)), "d": 0.2, "e": 0.0}
    lam = 0.3 if decay == "one number" else each
    problem = jax_problem(two_layers, params, X, near(two_layers, params), weight_decay=lam)
    with problem.scope():
        features = read_features(problem)
        J, flat = jacobian(problem), problem.numpy(problem.decay)
        inverse = np.divide(1.0, flat, out=np.zeros_like(flat), where=flat > 0)
        np.testing.assert_allclose(features.gram(block=7), (J * inverse) @ J.T, rtol=1e-11, atol=1e-12)
        np.testing.assert_array_equal(features.free, J[:, flat == 0])
        factored = [leaf.matrix for leaf in features.structure.leaves if leaf.matrix]
    assert factored == ([(4, 9), (9, 7)] if decay == "one number" else [(4, 9)])


def test_a_leaf_that_is_not_an_outer_product_is_kept_plain():
    params = {"w": RNG.normal(size=(4, 4)), "v": RNG.normal(size=4)}
    problem = jax_problem(tied, params, X, near(tied, params), weight_decay=0.1)
    with problem.scope():
        features = read_features(problem)
        J = jacobian(problem)
    assert all(leaf.matrix is None for leaf in features.structure.leaves)
    np.testing.assert_allclose(features.gram(), J @ J.T / 0.1, rtol=1e-11)


def test_a_test_point_may_have_gradients_that_no_training_row_has():
    params = {"w": RNG.normal(size=(4, 5)), "v": RNG.normal(size=5)}
    fitted = vhat.from_jax(gated, params, X, near(gated, params), weight_decay=0.1)
    x = np.vstack([POINTS, [[5.0, 1.0, -1.0, 0.5]]])
    assert not np.any(X[:, 0] > 4)
    for curvature in ("ggn", "hessian"):
        dual = fitted.weighted_norm(x, curvature=curvature, solver=vhat.Dual(rtol=1e-10))
        dense = fitted.weighted_norm(x, curvature=curvature, solver=vhat.Dense())
        np.testing.assert_allclose(dual.value, dense.value, rtol=1e-8)
        np.testing.assert_allclose(dual.unsupported, dense.unsupported, atol=1e-8)


def test_zero_gradients_are_no_trouble():
    params = {"w": RNG.normal(size=(4, 5)), "v": RNG.normal(size=5)}

    def dying(q, Z):
        return jax.nn.relu(Z @ q["w"] - 3.0 * (Z[:, :1] < 0)) @ q["v"]

    fitted = vhat.from_jax(dying, params, X, near(dying, params), weight_decay=0.1)
    dual, dense = (fitted.weighted_norm(X, curvature="ggn", solver=s) for s in (vhat.Dual(), vhat.Dense()))
    np.testing.assert_allclose(dual.value, dense.value, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("lam", [1e-8, 1e-4, 1.0])
def test_small_decay_costs_no_digits_of_v_or_of_unsupported(lam):
    params = two_layer_params(RNG)
    y = near(two_layers, params, slip=lam * 1e-2)
    fitted = vhat.from_jax(two_layers, params, X, y, weight_decay=lam)
    V, _, unsupported, _ = oracle.dense(two_layers, params, X, y, POINTS, lam, curvature="ggn")
    found = fitted.weighted_norm(POINTS, curvature="ggn", solver=vhat.Dual())
    np.testing.assert_allclose(found.value, V, rtol=1e-6)
    np.testing.assert_allclose(found.unsupported, unsupported, atol=1e-6)


def test_the_same_factorisation_serves_every_call(monkeypatch):
    params = two_layer_params(RNG)
    fitted = vhat.from_jax(two_layers, params, X, near(two_layers, params), weight_decay=0.1)
    made = []
    original = workspace.make_kernel
    monkeypatch.setattr("vhat.linalg.workspace.make_kernel", lambda problem: made.append(1) or original(problem))
    for curvature in ("ggn", "hessian", "ggn"):
        fitted.weighted_norm(POINTS, curvature=curvature, solver=vhat.Dual())
    assert len(made) == 1


def test_a_kernel_that_cannot_fit_is_refused_in_words():
    x = np.linspace(-1, 1, 200_000)[:, None]
    fitted = vhat.from_jax(lambda q, Z: Z @ q, np.ones(1), x, x[:, 0], weight_decay=0.1, memory=8e9)
    said = r"Dual\(.*needs 322 GB here; the budget is 8 GB. That is enough for about [\d,]+ rows"
    with pytest.raises(vhat.MemoryBudgetError, match=said):
        fitted.weighted_norm(x[:1], solver=vhat.Dual())


def test_a_matrix_used_twice_counts_in_full_against_the_budget():
    """Its gradient is not of rank one, which only the gradients themselves show."""

    def shared(q, Z):
        return jnp.tanh(jnp.tanh(Z @ q["w"]) @ q["w"]).sum(axis=1)

    rng = np.random.default_rng(0)
    Z, w = rng.normal(size=(300, 60)), 0.3 * rng.normal(size=(60, 60))
    # 300 rows of 3600 numbers take 8.6 MB; were the gradients outer products, 120 numbers each would do
    problem = jax_problem(shared, {"w": w}, Z, rng.normal(size=300), weight_decay=1e-2, memory=6e6)
    with problem.scope(), pytest.raises(vhat.MemoryBudgetError, match="300 x 300 kernel"):
        make_kernel(problem)


def test_gradients_are_compressed_to_what_they_were():
    params = two_layer_params(RNG)
    problem = jax_problem(two_layers, params, X, near(two_layers, params), weight_decay=0.25)
    with problem.scope():
        g, structure = problem.gradients(problem.X), find_structure(problem)
        features = compress(problem, g, structure)
    for leaf, part in zip(structure.leaves, features.parts, strict=True):
        plain = part[0] if leaf.matrix is None else np.einsum("ia,ib->iab", *part).reshape(len(g), -1)
        np.testing.assert_allclose(0.5 * plain, g[:, leaf.start : leaf.stop], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("widths", [(4, 9), (9, 4)])
def test_products_with_compressed_gradients_are_products_with_the_jacobian(widths):
    a, b = widths
    params = {
        "w": RNG.normal(size=(4, a)),
        "c": RNG.normal(size=(a, b)),
        "d": RNG.normal(size=b),
        "e": RNG.normal(size=b),
    }

    def predict(q, Z):
        return jnp.tanh(jnp.tanh(Z @ q["w"]) @ q["c"] + q["d"]) @ q["e"]

    lam = {"w": 0.1, "c": 0.3, "d": 0.0, "e": 0.2}
    problem = jax_problem(predict, params, X, near(predict, params), weight_decay=lam)
    with problem.scope():
        features = read_features(problem)
        decay = problem.numpy(problem.decay)
        F = jacobian(problem) * np.divide(1.0, np.sqrt(decay), out=np.zeros_like(decay), where=decay > 0)
    v, t = RNG.normal(size=(5, len(decay))), RNG.normal(size=(5, len(X)))
    np.testing.assert_allclose(features.times(v), v @ F.T, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(features.transposed(t), t @ F, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(features.rescaled(3.0).gram(), 9.0 * F @ F.T, rtol=1e-10, atol=1e-12)


def test_the_kernel_solves_the_gauss_newton_system_and_multiplies_by_it():
    params = two_layer_params(RNG)
    lam = {"a": 0.1, "b": 0.0, "c": 0.2, "d": 0.3, "e": 0.05}
    problem = jax_problem(two_layers, params, X, near(two_layers, params), weight_decay=lam)
    with problem.scope():
        kernel, J = make_kernel(problem), jacobian(problem)
        P = J.T @ J / len(X) + np.diag(problem.numpy(problem.decay))
        v = RNG.normal(size=(3, problem.p))
        seen = kernel.solve_implicit(v)
    z = np.linalg.solve(P, v.T).T
    np.testing.assert_allclose(kernel.apply(v), v @ P, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(kernel.lift(seen), z, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(seen.image[:, :, 0], z @ J.T, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(seen.energy, np.sum(v * z, axis=1), rtol=1e-9)
    theta = problem.numpy(problem.decay) * problem.numpy(problem.theta)
    np.testing.assert_allclose(kernel.pull(seen), z @ theta, rtol=1e-8, atol=1e-10)


def test_another_decay_keeps_the_kernel(monkeypatch):
    params = two_layer_params(RNG)
    y = near(two_layers, params)
    fitted = vhat.from_jax(two_layers, params, X, y, weight_decay=0.1)
    fitted.weighted_norm(POINTS, curvature="ggn", solver=vhat.Dual())
    monkeypatch.setattr("vhat.linalg.workspace.make_kernel", lambda _: pytest.fail("the kernel was made again"))
    monkeypatch.setattr(Preconditioned, "respond", lambda *_: pytest.fail("conjugate gradients took over"))
    moved = fitted.scale_weight_decay(7.0).weighted_norm(POINTS, curvature="ggn", solver=vhat.Dual())
    V, _, unsupported, _ = oracle.dense(two_layers, params, X, y, POINTS, 0.7, curvature="ggn")
    np.testing.assert_allclose(moved.value, V, rtol=1e-8)
    np.testing.assert_allclose(moved.unsupported, unsupported, atol=1e-9)


def test_gradients_are_compressed_with_the_decay_of_the_rescaled_features():
    """Leaves as factors and in full, against ``J lam^-1 g`` of the explicit Jacobian."""
    params = two_layer_params(RNG)
    lam = {"a": 0.1, "b": 0.0, "c": RNG.uniform(0.1, 1.0, (9, 7)), "d": 0.2, "e": 0.0}
    problem = jax_problem(two_layers, params, X, near(two_layers, params), weight_decay=lam)
    with problem.scope():
        moved = read_features(problem).rescaled(0.5)
        g = problem.gradients(problem.inputs(POINTS))
        points = compress(problem, g, moved.structure)
        decay = 4.0 * problem.numpy(problem.decay)
        inverse = np.divide(1.0, decay, out=np.zeros_like(decay), where=decay > 0)
        expected = (jacobian(problem) * inverse) @ np.asarray(g).T
    np.testing.assert_allclose(moved.cross(points), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("factor", [0.0, -1.0, np.inf, "2"])
def test_a_factor_of_the_decay_is_a_positive_number(factor):
    fitted = vhat.from_jax(lambda q, Z: Z @ q, np.ones(4), X, X[:, 0], weight_decay=0.1)
    with pytest.raises(vhat.InputError, match="is not a positive number"):
        fitted.scale_weight_decay(factor)


def test_one_correction_serves_a_point_where_the_residuals_hardly_bend_the_loss():
    params = two_layer_params(RNG)
    y = near(two_layers, params, slip=1e-6)
    fitted = vhat.from_jax(two_layers, params, X, y, weight_decay=0.1)
    V, *_ = oracle.dense(two_layers, params, X, y, POINTS, 0.1)
    found = fitted.weighted_norm(POINTS, curvature="hessian", solver=vhat.Dual())
    assert found.steps.max() == 1
    np.testing.assert_allclose(found.value, V, rtol=1e-8)


@pytest.mark.parametrize("rtol", [1e-3, 1e-6, 1e-9])
def test_the_estimated_error_of_a_correction_is_above_the_true_one(rtol):
    """With a large residual part of the Hessian, so that several steps are needed."""
    params = two_layer_params(RNG)
    y = near(two_layers, params, slip=0.05)
    fitted = vhat.from_jax(two_layers, params, X, y, weight_decay=0.1)
    V, *_ = oracle.dense(two_layers, params, X, y, POINTS, 0.1)
    found = fitted.weighted_norm(POINTS, curvature="hessian", solver=vhat.Dual(rtol=rtol))
    assert found.steps.min() > 1
    error = np.abs(np.sqrt(found.value / V) - 1.0)
    assert np.all(error <= np.maximum(found.residual, 1e-11))
    assert np.all(error <= rtol)


def test_a_kernel_that_does_not_belong_to_the_model_is_found_out(monkeypatch):
    """The verification by the framework's derivatives detects the errors of the kernel.

    Rows in which these errors are too large are solved again; the residual bounds the error of every row.
    """
    params = two_layer_params(np.random.default_rng(1))
    y = near(two_layers, params)
    fitted = vhat.from_jax(two_layers, params, X, y, weight_decay=0.1)
    with fitted.problem.scope():
        wrong = make_kernel(fitted.problem)
    wrong.features.parts[0][0][:] *= 1.0 + 1e-4
    monkeypatch.setattr("vhat.linalg.workspace.make_kernel", lambda _: wrong)
    for curvature in ("ggn", "hessian"):
        V, *_ = oracle.dense(two_layers, params, X, y, POINTS, 0.1, curvature=curvature)
        found = fitted.weighted_norm(POINTS, curvature=curvature, solver=vhat.Dual())
        assert found.steps.max() > 1
        assert found.residual.max() <= ACCEPTED_ERROR
        assert np.all(np.abs(np.sqrt(found.value / V) - 1) <= found.residual + 1e-9)


def test_single_precision_leaves_nothing_for_the_careful_solver(monkeypatch):
    """With a small decay each direction is a small difference of large numbers, too inaccurate in single precision."""
    params = two_layer_params(RNG)
    y = near(two_layers, params, slip=1e-4)
    fitted = vhat.from_jax(two_layers, params, X, y, weight_decay=3e-4)
    V, *_ = oracle.dense(two_layers, params, X, y, POINTS, 3e-4)
    monkeypatch.setattr(Preconditioned, "respond", lambda *_: pytest.fail("the block was not verified"))
    found = fitted.weighted_norm(POINTS, curvature="hessian", solver=vhat.Dual())
    assert found.steps.min() > 1
    np.testing.assert_allclose(found.value, V, rtol=4e-6)


def test_a_decay_of_no_account_beside_the_data_is_answered_directly(monkeypatch):
    """Rounding leaves a large residual in parameters that hardly move training predictions, and hardly changes V."""
    U, _ = np.linalg.qr(RNG.normal(size=(30, 30)))
    W, _ = np.linalg.qr(RNG.normal(size=(40, 40)))
    s = np.logspace(1.5, -1, 30)
    Z, lam, g = U * s @ W[:, :30].T, 1e-8, RNG.normal(size=(12, 40))
    weights = np.zeros(40)
    fitted = vhat.from_jax(lambda q, Z: Z @ q, weights, Z, Z @ RNG.normal(size=40), weight_decay=lam)
    for path in ("respond", "solve"):
        monkeypatch.setattr(Preconditioned, path, lambda *_: pytest.fail("conjugate gradients took over"))
    found = fitted.weighted_norm(g, curvature="ggn", solver=vhat.Dual())
    rows = (g @ W[:, :30]) * (s / 30) / (s**2 / 30 + lam) @ U.T  # the prediction's move per response, by the SVD
    np.testing.assert_allclose(found.value, 30 * np.sum(rows**2, axis=1), rtol=4e-5)
    assert np.all(np.abs(np.sqrt(found.value / (30 * np.sum(rows**2, axis=1))) - 1) <= found.residual + 1e-9)


def _rows_layout(q, Z):
    return jnp.tanh(Z @ q["w"] + q["b"]) @ q["o"]


def _columns_layout(q, Z):
    return jnp.tanh(Z @ q["w"].T + q["b"]) @ q["o"]


@pytest.mark.parametrize(("predict", "shape"), [(_rows_layout, (4, 6)), (_columns_layout, (6, 4))])
@pytest.mark.parametrize("bias_decay", [0.1, 0.37])
def test_a_bias_shares_the_product_of_its_layer(predict, shape, bias_decay):
    params = {"w": RNG.normal(size=shape), "b": RNG.normal(size=6), "o": RNG.normal(size=6)}
    lam = {"w": 0.1, "b": bias_decay, "o": 0.2}
    problem = jax_problem(predict, params, X, near(predict, params), weight_decay=lam)
    with problem.scope():
        features = read_features(problem)
        F = jacobian(problem) / np.sqrt(problem.numpy(problem.decay))
    np.testing.assert_allclose(features.gram(block=7), F @ F.T, rtol=1e-12, atol=1e-13)
    assert len(kernel_terms(features.parts)) == 2  # the layer with its bias, and the output


def test_leaves_that_are_nearly_alike_share_nothing():
    rows = RNG.normal(size=(30, 5))
    pair, near_by = (RNG.normal(size=(30, 4)), rows), rows * (1 + 1e-12 * RNG.normal(size=rows.shape))
    assert len(kernel_terms([pair, (3.0 * rows,)])) == 1
    assert len(kernel_terms([pair, (near_by,)])) == 2
    assert len(kernel_terms([pair, (np.zeros_like(rows),)])) == 1  # a bias that moves nothing


def _experts(q, Z):
    gate = jax.nn.sigmoid(11.0 * Z[:, :1])
    first, second = (jnp.tanh(Z @ q[name + "v"] + q[name + "c"]) @ q[name + "w"] for name in "ab")
    return (gate * first + (1 - gate) * second)[:, 0]


_EXPERT = {"v": (2, 8), "c": (8,), "w": (8, 1)}


@pytest.fixture(scope="module")
def soft():
    """The residuals leave one expert nearly without curvature; rows of the other expert depend on it through the gate.

    Returns the fitted problem, inputs, and V there by dense linear algebra.
    """
    rng = np.random.default_rng(0)
    params = {name + part: rng.normal(size=shape) for name in "ab" for part, shape in _EXPERT.items()}
    Z, x = rng.normal(size=(80, 2)), rng.normal(size=(64, 2))
    Z[:, 0] += np.sign(Z[:, 0])
    x[:, 0] = -1 - np.abs(x[:, 0])
    with jax.enable_x64(True):
        f = np.asarray(_experts(params, Z))
    away = rng.normal(size=80) * (Z[:, 0] > 0)

    def matrices(y):
        problem = jax_problem(_experts, params, Z, y, weight_decay=1e-2)
        with problem.scope():
            eye = problem.native(np.eye(problem.p))
            H, G = (problem.numpy(problem.product(eye, kind)) for kind in ("hessian", "ggn"))
        return problem, (H + H.T) / 2, (G + G.T) / 2

    problem, H, G = matrices(f + away)
    P = G + 1e-2 * np.eye(problem.p)
    least = eigh(H - G, P, eigvals_only=True)[0]
    problem, H, _ = matrices(f + away * (1 - 2e-7) / -least)
    A = H + 1e-2 * np.eye(problem.p)
    with problem.scope():
        g, J = problem.numpy(problem.gradients(x)), jacobian(problem)
    h = np.linalg.solve(A, g.T)
    V = np.sum((J @ (h + np.linalg.solve(A, g.T - A @ h))) ** 2, axis=0) / 80
    return problem, x, V


@pytest.mark.parametrize("solver", [vhat.Dual(), vhat.Nystrom(rows=30), vhat.CG()], ids=lambda solver: solver.name)
def test_a_soft_direction_that_rows_hardly_meet_is_not_missed(soft, solver):
    problem, x, V = soft
    found = vhat.FittedModel(problem).weighted_norm(x, solver=solver, curvature="hessian")
    known = found.status == "converged"
    assert known.any()
    np.testing.assert_allclose(found.value[known], V[known], rtol=1e-4)


def _several_soft(mus, lam=1e-3):
    """A stationary point whose Hessian has these eigenvalues, in the metric of Gauss-Newton; V by dense algebra.

    ``f = phi't + sum_k psi_k (u_k't)^2 / 2`` at t = 0, with residuals that take the curvature away along each u_k. Rows
    meet the soft directions by a share of 1e-8 to 1e-2.
    """
    rng, n, p = np.random.default_rng(0), 60, 10
    phi, psi = rng.normal(size=(n, p)), rng.normal(size=(n, len(mus)))
    G = phi.T @ phi / n + lam * np.eye(p)
    v = np.linalg.qr(rng.normal(size=(p, len(mus))))[0]
    v = v @ np.linalg.inv(np.linalg.cholesky(v.T @ G @ v)).T
    u = G @ v
    moments = np.concatenate([np.zeros(p), np.asarray(mus) - 1.0])
    r = np.linalg.lstsq(np.hstack([phi, psi]).T / n, moments, rcond=None)[0]

    def predict(q, X):
        return X[:, :p] @ q + 0.5 * ((q @ u) ** 2 * X[:, p:]).sum(axis=1)

    fitted = vhat.from_jax(predict, np.zeros(p), np.hstack([phi, psi]), -r, weight_decay=lam)
    rows = rng.normal(size=(8 * len(mus), p))
    rows += -rows @ v @ u.T + np.repeat([1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2], len(mus))[:, None] * np.tile(
        u.T, (8, 1)
    )
    A = G + (u * (psi.T @ r / n)) @ u.T
    h = np.linalg.solve(A, rows.T)
    h += np.linalg.solve(A, rows.T - A @ h)
    return fitted, np.hstack([rows, np.zeros((len(rows), len(mus)))]), np.sum((phi @ h) ** 2, axis=0) / n


@pytest.mark.filterwarnings("ignore::vhat.ConvergenceWarning")
@pytest.mark.parametrize("mus", [(1e-8,), (1e-8, 1e-8), (1e-8, 1.1e-8), (1e-8, 1e-6), (1e-6, 1e-6), (1e-4, 1e-3)])
@pytest.mark.parametrize("solver", [vhat.Dual(), vhat.Nystrom(rows=20), vhat.CG()], ids=lambda solver: solver.name)
def test_what_is_called_converged_is_right_whatever_soft_directions_there_are(mus, solver):
    """A second direction of little curvature does not show in residuals; the smallest eigenvalue bounds the error."""
    fitted, x, V = _several_soft(mus)
    found = fitted.weighted_norm(x, solver=solver, curvature="hessian")
    known = found.status == "converged"
    assert known.mean() > 0.5
    np.testing.assert_allclose(found.value[known], V[known], rtol=2e-3)


@pytest.mark.parametrize("mus", [(1e-4, 1e-4), (1e-5,), (1e-6,)])
def test_what_single_precision_makes_of_a_soft_direction_is_not_called_indefinite(mus):
    fitted, x, V = _several_soft(mus)
    found = fitted.weighted_norm(x, solver=vhat.Dual(), curvature="hessian")
    assert np.all(found.status == "converged")
    np.testing.assert_allclose(found.value, V, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::vhat.ConvergenceWarning")
@pytest.mark.parametrize(("size", "meet"), [(1e-9, 1e-7), (1e-9, 1e-9), (1e-9, 1e-5), (1e-6, 1e-6), (1e-12, 1e-7)])
@pytest.mark.parametrize(
    "solver", [vhat.Dual(), vhat.Nystrom(rows=20), vhat.Nystrom(rows=100), vhat.CG()], ids=lambda solver: solver.name
)
def test_twenty_directions_that_data_hardly_hold_and_residuals_soften_are_not_missed(size, meet, solver):
    """A residual may be small in the metric of a sample and large in that of the data; V is known in closed form."""
    rng, n, p, k, lam = np.random.default_rng(0), 200, 60, 20, 1e-14
    left = max(1.5e-3, 3e-13 / size)
    data = np.concatenate([np.geomspace(1, 0.1, p - k), size * np.geomspace(1, 0.3, k)])
    basis, spread = (np.linalg.qr(rng.normal(size=(m, p)))[0] for m in (p, n))
    X, Z, turn = (spread * np.sqrt(n * data)) @ basis.T, rng.normal(size=(n, k)), basis[:, p - k :].T
    moments = np.concatenate([np.zeros(p), -(1 - left) * data[p - k :]])
    r = np.linalg.lstsq(np.hstack([X, Z]).T / n, moments, rcond=None)[0]
    fitted = vhat.from_numpy(
        lambda t, W: W[:, :p] @ t + 0.5 * W[:, p:] @ (turn @ t) ** 2,
        np.zeros(p),
        np.hstack([X, Z]),
        -r,
        jac=lambda t, W: W[:, :p] + (W[:, p:] * (turn @ t)) @ turn,
        hess=lambda t, W: np.einsum("nk,ka,kb->nab", W[:, p:], turn, turn),
        weight_decay=lam,
    )
    parts = np.hstack([rng.normal(size=(40, p - k)), meet * rng.normal(size=(40, k))])
    V = np.sum(data * (parts / (data + lam + np.concatenate([np.zeros(p - k), moments[p:]]))) ** 2, axis=1)
    x = np.hstack([parts @ basis.T, np.zeros((40, k))])
    found = fitted.weighted_norm(x, solver=solver, curvature="hessian")
    known = found.status == "converged"
    assert known.mean() > 0.5
    np.testing.assert_allclose(found.value[known], V[known], rtol=2e-3)


@pytest.mark.parametrize("solver", [vhat.Nystrom(rows=20), vhat.CG()], ids=lambda solver: solver.name)
def test_rows_that_ctrl_c_leaves_are_held_to_the_same(monkeypatch, solver):
    fitted, x, _ = _several_soft((1e-8, 1e-8))
    problem = fitted.problem
    with problem.scope():
        g = problem.gradients(problem.inputs(x))
        least = smallest_eigenvalue(problem)
        soft = SoftDirection.of(problem, "hessian", least.vector, Jacobi(scale(problem)), least.value)
        prepared = replace(solver.prepare(SolverWorkspace(problem), "hessian"), soft=soft)
        rows, nothing = np.arange(len(x)), np.zeros(len(x))
        finished = Solution(0 * g, np.full(len(x), "converged", "<U13"), nothing, nothing.astype(int))

        def stopped(*_, **__):
            raise Stopped(rows, finished)

        monkeypatch.setattr(Iteration, "solve", stopped)
        monkeypatch.setattr(Preconditioned, "_verify", lambda self, g, found: found)
        with pytest.raises(Stopped) as stop:
            prepared.respond(g)
    assert np.all(stop.value.partial.status == "not converged")


@pytest.mark.parametrize("lam", [1e-6, 1e-9, 1e-11])
def test_a_decay_far_below_the_curvature_is_answered_from_the_data(monkeypatch, lam):
    """Rounding in directions that move no training prediction does not change V, and needs no conjugate gradients."""
    rng, n, p = np.random.default_rng(0), 12, 3100
    left, right = (np.linalg.qr(rng.normal(size=(k, n)))[0] for k in (n, p))
    X = (left * np.logspace(3, 0, n)) @ right.T
    x = np.concatenate([X[:3], 1e3 * rng.normal(size=(5, p)), X[3:5] + 1e-3 * rng.normal(size=(2, p))])
    theta = rng.normal(size=p)
    fitted = vhat.from_jax(lambda t, X: X @ t, theta, X, X @ theta + 0.1 * rng.normal(size=n), weight_decay=lam)
    monkeypatch.setattr(Preconditioned, "respond", lambda *_: pytest.fail("conjugate gradients took over"))
    found = fitted.weighted_norm(x, curvature="ggn")
    V, unsupported = _in_many_digits(X, x, lam)
    assert found.solver == "dual"
    assert np.all(found.status == "converged")
    np.testing.assert_allclose(found.value, V, rtol=1e-5)
    np.testing.assert_allclose(found.unsupported, unsupported, atol=1e-6)


@pytest.mark.parametrize("lam", [1e-8, 1e-10])
@pytest.mark.parametrize("decades", [0, 8])
def test_gauss_newton_rows_are_answered_alone_as_in_company_in_any_unit(lam, decades):
    rng, n, p = np.random.default_rng(0), 30, 60
    unit, J = 10.0 ** (decades * rng.uniform(-0.5, 0.5, p)), rng.normal(size=(n, p))
    G = np.concatenate([rng.normal(size=(4, p)), rng.normal(size=(4, n)) @ J / n + 1e-3 * rng.normal(size=(4, p))])
    _, sizes, across = np.linalg.svd(J / np.sqrt(n), full_matrices=False)
    V = np.sum((G @ across.T * sizes / (sizes**2 + lam)) ** 2, axis=1)
    derivatives = {"jac": lambda t, Z: Z.copy(), "hess": lambda t, Z: np.zeros((len(Z), p, p))}
    fitted = vhat.from_numpy(
        lambda t, Z: Z @ t, np.zeros(p), J * unit, np.ones(n), weight_decay=lam * unit**2, **derivatives
    )
    options = {"solver": vhat.Dual(), "curvature": "ggn"}
    company = fitted.weighted_norm(G * unit, **options)
    alone = np.concatenate([fitted.weighted_norm(G[i : i + 1] * unit, **options).value for i in range(len(G))])
    assert np.all(company.status == "converged")
    np.testing.assert_allclose(company.value, V, rtol=1e-8)
    np.testing.assert_allclose(alone, V, rtol=1e-8)


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
@pytest.mark.parametrize("copies", [(1, -1), (0, 0, 1, 1), (1, 1, -1, -1)], ids=str)
def test_rows_that_cancel_are_verified_all_the_same(curvature, copies):
    """An inaccurate kernel has the same error in a row and its opposite, which would cancel in their sum."""
    rng, n, p, lam = np.random.default_rng(3), 60, 40, 1e-16
    left, right = (np.linalg.qr(rng.normal(size=(k, p)))[0] for k in (n, p))
    sizes, x = np.logspace(0, -2, p), rng.normal(size=(1, p))
    V = np.sum((x @ right * sizes / (sizes**2 + lam)) ** 2)
    fitted = vhat.from_numpy(
        lambda t, Z: Z @ t,
        np.zeros(p),
        np.sqrt(n) * (left * sizes) @ right.T,
        rng.normal(size=n),
        jac=lambda t, Z: Z,
        hess=lambda t, Z: np.zeros((len(Z), p, p)),
        weight_decay=lam,
    )
    found = fitted.weighted_norm(np.outer(copies, x), solver=vhat.Dual(), curvature=curvature)
    assert np.all(found.status == "converged")
    np.testing.assert_allclose(found.value, V * np.square(copies), rtol=1e-5)


@pytest.mark.parametrize(("kind", "curvature"), [(GaussNewton, "ggn"), (Corrected, "hessian")])
def test_a_row_that_is_not_verified_takes_no_neighbour_with_it(monkeypatch, kind, curvature):
    fitted, x, _ = _several_soft((0.5,))
    whole = fitted.weighted_norm(x, solver=vhat.Dual(), curvature=curvature)
    given, asked, found = len(x), [], kind._errors

    def doubtful(self, g, *rest):
        errors = found(self, g, *rest)
        return np.where(np.arange(given) == 2, np.inf, errors) if len(g) == given else np.full(1, np.inf)

    def fallback(self, g):
        asked.append(len(g))
        return respond(self, g)

    respond = Preconditioned.respond
    monkeypatch.setattr(kind, "_errors", doubtful)
    monkeypatch.setattr(Preconditioned, "respond", fallback)
    again = fitted.weighted_norm(x, solver=vhat.Dual(), curvature=curvature)
    assert asked == [1]
    assert np.all(again.status == "converged")
    np.testing.assert_allclose(np.delete(again.value, 2), np.delete(whole.value, 2), rtol=1e-9)  # again in double
    np.testing.assert_allclose(again.value[2], whole.value[2], rtol=1e-4)


@pytest.mark.parametrize(("kind", "curvature"), [(GaussNewton, "ggn"), (Corrected, "hessian")])
def test_rows_that_are_verified_one_by_one_need_no_combination(monkeypatch, kind, curvature):
    fitted, x, _ = _several_soft((0.5,))
    whole, found = fitted.weighted_norm(x, solver=vhat.Dual(), curvature=curvature), kind._errors
    monkeypatch.setattr(
        kind, "_errors", lambda self, g, *rest: found(self, g, *rest) if len(g) > 1 else np.full(1, np.inf)
    )
    monkeypatch.setattr(Preconditioned, "respond", lambda *_: pytest.fail("conjugate gradients took over"))
    again = fitted.weighted_norm(x, solver=vhat.Dual(), curvature=curvature)
    np.testing.assert_allclose(again.value, whole.value, rtol=1e-9)


def _in_many_digits(X, x, lam):
    """Return V and unsupported of a linear model with fifty digits, from ``h = (g - X'u) / lam``."""
    with mpmath.workdps(50):
        n, J = len(X), mpmath.matrix(X.tolist())
        B = J * J.T + n * mpmath.mpf(lam) * mpmath.eye(n)
        V, unsupported = [], []
        for row in x:
            g = mpmath.matrix(row.tolist())
            t = mpmath.lu_solve(B, J * g)  # J h / n
            h = (g - J.T * t) / mpmath.mpf(lam)
            V.append(n * mpmath.fdot(t, t))
            unsupported.append(1 - V[-1] / mpmath.fdot(g, h))
        return np.array(V, dtype=float), np.array(unsupported, dtype=float)


def test_a_network_applied_twice_is_planned_for_as_it_is():
    """Its rows cannot be compressed: if the kernel does not fit, another solver is chosen."""

    def twice(q, Z):
        return (jnp.tanh(jnp.tanh(jnp.tanh(Z @ q["a"]) @ q["b"]) @ q["b"]) @ q["c"])[:, 0]

    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(3, 60)), "b": rng.normal(size=(60, 60)) / 8, "c": rng.normal(size=(60, 1)) / 8}
    Z = rng.normal(size=(400, 3))
    fitted = vhat.from_jax(twice, params, Z, Z[:, 0], weight_decay=1.0, memory=1.3e7)
    x = rng.normal(size=(3, 3))
    assert fitted.plan(x).solver.name != "dual"
    roomy = vhat.from_jax(twice, params, Z, Z[:, 0], weight_decay=1.0)
    assert roomy.plan(x).solver.name == "dual"
    assert roomy.plan(x).memory > 8 * 400 * 3600
    found, expected = (each.weighted_norm(x, curvature="ggn").value for each in (fitted, roomy))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def _wrong_in_one_group():
    """A linear model of two groups of rows and parameters that share nothing; its kernel is wrong in the second one.

    Returns the problem, the kernel, the Gauss-Newton matrix, and right-hand sides of the first group, of the second
    one, of the first one again, and one that is not finite.
    """
    rng = np.random.default_rng(0)
    Z = block_diag(rng.normal(size=(15, 5)), rng.normal(size=(15, 5)))
    fitted = vhat.from_numpy(lambda q, Z: Z @ q, np.zeros(10), Z, np.ones(30), jac=lambda Z: Z, weight_decay=0.1)
    problem = fitted.problem
    kernel = make_kernel(problem)
    kernel.features.parts[0][0][15:] *= 1.5
    g = rng.normal(size=(4, 10))
    g[[0, 2], 5:] = 0.0
    g[1, :5] = 0.0
    g[3, 0] = np.nan
    return problem, kernel, Z.T @ Z / 30 + 0.1 * np.eye(10), g


def test_without_a_fallback_each_row_has_its_own_status_and_true_residual():
    problem, kernel, P, g = _wrong_in_one_group()
    unit = scale(problem)
    found = GaussNewton(problem, kernel, unit, None, 64).solve(g)
    assert list(found.status) == ["converged", "not converged", "converged", "not finite"]
    np.testing.assert_allclose(found.h[[0, 2]], np.linalg.solve(P, g[[0, 2]].T).T, rtol=1e-10)
    residual = np.linalg.norm((g - found.h @ P) / unit, axis=1) / np.linalg.norm(g / unit, axis=1)
    assert residual[1] > 1.0
    np.testing.assert_allclose(found.residual[:3], residual[:3], rtol=1e-6, atol=1e-12)
    assert list(found.steps[[0, 2]]) == [1, 1]


def test_only_rows_in_which_the_kernel_fails_go_to_the_fallback(monkeypatch):
    problem, kernel, P, g = _wrong_in_one_group()
    unit = scale(problem)
    fallback = Preconditioned(vhat.CG(rtol=1e-12), problem, "ggn", Jacobi(unit), unit, "dual")
    asked = []
    solve = Preconditioned.solve
    monkeypatch.setattr(Preconditioned, "solve", lambda self, g: asked.append(len(g)) or solve(self, g))
    found = GaussNewton(problem, kernel, unit, fallback, 64).solve(g)
    assert asked == [1]
    assert list(found.status) == ["converged", "converged", "converged", "not finite"]
    np.testing.assert_allclose(found.h[:3], np.linalg.solve(P, g[:3].T).T, rtol=1e-8)
