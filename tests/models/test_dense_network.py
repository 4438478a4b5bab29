"""The library's own networks in NumPy against JAX: the same numbers, by derivatives in closed form."""

import pickle
import subprocess
import sys

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from vhat.models.dense_network import is_small, network_problem
from vhat.models.dense_network.gauss_newton import gauss_newton
from vhat.models.dense_network.layers import flatten, forward
from vhat.models.networks import ACTIVATIONS, Network, VarianceScaling

WIDTHS = [(3, 1), (3, 4, 2), (2, 5, 4, 3, 2)]


def case(widths, activation="tanh", seed=0):
    rng = np.random.default_rng(seed)
    network = Network(widths, activation, initial=VarianceScaling())
    X, y = rng.standard_normal((9, widths[0])), rng.standard_normal((9, widths[-1]))
    weights, params = rng.uniform(0.5, 2.0, 9), network.init(seed)
    responses = y[:, 0] if widths[-1] == 1 else y
    problem = network_problem(network, params, X, responses, weight_decay=0.1, sample_weight=weights)
    return network, params, X, y, weights, problem


def by_jax(network, params, X, y, weights):
    """The flat parameters, and predictions and loss as JAX functions of them."""
    theta, unflatten = jax.flatten_util.ravel_pytree(params)

    def predict(theta):
        return network(unflatten(theta), X).reshape(y.shape)

    def loss(theta):
        return jnp.sum(weights[:, None] * (predict(theta) - y) ** 2) / (2 * len(y))

    return theta, predict, loss


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("widths", WIDTHS)
def test_every_derivative_is_that_of_jax_to_rounding(widths, activation):
    network, params, X, y, weights, problem = case(widths, activation)
    with jax.enable_x64(True):
        theta, predict, loss = by_jax(network, params, X, y, weights)
        J = np.asarray(jax.jacobian(predict)(theta)).reshape(-1, len(theta))
        H = np.asarray(jax.hessian(loss)(theta))
        gradient, value = np.asarray(jax.grad(loss)(theta)), float(loss(theta))
        fitted = np.asarray(predict(theta))
    close = {"rtol": 1e-12, "atol": 1e-13}
    np.testing.assert_array_equal(problem.theta, theta)
    np.testing.assert_allclose(problem.fitted_values, fitted, **close)
    np.testing.assert_allclose(problem.objective(), value, **close)
    np.testing.assert_allclose(problem.gradient(), gradient, **close)
    np.testing.assert_allclose(problem.gradients(X), J, **close)
    every = np.eye(problem.p)
    np.testing.assert_allclose(problem.product(every, "hessian"), H, **close)
    W = np.repeat(weights, widths[-1])[:, None]
    np.testing.assert_allclose(problem.product(every, "ggn"), J.T @ (W * J) / len(y), **close)
    np.testing.assert_allclose(problem.diagonal(), np.sum(W * J**2, axis=0) / len(y), **close)
    np.testing.assert_allclose(problem.jvp(every).reshape(problem.p, -1).T, J, **close)
    np.testing.assert_allclose(problem.vjp(np.eye(y.size).reshape(-1, *y.shape)), J, **close)


def test_factors_multiply_to_the_gradients():
    *_, X, _, _, problem = case((2, 5, 4, 3, 2))
    rows = []
    for leaf in problem.factors(X):
        rows.append(leaf[0] if len(leaf) == 1 else np.einsum("ia,ib->iab", *leaf).reshape(len(leaf[0]), -1))
    np.testing.assert_allclose(np.concatenate(rows, axis=1), problem.gradients(X), rtol=1e-14)
    assert [len(leaf) == 2 for leaf in problem.factors(X)] == [number in problem.outer_leaves for number in range(8)]


def test_a_functional_has_the_gradient_that_jax_gives_it():
    _, params, *_, problem = case((3, 4, 2))

    def q(params):
        return jnp.sum(jnp.tanh(params[0]["w"])) + params[1]["b"][0] ** 2

    found = problem.functional(q)
    with jax.enable_x64(True):
        theta, unflatten = jax.flatten_util.ravel_pytree(params)
        value, gradient = jax.value_and_grad(lambda theta: q(unflatten(theta)))(theta)
    np.testing.assert_allclose(found.value, value, rtol=1e-14)
    np.testing.assert_allclose(found.gradient[0], gradient, rtol=1e-13)
    assert not found.affine


def test_a_problem_goes_through_pickle_and_its_parameters_through_their_structure():
    network, *_, problem = case((3, 4, 2))
    again = pickle.loads(pickle.dumps(problem))
    np.testing.assert_array_equal(again.fitted_values, problem.fitted_values)
    np.testing.assert_array_equal(flatten(problem.params), problem.theta)
    assert problem.autodiff.network == network


def test_the_size_alone_decides_where_a_network_is_computed():
    assert is_small(Network((17, 32, 1)), 15_642)
    assert not is_small(Network((17, 32, 1)), 40_000)
    assert not is_small(Network((17, 256, 1)), 1_000)


def test_a_network_in_numpy_imports_no_jax():
    code = (
        "import sys, numpy as np; from vhat.fit import Minimum, Network, Selection; "
        "from vhat.models.dense_network import network_problem; network = Network((2, 3, 1)); "
        "problem = network_problem(network, network.init(0), np.ones((4, 2)), np.ones(4), weight_decay=1.0); "
        "problem.product(np.eye(problem.p), 'hessian'); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
@pytest.mark.parametrize("widths", [*WIDTHS, (3, 4, 1)])
def test_products_with_single_vectors_are_those_of_the_matrix(widths, curvature):
    *_, few = case(widths)
    *_, all_at_once = case(widths)
    every = np.eye(few.p)
    matrix = all_at_once.product(np.vstack([every, every, every]), curvature)[: few.p]
    v = np.random.default_rng(1).standard_normal((3, few.p))
    np.testing.assert_allclose(few.product(v, curvature), v @ matrix, rtol=1e-12, atol=1e-13)


def test_the_gauss_newton_matrix_of_one_hidden_layer_is_the_product_of_the_jacobian():
    rng = np.random.default_rng(0)
    network = Network((5, 7, 1), "tanh", initial=VarianceScaling())
    rows = forward(network, flatten(network.init(0)), rng.standard_normal((2100, 5)))  # more than one block
    weights = rng.uniform(0.0, 2.0, 2100)
    J = rows.jacobian()
    exact = J.T @ (weights[:, None] * J)
    np.testing.assert_allclose(gauss_newton(rows, weights), exact, rtol=1e-12, atol=1e-12 * exact.max())
