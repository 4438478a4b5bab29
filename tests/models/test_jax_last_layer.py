"""``parameters="last"`` of a JAX function: the leaves that enter affinely are one linear layer."""

import jax.numpy as jnp
import numpy as np
import pytest

import vhat

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(60)
POINTS = RNG.standard_normal((6, 3))


def params(outputs=None, bias=True):
    rng = np.random.default_rng(1)
    kernel = rng.standard_normal(5 if outputs is None else (5, outputs))
    head = {"kernel": kernel, "bias": rng.standard_normal(() if outputs is None else outputs)}
    return {
        "first": {"kernel": rng.standard_normal((3, 5)), "bias": rng.standard_normal(5)},
        "out": head if bias else {"kernel": kernel},
    }


def hidden(q, x):
    return jnp.maximum(x @ q["first"]["kernel"] + q["first"]["bias"], 0.0)


def predict(q, x):
    return hidden(q, x) @ q["out"]["kernel"] + q["out"].get("bias", 0.0)


def scaled(q, x):
    return 2.0 * predict(q, x) + 3.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "outputs", "bias"),
    [(predict, None, True), (scaled, None, False), (scaled, 2, True), (predict, 2, False)],
)
def test_polished_last_layer_is_the_ridge_regression_on_its_inputs(function, outputs, bias):
    whole = params(outputs, bias)
    y = Y if outputs is None else np.c_[Y, Y**2]
    fitted = vhat.from_jax(function, whole, X, y, weight_decay=0.05, parameters="last").polish()
    unit, shift = (1.0, 0.0) if function is predict else (2.0, 3.0)
    first = whole["first"]
    Z, P = (unit * np.maximum(x @ first["kernel"] + first["bias"], 0.0) for x in (X, POINTS))
    if bias:
        Z, P = np.c_[Z, np.full(60, unit)], np.c_[P, np.full(6, unit)]
    B = np.linalg.solve(Z.T @ Z / 60 + 0.05 * np.eye(Z.shape[1]), Z.T / 60)
    band = fitted.interval(POINTS, noise=0.1)
    np.testing.assert_allclose(band.center, P @ (B @ (y - shift)) + shift, rtol=1e-9)
    se = 0.1 * np.linalg.norm(P @ B, axis=1)
    expected = se if outputs is None else np.repeat(se[:, None], 2, axis=1)
    np.testing.assert_allclose(band.standard_error, expected, rtol=1e-8)
    assert band.bound == "exact"


@pytest.mark.slow
def test_it_is_saved_and_loaded(tmp_path):
    fitted = vhat.from_jax(predict, params(), X, Y, weight_decay=0.05, parameters="last").polish()
    fitted.save(tmp_path / "head")
    again = vhat.load(tmp_path / "head", model=predict)
    assert again.problem.p == 6
    np.testing.assert_array_equal(again.interval(POINTS).half_width, fitted.interval(POINTS).half_width)
    np.testing.assert_array_equal(again.params["first"]["kernel"], params()["first"]["kernel"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda q, x: jnp.tanh(predict(q, x)),
            r"no last linear layer.*one at a time: none.*parameters=\[paths\].*first/",
        ),
        (lambda q, x: jnp.maximum(predict(q, x) + 100.0, 0.0), "no last linear layer"),
        (lambda q, x: predict(q, x) + x[:, 0], "not always that of the last linear layer"),
        (lambda q, x: predict(q, x) * x[:, 0], "not the weights"),
        (lambda q, x: predict(q, x) + x @ q["first"]["kernel"][:, 0], "not always that of the last linear layer"),
        (
            lambda q, x: (x @ q["first"]["kernel"]) @ q["out"]["kernel"] + q["out"]["bias"],
            "one at a time: .*first/kernel",
        ),
    ],
)
def test_a_function_without_a_last_linear_layer_is_refused_with_the_call_that_works(function, words):
    with pytest.raises(vhat.ModelError, match=words):
        vhat.from_jax(function, params(), X, Y, weight_decay=0.1, parameters="last")
