"""From a cell to its result: draw, train, compute intervals, judge them."""

from __future__ import annotations

import math
import platform
import warnings
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError, VhatError, VhatWarning
from vhat.methods.proposed import FittedProposed
from vhat.metrics import coverage, width, winkler
from vhat.study.cached_recipe import Remembered
from vhat.study.cell import Cell
from vhat.study.data import Sample
from vhat.study.evidence import audit_lines, evidence
from vhat.study.paper_cg import FittedPaperCG
from vhat.study.protocol import ALPHA, NOISE, PROTOCOL, Data, draw, level, make_method, make_recipe, make_truth

if TYPE_CHECKING:
    from vhat.intervals.interval import Interval
    from vhat.methods import Method

__all__ = ["measure", "score"]

_REMEMBERED = ("proposed", "bootstrap", "deep-ensemble", "perturbed-responses", "paper-cg")
"""Methods that need nothing of a recipe but its fits: each fit is remembered until the cell is done, so that a killed
cell goes on where it was, and the fit to the data until no other cell needs it."""
_LIBRARIES = ("numpy", "scipy", "jax", "jaxlib", "optax")


def measure(cell: Cell, scratch: Path | None = None) -> dict[str, Any]:
    """Compute the result of a cell: plain values only, and the same ones whenever and wherever it is computed.

    Args:
        cell: The cell.
        scratch: Where fits may be remembered, those of this cell alone in ``cell.key`` and those that other methods
            need too in ``cell.fit_key``; None remembers nothing.

    Returns:
        The config, the seed, the versions, the metrics, the limits at every point, the guarantee, and every warning.
        A cell that ends in an error of the library has the status ``"failed"`` and the reason.
    """
    data, method = draw(cell), make_method(cell)
    delta = level(cell)
    result: dict[str, Any] = {
        "protocol": PROTOCOL,
        "cell": cell.config(),
        "seed": cell.seed,
        "versions": _versions(),
        "setting": {
            "truth": repr(make_truth(cell)),
            "recipe": repr(make_recipe(cell)),
            "method": repr(method),
            "delta": delta,
            "training points": len(data.train.X),
        },
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result |= {"status": "done"} | _answers(cell, data, method, delta, scratch)
        except VhatError as error:
            result |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    own = [each for each in caught if issubclass(each.category, VhatWarning)]
    result["warnings"] = sorted({f"{each.category.__name__}: {each.message}" for each in own})
    return plain(result)


def _answers(cell: Cell, data: Data, method: Method, delta: float, scratch: Path | None) -> dict[str, Any]:
    recipe: Any = make_recipe(cell)
    if scratch is not None and cell.method in _REMEMBERED:
        made_by = f"protocol {PROTOCOL}, {_versions()}"
        recipe = Remembered(recipe, scratch / cell.key, scratch / cell.fit_key, made_by)
    fitted = method.fit(recipe, data.train.X, data.train.y, seed=cell.seeds.fit)
    samples = [data.test] if data.validation is None else [data.test, data.validation]
    points = len(data.test.X)
    x = np.concatenate([each.X for each in samples])
    if isinstance(fitted, FittedPaperCG):
        descent = fitted.descent(x)
        band = fitted.interval_of(descent, x, delta)
    else:
        band = fitted.interval(x, delta)
    test = _part(band, slice(None, points))
    found: dict[str, Any] = {
        "metrics": score(test, data.test, data.train),
        "guarantee": band.guarantee,
        "curvature": band.curvature,
        "solver": band.solver,
        "test": test,
    }
    if data.validation is not None:
        found["validation"] = _part(band, slice(points, None))
        found["metrics"]["validation winkler"] = _winkler(found["validation"], data.validation)
    if isinstance(fitted, FittedPaperCG):
        found["descent"] = vars(descent)
    if isinstance(fitted, FittedProposed):
        found["fit"] = evidence(fitted.fitted)
        if cell.trial == 0:
            found["audit"] = audit_lines(fitted.fitted, NOISE)
    return found


def score(band: dict[str, Any], test: Sample, train: Sample) -> dict[str, Any]:
    """Judge intervals, ``{"center", "lower", "upper"}``, by everything that the study reports.

    A width or score is None where some interval is missing: leaving it out would flatter the method.
    """
    lower, upper = np.asarray(band["lower"], dtype=float), np.asarray(band["upper"], dtype=float)
    center = np.asarray(band["center"], dtype=float)
    found: dict[str, Any] = {
        "mse": float(np.mean((center - test.y) ** 2)),
        "mse of the truth": float(np.mean((center - test.truth) ** 2)),
        "coverage": coverage(lower, upper, test.truth),
        "winkler": _winkler(band, test),
        "answered": int(np.sum(np.isfinite(lower) & np.isfinite(upper))),
        "points": len(center),
    }
    for where, inputs in (("near", {"X_test": test.X, "X_train": train.X}), ("all", {})):
        try:
            widths = width(lower, upper, **inputs)  # type: ignore[arg-type]
        except InputError:
            found |= {f"{name} width, {where}": None for name in ("mean", "median", "median half")}
            continue
        found |= {
            f"mean width, {where}": widths.mean,
            f"median width, {where}": widths.median,
            f"median half width, {where}": widths.median_half,
            f"points, {where}": widths.kept,
        }
    return found


def _winkler(band: dict[str, Any], sample: Sample) -> float | None:
    try:
        return winkler(band["lower"], band["upper"], sample.y, ALPHA)
    except InputError:
        return None


def _part(band: Interval, rows: slice) -> dict[str, Any]:
    return {
        "center": band.center[rows],
        "lower": band.lower[rows],
        "upper": band.upper[rows],
        "weighted norm": band.weighted_norm[rows],
        "unsupported": band.unsupported[rows],
        "status": [str(each) for each in band.status[rows]],
    }


def _versions() -> dict[str, str]:
    own = {"vhat": metadata.version("vhat"), "python": platform.python_version()}
    return own | {name: metadata.version(name) for name in _LIBRARIES}


def plain(value: Any) -> Any:
    """Turn arrays and numbers into what JSON has; NaN and infinities become None."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    raise TypeError(f"{type(value).__name__} has no place in a result.")
