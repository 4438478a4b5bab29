"""A decay below the rounding of the curvature: V by the singular values of the Jacobian, against fifty digits."""

from __future__ import annotations

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import vhat
from vhat.linalg.solvers.curvature_root import Root
from vhat.linalg.solvers.dual_gauss_newton import GaussNewton
from vhat.linalg.solvers.interface import Status
from vhat.linalg.solvers.jacobian_svd import JacobianSVD
from vhat.linalg.solvers.kernel import make_kernel
from vhat.linalg.solvers.preconditioned_cg import Preconditioned
from vhat.linalg.workspace import SolverWorkspace


def steep(n, p, seed=0):
    """Return rows with singular values over six decades, and points with much, little and almost no support."""
    rng = np.random.default_rng(seed)
    k = min(n, p)
    left, right = (np.linalg.qr(rng.normal(size=(size, k)))[0] for size in (n, p))
    X = np.sqrt(n) * (left * np.logspace(3, -3, k)) @ right.T
    inside = rng.normal(size=(4, n)) @ X / n
    return X, np.concatenate([X[:3], inside + 1e-3 * rng.normal(size=(4, p)), rng.normal(size=(12, p))])


def linear(X, lam, unit=1.0, **options):
    """Return a linear model, with its parameters in other units if requested."""
    n, p = X.shape
    y = np.random.default_rng(1).normal(size=n)
    derivatives = {"jac": lambda t, Z: Z.copy(), "hess": lambda t, Z: np.zeros((len(Z), p, p))}
    decay = lam * np.broadcast_to(np.square(unit), p)
    return vhat.from_numpy(
        lambda t, Z: Z @ t, np.ones(p) / unit, X * unit, y, weight_decay=decay, **derivatives, **options
    )


def ready(problem):
    with problem.scope():
        prepared = vhat.Dual().prepare(SolverWorkspace(problem), "ggn")
    assert isinstance(prepared, JacobianSVD)
    return prepared


def lengths(response):
    return np.linalg.norm(response.image, axis=(1, 2))


def in_many_digits(J, g, lam, n=None, weights=None):
    """Return ``J h``, ``g'h`` and h of ``h = (J'WJ/n + lam)^-1 g`` for each row, with fifty digits."""
    n, weights = len(J) if n is None else n, np.ones(len(J)) if weights is None else weights
    with mpmath.workdps(50):
        J, inverse = mpmath.matrix(J.tolist()), mpmath.diag([1 / mpmath.mpf(float(w)) for w in weights])
        inner, images, energy, solutions = (J * J.T + n * mpmath.mpf(lam) * inverse) ** -1, [], [], []
        for row in g:
            right = mpmath.matrix(row.tolist())
            t = inner * (J * right)  # W J h / n
            h = (right - J.T * t) / mpmath.mpf(lam)
            images.append([n * float(each) / float(w) for each, w in zip(t, weights, strict=True)])
            energy.append(float(mpmath.fdot(right, h)))
            solutions.append([float(each) for each in h])
    return np.array(images), np.array(energy), np.array(solutions)


@pytest.fixture
def no_iterations(monkeypatch):
    for name in ("respond", "solve"):
        monkeypatch.setattr(Preconditioned, name, lambda *_: pytest.fail("conjugate gradients took over"))


HARD = [(20, 50, 1e-8), (20, 50, 1e-10), (20, 50, 1e-12), (50, 20, 1e-8), (50, 20, 1e-10)]


@pytest.mark.parametrize(("n", "p", "lam"), HARD)
def test_v_is_right_where_the_kernel_has_no_digits_for_the_decay(no_iterations, n, p, lam):
    X, x = steep(n, p)
    prepared = ready(linear(X, lam).problem)
    image, energy, _ = in_many_digits(X, x, lam)
    size = np.linalg.norm(image, axis=1)
    found = prepared.respond(x)
    off = np.abs(lengths(found) / size - 1)
    assert np.all(found.status == Status.CONVERGED)
    assert np.all(off <= found.residual), off / found.residual
    assert np.all(found.residual < 1e-6)
    np.testing.assert_allclose(found.energy, energy, rtol=1e-9)


def test_the_kernel_alone_would_be_wrong():
    """The reason for this solver: the kernel has errors of more than a tenth."""
    X, x = steep(50, 20)
    problem = linear(X, 1e-10).problem
    kernel = make_kernel(problem)
    image, *_ = in_many_digits(X, x, 1e-10)
    assert np.max(np.abs(kernel.lengths(kernel.solve_implicit(x).image) / kernel.lengths(image[:, :, None]) - 1)) > 0.1


@pytest.mark.parametrize("decades", [6, 12])
def test_rows_alone_in_company_and_in_other_units_are_the_same(decades):
    X, x = steep(50, 20)
    unit = 10.0 ** (decades * np.random.default_rng(2).uniform(-0.5, 0.5, X.shape[1]))
    plain, other = ready(linear(X, 1e-10).problem), ready(linear(X, 1e-10, unit).problem)
    company, units = plain.respond(x), other.respond(x * unit)
    alone = np.concatenate([lengths(plain.respond(x[i : i + 1])) for i in range(len(x))])
    np.testing.assert_allclose(alone, lengths(company), rtol=1e-9)
    np.testing.assert_allclose(lengths(units), lengths(company), rtol=1e-7)
    assert np.all(units.status == Status.CONVERGED)


@pytest.mark.parametrize("lam", [1e-12, 1e-14])
def test_a_large_model_is_answered_by_default(no_iterations, lam):
    X, x = steep(8, 3100)
    x = x[::3]
    found = linear(X, lam).weighted_norm(x, curvature="ggn")
    image, energy, _ = in_many_digits(X, x, lam)
    V = np.sum(image**2, axis=1) / len(X)
    assert np.all(found.status == "converged")
    np.testing.assert_allclose(found.value, V, rtol=1e-6)
    np.testing.assert_allclose(found.unsupported, 1 - V / energy, atol=1e-7)


def network(q, Z):
    return jnp.tanh(Z @ q["a"] + q["b"]) @ q["c"]


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_network_with_weighted_rows(no_iterations, outputs):
    """Compressed gradients multiplied out, several outputs, and weighted rows."""
    rng, n, lam = np.random.default_rng(0), 12, 1e-13
    params = {"a": 30 * rng.normal(size=(1, 8)), "b": 30 * rng.normal(size=8), "c": 30 * rng.normal(size=(8, outputs))}
    Z, x, weights = rng.uniform(-1, 1, size=(n, 1)), rng.uniform(-2, 2, size=(5, 1)), rng.uniform(0.5, 2.0, size=n)
    fitted = vhat.from_jax(network, params, Z, rng.normal(size=(n, outputs)), weight_decay=lam, sample_weight=weights)
    problem, prepared = fitted.problem, ready(fitted.problem)
    with problem.scope():
        J, g = (problem.gradients(problem.inputs(each)) for each in (Z, x))
        found = prepared.respond(g)
    image, energy, _ = in_many_digits(np.asarray(J), np.asarray(g), lam, n, np.repeat(problem.weights, outputs))
    assert np.all(found.status == Status.CONVERGED)
    off = np.linalg.norm(found.image.reshape(len(g), -1) - image, axis=1) / np.linalg.norm(image, axis=1)
    assert np.all(off <= np.maximum(found.residual, 1e-12)), off / found.residual
    np.testing.assert_allclose(found.energy, energy, rtol=1e-5)


def test_what_does_not_fit_is_not_converged_at_once(no_iterations, monkeypatch):
    X, x = steep(50, 20)
    monkeypatch.setattr(JacobianSVD, "fits", lambda kernel: False)
    problem = linear(X, 1e-10).problem
    narrow = vhat.Dual().prepare(SolverWorkspace(problem), "ggn")
    assert isinstance(narrow, GaussNewton)
    for answer in (narrow.respond(x), narrow.solve(x)):
        lost = answer.residual > 1e-5
        assert np.any(lost)
        assert np.all(answer.status[lost] == Status.NOT_CONVERGED)
    for row in x:
        alone = narrow.solve(row[None])
        assert alone.residual[0] < 1e-6 or alone.status[0] == Status.NOT_CONVERGED


def test_the_jacobian_must_fit_beside_the_kernel():
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(1, 100)), "b": rng.normal(size=100), "c": rng.normal(size=(100, 1))}
    Z = rng.uniform(-1, 1, size=(400, 1))
    for memory, fits in ((2e7, True), (7e6, False)):
        fitted = vhat.from_jax(network, params, Z, Z, weight_decay=1e-3, memory=memory)
        with fitted.problem.scope():
            assert JacobianSVD.fits(make_kernel(fitted.problem)) == fits


def test_solutions_and_rows_that_are_not_finite():
    X, x = steep(20, 50)
    prepared, g = ready(linear(X, 1e-10).problem), x.copy()
    g[4, 7] = np.nan
    found, seen = prepared.solve(g), prepared.respond(g)
    _, energy, h = in_many_digits(X, np.delete(g, 4, axis=0), 1e-10)
    for answer in (found, seen):
        assert answer.status[4] == Status.NOT_FINITE
        assert np.all(np.delete(answer.status, 4) == Status.CONVERGED)
    np.testing.assert_allclose(np.delete(seen.energy, 4), energy, rtol=1e-6)
    np.testing.assert_allclose(np.delete(seen.pull, 4), 1e-10 * h.sum(axis=1), rtol=1e-4)
    off = np.linalg.norm(np.delete(found.h, 4, axis=0) - h, axis=1) / np.linalg.norm(h, axis=1)
    assert np.all(off < 1e-5), off


@pytest.mark.parametrize("shape", [(7, 3), (7, 3, 3)])
def test_the_root_of_the_loss_times_rows_of_the_jacobian(shape):
    rng = np.random.default_rng(0)
    root, J = Root(rng.normal(size=shape), True), rng.normal(size=(21, 5))
    whole = root.times(J.T.reshape(5, 7, 3)).reshape(5, -1).T
    np.testing.assert_allclose(root.rows(2, 6, J[6:18]), whole[6:18], rtol=1e-13)


def test_features_that_are_not_the_derivatives_are_seen():
    X, x = steep(20, 50)
    problem = linear(X, 1e-10).problem
    kernel = make_kernel(problem)
    kernel.features.parts[0][0][3] *= 1.01
    found = JacobianSVD(kernel).respond(x)
    assert np.all(found.status == Status.NOT_CONVERGED)
    assert np.all(found.residual > 1e-4)
