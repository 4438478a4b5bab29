"""The interface of all solvers: the numbers of dense linear algebra, or a status of failure.

The model of most tests is ``f_k = u_k + u_1 u_K / 2`` with ``u = x'theta``: written once for every framework, with
derivatives in closed form, so that the spectrum of its Gauss-Newton matrix is that of the inputs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import vhat
from tests import oracle
from vhat.linalg.workspace import SolverWorkspace

SOLVERS = {name: getattr(vhat, name)() for name in ("Dense", "Primal", "Dual", "CG", "Nystrom")}
SOLVERS["Dual, single"] = vhat.Dual(precision="single")
ROWS, INPUTS, POINTS = 40, 12, 12
TOLERANCE = 1e-5
"""Of V, relative, with the options that a solver has by default."""

every_solver = pytest.mark.parametrize("name", SOLVERS)
both_curvatures = pytest.mark.parametrize("curvature", ["hessian", "ggn"])


# -- the model, in every framework ---------------------------------------------------------------
def bent(theta, X):
    U = X @ theta
    return U + 0.5 * U[:, :1] * U[:, -1:]


def bent_jac(theta, X):
    """``df_k / dtheta_ab = x_a (1[b = k] + (1[b = 1] u_K + 1[b = K] u_1) / 2)``, (n, K, d K)."""
    n, (d, K) = len(X), theta.shape
    U = X @ theta
    outer = np.broadcast_to(np.eye(K), (n, K, K)).copy()
    outer[:, :, 0] += 0.5 * U[:, -1:]
    outer[:, :, -1] += 0.5 * U[:, :1]
    return np.einsum("na,nkb->nkab", X, outer).reshape(n, K, d * K)


def bent_hess(theta, X):
    n, (d, K) = len(X), theta.shape
    pairs = np.zeros((K, K))
    pairs[0, -1] += 0.5
    pairs[-1, 0] += 0.5
    H = np.einsum("na,nc,bd->nabcd", X, X, pairs).reshape(n, 1, d * K, d * K)
    return np.broadcast_to(H, (n, K, d * K, d * K))


class Bent(torch.nn.Module):
    def __init__(self, theta):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor(theta))

    def forward(self, X):
        return bent(self.theta, X)


@dataclass(frozen=True, eq=False)
class Case:
    """A fitted model with its data and the points asked about; ``decay`` has the shape of ``theta``."""

    theta: np.ndarray
    X: np.ndarray
    y: np.ndarray
    x: np.ndarray
    decay: np.ndarray
    weight: np.ndarray | None = None

    def rounded(self, dtype):
        """The same with parameters and data that a model of this dtype could hold."""
        held = {name: getattr(self, name).astype(dtype) for name in ("theta", "X", "y", "x")}
        return replace(self, **held)


def fit_jax(case):
    return vhat.from_jax(bent, case.theta, case.X, case.y, weight_decay=case.decay, sample_weight=case.weight)


def fit_torch(case):
    decay = {"theta": case.decay}
    return vhat.from_torch(Bent(case.theta), case.X, case.y, weight_decay=decay, sample_weight=case.weight)


def fit_numpy(case):
    shape = case.theta.shape
    return vhat.from_numpy(
        lambda t, X: bent(t.reshape(shape), X),
        case.theta.ravel(),
        case.X,
        case.y,
        jac=lambda t, X: bent_jac(t.reshape(shape), X),
        hess=lambda t, X: bent_hess(t.reshape(shape), X),
        weight_decay=case.decay.ravel(),
        sample_weight=case.weight,
    )


FRAMEWORKS = {"jax": fit_jax, "torch": fit_torch, "numpy": fit_numpy}

# -- the cases -----------------------------------------------------------------------------------
SPECTRA = {
    "flat": np.linspace(1.0, 2.0, INPUTS),
    "falling": np.logspace(0, -4, INPUTS),
    "clustered": np.repeat([1.0, 1e-2, 1e-3], INPUTS // 3) * np.linspace(1.0, 1.01, INPUTS),
    "rank 3": np.where(np.arange(INPUTS) < 3, 1.0, 0.0),
}


def make(spectrum, lam, *, outputs=1, weighted=False, free=0, units=0.0):
    """A case whose inputs have the given singular values.

    A third of the points are training rows, a third are anywhere, and a third lie all but a thousandth outside the
    three strongest directions of the data. ``free`` parameters have no decay; ``units`` spreads the units of the
    parameters over as many decades.
    """
    rng = np.random.default_rng(3)
    left = np.linalg.qr(rng.normal(size=(ROWS, INPUTS)))[0]
    right = np.linalg.qr(rng.normal(size=(INPUTS, INPUTS)))[0]
    X = np.sqrt(ROWS) * (left * SPECTRA[spectrum]) @ right.T
    theta = 0.3 * rng.normal(size=(INPUTS, outputs))
    y = bent(theta, X) + 0.2 * rng.normal(size=(ROWS, outputs))
    third = POINTS // 3
    share = np.where(np.arange(INPUTS) < 3, 1e-3, 1.0)
    x = np.concatenate(
        [X[:third], rng.normal(size=(third, INPUTS)), rng.normal(size=(third, INPUTS)) * share @ right.T]
    )
    decay = np.full(theta.shape, lam)
    decay[INPUTS - free :] = 0.0
    unit = 10.0 ** (units * np.linspace(-0.5, 0.5, INPUTS))[:, None]
    weight = np.where(np.arange(ROWS) % 7 == 0, 0.0, rng.uniform(0.2, 3.0, ROWS)) if weighted else None
    return Case(theta * unit, X / unit.T, y, x / unit.T, decay / unit**2, weight)


CASES = {
    "well conditioned": lambda: make("flat", 1e-2),
    "badly conditioned": lambda: make("falling", 1e-6),
    "clustered": lambda: make("clustered", 1e-5),
    "rank deficient, lam = 1": lambda: make("rank 3", 1.0),
    "rank deficient, lam = 1e-2": lambda: make("rank 3", 1e-2),
    "rank deficient, lam = 1e-4": lambda: make("rank 3", 1e-4),
    "rank deficient, lam = 1e-6": lambda: make("rank 3", 1e-6),
    "rank deficient, lam = 1e-8": lambda: make("rank 3", 1e-8),
    "full rank, lam = 1e-8": lambda: make("falling", 1e-8),
    "no decay on some": lambda: make("flat", 1e-2, free=4),
    "weights": lambda: make("clustered", 1e-3, weighted=True),
    "units over 12 decades": lambda: make("clustered", 1e-3, units=12.0),
    "two outputs": lambda: make("falling", 1e-4, outputs=2),
    "two outputs, weights, no decay on some": lambda: make("flat", 1e-3, outputs=2, weighted=True, free=4),
}
FLOAT32 = ("well conditioned", "two outputs, weights, no decay on some")

# an iteration stops at its true residual, and at a condition number of 1e8 float64 may not let that fall to rtol
OUT_OF_REACH = {("CG", "rank deficient, lam = 1e-8"), ("CG", "full rank, lam = 1e-8")}
OUT_OF_REACH |= {(name, "rank deficient, lam = 1e-8") for name in ("Primal", "Dual", "Dual, single", "Nystrom")}


@cache
def case_of(name, dtype="float64"):
    return CASES[name]().rounded(dtype)


@cache
def fitted_of(framework, name, dtype="float64"):
    return FRAMEWORKS[framework](case_of(name, dtype))


# -- dense linear algebra ------------------------------------------------------------------------
def dense(case, curvature):
    """Return V and related numbers from explicit float64 matrices, and the accuracy of V in float64."""
    theta, X, y, x = (np.asarray(a, dtype=np.float64) for a in (case.theta, case.X, case.y, case.x))
    n, p = len(y), theta.size
    weight = np.ones(n) if case.weight is None else case.weight
    each = np.repeat(weight, y.shape[1])
    J, g = (bent_jac(theta, Z).reshape(-1, p) for Z in (X, x))
    R = np.einsum("n,nk,nkpq->pq", weight, bent(theta, X) - y, bent_hess(theta, X)) / n
    G = J.T @ (each[:, None] * J) / n
    A = G + np.diag(case.decay.ravel()) + (R if curvature == "hessian" else 0.0)
    unit = np.sqrt(np.diag(G) + case.decay.ravel())
    scaled = A / np.outer(unit, unit)
    values = np.linalg.eigvalsh(scaled)
    h = np.linalg.solve(scaled, (g / unit).T).T / unit
    V = np.sum((h @ (each[:, None] * J).T) ** 2, axis=1) / n
    held = np.linalg.norm(h @ G / unit, axis=1) / np.linalg.norm(g / unit, axis=1)
    rounding = np.finfo(float).eps * values[-1] / values[0] / held
    unsupported = 1.0 - np.einsum("kp,pq,kq->k", h, G, h) / np.sum(g * h, axis=1)
    return SimpleNamespace(
        V=V, unsupported=unsupported, A=A, g=g, h=h, eigenvalues=values, tolerance=np.maximum(TOLERANCE, 2 * rounding)
    )


@cache
def dense_of(name, curvature, dtype="float64"):
    return dense(case_of(name, dtype), curvature)


@both_curvatures
@pytest.mark.parametrize("name", ["badly conditioned", "two outputs, weights, no decay on some"])
def test_the_closed_forms_of_this_file_are_the_derivatives(name, curvature):
    case = case_of(name)
    decay, weight = case.decay.ravel(), case.weight
    V, _, unsupported, _ = oracle.dense(
        bent, case.theta, case.X, case.y, case.x, decay, weight=weight, curvature=curvature
    )
    mine = dense_of(name, curvature)
    np.testing.assert_allclose(mine.V, V, rtol=1e-7)
    np.testing.assert_allclose(mine.unsupported, unsupported, atol=1e-7)


# -- right, or reported --------------------------------------------------------------------------
def ask(fitted, x, solver, curvature):
    """Return the weighted norm without the warnings of failed rows, whose status is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.ConvergenceWarning)
        return fitted.weighted_norm(x, solver=solver, curvature=curvature)


def check_right_or_reported(found, truth):
    """Assert that converged rows are right and other rows have no number; return which converged."""
    status, value = found.status.ravel(), found.value.ravel()
    good = status == "converged"
    assert set(status) <= {"converged", "not converged"}
    assert np.all(np.isnan(value[~good]))
    off = np.abs(value / truth.V - 1.0)
    assert np.all(off[good] <= truth.tolerance[good]), f"V off by {off[good].max():.1e}, called converged"
    assert np.all(np.abs(found.unsupported.ravel() - truth.unsupported)[good] < 1e-6)
    return good


@every_solver
@both_curvatures
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_v_is_that_of_dense_linear_algebra(framework, case, curvature, name):
    fitted, truth = fitted_of(framework, case), dense_of(case, curvature)
    assert truth.eigenvalues[0] > 0
    found = ask(fitted, case_of(case).x, SOLVERS[name], curvature)
    good = check_right_or_reported(found, truth)
    if (name, case) not in OUT_OF_REACH:
        assert good.all()
    assert good[: len(good) // 3].all()  # a training row is within everyone's reach


@every_solver
@both_curvatures
@pytest.mark.parametrize("case", FLOAT32)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_float32_model_is_solved_in_float64(framework, case, curvature, name):
    fitted, truth = fitted_of(framework, case, "float32"), dense_of(case, curvature, "float32")
    found = fitted.weighted_norm(case_of(case, "float32").x, solver=SOLVERS[name], curvature=curvature)
    assert check_right_or_reported(found, truth).all()


@every_solver
@both_curvatures
@pytest.mark.parametrize("steps", [1, 3])
def test_a_solver_that_may_not_finish_says_so(steps, curvature, name):
    solver = SOLVERS[name]
    if "max_steps" not in {field.name for field in fields(solver)}:
        pytest.skip("it does not iterate")
    for case in ("well conditioned", "badly conditioned", "two outputs"):
        short = replace(solver, max_steps=steps)
        found = ask(fitted_of("numpy", case), case_of(case).x, short, curvature)
        check_right_or_reported(found, dense_of(case, curvature))


# -- agreement -----------------------------------------------------------------------------------
@both_curvatures
def test_solvers_agree_on_one_point_and_on_300(curvature):
    case = case_of("two outputs, weights, no decay on some")
    x = np.random.default_rng(4).normal(size=(300, INPUTS))
    fitted = fitted_of("numpy", "two outputs, weights, no decay on some")
    truth = dense(replace(case, x=x), curvature)
    for solver in SOLVERS.values():
        many = ask(fitted, x, solver, curvature)
        assert check_right_or_reported(many, truth).all(), solver.name
        one = ask(fitted, x[7:8], solver, curvature)
        np.testing.assert_allclose(one.value[0], many.value[7], rtol=TOLERANCE, err_msg=solver.name)


@both_curvatures
def test_solvers_agree_on_a_network(curvature):
    """Two outputs, weights, an output bias without decay: the Hessian leaves the space that the rows span."""
    rng = np.random.default_rng(5)
    params, predict = oracle.random_params(rng, 3, 8, 2), oracle.network("tanh", 2)
    X, x, weight = rng.normal(size=(50, 3)), 2 * rng.normal(size=(POINTS, 3)), rng.uniform(0.3, 2.0, 50)
    with jax.enable_x64(True):
        y = np.asarray(predict(params, jnp.asarray(X))) + 1e-3 * rng.normal(size=(50, 2))
    decay = {"w": 0.01, "b": 0.02, "v": 0.005, "c": 0.0}
    flat = np.concatenate([np.full(params[leaf].size, decay[leaf]) for leaf in sorted(params)])
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=decay, sample_weight=weight)
    V, _, unsupported, eigenvalues = oracle.dense(predict, params, X, y, x, flat, weight=weight, curvature=curvature)
    assert eigenvalues.min() > 0
    for solver in SOLVERS.values():
        found = fitted.weighted_norm(x, solver=solver, curvature=curvature)
        np.testing.assert_allclose(found.value.ravel(), V, rtol=1e-6, err_msg=solver.name)
        np.testing.assert_allclose(found.unsupported.ravel(), unsupported, atol=1e-6, err_msg=solver.name)


# -- solutions -----------------------------------------------------------------------------------
def prepared(fitted, name, curvature):
    """Yield a prepared solver in the scope of the framework, without the checks of the fitted model."""
    return SOLVERS[name].prepare(SolverWorkspace(fitted.problem), curvature)


@every_solver
@both_curvatures
@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_solutions_are_those_of_dense_linear_algebra(framework, count, curvature, name):
    case = "two outputs, weights, no decay on some"
    fitted, truth = fitted_of(framework, case), dense_of(case, curvature)
    sides = np.random.default_rng(0).standard_normal((count, fitted.problem.p))
    with fitted.problem.scope():
        found = prepared(fitted, name, curvature).solve(fitted.problem.native(sides))
        h = fitted.problem.numpy(found.h)
    exact = np.linalg.solve(truth.A, sides.T).T
    assert np.all(found.status == "converged")
    assert found.status.shape == found.residual.shape == found.steps.shape == (count,)
    wrong, size = (np.sqrt(np.einsum("kp,pq,kq->k", v, truth.A, v)) for v in (h - exact, exact))
    assert np.max(wrong / size) < 1e-5


@every_solver
@both_curvatures
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_row_that_is_not_finite_is_named_and_harms_no_neighbour(framework, curvature, name):
    problem = fitted_of(framework, "well conditioned").problem
    clean = np.random.default_rng(1).standard_normal((5, problem.p))
    broken = clean.copy()
    broken[1, 3], broken[3] = np.nan, np.inf * np.sign(clean[3])
    with problem.scope():
        solver = prepared(fitted_of(framework, "well conditioned"), name, curvature)
        whole, found = (solver.respond(problem.native(sides)) for sides in (clean, broken))
    others = [0, 2, 4]
    assert list(found.status[[1, 3]]) == ["not finite"] * 2
    assert list(found.status[others]) == ["converged"] * 3
    np.testing.assert_allclose(
        found.image[others], whole.image[others], rtol=1e-6, atol=1e-9 * np.abs(whole.image).max()
    )
    np.testing.assert_allclose(found.energy[others], whole.energy[others], rtol=1e-6)


@every_solver
@both_curvatures
@pytest.mark.parametrize("case", ["badly conditioned", "rank deficient, lam = 1e-6", "two outputs"])
def test_a_row_alone_is_the_row_in_company(case, curvature, name):
    fitted, x = fitted_of("numpy", case), case_of(case).x
    company = ask(fitted, x, SOLVERS[name], curvature)
    for i in (0, POINTS // 2, POINTS - 1):
        alone = ask(fitted, x[i : i + 1], SOLVERS[name], curvature)
        np.testing.assert_array_equal(alone.status[0], company.status[i])
        np.testing.assert_allclose(alone.value[0], company.value[i], rtol=TOLERANCE)


@every_solver
@both_curvatures
def test_the_units_of_the_parameters_change_nothing(curvature, name):
    plain, other = (make("clustered", 1e-3, outputs=2, units=units) for units in (0.0, 12.0))
    found = [
        fit_numpy(case).weighted_norm(case.x, solver=SOLVERS[name], curvature=curvature) for case in (plain, other)
    ]
    np.testing.assert_array_equal(found[0].status, found[1].status)
    np.testing.assert_allclose(found[1].value, found[0].value, rtol=TOLERANCE)
    np.testing.assert_allclose(found[1].unsupported, found[0].unsupported, atol=TOLERANCE)
    np.testing.assert_allclose(found[1].steps, found[0].steps, rtol=0.25, atol=1)


# -- an indefinite Hessian -----------------------------------------------------------------------
SADDLES = {"barely": (1, 12.5), "in one direction": (1, 30.0), "in many": (10, 30.0), "far from a minimum": (10, 1e4)}


@cache
def saddle(kind):
    """Return a case with an indefinite Hessian, through responses far above their predictions."""
    rows, lift = SADDLES[kind]
    case = case_of("well conditioned")
    return replace(case, y=case.y + np.where(np.arange(ROWS)[:, None] < rows, lift, 0.0))


@every_solver
@pytest.mark.parametrize("kind", SADDLES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_indefinite_hessian_is_reported(framework, kind, name):
    case = saddle(kind)
    eigenvalues = dense(case, "hessian").eigenvalues
    assert eigenvalues[0] < 0
    assert (eigenvalues[1] > 0) == (kind in ("barely", "in one direction"))
    assert (eigenvalues[0] > -0.1) == (kind == "barely")
    fitted = FRAMEWORKS[framework](case)
    with pytest.raises(vhat.NotPositiveDefinite):
        fitted.weighted_norm(case.x, solver=SOLVERS[name], curvature="hessian")
    sides = np.random.default_rng(2).standard_normal((20, fitted.problem.p))
    with fitted.problem.scope():
        try:
            found = prepared(fitted, name, "hessian").respond(fitted.problem.native(sides))
        except vhat.NotPositiveDefinite:
            return
    assert np.all(found.status == "indefinite")


# -- options -------------------------------------------------------------------------------------
@every_solver
@pytest.mark.parametrize("value", ["a", None, -1, 0, 1, 2.0, np.nan, True, [1e-8]], ids=repr)
def test_a_tolerance_that_is_none_is_refused_where_it_is_made(value, name):
    with pytest.raises(vhat.InputError, match="rtol="):
        replace(SOLVERS[name], rtol=value)


@every_solver
@pytest.mark.parametrize("value", ["a", None, -1, 0, 1.5, True, np.nan], ids=repr)
def test_a_count_that_is_none_is_refused_where_it_is_made(value, name):
    for option in {"max_steps", "block"} & {field.name for field in fields(SOLVERS[name])}:
        with pytest.raises(vhat.InputError, match=f"{option}=.* is not a whole number of at least 1"):
            replace(SOLVERS[name], **{option: value})


def test_seeds_and_steps_of_the_fitted_model_are_refused_in_words():
    fitted = fitted_of("numpy", "well conditioned")
    for call in (
        lambda: vhat.CG(restarts=-1),
        lambda: vhat.CG(restarts=0.5),
        lambda: fitted.covariance(seed="a"),
        lambda: fitted.covariance(seed=-1),
        lambda: fitted.polish(seed=1.5),
        lambda: fitted.polish(max_steps=2.5),
        lambda: fitted.polish(warmup=None),
        lambda: fitted.polish(gtol="small"),
    ):
        with pytest.raises(vhat.InputError, match="is not a"):
            call()
