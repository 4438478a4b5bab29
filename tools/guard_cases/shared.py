"""Cases that every framework runs."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

from guard_cases.data import LINEAR, NET, RELU, TWO_OUTPUTS, WIDE, NetData, large_net
from guard_cases.kits import Kit
from guard_cases.numpy_net import at_minimum
from guard_cases.record import Record
from guard_cases.registry import case

__all__: list[str] = []

CURVATURES = ("hessian", "ggn")
SOLVERS = ("auto", "Dense", "Dual", "Nystrom", "CG")
BY_PART = {"w": 0.02, "b": 0.01, "v": 0.05, "c": 0.0}
"""Another decay for each part, none for the output's bias; a bias inside a tanh without decay may run to infinity."""

SMALL_MEMORY = 2e4
"""Bytes; several blocks of the 24 rows."""


def solver(name: str) -> Any:
    """Return a solver by name; the iterative ones stop well below the tolerance of a comparison with --rtol."""
    import vhat

    if name == "auto":
        return "auto"
    options = {"Nystrom": {"rows": 8, "rtol": 1e-12}, "CG": {"rtol": 1e-12}}
    return getattr(vhat, name)(**options.get(name, {}))


def norms(record: Record, fitted: Any, points: Any) -> None:
    """Record V by every solver and both curvatures."""
    for name in SOLVERS:
        for curvature in CURVATURES:
            with record.step(f"V {name} {curvature}") as step:
                step.norm(fitted.weighted_norm(points, solver=solver(name), curvature=curvature))


@case()
def ridge(record: Record, kit: Kit) -> None:
    """Take a linear model at its minimum through everything that has no iteration."""
    fitted = kit.linear(LINEAR)
    with record.step("V") as step:
        step.norm(fitted.weighted_norm(LINEAR.points))
    with record.step("shortcut") as step:
        step.norm(fitted.weighted_norm(LINEAR.points, shortcut=True))
    with record.step("audit") as step:
        step.audit(fitted.audit())
    with record.step("leave one out") as step:
        step.left_out(fitted.leave_one_out())
    with record.step("covariance") as step:
        step.number("value", fitted.covariance())
    with record.step("sensitivity") as step:
        step.number("value", fitted.sensitivity(LINEAR.points))
    with record.step("functional") as step:
        step.interval(fitted.functional(_first_part, bound="tight"))
    with record.step("table") as step:
        band = fitted.interval(LINEAR.points, bound="tight")
        step.printed("printed", band.to_pandas().to_string())
        step.number("abstained", band.abstain(max_half_width=0.3, max_unsupported=0.1))


def _first_part(params: Any) -> Any:
    """Return the first parameters of a linear model, whatever the structure that holds them."""
    values = next(iter(params.values())) if hasattr(params, "values") else params
    return values.reshape(-1)[:2]


@case()
def bounds(record: Record, kit: Kit) -> None:
    """Ask one model for every bound, tail, target and kind of simultaneous interval."""
    import vhat

    fitted = kit.linear(LINEAR)
    tail = vhat.Tail(0.3, 0.1)
    asked: dict[str, dict[str, Any]] = {
        "default": {},
        "tight": {"bound": "tight"},
        "theorem": {"bound": "theorem"},
        "sharp": {"bound": "sharp"},
        "chebyshev": {"bound": "chebyshev"},
        "asymptotic": {"bound": "asymptotic"},
        "empirical": {"bound": "empirical", "tail": tail},
        "tight, tail": {"bound": "tight", "tail": tail},
        "tight, relative tail": {"bound": "tight", "tail": vhat.Tail.relative(0.3, 0.1)},
        "theorem, tail": {"bound": "theorem", "tail": tail},
        "sharp, tail": {"bound": "sharp", "tail": tail},
        "observation": {"bound": "tight", "target": "observation"},
        "observation, asymptotic": {"bound": "asymptotic", "target": "observation"},
        "observation, other noise": {"bound": "tight", "target": "observation", "observation_noise": 0.7},
        "union": {"bound": "tight", "simultaneous": True},
        "sup-t, observation": {"bound": "asymptotic", "simultaneous": "sup-t", "target": "observation"},
        "plug-in bias": {"bound": "tight", "bias": "plug-in"},
        "given bias": {"bound": "tight", "bias": 0.1},
        "given noise": {"bound": "asymptotic", "noise": 0.3},
        "delta 0.32": {"bound": "tight", "delta": 0.32},
        "refused": {"bound": "tight", "simultaneous": "sup-t"},
    }
    for name, options in asked.items():
        with record.step(name) as step:
            step.interval(fitted.interval(LINEAR.points, **options))
    # three points for three parameters: the correlation of more is singular, and its root has half of the digits
    with record.step("sup-t") as step:
        step.interval(fitted.interval(LINEAR.points[:3], bound="asymptotic", simultaneous="sup-t"))


@case()
def net(record: Record, kit: Kit) -> None:
    """Solve for a network with fewer parameters than rows by every solver, and ask for evidence."""
    fitted = kit.net(at_minimum(NET))
    norms(record, fitted, NET.points)
    with record.step("interval") as step:
        step.interval(fitted.interval(NET.points, bound="tight"))
    with record.step("audit") as step:
        step.audit(fitted.audit())
    with record.step("sensitivity") as step:
        step.number("value", fitted.sensitivity(NET.points))
    with record.step("covariance") as step:
        step.number("value", fitted.covariance(curvature="ggn"))
    with record.step("functional") as step:
        step.interval(fitted.functional(kit.functional, bound="tight"))


@case()
def wide(record: Record, kit: Kit) -> None:
    """Solve for a network with more parameters than rows by every solver."""
    fitted = kit.net(at_minimum(WIDE))
    norms(record, fitted, WIDE.points)
    with record.step("interval") as step:
        step.interval(fitted.interval(WIDE.points, bound="tight", noise=0.05))
    with record.step("leave one out") as step:
        step.left_out(fitted.leave_one_out())


@case()
def small_decay(record: Record, kit: Kit) -> None:
    """Give the wide network so small a decay that the square of its Jacobian has no digits for it."""
    for decay in (1e-9, 1e-13):
        with record.step(f"V {decay:.0e}") as step:
            fitted = kit.net(WIDE, weight_decay=decay)
            step.norm(fitted.weighted_norm(WIDE.points, solver=solver("Dual"), curvature="ggn"))


@case()
def polish(record: Record, kit: Kit) -> None:
    """Move to the minimum, and ask there."""
    start = kit.net(NET)
    with record.step("polish") as step:
        fitted = start.polish()
        step.polished(fitted.polished)
        step.number("parameters", kit.flat(fitted.params))
        step.number("prediction", fitted.predict(NET.points))
    with record.step("audit") as step:
        step.audit(fitted.audit(refits=1))
    with record.step("interval") as step:
        step.interval(fitted.interval(NET.points, bound="tight"))
    with record.step("estimated tail") as step:
        step.interval(fitted.interval(NET.points, bound="tight", tail=_redraws()))


def _redraws() -> Any:
    import vhat

    return vhat.Redraws(10)


@case()
def two_outputs(record: Record, kit: Kit) -> None:
    """Take a network with two outputs under torch's mean squared error."""
    fitted = kit.net(at_minimum(TWO_OUTPUTS), loss="mse")
    for name in ("Dense", "Dual"):
        with record.step(f"V {name}") as step:
            step.norm(fitted.weighted_norm(TWO_OUTPUTS.points, solver=solver(name), curvature="hessian"))
    with record.step("interval") as step:
        step.interval(fitted.interval(TWO_OUTPUTS.points, bound="tight", simultaneous=True))
    with record.step("sup-t") as step:
        step.interval(fitted.interval(TWO_OUTPUTS.points, bound="asymptotic", simultaneous="sup-t"))
    with record.step("sensitivity") as step:
        step.number("value", fitted.sensitivity(TWO_OUTPUTS.points))
    with record.step("leave one out") as step:
        step.left_out(fitted.leave_one_out())
    with record.step("audit") as step:
        step.audit(fitted.audit())


@case()
def weights(record: Record, kit: Kit) -> None:
    """Weight the rows, give each its own noise, and leave the bias of the output without decay."""
    fitted = kit.net(at_minimum(NET, BY_PART, NET.weights), weight_decay=BY_PART, sample_weight=NET.weights)
    for curvature in CURVATURES:
        with record.step(f"V {curvature}") as step:
            step.norm(fitted.weighted_norm(NET.points, curvature=curvature))
    with record.step("row noise") as step:
        step.interval(fitted.interval(NET.points, bound="tight", noise=NET.row_noise))
    with record.step("observation") as step:
        band = fitted.interval(
            NET.points, bound="tight", noise=NET.row_noise, target="observation", observation_noise=0.1
        )
        step.interval(band)
    with record.step("leave one out") as step:
        step.left_out(fitted.leave_one_out())
    with record.step("audit") as step:
        step.audit(fitted.audit())
    with record.step("covariance") as step:
        step.number("value", fitted.covariance(noise=NET.row_noise))


@case()
def decay(record: Record, kit: Kit) -> None:
    """Give every single parameter a decay of its own, at parameters that are near a minimum and not at one."""
    sizes = {part: 0.01 + 0.03 * np.abs(np.cos(np.arange(value.size))) for part, value in NET.theta.items()}
    each = {part: sizes[part].reshape(NET.theta[part].shape) for part in sizes}
    fitted = kit.net(NET, weight_decay=each)
    with record.step("V") as step:
        step.norm(fitted.weighted_norm(NET.points))
    with record.step("interval") as step:
        step.interval(fitted.interval(NET.points, bound="tight", bias="plug-in"))
    with record.step("other decay") as step:
        step.norm(fitted.scale_weight_decay(3.0).weighted_norm(NET.points, curvature="ggn"))


@case()
def loss(record: Record, kit: Kit) -> None:
    """Replace the square by a loss of the caller's own."""
    fitted = kit.net(NET, loss=kit.log_cosh)
    for curvature in CURVATURES:
        with record.step(f"V {curvature}") as step:
            step.norm(fitted.weighted_norm(NET.points, curvature=curvature))
    with record.step("interval") as step:
        step.interval(fitted.interval(NET.points, bound="tight"))
    with record.step("leave one out") as step:
        step.left_out(fitted.leave_one_out())
    with record.step("audit") as step:
        step.audit(fitted.audit())


@case()
def relu(record: Record, kit: Kit) -> None:
    """Ask parameters of a ReLU network that are no minimum: the curvature falls back to Gauss-Newton, with warnings."""
    fitted = kit.net(RELU)
    for curvature in ("auto", *CURVATURES):
        with record.step(f"V {curvature}") as step:
            step.norm(fitted.weighted_norm(RELU.points, curvature=curvature))
    with record.step("interval") as step:
        step.interval(fitted.interval(RELU.points, bound="tight"))
    with record.step("audit") as step:
        step.audit(fitted.audit())
    with record.step("leave one out") as step:
        step.left_out(fitted.leave_one_out())
    with record.step("polish") as step:
        step.polished(fitted.polish(max_steps=3, warmup=5).polished)


@case()
def evidence(record: Record, kit: Kit) -> None:
    """Calibrate, acquire, plan, save and load."""
    fitted = kit.net(at_minimum(NET))
    calibrations = {"split": (NET.X_cal, NET.y_cal), "loo": ("loo",)}
    for name, rows in calibrations.items():
        with record.step(f"calibrate {name}") as step:
            step.calibrated(fitted.calibrate(*rows))
        with record.step(f"calibrated interval {name}") as step:
            step.interval(fitted.calibrate(*rows).interval(NET.points, 0.1))
    with record.step("acquire") as step:
        step.acquisition(fitted.acquire(NET.X_cal, 3))
    for name in SOLVERS:
        with record.step(f"plan {name}") as step:
            step.plan(fitted.plan(NET.points, solver=solver(name)))
    _saved(record, kit, fitted, NET)


def _saved(record: Record, kit: Kit, fitted: Any, data: NetData) -> None:
    """Save, load, and ask what was loaded."""
    with tempfile.TemporaryDirectory() as folder, record.step("save and load") as step:
        fitted.save(folder, factorisation=True)
        again = kit.reload(folder, data)
        step.number("parameters", kit.flat(again.params))
        step.interval(again.interval(data.points, bound="tight"))


@case("torch", "jax")
def large(record: Record, kit: Kit) -> None:
    """Solve for more parameters than a dense matrix is made of."""
    data = large_net()
    fitted = kit.net(data)
    with record.step("plan") as step:
        step.plan(fitted.plan(data.points))
    with record.step("V") as step:
        step.norm(fitted.weighted_norm(data.points, curvature="ggn"))
    with record.step("interval") as step:
        step.interval(fitted.interval(data.points, bound="tight", noise=0.05, curvature="ggn"))


@case("torch", "jax")
def blocks(record: Record, kit: Kit) -> None:
    """Give so little memory that rows are taken in several blocks."""
    fitted = kit.net(at_minimum(NET), memory=SMALL_MEMORY)
    with record.step("V") as step:
        step.norm(fitted.weighted_norm(NET.points, solver=solver("CG"), curvature="hessian"))
    with record.step("plan") as step:
        step.plan(fitted.plan(NET.points))
