"""A model whose function changes after it was made: the old answer or a refusal, never a mixture."""

from __future__ import annotations

import pickle
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vhat

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = X[:, 0] - X[:, 1] + 0.1 * RNG.standard_normal(40)
PARAMS = {"a": np.array([1.0, -1.0]), "c": np.asarray(0.0)}
POINTS = RNG.normal(size=(9, 2))


def ridge(X, lam):
    """Parameters of a line through columns and a constant."""
    Z = np.column_stack([X, np.ones(len(X))])
    return np.linalg.solve(Z.T @ Z / len(X) + lam * np.eye(3), Z.T @ Y / len(X))


def closing_over(stats, wrap=lambda f: f):
    def predict(q, Z):
        return (Z * stats["scale"]) @ q["a"] + q["c"]

    return wrap(predict)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jitted"])
def test_what_a_model_closes_over_may_not_change_under_it(wrap):
    stats = {"scale": np.array([1.0, 1.0])}
    predict = closing_over(stats, wrap)
    fitted = vhat.from_jax(predict, PARAMS, X, Y, weight_decay=1e-3).polish()
    before = fitted.interval(POINTS[:5], noise=0.1)
    stats["scale"] = np.array([1.0, 3.0])
    same = fitted.interval(POINTS[:5], noise=0.1)  # compiled already
    np.testing.assert_array_equal(same.standard_error, before.standard_error)
    with pytest.raises(vhat.ModelError, match="predict has changed since this model was created"):
        fitted.interval(POINTS, noise=0.1)
    anew = vhat.from_jax(predict, PARAMS, X, Y, weight_decay=1e-3).polish()
    q = ridge(X * stats["scale"], 1e-3)
    np.testing.assert_allclose(anew.predict(POINTS), POINTS * stats["scale"] @ q[:2] + q[2], rtol=1e-8)


def test_a_loss_that_reads_a_setting_is_the_loss_of_that_setting():
    settings = {"scale": 1.0}

    def loss(f, t):
        s = settings["scale"]
        return s**2 * (jnp.sqrt(1 + ((f - t) / s) ** 2) - 1)

    def line(q, Z):
        return Z @ q["a"] + q["c"]

    found = {}
    for settings["scale"] in (1.0, 0.1):
        found[settings["scale"]] = vhat.from_jax(line, PARAMS, X, Y, weight_decay=1e-6, loss=loss).polish()
        fresh = vhat.from_jax(line, PARAMS, X, Y, weight_decay=1e-6, loss=partial(loss)).polish()
        own = found[settings["scale"]].interval(POINTS[:3], noise=0.1)
        np.testing.assert_allclose(own.standard_error, fresh.interval(POINTS[:3], noise=0.1).standard_error, rtol=1e-9)
    assert found[1.0].polished.objective > 1.2 * found[0.1].polished.objective


def test_random_numbers_drawn_on_the_way_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(vhat.ModelError, match="two evaluations of the model on the same rows differ"):
        vhat.from_jax(lambda q, Z: Z @ q["a"] + q["c"] + rng.normal(), PARAMS, X, Y, weight_decay=1e-3)


def module_level(q, Z):
    return jnp.tanh(Z @ q["a"]) + q["c"]


def test_a_pickled_model_is_marked_anew():
    fitted = vhat.from_jax(module_level, PARAMS, X, Y, weight_decay=1e-3)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(POINTS), fitted.predict(POINTS))
    assert again.problem.autodiff.model == fitted.problem.autodiff.model


def test_a_whole_number_among_the_parameters_is_told_to_be_fixed():
    def line(q, Z):
        return q["a"] * Z[:, 0] + q["b"]

    with pytest.warns(
        vhat.FixedParameterWarning, match=r"held fixed, because they are whole numbers: params\['a'\] = 2"
    ):
        assert vhat.from_jax(line, {"a": 2, "b": 0.5}, X, Y, weight_decay=1e-3).problem.p == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vhat.from_jax(line, {"a": 2.0, "b": 0.5}, X, Y, weight_decay=1e-3).problem.p == 2


def test_networks_of_one_shape_share_compilations_and_functions_do_not():
    X, y = RNG.normal(size=(12, 1)), RNG.normal(size=12)
    nets = [vhat.fit.Network((1, 3, 1)) for _ in range(2)]
    models = [vhat.from_jax(net, net.init(0), X, y, weight_decay=0.1).problem.autodiff.model for net in nets]
    assert nets[0] is not nets[1]
    assert models[0] == models[1]
    assert hash(models[0]) == hash(models[1])
    wider = vhat.fit.Network((1, 4, 1))
    assert vhat.from_jax(wider, wider.init(0), X, y, weight_decay=0.1).problem.autodiff.model != models[0]

    def line(q, Z):
        return Z @ q

    same = [vhat.from_jax(line, np.ones(1), X, y, weight_decay=0.1).problem.autodiff.model for _ in range(2)]
    assert same[0] == same[1]
    other = vhat.from_jax(lambda q, Z: Z @ q, np.ones(1), X, y, weight_decay=0.1).problem.autodiff.model
    assert other != same[0]
