"""The computation of a cell: draw the data, train, compute intervals, and score them."""

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
from vhat.study.cached_recipe import CachedRecipe
from vhat.study.cell import Cell
from vhat.study.data import Sample
from vhat.study.evidence import audit_lines, evidence
from vhat.study.paper_cg import FittedPaperCG
from vhat.study.protocol import ALPHA, NOISE, PROTOCOL, Data, draw, level, make_method, make_recipe, make_truth

if TYPE_CHECKING:
    from vhat.intervals.interval import Interval
    from vhat.methods import Method

__all__ = ["measure", "score"]

_CACHED_METHODS = ("proposed", "bootstrap", "deep-ensemble", "perturbed-responses", "paper-cg")
"""Methods that use a recipe only by calling it. Their fits are cached until the cell is done, so that a killed cell
resumes; the fit to the data is cached until no other cell needs it."""
_LIBRARIES = ("numpy", "scipy", "jax", "jaxlib", "optax")
"""Packages whose versions are recorded with a result."""


def measure(cell: Cell, scratch: Path | None = None) -> dict[str, Any]:
    """Return the result of a cell as plain values; it does not depend on when and where it is computed.

    Args:
        cell: The cell.
        scratch: Directory of cached fits: those of this cell in ``cell.key``, those that other methods need too in
            ``cell.fit_key``; None caches nothing.

    Returns:
        The config, the seed, the versions, the metrics, the limits at every point, the guarantee, and all warnings.
        A cell that ends in an error of the library has the status ``"failed"`` and the reason.
    """
    data = draw(cell)
    method = make_method(cell)
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
    """Train the method of a cell, and return its intervals and their metrics."""
    recipe: Any = make_recipe(cell)
    if scratch is not None and cell.method in _CACHED_METHODS:
        made_by = f"protocol {PROTOCOL}, {_versions()}"
        recipe = CachedRecipe(recipe, scratch / cell.key, scratch / cell.fit_key, made_by)
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
    answers: dict[str, Any] = {
        "metrics": score(test, data.test, data.train),
        "guarantee": band.guarantee,
        "curvature": band.curvature,
        "solver": band.solver,
        "test": test,
    }
    if data.validation is not None:
        answers["validation"] = _part(band, slice(points, None))
        answers["metrics"]["validation winkler"] = _winkler(answers["validation"], data.validation)
    if isinstance(fitted, FittedPaperCG):
        answers["descent"] = vars(descent)
    if isinstance(fitted, FittedProposed):
        answers["fit"] = evidence(fitted.fitted)
        if cell.trial == 0:
            answers["audit"] = audit_lines(fitted.fitted, NOISE)
    return answers


def score(band: dict[str, Any], test: Sample, train: Sample) -> dict[str, Any]:
    """Return all metrics of the study for intervals with ``"center"``, ``"lower"`` and ``"upper"``.

    A width or score is None if some interval is missing: a mean over the others would be too good.

    Args:
        band: The intervals.
        test: The test points.
        train: The training points, for the widths near these.
    """
    lower = np.asarray(band["lower"], dtype=float)
    upper = np.asarray(band["upper"], dtype=float)
    center = np.asarray(band["center"], dtype=float)
    metrics: dict[str, Any] = {
        "mse": float(np.mean((center - test.y) ** 2)),
        "mse of the truth": float(np.mean((center - test.truth) ** 2)),
        "coverage": coverage(lower, upper, test.truth),
        "winkler": _winkler(band, test),
        "answered": int(np.sum(np.isfinite(lower) & np.isfinite(upper))),
        "points": len(center),
    }
    # The published filter keeps test points near the training data; with it, and without it.
    for where, inputs in (("near", {"X_test": test.X, "X_train": train.X}), ("all", {})):
        try:
            widths = width(lower, upper, **inputs)  # type: ignore[arg-type]
        except InputError:
            metrics |= {f"{name} width, {where}": None for name in ("mean", "median", "median half")}
            continue
        metrics |= {
            f"mean width, {where}": widths.mean,
            f"median width, {where}": widths.median,
            f"median half width, {where}": widths.median_half,
            f"points, {where}": widths.kept,
        }
    return metrics


def _winkler(band: dict[str, Any], sample: Sample) -> float | None:
    """Return the mean interval score at the study's level; None if some interval is missing."""
    try:
        return winkler(band["lower"], band["upper"], sample.y, ALPHA)
    except InputError:
        return None


def _part(band: Interval, rows: slice) -> dict[str, Any]:
    """Return the intervals of some of the points, as stored in a result."""
    return {
        "center": band.center[rows],
        "lower": band.lower[rows],
        "upper": band.upper[rows],
        "weighted norm": band.weighted_norm[rows],
        "unsupported": band.unsupported[rows],
        "status": [str(each) for each in band.status[rows]],
    }


def _versions() -> dict[str, str]:
    """Return the versions of this library, Python and the packages in ``_LIBRARIES``."""
    own = {"vhat": metadata.version("vhat"), "python": platform.python_version()}
    return own | {name: metadata.version(name) for name in _LIBRARIES}


def plain(value: Any) -> Any:
    """Return a value as JSON types; NaN and infinities become None.

    Raises:
        TypeError: When a value has another type.
    """
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
