"""Parameters without first-order influence on predictions: truly inactive, or on a kink that no derivative shows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vhat
from vhat.linalg.curvature.hidden_kinks import UNEXPLAINED, unexplained_change
from vhat.models.jax import jax_problem

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 1))
Y = 1 + np.maximum(X[:, 0], 0) + 0.1 * RNG.standard_normal(30)
LAM = 1e-3


def model(activate, unit=1.0):
    return lambda q, Z: activate(Z @ q["w"] / unit + q.get("b", 0.0)) @ q["v"] * unit + q["a"] * Z[:, 0] + q["c"]


def params(**more):
    return {"w": np.zeros((1, 2)), "v": np.zeros(2), "a": np.asarray(0.4), "c": np.asarray(1.2)} | more


def change(activate, start, unit=1.0):
    decay = dict.fromkeys(start, LAM) | {"w": LAM / unit**2, "v": LAM * unit**2}
    problem = jax_problem(model(activate, unit), start, X, Y, weight_decay=decay)
    with problem.scope():
        return unexplained_change(problem)


def test_relu_units_at_exactly_zero_are_no_minimum_although_every_derivative_says_so():
    """The objective itself falls from there, by finite differences of NumPy."""
    fitted = vhat.from_jax(model(jax.nn.relu), params(), X, Y, weight_decay=LAM)
    with pytest.raises(vhat.PolishError, match="they sit on a kink"):
        fitted.polish()
    q = fitted.params

    def objective(t):
        f = np.maximum(X @ t["w"], 0) @ t["v"] + t["a"] * X[:, 0] + t["c"]
        return np.mean((f - Y) ** 2) / 2 + LAM / 2 * sum(np.sum(np.asarray(v) ** 2) for v in t.values())

    nearby = [q | {"w": np.array([[e, 0.0]]), "v": np.array([e, 0.0])} for e in (-1e-3, 1e-3)]
    assert min(map(objective, nearby)) < objective(q) - 1e-8
    assert fitted.audit()["smoothness"].verdict == "fails"


def test_units_that_are_off_on_every_row_are_at_rest():
    off = params(b=np.full(2, -100.0), w=np.ones((1, 2)))
    assert change(jax.nn.relu, off) <= UNEXPLAINED


@pytest.mark.parametrize("activate", [jnp.tanh, jax.nn.softplus, jax.nn.gelu])
def test_the_hessian_of_a_smooth_unit_at_zero_explains_its_change(activate):
    assert change(activate, params()) <= UNEXPLAINED


def test_the_change_does_not_depend_on_the_units_of_the_parameters():
    found = change(jax.nn.relu, params())
    assert found > 10 * UNEXPLAINED
    assert change(jax.nn.relu, params(), unit=1000.0) == pytest.approx(found, rel=1e-6)
