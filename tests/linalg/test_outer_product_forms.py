"""Norms of networks with one hidden layer by forms in their factors, against those of whole gradients."""

import numpy as np
import pytest

import vhat
from vhat.linalg.solvers import outer_product_forms
from vhat.linalg.solvers.interface import FromImages

NOISE = 2.5
FORMS = ("variance", "supported", "energy")


def made(hidden, activation="tanh"):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)) * [1.0, 100.0, 0.01, 1.0, 1.0]
    y = 5 + 20 * (np.sin(X[:, 0]) + X[:, 3] + 0.3 * rng.normal(size=60))
    recipe = "adam" if activation == "relu" else "minimum"
    return vhat.NetworkRegressor(hidden, activation=activation, weight_decay=1e-3, recipe=recipe).fit(X, y).fitted_


@pytest.fixture(scope="module")
def fitted():
    return made((22,))


def points(count, seed=1):
    return np.random.default_rng(seed).normal(size=(count, 5)) * [1.0, 100.0, 0.01, 1.0, 1.0]


def noise(problem):
    return np.full((problem.n, 1), NOISE)


def assert_same(found, expected, rtol):
    for name in FORMS:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=rtol, err_msg=name)
    for name in ("pull", "slope"):
        atol = rtol * np.abs(expected.pull).max()
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=atol, err_msg=name)
    np.testing.assert_array_equal(found.status, expected.status)


@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
def test_the_norms_are_those_of_the_solutions(fitted, curvature):
    problem = fitted.problem
    solver = fitted.workspace.own_solver(curvature)
    X = points(300)
    assert solver.forms.result is not None
    assert solver.forms.result.at(problem.scaling.inputs(X))[2].all()
    solved = FromImages.norms(solver, problem.gradients(X), noise(problem))
    assert_same(solver.norms_at(X, noise(problem)), solved, rtol=1e-9)


@pytest.mark.parametrize("activation", ["softplus", "gelu", "silu"])
def test_every_activation_has_the_forms_of_its_gradients(activation):
    problem = made((22,), activation).problem
    solver = vhat.FittedModel(problem).workspace.own_solver("ggn")
    X = points(50)
    solved = FromImages.norms(solver, problem.gradients(X), noise(problem))
    assert_same(solver.norms_at(X, noise(problem)), solved, rtol=1e-9)


def test_the_estimate_of_rounding_is_above_the_differences(fitted):
    problem = fitted.problem
    solver = fitted.workspace.own_solver("hessian")
    forms = solver.forms.result
    X = points(300) * np.geomspace(0.01, 30, 300)[:, None]
    (energy, supported), _, _ = forms.at(problem.scaling.inputs(X))
    by_gradients = solver.norms(problem.gradients(X), noise(problem))
    estimate = outer_product_forms._ROUNDING * forms._term_sizes(*forms._factors(problem.scaling.inputs(X)))
    assert np.all(np.abs(energy - by_gradients.energy) <= estimate[0])
    assert np.all(np.abs(supported - by_gradients.supported) <= estimate[1])


def test_rows_whose_terms_cancel_are_left_to_their_gradients(fitted, monkeypatch):
    problem = fitted.problem
    solver = fitted.workspace.own_solver("hessian")
    X = points(100)
    forms = solver.forms.result
    sizes = outer_product_forms._ROUNDING * forms._term_sizes(*forms._factors(problem.scaling.inputs(X)))
    share = (sizes / forms.at(problem.scaling.inputs(X))[0]).max(axis=0)
    monkeypatch.setattr(outer_product_forms, "_ACCURACY", float(np.median(share)))
    accurate = forms.at(problem.scaling.inputs(X))[2]
    assert accurate.sum() == 50
    found = solver.norms_at(X, noise(problem))
    rest = solver.norms(problem.gradients(X[~accurate]), noise(problem))
    for name in FORMS:
        np.testing.assert_array_equal(getattr(found, name)[~accurate], getattr(rest, name))
    assert_same(found, solver.norms(problem.gradients(X), noise(problem)), rtol=1e-9)


@pytest.mark.parametrize("hidden", [(12, 8), (3,), ()])
def test_other_networks_are_left_to_their_gradients(hidden):
    model = made(hidden)
    problem = model.problem
    solver = model.workspace.own_solver("ggn")
    X = points(40)
    found = solver.norms_at(X, noise(problem))
    expected = solver.norms(problem.gradients(X), noise(problem))
    for name in FORMS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_whole_blocks_asked_alone_have_the_same_bits_as_in_one_question(fitted):
    X = points(700)
    whole = fitted.interval(X)
    parts = [fitted.interval(X[start : start + 256]) for start in (0, 256, 512)]
    for name in ("lower", "upper", "standard_error", "unsupported"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(whole, name), joined, err_msg=name)


def test_a_row_alone_has_the_interval_that_it_has_in_company(fitted):
    X = points(20)
    whole = fitted.interval(X)
    for row in (0, 7, 19):
        alone = fitted.interval(X[row : row + 1])
        np.testing.assert_allclose(alone.half_width[0], whole.half_width[row], rtol=1e-12)
        np.testing.assert_allclose(alone.unsupported[0], whole.unsupported[row], rtol=1e-10)


def test_a_point_whose_forms_overflow_is_not_called_accurate():
    """The forms of a gradient of 1e200 are infinite, and so is the estimate of their rounding."""
    model = made((22,), "relu")
    problem = model.problem
    solver = model.workspace.own_solver("ggn")
    X = points(3)
    X[1] *= 1e200
    assert list(solver.forms.result.at(problem.scaling.inputs(X))[2]) == [True, False, True]
    found = solver.norms_at(X, noise(problem))
    assert list(found.status) == ["converged", "not finite", "converged"]
    solved = FromImages.norms(solver, problem.gradients(X[[0, 2]]), noise(problem))
    np.testing.assert_allclose(found.variance[[0, 2]], solved.variance, rtol=1e-9)
