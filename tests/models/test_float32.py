"""Linear maps in single precision, linearised in double."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vhat
from vhat.fit import Network
from vhat.models.jax.float32 import CannotNarrowError, narrowed

X = np.random.default_rng(0).standard_normal((40, 3))
y = np.sin(X[:, 0])


def slope_of(model, theta):
    """The gradient of a sum of predictions, linearised; the residual's curvature has this form."""
    weights = jnp.asarray(np.linspace(-1.0, 1.0, len(X)))
    return jax.linearize(jax.grad(lambda t: jnp.sum(weights * model(t, jnp.asarray(X)).reshape(-1))), theta)[1]


def dense(t, X):
    return jnp.tanh(X @ t[:15].reshape(3, 5)) @ t[15:]


def compiled(t, X):
    return jax.jit(dense)(t, X)


def pooled(t, X):
    signal = jnp.tile(X, (1, 4))[:, None, :]
    out = jax.lax.conv_general_dilated(signal, t.reshape(1, 1, 20)[:, :, :5], (1,), "SAME")
    return jax.nn.gelu(out).mean(axis=(1, 2)) * t[5] ** 2


def looped(t, X):
    return jax.lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h * t[0]), X[:, 0] * t[1])


@pytest.mark.parametrize("model", [dense, compiled, pooled])
def test_a_narrow_map_is_the_wide_one_to_single_precision(model):
    with jax.enable_x64(True):
        theta = jnp.asarray(np.random.default_rng(1).standard_normal(20))
        v = jnp.asarray(np.random.default_rng(2).standard_normal(20))
        linear = slope_of(model, theta)
        wide, narrow = linear(v), narrowed(linear, theta)(v.astype(jnp.float32))
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=2e-6 * float(np.abs(wide).max()))


def test_a_loop_has_no_narrow_twin():
    with jax.enable_x64(True):
        theta = jnp.asarray([0.7, 1.1])
        linear = slope_of(looped, theta)
        with pytest.raises(CannotNarrowError):
            narrowed(linear, theta)(jnp.ones(2, jnp.float32))


def test_a_model_with_a_loop_gets_its_answer_in_double():
    def predict(params, rows):
        return looped(params["t"], rows) + params["b"]

    params = {"t": np.array([0.7, 1.1]), "b": np.array(0.2)}
    fitted = vhat.from_jax(predict, params, X, y, weight_decay=0.1)
    dual, direct = (fitted.weighted_norm(X[:5], solver=s, curvature="hessian") for s in (vhat.Dual(), vhat.Dense()))
    np.testing.assert_allclose(dual.value, direct.value, rtol=1e-6)


def test_kinks_on_data_points_stay_where_they_are():
    """Units whose kink lies on a row, within the rounding of single precision: the twin in float32 would move them."""
    network = Network((3, 20, 1), "relu")
    params = [{name: np.array(leaf, np.float64) for name, leaf in layer.items()} for layer in network.init(0)]
    params[0]["b"] = -np.einsum("ia,ai->i", X[:20], params[0]["w"]) * (1 - 1e-11)
    fitted = vhat.from_jax(network, tuple(params), X, y, weight_decay=1e-2)
    problem = fitted.workspace.problem
    with problem.scope():
        v = np.random.default_rng(3).standard_normal((4, problem.p))
        native = problem.native(v)
        wide = problem.numpy(problem.product(native, "hessian") - problem.product(native, "ggn"))
        narrow = problem.residual_product(v)
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=2e-6 * np.abs(wide).max())


def test_what_a_problem_keeps_is_double_whoever_asks_first():
    network = Network((3, 5, 1))
    make = lambda: vhat.from_jax(network, network.init(0), X, y, weight_decay=1e-2).problem  # noqa: E731
    outside, inside = make(), make()
    found = outside.fitted_values, outside.loss_derivatives.first, outside.objective()
    with inside.scope():
        expected = inside.fitted_values, inside.loss_derivatives.first, inside.objective()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
