"""One concrete problem over three protocols: also for a framework that vhat has never seen."""

from __future__ import annotations

import copy
import pickle
import weakref
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import vhat
from tests import oracle
from tests.models.example_framework import jet_problem, tanh
from vhat.evidence.minimise.polish import polish
from vhat.fitted.model import FittedModel
from vhat.methods.base.posterior import as_posterior, log_density
from vhat.models.jax import compiled as programs
from vhat.models.jax import jax_problem
from vhat.models.numpy import numpy_problem
from vhat.models.problem import Problem
from vhat.models.scaling import Scaling
from vhat.models.torch import torch_problem
from vhat.variance.noise import Noise

N, D = 24, 2
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, D))
Y = np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * RNG.normal(size=N)
THETA = RNG.normal(size=5)
"""Of ``a tanh(b x0 + c x1 + d) + e``."""
POINTS = RNG.normal(size=(4, D))
LAM = 0.1


def jet_net(q, x):
    return q[0] * tanh(q[1] * x[:, 0] + q[2] * x[:, 1] + q[3]) + q[4]


def jax_net(q, x):
    return q[0] * jnp.tanh(x @ q[1:3] + q[3]) + q[4]


def numpy_net(q, x):
    return q[0] * np.tanh(x @ q[1:3] + q[3]) + q[4]


def torch_net():
    net = torch.nn.Sequential(torch.nn.Linear(D, 1), torch.nn.Tanh(), torch.nn.Linear(1, 1)).double().eval()
    with torch.no_grad():
        a, b, c, d, e = THETA
        net[0].weight.copy_(torch.tensor([[b, c]]))
        net[0].bias.copy_(torch.tensor([d]))
        net[2].weight.copy_(torch.tensor([[a]]))
        net[2].bias.copy_(torch.tensor([e]))
    return net


def log_cosh_jax(f, y):
    return jnp.logaddexp(f - y, y - f)


def log_cosh_torch(f, y):
    return torch.logaddexp(f - y, y - f)


def make(framework: str) -> Problem:
    if framework == "jets":
        return jet_problem(jet_net, THETA, X, Y, weight_decay=LAM)
    if framework == "numpy":
        return numpy_problem(numpy_net, THETA, X, Y, weight_decay=LAM)
    if framework == "torch":
        y = torch.tensor(Y[:, None])
        return torch_problem(torch_net(), torch.tensor(X), y, weight_decay=LAM, loss=log_cosh_torch)
    return jax_problem(jax_net, THETA, X, Y, weight_decay=LAM, loss=log_cosh_jax)


FRAMEWORKS = ("jets", "numpy", "torch", "jax")


# -- a framework that vhat has never seen ---------------------------------------------------------
@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
@pytest.mark.parametrize("solver", [vhat.Dense(), vhat.CG(rtol=1e-12), vhat.Dual()], ids=lambda s: type(s).__name__)
def test_another_framework_needs_no_more_than_the_three_protocols(solver, curvature):
    fitted = FittedModel(jet_problem(jet_net, THETA, X, Y, weight_decay=1.0))
    found = fitted.weighted_norm(POINTS, solver=solver, curvature=curvature)
    expected = oracle.dense(jax_net, THETA, X, Y, POINTS, 1.0, curvature=curvature)[0]
    np.testing.assert_allclose(found.value, expected, rtol=1e-8)
    assert type(found.value) is np.ndarray


def test_another_framework_is_polished_audited_and_given_intervals():
    fitted = FittedModel(jet_problem(jet_net, THETA, X, Y, weight_decay=0.01)).polish()
    theta = fitted.params

    def objective(q):
        return jnp.mean((jax_net(q, X) - Y) ** 2) / 2 + 0.005 * jnp.sum(q**2)

    with jax.enable_x64(True):
        slope = jax.grad(objective)(jnp.asarray(theta))
    assert np.abs(slope).max() < 1e-8
    assert fitted.audit(noise=0.1)
    band = fitted.interval(POINTS, noise=0.1)
    assert np.all((band.lower < fitted.predict(POINTS)) & (fitted.predict(POINTS) < band.upper))
    offset = fitted.functional(lambda q: q[4], noise=0.1)
    np.testing.assert_allclose(offset.center, theta[4])


def test_another_framework_derives_its_products_from_five_methods():
    problem = jet_problem(jet_net, THETA, X, Y, weight_decay=LAM)
    v = np.random.default_rng(0).normal(size=(3, 5))

    def loss(q):
        return jnp.mean((jax_net(q, X) - Y) ** 2) / 2

    with jax.enable_x64(True):
        theta = jnp.asarray(THETA)
        H, slope, J = jax.hessian(loss)(theta), jax.grad(loss)(theta), jax.jacobian(jax_net)(theta, X)
    with problem.scope():
        np.testing.assert_allclose(problem.product(problem.native(v), "hessian"), v @ np.asarray(H), rtol=1e-10)
        np.testing.assert_allclose(problem.gradient(), slope, rtol=1e-10)
        np.testing.assert_allclose(problem.diagonal(), np.mean(np.asarray(J) ** 2, axis=0), rtol=1e-10)
    assert problem.objective() == pytest.approx(float(np.mean((numpy_net(THETA, X) - Y) ** 2) / 2), rel=1e-12)
    assert problem.factor_numbers == 5
    assert problem.residual_product(v) is None


# -- the same problem elsewhere -------------------------------------------------------------------
def numbers(problem: Problem) -> list[np.ndarray]:
    """Return whatever depends on parameters, responses, weights, rows or decay."""
    v = np.random.default_rng(5).normal(size=(2, problem.p))
    t = np.random.default_rng(6).normal(size=(2, problem.n, 1))
    with problem.scope():
        loss, block = problem.loss_derivatives, problem.native(v)
        p_space = [
            problem.gradient(),
            problem.product(block, "hessian"),
            problem.product(block, "ggn"),
            problem.diagonal(),
            problem.vjp(t),
            problem.gradients(problem.X),
            problem.penalty_gradient(),
        ]
        found = [problem.numpy(each) for each in p_space]
        found += [problem.fitted_values, loss.value, loss.first, loss.curvature, loss.cross, problem.jvp(block)]
        found += [np.array([problem.objective(), problem.penalty()])]
    return found


def standardised(problem: Problem) -> Problem:
    """The same model on data that are standardised inside."""
    scaling = Scaling(np.arange(D), np.full(D, 0.5), np.full(D, 3.0), np.array([2.0]), np.array([7.0]))
    return replace(problem, X=X * 3.0 + 0.5, targets=Y[:, None] * 7 + 2, scaling=scaling)


def changed(problem: Problem, name: str) -> Problem:
    with problem.scope():
        if name == "at":
            return problem.at(problem.theta * 1.1)
        if name == "with_targets":
            return problem.with_targets(problem.targets + np.linspace(0, 1, N)[:, None])
        if name == "with_decay":
            return problem.with_decay(problem.decay * 2)
        if name == "rows":
            return problem.rows(np.array([1, 4, 5, 9, 20, 21, 23]))
        return problem.in_model_units()


@pytest.mark.parametrize("units", ["own units", "standardised"])
@pytest.mark.parametrize("how", ["at", "with_targets", "with_decay", "rows", "in_model_units"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_changed_problem_has_the_numbers_of_one_that_shares_nothing(framework, how, units):
    """Tapes, chunks and Jacobians that are taken over must not be those of other parameters or responses."""
    first = make(framework)
    first = standardised(first) if units == "standardised" else first
    numbers(first)  # so that there is something to take over
    moved = changed(first, how)
    alone = replace(moved)  # made of the same fields, with nothing taken over
    differences = 1e-7 if framework == "numpy" else 1e-11
    for found, expected in zip(numbers(moved), numbers(alone), strict=True):
        np.testing.assert_allclose(found, expected, rtol=differences, atol=differences * np.abs(expected).max())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_changes_of_one_problem_do_not_disturb_each_other(framework):
    problem = make(framework)
    before = numbers(problem)
    other = changed(problem, "with_targets")
    numbers(other)
    for found, expected in zip(numbers(problem), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not np.allclose(numbers(other)[0], before[0])


@pytest.mark.parametrize("how", ["with_decay", "with_targets"])
def test_other_decay_and_other_responses_compute_no_jacobian_again(how):
    calls = []

    def counted(q, x):
        calls.append(1)
        return numpy_net(q, x)

    problem = numpy_problem(counted, THETA, X, Y, weight_decay=LAM)
    problem.product(np.eye(5), "ggn")
    calls.clear()
    changed(problem, how).product(np.eye(5), "ggn")
    assert not calls


@pytest.mark.parametrize("how", ["at", "with_targets", "with_decay", "rows"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tapes_and_jacobians_are_freed_with_their_problem(framework, how):
    """A changed problem keeps what it shares, not the block that it came from; nor is a cycle left to be collected."""
    problem = make(framework)
    numbers(problem)
    block = weakref.ref(problem.linearised)
    moved = changed(problem, how)
    del problem
    assert block() is None
    assert moved.n


def test_other_parameters_data_and_decay_compile_nothing():
    problem = make("jax")
    numbers(problem)
    kernels = (programs.product, programs.gradient, programs.jvp, programs.vjp, programs.predictions)
    before = [kernel._cache_size() for kernel in kernels]
    for how in ("at", "with_targets", "with_decay"):
        numbers(changed(problem, how))
    assert [kernel._cache_size() for kernel in kernels] == before


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, lambda problem: pickle.loads(pickle.dumps(problem))])
@pytest.mark.parametrize("framework", ["jets", "numpy", "jax"])
def test_copies_and_pickles_have_the_numbers_of_the_original(framework, copier):
    problem = replace(standardised(make(framework)), shift=None)
    for found, expected in zip(numbers(copier(problem)), numbers(problem), strict=True):
        np.testing.assert_array_equal(found, expected)


# -- units ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_standardised_problem_has_the_objective_of_the_model_and_predictions_of_the_user(framework):
    model, user = make(framework), standardised(make(framework))
    points = user.inputs(POINTS * 3.0 + 0.5)
    with model.scope():
        tight = {"rtol": 1e-9, "atol": 1e-12}
        np.testing.assert_allclose(user.predict(points), 2 + 7 * model.predict(model.inputs(POINTS)), **tight)
        np.testing.assert_allclose(
            user.numpy(user.gradients(points)), 7 * model.numpy(model.gradients(model.inputs(POINTS))), rtol=1e-7
        )
        np.testing.assert_allclose(user.numpy(user.gradient()), model.numpy(model.gradient()), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(user.loss_derivatives.curvature, model.loss_derivatives.curvature / 49, rtol=1e-9)
    assert user.objective() == pytest.approx(model.objective(), rel=1e-9)
    assert user.in_model_units().scaling is None


# -- a penalty that pulls elsewhere than to zero --------------------------------------------------
def line(q, x):
    return x @ q


def ridge(design, y, mean):
    """A linear model with the penalty ``lam/2 |theta - mean|^2``, up to a constant."""
    problem = jax_problem(line, np.zeros(D), design, y, weight_decay=LAM)
    with problem.scope():
        return replace(problem, shift=problem.decay * problem.native(mean))


def test_a_shifted_penalty_has_its_minimum_where_ridge_towards_a_mean_has_it():
    mean = np.array([1.5, -2.0])
    found = polish(ridge(X, Y, mean)).problem
    expected = np.linalg.solve(X.T @ X / N + LAM * np.eye(D), X.T @ Y / N + LAM * mean)
    np.testing.assert_allclose(found.params, expected, rtol=1e-9)


def test_the_posterior_of_a_shifted_penalty_is_that_of_a_prior_with_a_mean():
    mean, theta, sigma = np.array([1.5, -2.0]), np.array([0.3, 0.8]), 0.5
    fitted = FittedModel(ridge(X, Y, mean))
    noise = Noise(np.full((N, 1), sigma), np.array([sigma]), sigma, "given", None, uniform=True)
    with fitted.problem.scope():
        model, posterior = as_posterior(fitted, noise, "this test")
        found = [float(log_density(model, jnp.asarray(t), posterior)) for t in (theta, mean)]

    def expected(t):
        return -0.5 * np.sum((X @ t - Y) ** 2) / sigma**2 - 0.5 * N * LAM * np.sum((t - mean) ** 2) / sigma**2

    assert found[0] - found[1] == pytest.approx(expected(theta) - expected(mean), rel=1e-10)


def test_a_shifted_penalty_is_saved_with_the_model(tmp_path):
    mean = np.array([1.5, -2.0])
    fitted = FittedModel(ridge(X, Y, mean)).polish()
    fitted.save(tmp_path / "model")
    again = vhat.load(tmp_path / "model", model=line)
    np.testing.assert_array_equal(again.problem.shift, LAM * mean)
    np.testing.assert_array_equal(again.params, fitted.params)
