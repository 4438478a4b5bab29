"""A sample of rows as preconditioner: the same solution for every sample, in fewer steps, within the memory budget."""

from __future__ import annotations

import tracemalloc
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vhat
from tests import oracle
from vhat.linalg.curvature import scale
from vhat.linalg.solvers.interface import Stopped
from vhat.linalg.solvers.jacobian_factors import find_structure
from vhat.linalg.solvers.nystrom import Nystrom
from vhat.linalg.solvers.nystrom_sample import affordable_rows, sample_bytes, sample_flops
from vhat.linalg.workspace import SolverWorkspace
from vhat.models.jax import jax_problem
from vhat.models.numpy import numpy_problem
from vhat.models.torch import torch_problem

X = np.random.default_rng(0).normal(size=(300, 4))
POINTS = 2 * np.random.default_rng(1).normal(size=(7, 4))
SOLVER = Nystrom(rows=60, rtol=1e-9)
NO_BIAS_DECAY = {"w": 1e-3, "b": 0.0, "v": 1e-2, "c": 0.0}


@cache
def network(outputs=None):
    """A tanh network and its data, the same objects every time, so that compilations are shared."""
    rng = np.random.default_rng(2)
    predict, params = oracle.network("tanh", outputs), oracle.random_params(rng, 4, 24, outputs)
    with jax.enable_x64(True):
        fitted = np.asarray(predict(params, jnp.asarray(X)))
    return predict, params, fitted + 1e-7 * rng.standard_normal(fitted.shape)


def fit(decay=1e-3, **options):
    return vhat.from_jax(*network()[:2], X, network()[2], weight_decay=decay, **options)


def ask(fitted, solver=SOLVER, curvature="ggn", x=POINTS):
    return fitted.weighted_norm(x, curvature=curvature, solver=solver)


def linear_problem(Z, *, weight_decay):
    """``f = Z theta`` in NumPy, with its derivatives."""
    n, p = Z.shape
    derivatives = {"jac": lambda q, Z: Z, "hess": lambda q, Z: np.zeros((len(Z), p, p))}
    y = np.random.default_rng(9).normal(size=n)
    return numpy_problem(lambda q, Z: Z @ q, np.zeros(p), Z, y, weight_decay=weight_decay, **derivatives)


# -- the answer ----------------------------------------------------------------------------------
@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
@pytest.mark.parametrize("decay", [1e-3, {**NO_BIAS_DECAY, "w": 0.0}, 0.0], ids=["all", "some", "none"])
def test_the_norm_is_that_of_dense_linear_algebra(curvature, decay):
    fitted = fit(decay)
    lam = fitted.problem.numpy(fitted.problem.decay)
    predict, params, y = network()
    V, _, unsupported, eigenvalues = oracle.dense(predict, params, X, y, POINTS, lam, curvature=curvature)
    assert eigenvalues.min() > 0
    found = ask(fitted, curvature=curvature)
    np.testing.assert_allclose(found.value, V, rtol=1e-6)
    np.testing.assert_allclose(found.unsupported, unsupported, atol=1e-6)
    assert found.solver == "nystrom"
    assert np.all(found.status == "converged")


def test_weights_outputs_and_losses_count_in_the_sample_too():
    predict, params, y = network(outputs=2)
    rng = np.random.default_rng(3)
    weight = rng.uniform(0.0, 2.0, len(X)) * (rng.uniform(size=len(X)) < 0.8)
    options = {"loss": oracle.coupled, "sample_weight": weight}
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=1e-3, **options)
    V = oracle.dense(predict, params, X, y, POINTS, 1e-3, loss=oracle.coupled, weight=weight)[0]
    found, plain = (ask(fitted, solver, "hessian") for solver in (SOLVER, vhat.CG()))
    np.testing.assert_allclose(found.value.ravel(), V, rtol=1e-6)
    assert found.steps.max() < 0.5 * plain.steps.min()


@pytest.mark.parametrize("solver", [Nystrom(rows=1, max_steps=2), Nystrom(rows=60, max_steps=3)], ids=repr)
def test_a_sample_that_leads_nowhere_hands_over_to_plain_conjugate_gradients(solver):
    V = oracle.dense(*network()[:2], X, network()[2], POINTS, 1e-3, curvature="ggn")[0]
    found = ask(fit(), solver)
    np.testing.assert_allclose(found.value, V, rtol=1e-6)
    assert np.all(found.status == "converged")
    assert found.steps.min() > solver.max_steps


def test_a_loose_tolerance_is_not_the_last_word():
    """A row must also have converged in the unit-free scale, and not only in the metric of the sample."""
    problem = fit(1e-5).problem
    with problem.scope():
        unit, g = scale(problem), problem.gradients(problem.inputs(POINTS))
        loose = Nystrom(rows=60, rtol=0.1).prepare(SolverWorkspace(problem), "ggn").solve(g)
        left = g - problem.product(loose.h, "ggn") - problem.decay * loose.h
        residual = np.linalg.norm(left / unit, axis=1) / np.linalg.norm(g / unit, axis=1)
    assert np.all(loose.status == "converged")
    assert residual.max() <= 1e-6
    np.testing.assert_allclose(loose.residual, residual, rtol=1e-2)


# -- what must not matter ------------------------------------------------------------------------
def test_the_seed_decides_the_rows_and_not_the_answer():
    first, again, other = (ask(fit(), Nystrom(rows=60, seed=seed)).value for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    np.testing.assert_allclose(first, other, rtol=1e-6)


def test_a_point_alone_is_solved_as_in_company():
    fitted = fit()
    together = ask(fitted, curvature="hessian")
    alone = [ask(fitted, curvature="hessian", x=x[None]).value[0] for x in POINTS]
    np.testing.assert_allclose(together.value, alone, rtol=1e-8)


def test_the_unit_of_y_changes_nothing():
    predict, params, y = network()

    def in_other_units(q, Z):
        return 1e4 * predict(q, Z)

    a = ask(fit())
    b = ask(vhat.from_jax(in_other_units, params, X, 1e4 * y, weight_decay=1e8 * 1e-3))
    np.testing.assert_allclose(b.value, a.value, rtol=1e-7)
    np.testing.assert_allclose(b.steps, a.steps, rtol=0.05)


@pytest.mark.parametrize("unit", [1e-4, 1e6])
def test_the_unit_of_a_parameter_changes_nothing(unit):
    predict, params, y = network()
    units = {name: np.ones(np.shape(value)) for name, value in params.items()}
    units["w"][1, 3], units["v"][5], units["b"][2], units["c"][:] = unit, unit, unit, unit

    def rescaled(q, Z):
        return predict({name: q[name] * units[name] for name in q}, Z)

    decay = {"w": np.full((4, 24), 1e-3), "b": 0.0 * params["b"], "v": np.full((24, 1), 1e-3), "c": np.zeros(1)}
    moved = {name: value / units[name] for name, value in params.items()}
    a = ask(fit(decay))
    b = ask(vhat.from_jax(rescaled, moved, X, y, weight_decay={k: decay[k] * units[k] ** 2 for k in decay}))
    np.testing.assert_allclose(b.value, a.value, rtol=1e-6)
    assert np.abs(a.steps - b.steps).max() <= 0.1 * a.steps.max()


# -- the steps -----------------------------------------------------------------------------------
@pytest.mark.parametrize("spread", [0, 6])
def test_a_falling_spectrum_takes_far_fewer_steps(spread):
    """Eigenvalues ``k^-2`` in directions that mix all parameters; units that differ by decades under one decay."""
    rng = np.random.default_rng(0)
    units = 10 ** (spread * rng.uniform(-0.5, 0.5, 300))
    turn = np.linalg.qr(rng.normal(size=(300, 300)))[0]
    rows = rng.normal(size=(3007, 300)) / np.arange(1, 301) @ turn * units
    problem, g = linear_problem(rows[:3000], weight_decay=1e-6), rows[3000:]
    plain = vhat.CG(rtol=1e-7).prepare(SolverWorkspace(problem), "ggn").solve(g)
    found = Nystrom(rows=150).prepare(SolverWorkspace(problem), "ggn").solve(g)
    unit = np.sqrt(np.mean(rows[:3000] ** 2, axis=0) + 1e-6)
    matrix = (rows[:3000] / unit).T @ (rows[:3000] / unit) / 3000 + np.diag(1e-6 / unit**2)
    exact = np.linalg.solve(matrix, (g / unit).T).T
    np.testing.assert_allclose(found.h * unit, exact, atol=1e-5 * np.abs(exact).max())
    assert np.all(found.status == "converged")
    assert found.steps.max() < plain.steps.min() / 5


def test_more_rows_take_fewer_steps():
    fitted = fit(1e-4)
    few, some, all_ = (ask(fitted, Nystrom(rows=rows)).steps.max() for rows in (20, 80, 300))
    assert few > 1.5 * some
    assert some > 1.5 * all_


# -- the budget ----------------------------------------------------------------------------------
def test_the_number_of_rows_follows_the_budget_until_they_no_longer_pay():
    chosen = []
    for memory in (1e6, 3e6, 1e12):
        problem = fit(memory=memory).problem
        numbers = find_structure(problem).numbers
        rows = affordable_rows(problem, numbers)
        fits = [sample_bytes(problem, m, numbers) <= 0.3 * memory for m in (rows, rows + 1)]
        most = 100 * 6 * problem.n * problem.outputs * problem.p  # flops of a hundred gradients
        pays = [sample_flops(problem, m, numbers) <= most for m in (rows, rows + 1)]
        assert fits[0]
        assert pays[0]
        assert rows == len(X) // 2 or not (fits[1] and pays[1])
        chosen.append(rows)
    assert chosen[0] < chosen[1] < chosen[2]


def shared(q, Z):
    """A matrix used twice, whose gradient is not of rank one."""
    return jnp.tanh(jnp.tanh(Z @ q["w"]) @ q["w"]).sum(axis=1)


def test_gradients_that_cannot_be_compressed_count_in_full_against_the_budget():
    rng = np.random.default_rng(0)
    Z, w = rng.normal(size=(300, 30)), 0.3 * rng.normal(size=(30, 30))
    problem = jax_problem(shared, {"w": w}, Z, rng.normal(size=300), weight_decay=1e-2, memory=3e6)
    with problem.scope():
        rows = len(Nystrom().sample(SolverWorkspace(problem)).features)
    assert find_structure(problem).numbers == problem.p
    assert rows == affordable_rows(problem, problem.p) < affordable_rows(problem, 2 * 30)  # were they outer products
    assert sample_bytes(problem, rows, problem.p) <= 0.3 * problem.memory


@pytest.mark.parametrize("memory", [5e5, 1e5, 2e4])
def test_the_rows_that_a_small_budget_affords_fit_into_it(memory):
    rng = np.random.default_rng(0)
    Z, x = rng.normal(size=(120, 48)), rng.normal(size=(3, 48))
    model = (lambda t, Z: jnp.tanh(Z @ t), np.full(48, 0.01), Z, rng.normal(size=120))
    full, spare = (vhat.from_jax(*model, weight_decay=1e-2, **budget) for budget in ({}, {"memory": memory}))
    found = ask(spare, vhat.Nystrom(), x=x)
    np.testing.assert_allclose(found.value, ask(full, vhat.Dense(), x=x).value, rtol=1e-5)


def test_rows_that_do_not_fit_are_refused_in_words():
    with pytest.raises(vhat.MemoryBudgetError, match=r"Nystrom\(rows=290.* needs .* enough for \d+ rows"):
        ask(fit(memory=1e6), Nystrom(rows=290))


def test_the_sample_takes_the_memory_that_is_announced():
    wide = np.random.default_rng(0).normal(size=(2000, 1200))
    problem = linear_problem(wide, weight_decay=1e-9)  # so little that the sample settles on more
    work = SolverWorkspace(problem)
    work.scale()
    tracemalloc.start()
    kernel = Nystrom(rows=1000).sample(work)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kernel.problem.decay.min() > 2e-9
    assert 1 / 1.5 < sample_bytes(problem, 1000, 1200) / peak < 1.5


# -- Ctrl-C --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("share", "some"), [(0.1, False), (0.5, True), (0.8, True), (0.95, True)])
def test_ctrl_c_leaves_the_rows_that_are_finished(share, some, monkeypatch):
    problem = linear_problem(X @ np.diag([1.0, 0.3, 0.1, 0.03]), weight_decay=1e-3)
    g = np.random.default_rng(4).normal(size=(12, 4))
    prepared, product, calls = Nystrom(rows=30, block=4).prepare(SolverWorkspace(problem), "ggn"), problem.product, []

    def pressed(_, v, curvature):
        calls.append(len(calls))
        if len(calls) == at:
            raise KeyboardInterrupt
        return product(v, curvature)

    monkeypatch.setattr(type(problem), "product", pressed)
    at = 0
    full = prepared.respond(g)
    at = len(calls) + int(share * len(calls))
    with pytest.raises(KeyboardInterrupt) as stop:
        prepared.respond(g)
    assert isinstance(stop.value, Stopped) == some
    if some:
        rows, partial = stop.value.rows, stop.value.partial
        assert set(partial.status) == {"converged"}
        np.testing.assert_allclose(partial.image, full.image[rows], rtol=1e-9, atol=1e-12)


# -- the rows of a problem -----------------------------------------------------------------------
@pytest.mark.parametrize("frontend", ["jax", "numpy", "numpy by differences", "torch"])
def test_some_rows_of_a_problem_are_the_problem_of_these_rows(frontend):
    rng, index = np.random.default_rng(5), np.array([3, 17, 250])
    weight, theta, y = rng.uniform(0.5, 2.0, len(X)), rng.normal(size=4), rng.normal(size=len(X))

    def predict(q, Z):
        return Z @ q

    def make(rows):
        given = {"weight_decay": 0.1, "sample_weight": weight[rows]}
        if frontend == "jax":
            return jax_problem(predict, theta, X[rows], y[rows], **given)
        if frontend.startswith("numpy"):
            jac = None if frontend.endswith("differences") else lambda q, Z: Z
            return numpy_problem(predict, theta, X[rows], y[rows], jac=jac, **given)
        import torch

        module = torch.nn.Linear(4, 1, bias=False).double()
        with torch.no_grad():
            module.weight.copy_(torch.tensor(theta[None]))
        return torch_problem(module, X[rows], y[rows, None], **given)

    whole = make(np.arange(len(X)))
    with whole.scope():
        whole.fitted_values, whole.loss_derivatives, whole.gradient()  # what is worked out for all is not for some
        part, alone = whole.rows(index), make(index)
        assert (part.n, len(part.targets)) == (3, 3)
        np.testing.assert_allclose(part.numpy(part.gradient()), alone.numpy(alone.gradient()), rtol=1e-8)
        np.testing.assert_allclose(part.loss_derivatives.curvature, alone.loss_derivatives.curvature)
        np.testing.assert_allclose(part.numpy(part.gradients(part.X)), X[index], rtol=1e-6)
        ones = part.native(np.ones((1, 4)))
        np.testing.assert_allclose(part.jvp(ones)[0], X[index].sum(axis=1)[:, None], rtol=1e-6)


@pytest.mark.parametrize("options", [{"rows": 0}, {"rows": 2.5}, {"rows": True}, {"seed": -1}, {"seed": "a"}])
def test_options_out_of_range_are_refused_where_they_are_made(options):
    with pytest.raises(vhat.InputError, match="is not a whole number"):
        Nystrom(**options)
