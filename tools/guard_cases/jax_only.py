"""Cases of what only JAX has: pytrees in float32 or with fixed leaves; estimator and recipes, which train in JAX."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

from guard_cases.data import NET
from guard_cases.kits import MEMORY, Kit, jax_net
from guard_cases.record import Record
from guard_cases.registry import case

__all__: list[str] = []

OPTIONS: dict[str, Any] = {"weight_decay": 0.01, "memory": MEMORY}


@case("jax")
def float32(record: Record, kit: Kit) -> None:  # noqa: ARG001
    """Take parameters and data in float32."""
    import vhat

    params = {part: value.astype(np.float32) for part, value in NET.theta.items()}
    X, y, points = (values.astype(np.float32) for values in (NET.X, NET.y, NET.points))
    fitted = vhat.from_jax(jax_net("tanh", True), params, X, y, **OPTIONS)
    with record.step("V") as step:
        step.norm(fitted.weighted_norm(points))
    with record.step("interval") as step:
        step.interval(fitted.interval(points, bound="tight"))


@case("jax")
def several_inputs(record: Record, kit: Kit) -> None:  # noqa: ARG001
    """Give the inputs as a dictionary, with an integer leaf that is held fixed."""
    import vhat

    params = {"left": np.array([0.5, -0.2, 0.8]), "right": np.array([1.0, 0.3, -0.4]), "times": 2}
    X = {"a": NET.X[:, 0], "b": NET.X[:, 1]}
    points = {"a": NET.points[:, 0], "b": NET.points[:, 1]}
    y = np.asarray(_of_dictionary(params, X)) + 0.05 * np.cos(9.0 * NET.X[:, 0])
    with record.step("interval") as step:
        fitted = vhat.from_jax(_of_dictionary, params, X, y, **OPTIONS)
        step.interval(fitted.interval(points, bound="tight"))
    with record.step("tuple") as step:
        fitted = vhat.from_jax(_of_tuple, params, (X["a"], X["b"]), y, **OPTIONS)
        step.number("prediction", fitted.predict((points["a"], points["b"])))


def _of_dictionary(params: Any, X: Any) -> Any:
    return _of_tuple(params, (X["a"], X["b"]))


def _of_tuple(params: Any, X: Any) -> Any:
    import jax.numpy as jnp

    a, b = X
    hidden = jnp.tanh(a[:, None] * params["left"] + b[:, None] * params["right"])
    return params["times"] * hidden.sum(axis=1)


@case("jax")
def regressor(record: Record, kit: Kit) -> None:  # noqa: ARG001
    """Train the estimator at a given decay, in the units of a table."""
    import vhat

    y = 100.0 + 20.0 * NET.y
    network = vhat.NetworkRegressor(hidden_layer_sizes=(4,), weight_decay=1e-2, random_state=0)
    with record.step("fit") as step:
        network.fit(NET.X, y)
        step.number("prediction", network.predict(NET.points))
        step.number("weight decay", network.weight_decay_)
    for target in ("mean", "observation"):
        with record.step(f"interval {target}") as step:
            step.interval(network.predict_interval(NET.points, target=target, bound="tight"))
    with record.step("audit") as step:
        step.audit(network.audit())
    with record.step("leave one out") as step:
        step.left_out(network.fitted_.leave_one_out())
    with tempfile.TemporaryDirectory() as folder, record.step("save and load") as step:
        network.save(folder)
        step.interval(vhat.NetworkRegressor.load(folder).predict_interval(NET.points, bound="asymptotic"))


@case("jax")
def recipes(record: Record, kit: Kit) -> None:  # noqa: ARG001
    """Train networks by recipes, and ask rival methods about one of them."""
    from vhat import fit, methods

    network = fit.Network((2, 4, 1))
    recipe = fit.Minimum(network, weight_decay=1e-2)
    short = fit.AdamW(network, weight_decay=1e-2, steps=50)
    with record.step("AdamW") as step:
        step.number("prediction", short(NET.X, NET.y, seed=1).predict(NET.points))
    with record.step("linearized Laplace") as step:
        step.interval(methods.LinearizedLaplace().fit(recipe, NET.X, NET.y, seed=1).interval(NET.points))
    with record.step("bootstrap") as step:
        step.interval(methods.Bootstrap(resamples=3).fit(short, NET.X, NET.y, seed=1).interval(NET.points))
