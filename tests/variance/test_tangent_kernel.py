"""The tangent kernel is the product of explicit Jacobians, and predicts the effect of a small gradient step."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import vhat
from tests.oracle import network, random_params
from vhat.variance import weighted_norm


def jacobian(predict, params, x):
    """Return rows grad f_o(x) of every point and output, by jax.jacobian."""
    with jax.enable_x64(True):
        theta, unravel = ravel_pytree(jax.tree.map(np.float64, params))
        found = jax.jacobian(lambda t: predict(unravel(t), x).reshape(-1))(theta)
        return np.asarray(found)


def make(outputs, seed=0):
    rng = np.random.default_rng(seed)
    predict = network("tanh", outputs)
    params = random_params(rng, 2, 4, outputs)
    X = rng.normal(size=(12, 2))
    y = rng.normal(size=12 if outputs is None else (12, outputs))
    return predict, params, X, y, rng.normal(size=(5, 2)), rng.normal(size=(7, 2))


@pytest.mark.parametrize("small_blocks", [False, True])
def test_the_kernel_of_one_output_is_the_product_of_jacobians(monkeypatch, small_blocks):
    if small_blocks:
        monkeypatch.setattr(weighted_norm, "points_together", lambda problem: 2)
    predict, params, X, y, a, b = make(None)
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=0.1)
    left, right = jacobian(predict, params, a), jacobian(predict, params, b)
    np.testing.assert_allclose(fitted.tangent_kernel(a, b), left @ right.T, rtol=1e-12)
    np.testing.assert_allclose(fitted.tangent_kernel(a), left @ left.T, rtol=1e-12)


@pytest.mark.parametrize("outputs", [None, 2])
def test_a_symmetric_kernel_differentiates_each_pair_of_blocks_once(monkeypatch, outputs):
    """Five points in blocks of two: three blocks, and after each of them those that follow it."""
    monkeypatch.setattr(weighted_norm, "points_together", lambda problem: 2)
    predict, params, X, y, a, _ = make(outputs)
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=0.1)
    found = type(fitted.problem).gradients
    blocks = []
    monkeypatch.setattr(
        type(fitted.problem), "gradients", lambda self, x: blocks.append(self.count(x)) or found(self, x)
    )
    kernel = fitted.tangent_kernel(a)
    J = jacobian(predict, params, a)
    np.testing.assert_allclose(kernel.reshape(len(J), len(J)), J @ J.T, rtol=1e-12)
    assert blocks == [2, 2, 1, 2, 1, 1]


def test_the_kernel_of_several_outputs_has_an_axis_for_each():
    predict, params, X, y, a, b = make(3)
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=0.1)
    left, right = jacobian(predict, params, a), jacobian(predict, params, b)
    found = fitted.tangent_kernel(a, b)
    assert found.shape == (5, 3, 7, 3)
    np.testing.assert_allclose(found.reshape(15, 21), left @ right.T, rtol=1e-12)
    own = fitted.tangent_kernel(a)
    np.testing.assert_allclose(own, own.transpose(2, 3, 0, 1), rtol=1e-12)


def test_a_small_step_of_gradient_descent_moves_predictions_by_the_kernel():
    """The paper's display on K_t: f_{t+1}(x) = f_t(x) - eta/n sum_i k(x, x_i) (f_t(x_i) - y_i), to first order."""
    predict, params, X, y, a, _ = make(None)
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=0.1)
    step = 1e-6
    with jax.enable_x64(True):
        theta, unravel = ravel_pytree(jax.tree.map(np.float64, params))
        slope = jax.grad(lambda t: 0.5 * ((predict(unravel(t), X) - y) ** 2).mean())(theta)
        moved = np.asarray(predict(unravel(theta - step * slope), a) - predict(unravel(theta), a))
    forecast = -step / len(X) * fitted.tangent_kernel(a, X) @ (fitted.predict(X) - y)
    np.testing.assert_allclose(moved, forecast, rtol=1e-4)


@pytest.mark.parametrize("outputs", [None, 2])
def test_kernels_along_a_recorded_training_are_the_products_of_jacobians_at_each_step(outputs):
    """Gradient descent by jax alone, its parameters recorded every third step."""
    predict, params, X, y, a, b = make(outputs)
    with jax.enable_x64(True):
        theta, unravel = ravel_pytree(jax.tree.map(np.float64, params))
        slope = jax.grad(lambda t: 0.5 * ((predict(unravel(t), X) - y) ** 2).mean())
        recorded = []
        for step in range(9):
            if step % 3 == 0:
                recorded.append(np.asarray(theta))
            theta = theta - 0.5 * slope(theta)
        fitted = vhat.from_jax(predict, unravel(theta), X, y, weight_decay=0.1)
        jacobians = [(jacobian(predict, unravel(t), a), jacobian(predict, unravel(t), b)) for t in recorded]
    found = fitted.tangent_kernel(a, b, along=recorded)
    assert found.shape == ((3, 5, 7) if outputs is None else (3, 5, 2, 7, 2))
    for kernel, (left, right) in zip(found, jacobians, strict=True):
        np.testing.assert_allclose(kernel.reshape(len(left), len(right)), left @ right.T, rtol=1e-12)
    assert np.abs(found[2] - found[0]).max() > 1e-3  # the kernel moves as the network is trained
    own = fitted.tangent_kernel(a, along=recorded[:1])[0].reshape(len(jacobians[0][0]), -1)
    np.testing.assert_allclose(own, jacobians[0][0] @ jacobians[0][0].T, rtol=1e-12)


def test_steps_of_a_training_in_torch_are_recorded_as_flat_vectors():
    torch = pytest.importorskip("torch")
    from torch.nn.utils import parameters_to_vector

    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 1))
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    recorded, expected = [], []
    for _ in range(3):
        recorded.append(parameters_to_vector(module.parameters()).detach().numpy().copy())
        expected.append(vhat.from_torch(module, X, y, weight_decay=0.1).tangent_kernel(X))
        optimizer.zero_grad()
        ((module(torch.tensor(X)) - torch.tensor(y)) ** 2).mean().backward()
        optimizer.step()
    found = vhat.from_torch(module, X, y, weight_decay=0.1).tangent_kernel(X, along=recorded)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("along", [np.zeros(17), np.zeros((2, 5)), np.zeros((0, 17)), np.full((1, 17), np.nan)])
def test_recorded_parameters_that_do_not_fit_are_refused(along):
    predict, params, X, y, a, _ = make(None)
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=0.1)
    assert fitted.problem.p == 17
    with pytest.raises(vhat.InputError, match="along"):
        fitted.tangent_kernel(a, along=along)


def test_torch_and_jax_agree():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(8, 3)), rng.normal(size=8)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    weights = [each.detach().numpy().copy() for each in module.parameters()]
    fitted = vhat.from_torch(module, X, y[:, None], weight_decay=0.1)

    def predict(q, Z):
        return jax.numpy.tanh(Z @ q[0].T + q[1]) @ q[2].T + q[3]

    twin = vhat.from_jax(predict, weights, X, y[:, None], weight_decay=0.1)
    np.testing.assert_allclose(fitted.tangent_kernel(X), twin.tangent_kernel(X), rtol=1e-10)


def test_a_kernel_beyond_the_budget_is_refused_with_its_size():
    X = np.linspace(0, 1, 50)[:, None]
    fitted = vhat.from_numpy(lambda q, x: x @ q, [1.0], X, X[:, 0], weight_decay=0.1, memory=2**20)
    with pytest.raises(vhat.MemoryBudgetError, match=r"20,000 x 20,000 predictions needs 3\.2 GB"):
        fitted.tangent_kernel(np.zeros((20_000, 1)))
    with pytest.raises(vhat.InputError, match="x2"):
        fitted.tangent_kernel(X, np.zeros((3, 2)))
