"""The sign of H + lam by every method, compared with dense eigenvalues."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from tests import oracle
from vhat.errors import NotPositiveDefinite
from vhat.linalg.curvature import definiteness
from vhat.linalg.curvature.definiteness import smallest_eigenvalue
from vhat.linalg.solvers.factorised import FactorMetric
from vhat.linalg.solvers.kernel import make_kernel
from vhat.models.jax import jax_problem
from vhat.models.problem import ModelFacts


@dataclass(frozen=True)
class Matrix:
    """A problem that consists of its Hessian only."""

    H: np.ndarray
    decay: np.ndarray
    accuracy: float = 1e-15
    memory: int = 2**30

    @property
    def p(self):
        return len(self.H)

    def product(self, v, curvature):
        return v @ self.H

    def diagonal(self):
        return np.abs(np.diagonal(self.H))

    def facts(self):
        return ModelFacts("numpy", "float64", True, (), self.accuracy, self.accuracy)

    def scope(self):
        return nullcontext()

    def native(self, a):
        return np.asarray(a)

    numpy = native

    @property
    def scaled(self):
        """Return the scaled matrix and its eigenvalues."""
        s = np.sqrt(self.diagonal() + self.decay)
        return np.linalg.eigvalsh((self.H + np.diag(self.decay)) / s / s[:, None])


def matrix(eigenvalues, seed=0, decay=0.0):
    p = len(eigenvalues)
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(p, p)))[0]
    H = (Q * eigenvalues) @ Q.T
    return Matrix((H + H.T) / 2, np.full(p, decay))


@pytest.fixture
def matrix_free(monkeypatch):
    monkeypatch.setattr(definiteness, "_DENSE", 0)
    monkeypatch.setattr(definiteness, "_FORMED", 0)


@pytest.fixture
def factorised(monkeypatch):
    monkeypatch.setattr(definiteness, "_DENSE", 0)


POSITIVE = matrix(np.linspace(0.5, 5.0, 200), decay=0.1)
INDEFINITE = matrix(np.r_[-0.8, -0.1, np.linspace(0.5, 5.0, 198)], decay=0.1)
STIFF = matrix(np.geomspace(1e-7, 10.0, 200))
STIFF_INDEFINITE = matrix(np.r_[-1e-6, np.geomspace(1e-5, 10.0, 199)])


@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
@pytest.mark.parametrize("loss", [None, oracle.log_cosh])
def test_value_of_a_network_equals_the_dense_eigenvalue_of_the_scaled_matrix(curvature, loss):
    rng = np.random.default_rng(3)
    predict, params = oracle.network("tanh", 2), oracle.random_params(rng, 2, 6, 2)
    X, y = rng.normal(size=(30, 2)), rng.normal(size=(30, 2))
    problem = jax_problem(predict, params, X, y, weight_decay=1e-3, loss=loss or "half_mse")
    row_loss = loss or oracle.half_square
    with jax.enable_x64(True):
        theta, unravel = ravel_pytree(jax.tree.map(jnp.asarray, params))
        model = lambda t: predict(unravel(t), X)  # noqa: E731
        J, F = jax.jacobian(model)(theta), model(theta)
        C = jax.vmap(jax.hessian(row_loss))(F, jnp.asarray(y))
        G = np.asarray(jnp.einsum("iap,iab,ibq->pq", J, C, J)) / 30
        H = np.asarray(jax.hessian(lambda t: jnp.mean(jax.vmap(row_loss)(model(t), y)))(theta))
    A = (H if curvature == "hessian" else G) + 1e-3 * np.eye(len(theta))
    s = np.sqrt(np.diagonal(G) + 1e-3)
    found = smallest_eigenvalue(problem, curvature)
    expected = np.linalg.eigvalsh(A / s / s[:, None])[0]
    assert found.value == pytest.approx(expected, rel=1e-8, abs=1e-12)
    assert found.verdict == ("positive" if expected > 0 else "indefinite")
    assert found.steps == problem.p


@pytest.mark.usefixtures("matrix_free")
def test_lanczos_finds_a_positive_smallest_eigenvalue_within_its_error():
    found = smallest_eigenvalue(POSITIVE, max_steps=200)
    assert (found.method, found.verdict) == ("lanczos", "positive")
    assert abs(found.value - POSITIVE.scaled[0]) <= found.error < found.value


@pytest.mark.usefixtures("matrix_free")
@pytest.mark.parametrize("problem", [INDEFINITE, STIFF_INDEFINITE], ids=["clear", "faint"])
def test_lanczos_certifies_indefiniteness_by_a_direction_of_negative_curvature(problem):
    found = smallest_eigenvalue(problem, max_steps=200)
    v = found.vector
    assert found.verdict == "indefinite"
    assert v @ (problem.H + np.diag(problem.decay)) @ v < 0
    assert found.value >= problem.scaled[0] - found.error


@pytest.mark.usefixtures("matrix_free")
def test_lanczos_stops_at_the_first_negative_curvature():
    assert smallest_eigenvalue(INDEFINITE, max_steps=200).steps <= 50


@pytest.mark.usefixtures("matrix_free")
def test_lanczos_stopped_early_is_undecided_and_admits_any_error():
    found = smallest_eigenvalue(STIFF, max_steps=20)
    assert (found.verdict, found.steps, found.error) == ("undecided", 20 + 1, np.inf)  # and one to confirm the value
    assert not found.singular


class Diagonal(Matrix):
    """A diagonal Hessian, in units of one."""

    def product(self, v, curvature):
        return v * self.H

    def diagonal(self):
        return np.ones(self.p)


@pytest.mark.usefixtures("matrix_free")
@pytest.mark.parametrize("outlier", [-3e-3, -1e-3, 1e-4, 1e-7])
def test_one_eigenvalue_far_below_a_cluster_is_not_missed(outlier):
    """The Ritz value converges to the cluster long before the smaller eigenvalue shows."""
    rng, p = np.random.default_rng(0), 4000
    rest = np.concatenate([0.01 * rng.uniform(1, 1.02, 3800), np.exp(rng.uniform(np.log(0.01), 0, p - 3801))])
    found = smallest_eigenvalue(Diagonal(np.concatenate([[outlier], rest]), np.zeros(p)), scale=np.ones(p))
    assert found.verdict == ("positive" if outlier > 0 else "indefinite")
    assert outlier - 1e-12 <= found.value <= (2 * outlier if outlier > 0 else 0.0)


@pytest.mark.usefixtures("matrix_free")
def test_lanczos_keeps_to_the_memory_budget():
    small = Matrix(STIFF.H, STIFF.decay, memory=64 * 200 * 7)
    assert smallest_eigenvalue(small, max_steps=100).steps == 7 + 1


@pytest.mark.usefixtures("matrix_free")
@pytest.mark.parametrize("lam", [1e-6, 1e-9, 1e-11])
def test_a_metric_of_bad_condition_makes_no_negative_curvature_of_rounding(lam):
    """The Hessian of a linear model is its Gauss-Newton matrix, so that its eigenvalues in that metric are one."""
    rng, n, p = np.random.default_rng(0), 12, 400
    X, theta = 30 * rng.normal(size=(n, p)), rng.normal(size=p)
    problem = jax_problem(lambda t, X: X @ t, theta, X, X @ theta + rng.normal(size=n), weight_decay=lam)
    with problem.scope():
        found = smallest_eigenvalue(problem, metric=FactorMetric(make_kernel(problem)))
    assert found.verdict != "indefinite"
    assert not found.singular
    assert found.value == pytest.approx(1, abs=1e-6)


@pytest.mark.usefixtures("matrix_free")
def test_a_better_metric_decides_the_same_sign_in_fewer_steps():
    near = STIFF.H + 1e-8 * np.eye(STIFF.p)

    class Near:
        def apply(self, v):
            return near @ v

        def solve(self, v):
            return np.linalg.solve(near, v)

        def draw(self, problem, seed):
            values, vectors = np.linalg.eigh(near)
            return vectors @ (np.random.default_rng(seed).standard_normal(problem.p) / np.sqrt(values))

    found = smallest_eigenvalue(STIFF, metric=Near(), max_steps=40)
    assert found.verdict == "positive"
    assert found.value == pytest.approx(1e-7 / (1e-7 + 1e-8), rel=0.1)


@pytest.mark.usefixtures("factorised")
@pytest.mark.parametrize(("problem", "verdict"), [(STIFF, "positive"), (STIFF_INDEFINITE, "indefinite")])
def test_cholesky_decides_what_lanczos_leaves_open(problem, verdict):
    found = smallest_eigenvalue(problem, max_steps=5)
    assert (found.method, found.verdict) == ("cholesky", verdict)
    assert found.value == pytest.approx(problem.scaled[0], rel=1e-3)
    assert found.steps == 5 + 1 + problem.p


@pytest.mark.parametrize("way", ["eigh", "lanczos", "cholesky"])
def test_a_singular_matrix_is_undecided_and_called_singular(way, request):
    if way != "eigh":
        request.getfixturevalue("matrix_free" if way == "lanczos" else "factorised")
    problem = matrix(np.r_[0.0, np.linspace(1.0, 3.0, 60)])
    found = smallest_eigenvalue(problem, max_steps=61 if way == "lanczos" else 5)
    assert found.method == way
    assert found.verdict == "undecided"
    assert found.singular


def test_inaccurate_products_leave_the_sign_open():
    rough = Matrix(STIFF.H, STIFF.decay, accuracy=1e-5)
    assert smallest_eigenvalue(STIFF).verdict == "positive"
    assert smallest_eigenvalue(rough).verdict == "undecided"


@pytest.mark.parametrize("way", ["eigh", "lanczos"])
@pytest.mark.parametrize("problem", [POSITIVE, INDEFINITE], ids=["positive", "indefinite"])
def test_the_unit_of_a_parameter_changes_nothing(problem, way, request):
    if way == "lanczos":
        request.getfixturevalue("matrix_free")
    unit = np.ones(problem.p)
    unit[3], unit[7] = 2.0**20, 2.0**-12
    other = Matrix(problem.H * unit * unit[:, None], problem.decay * unit**2)
    here, there = smallest_eigenvalue(problem), smallest_eigenvalue(other)
    assert there.value == pytest.approx(here.value, rel=1e-9)
    assert (there.verdict, there.steps) == (here.verdict, here.steps)
    np.testing.assert_allclose(there.vector * unit, here.vector, rtol=1e-6, atol=1e-9)


def test_a_matrix_already_assembled_costs_no_product():
    A = POSITIVE.H + np.diag(POSITIVE.decay)
    found = smallest_eigenvalue(POSITIVE, matrix=A)
    assert found.steps == 0
    assert found.value == pytest.approx(POSITIVE.scaled[0], rel=1e-10)


@pytest.mark.usefixtures("matrix_free")
def test_the_same_seed_gives_the_same_answer():
    first, second = (smallest_eigenvalue(STIFF, max_steps=30, seed=5) for _ in range(2))
    assert first == second


def test_a_parameter_without_influence_or_decay_is_named():
    H = np.diag([1.0, 0.0, 2.0])
    with pytest.raises(NotPositiveDefinite, match="position 1"):
        smallest_eigenvalue(Matrix(H, np.zeros(3)))


def test_a_direction_that_the_data_do_not_see_is_not_missed_beside_those_they_see():
    """A saddle of a fifth of the decay, among 3200 parameters that 40 rows hardly determine."""
    problem, kernel = _hidden_saddle()
    with problem.scope():
        found = smallest_eigenvalue(problem, metric=FactorMetric(kernel))
    assert found.method == "lanczos"
    assert found.verdict == "indefinite"
    assert found.value == pytest.approx(-0.2, rel=0.2)


def _hidden_saddle():
    rng, n, p, lam = np.random.default_rng(0), 40, 3200, 1e-9
    across = np.linalg.qr(rng.normal(size=(p, 81)))[0].T
    rows = np.linalg.qr(rng.normal(size=(n, 22)))[0]
    X, r = np.sqrt(n * p) * rows[:, :20] @ across[:20], np.sqrt(n) * rows[:, 21]  # X'r = 0: zero is stationary
    A, c = across[20:], lam * np.append(np.geomspace(1, 100, 60), -1.2)

    def predict(t, Z):
        return Z[:, :p] @ t + 0.5 * Z[:, p:] @ (A @ t) ** 2

    problem = jax_problem(predict, np.zeros(p), np.column_stack([X, r[:, None] * c]), -r, weight_decay=lam)
    with problem.scope():
        return problem, make_kernel(problem)


def test_random_starts_of_a_kernel_have_its_inverse_for_covariance():
    rng = np.random.default_rng(1)
    params, predict = oracle.random_params(rng, 2, 2, 1), oracle.network("tanh", 1)
    X = rng.normal(size=(12, 2))
    decay = {name: 0.0 if name == "c" else 0.1 for name in params}
    problem = jax_problem(predict, params, X, rng.normal(size=(12, 1)), weight_decay=decay)
    with problem.scope():
        metric, many = FactorMetric(make_kernel(problem)), 3000
        x = np.stack([problem.numpy(metric.draw(problem, seed)) for seed in range(many)])
        P = np.stack([problem.numpy(metric.apply(problem.native(row))) for row in np.eye(problem.p)])
    values, vectors = np.linalg.eigh(P)
    white = x @ (vectors * np.sqrt(values))
    # the entries of a sample covariance have standard deviation sqrt(2 / many) at most
    np.testing.assert_allclose(white.T @ white / many, np.eye(problem.p), atol=5 * np.sqrt(2 / many))
