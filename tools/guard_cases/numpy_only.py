"""Cases of NumPy functions, of SciPy's curve_fit, and of what needs no framework at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from guard_cases.data import LINEAR, NET
from guard_cases.kits import MEMORY, Kit, NumpyKit
from guard_cases.numpy_net import at_minimum
from guard_cases.record import Record
from guard_cases.registry import case

__all__: list[str] = []


@case("numpy")
def differences(record: Record, kit: Kit) -> None:
    """Take derivatives by differences, and polish parameters that are near their minimum already."""
    assert isinstance(kit, NumpyKit)
    minimum = at_minimum(NET)
    moved = {part: 1.001 * value for part, value in minimum.theta.items()}
    fitted = kit.net(replace(minimum, theta=moved), derivatives=False)
    for curvature in ("hessian", "ggn"):
        with record.step(f"V {curvature}") as step:
            step.norm(fitted.weighted_norm(NET.points, curvature=curvature))
    with record.step("interval") as step:
        step.interval(fitted.interval(NET.points, bound="tight"))
    with record.step("polish") as step:
        polished = fitted.polish()
        step.polished(polished.polished)
        step.number("parameters", polished.params)


@case("numpy")
def curve_fit(record: Record, kit: Kit) -> None:  # noqa: ARG001
    """Take the result of SciPy's curve_fit: the saturating exponential of NIST's Misra1a, with and without sigma."""
    from scipy.optimize import curve_fit as scipy_curve_fit

    import vhat

    x = np.linspace(80.0, 760.0, 14)
    rng = np.random.default_rng(7)
    sigma = 0.1 + 0.0005 * x
    y = _saturation(x, 239.0, 5.5e-4) + sigma * rng.standard_normal(len(x))
    for name, spread in (("plain", None), ("sigma", sigma)):
        popt, _ = scipy_curve_fit(_saturation, x, y, p0=[240.0, 5e-4], sigma=spread)
        with record.step(f"{name}: interval") as step:
            fitted = vhat.from_curve_fit(_saturation, popt, x, y, spread)
            step.interval(fitted.interval([100.0, 400.0, 900.0], bound="asymptotic"))
        with record.step(f"{name}: parameters") as step:
            step.interval(fitted.functional(lambda q: q, bound="asymptotic"))
        with record.step(f"{name}: covariance") as step:
            step.number("value", fitted.covariance())
        with record.step(f"{name}: audit") as step:
            step.audit(fitted.audit())
        with record.step(f"{name}: leave one out") as step:
            step.left_out(fitted.leave_one_out())


def _saturation(x: Any, b1: float, b2: float) -> Any:
    return b1 * (1 - np.exp(-b2 * x))


@case("numpy")
def formulas(record: Record, kit: Kit) -> None:  # noqa: ARG001
    """Evaluate the bounds on plain arrays."""
    from vhat import bounds

    V = np.array([0.0, 0.3, 1.0, 7.0, np.nan])
    for name in ("tight", "theorem", "sharp", "empirical"):
        with record.step(name) as step:
            step.number("value", getattr(bounds, name)(V, 30, 0.5, 0.05, v=0.4, c=0.2))
            step.number("small delta", getattr(bounds, name)(V, 30, 0.5, 1e-6, v=0.4, c=0.0))
    with record.step("chebyshev") as step:
        step.number("value", bounds.chebyshev(V, 30, 0.5, 0.05))
    with record.step("asymptotic") as step:
        step.number("value", bounds.asymptotic(V, 30, 0.5, 0.05))
        step.number("Student", bounds.asymptotic(V, 30, 0.5, 0.05, df=4.5))
    with record.step("observation") as step:
        step.number("value", bounds.observation(lambda delta: bounds.tight(V, 30, 0.5, delta), 0.5, 0.05))
    with record.step("ridge") as step:
        step.number("value", bounds.ridge(LINEAR.points, LINEAR.X, LINEAR.decay, 0.3, 0.05))
    with record.step("uniform") as step:
        step.number("value", bounds.uniform(V[:4], 30, 0.5, 0.05, dimension=2, lipschitz=3.0))
    with record.step("lipschitz") as step:
        step.number("network", bounds.lipschitz_network(0.5, 0.01, 2))
        step.number("gap", bounds.lipschitz_gap(0.5, 0.01, 2))


@case("numpy")
def metrics(record: Record, kit: Kit) -> None:  # noqa: ARG001
    """Score intervals on plain arrays."""
    from vhat import metrics

    truth = LINEAR.y
    lower = truth - 0.3 + 0.2 * np.cos(3.0 * LINEAR.X[:, 0])
    upper = truth + 0.3 + 0.2 * np.sin(5.0 * LINEAR.X[:, 0])
    with record.step("metrics") as step:
        step.number("coverage", metrics.coverage(lower, upper, truth + 0.2))
        step.number("winkler", metrics.winkler(lower, upper, truth + 0.2, 0.05))
        found = metrics.width(lower, upper, X_test=LINEAR.X, X_train=LINEAR.X[::2], quantile=0.9)
        for name in ("mean", "median", "kept"):
            step.number(f"width {name}", getattr(found, name))


@case("numpy")
def comparison(record: Record, kit: Kit) -> None:  # noqa: ARG001
    """Compare two methods on splits of the data."""
    import vhat
    from vhat import methods

    with record.step("table") as step:
        asked: dict[str, Any] = {"Wald": methods.Wald(), "Laplace": methods.LinearizedLaplace()}
        found = vhat.compare(asked, LINEAR.X, LINEAR.y, recipe=_ridge_recipe, splits=2, seed=0)
        step.status("status", found.table["status"].to_numpy())
        for name in ("coverage", "mean_width", "median_width", "winkler"):  # time and memory are no numbers of vhat's
            step.number(name, found.table[name].to_numpy())


@case("numpy")
def refusals(record: Record, kit: Kit) -> None:
    """Give what must be refused, and record in which words it is."""
    fitted = kit.linear(LINEAR)
    holed = LINEAR.points.copy()
    holed[1, 0] = np.nan
    asked: dict[str, tuple[Any, dict[str, Any]]] = {
        "NaN in a point": (holed, {}),
        "too few columns": (LINEAR.points[:, :2], {}),
        "delta": (LINEAR.points, {"delta": 1.5}),
        "bound": (LINEAR.points, {"bound": "loose"}),
        "solver": (LINEAR.points, {"solver": "fast"}),
        "curvature": (LINEAR.points, {"curvature": "fisher"}),
        "noise": (LINEAR.points, {"noise": -1.0}),
        "empirical without a tail": (LINEAR.points, {"bound": "empirical"}),
    }
    for name, (points, options) in asked.items():
        with record.step(name) as step:
            step.interval(fitted.interval(points, **options))


@case("numpy")
def rivals(record: Record, kit: Kit) -> None:  # noqa: ARG001
    """Ask rival methods, with a recipe of the caller's own."""
    from vhat import methods

    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "bootstrap": ("Bootstrap", {"resamples": 4}),
        "bootstrap, residual": ("Bootstrap", {"resamples": 4, "resampling": "residual"}),
        "linearized Laplace": ("LinearizedLaplace", {}),
        "linearized Laplace, evidence": ("LinearizedLaplace", {"evidence": True}),
        "Wald": ("Wald", {}),
        "Wald, hc3": ("Wald", {"covariance": "hc3"}),
    }
    for name, (method, options) in asked.items():
        with record.step(name) as step:
            trained = getattr(methods, method)(**options).fit(_ridge_recipe, LINEAR.X, LINEAR.y, seed=0)
            step.interval(trained.interval(LINEAR.points))


def _ridge_recipe(X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> Any:  # noqa: ARG001
    """Fit the ridge regression of some rows."""
    import vhat

    n, p = X.shape
    weight = np.ones(n) if sample_weight is None else np.asarray(sample_weight)
    gram = (X * weight[:, None]).T @ X / n + LINEAR.decay * np.eye(p)
    theta = np.linalg.solve(gram, X.T @ (weight * y) / n)
    return vhat.from_numpy(
        lambda q, X: X @ q,
        theta,
        X,
        y,
        jac=lambda _, X: X,
        hess=lambda q, X: np.zeros((len(X), len(q), len(q))),
        weight_decay=LINEAR.decay,
        sample_weight=sample_weight,
        memory=MEMORY,
    )
