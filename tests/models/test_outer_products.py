"""Gradients of dense layers as outer products, read off the traced program, against JAX's own Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vhat


def _dense(params, X):
    return (jnp.tanh(X @ params["v"] + params["c"]) @ params["w"])[:, 0]


def _two_outputs(params, X):
    hidden = jax.nn.gelu(jax.nn.relu(X @ params["v"]) @ params["u"])
    return hidden @ params["w"] + params["c"]


def _columns(params, X):
    """Weights from the left, and a transpose."""
    hidden = jnp.tanh(params["u"] @ X.T)  # (6, n)
    return jnp.einsum("oi,in->no", params["w"].T, hidden)


def _compiled(params, X):
    layer = jax.jit(lambda w, h: jax.nn.softplus(h @ w))
    return layer(params["w"], layer(params["v"], X))


def _convolution(params, X):
    image = X.reshape(-1, 1, 3)
    hidden = jax.lax.conv_general_dilated(image, params["k"], (1,), "SAME")  # (n, 4, 3)
    return jnp.tanh(hidden.reshape(len(X), -1)) @ params["w"]


def _tied(params, X):
    hidden = jnp.tanh(X @ params["v"])
    return jnp.tanh(hidden @ params["v"].T) @ params["w"]


def _applied_twice(params, X):
    hidden = jnp.tanh(X @ params["v"])
    for _ in range(2):
        hidden = jnp.tanh(hidden @ params["s"])
    return hidden @ params["w"]


def _seen_elsewhere(params, X):
    return jnp.tanh(X @ params["v"]) @ params["w"] + jnp.sum(params["v"] ** 2)


def _scanned(params, X):
    def layer(hidden, w):
        return jnp.tanh(hidden @ w), None

    hidden = X @ params["v"]
    return jax.lax.scan(layer, hidden, params["s"][None])[0] @ params["w"]


def _in_single(params, X):
    return (X.astype(jnp.float32) @ params["v"].astype(jnp.float32)).astype(X.dtype) @ params["w"]


def _unused(params, X):
    return jnp.tanh(X @ params["v"]) @ params["w"]


def _across_features(params, X):
    """A product with a matrix for each row: of rank three, not one."""
    return jnp.sum(jnp.tanh(X[:, :, None] * params["t"][:3, :1]) * (X[:, :, None] @ params["t"][:1]), axis=(1, 2))


MODELS = {
    "dense": (_dense, {"v": (3, 5), "c": (5,), "w": (5, 1)}, "v"),
    "two outputs": (_two_outputs, {"v": (3, 5), "u": (5, 4), "w": (4, 2), "c": (2,)}, "vuw"),
    "weights from the left": (_columns, {"u": (6, 3), "w": (6, 2)}, "uw"),
    "inside compiled functions": (_compiled, {"v": (3, 4), "w": (4, 2)}, "vw"),
    "a convolution before": (_convolution, {"k": (4, 1, 2), "w": (12, 2)}, "w"),
    "tied": (_tied, {"v": (3, 5), "w": (3, 2)}, "w"),
    "applied twice": (_applied_twice, {"v": (3, 5), "s": (5, 5), "w": (5, 2)}, "vw"),
    "seen elsewhere": (_seen_elsewhere, {"v": (3, 5), "w": (5, 2)}, "w"),
    "in a loop": (_scanned, {"v": (3, 5), "s": (5, 5), "w": (5, 2)}, "vw"),
    "in single precision": (_in_single, {"v": (3, 5), "w": (5, 2)}, "w"),
    "not used": (_unused, {"v": (3, 5), "w": (5, 2), "z": (4, 4)}, "vw"),
    "a matrix a row": (_across_features, {"t": (3, 4)}, ""),
}


@pytest.fixture(params=MODELS, ids=MODELS, scope="module")
def case(request):
    predict, shapes, outer = MODELS[request.param]
    rng = np.random.default_rng(0)
    params = {name: 0.5 * rng.standard_normal(shape) for name, shape in shapes.items()}
    X = rng.standard_normal((37, 3))
    with jax.enable_x64(True):
        width = predict(params, jnp.asarray(X))
        J = jax.jacrev(lambda params: predict(params, jnp.asarray(X)).reshape(-1))(params)
    J = np.concatenate([np.asarray(J[name]).reshape(width.size, -1) for name in sorted(J)], axis=1)
    y = rng.standard_normal(width.shape)
    weights = rng.uniform(0.5, 2.0, len(X))
    problem = vhat.from_jax(predict, params, X, y, weight_decay=0.1, sample_weight=weights).problem
    near = 1e-5 if predict is _in_single else 1e-12
    return problem, J, sorted(shapes), outer, weights, near


def test_factors_multiply_out_to_the_jacobian(case):
    problem, J, names, outer, _, near = case
    with problem.scope():
        leaves = problem.factors(problem.X)
    assert "".join(name for name, leaf in zip(names, leaves, strict=True) if len(leaf) == 2) == "".join(sorted(outer))
    full = [
        np.asarray(leaf[0]) if len(leaf) == 1 else np.einsum("ka,kb->kab", *leaf).reshape(len(J), -1) for leaf in leaves
    ]
    np.testing.assert_allclose(np.concatenate(full, axis=1), J, rtol=near, atol=near * np.abs(J).max())
    assert problem.factor_numbers == sum(sum(part.shape[1] for part in leaf) for leaf in leaves)


def test_the_diagonal_is_that_of_the_jacobian(case):
    problem, J, _, _, weights, near = case
    with problem.scope():
        diagonal = np.asarray(problem.diagonal())
    expected = np.repeat(weights / len(weights), len(J) // len(weights)) @ J**2
    np.testing.assert_allclose(diagonal, expected, rtol=near, atol=near * expected.max())


@pytest.mark.filterwarnings("ignore::vhat.VhatWarning")  # in single precision, far from a minimum
def test_norms_through_the_kernel_are_those_of_a_dense_solve(case):
    problem, near = case[0], max(1e-8, 10 * case[-1])
    fitted = vhat.FittedModel(problem)
    x = np.random.default_rng(1).standard_normal((5, 3))
    found = fitted.weighted_norm(x, curvature="ggn", solver=vhat.Dual())
    dense = fitted.weighted_norm(x, curvature="ggn", solver=vhat.Dense())
    np.testing.assert_allclose(found.value, dense.value, rtol=near)
    np.testing.assert_allclose(found.unsupported, dense.unsupported, rtol=near, atol=near)


def test_many_rows_of_a_wide_network_are_never_held_as_gradients():
    """Peak memory, where the system tells: 2,000 gradients of 263,169 numbers would take 4.2 GB."""
    from vhat.fit import Network
    from vhat.linalg.memory import Peak
    from vhat.linalg.solvers.jacobian_factors import read_features

    network = Network((2, 512, 512, 1), "tanh")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 2))
    problem = vhat.from_jax(network, network.init(0), X, X[:, 0], weight_decay=1e-3).problem
    with problem.scope():
        peak = Peak()
        features = read_features(problem)
        used = peak.megabytes()
    assert features.structure.numbers == 2 + 512 + 512 + 512 + 512 + 512 + 512 + 1
    if np.isnan(used):
        pytest.skip("the system does not tell how much memory was used")
    assert used < 400


def test_a_model_may_use_what_only_arrays_of_jax_have():
    def predict(params, X):
        return X.at[:, 0].add(1.0)[:, params["which"]] * params["a"]

    X = np.random.default_rng(0).standard_normal((20, 2))
    fitted = vhat.from_jax(predict, {"a": np.array(2.0), "which": np.array(1)}, X, X[:, 1], weight_decay=0.1)
    np.testing.assert_allclose(fitted.predict(X[:3]), 2.0 * X[:3, 1])
