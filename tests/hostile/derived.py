"""Calls of what is made of a fitted model: its linearisation, and sketches, saved ones too.

The model is linear, so that its linearisation under a penalty lam has the widths of a ridge regression with lam around
the predictions of the model, and a sketch has the limits of the model.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import vhat
from tests.hostile import ridge
from tests.hostile.calls import CHANGES, KEPT, ROUNDED, SCALARS, _band, _numbers, _wanted
from tests.hostile.outcome import Outcome, limited

Case = dict[str, Any]
FRONT_ENDS = ("numpy", "numpy", "numpy", "torch", "jax")
HELD_X = ridge.X[:12] + 0.3
HELD_Y = HELD_X @ [1.0, -2.0] + 0.3 * np.random.default_rng(5).standard_normal(12)
LAM = 0.3
"""The penalty of linearisations, another one than that of the model."""
OF_LINEARISED = ("weight_decay", "likelihood", "retrainings", "seed", "recipe", "validation")
OF_SKETCH = ("probes", "seed", "noise", "solver", "curvature", "audit", "digests")
OF_INTERVAL = ("delta", "noise", "observation_noise", "bias", "target", "bound", "tail", "simultaneous", "seed")
NUMERIC = ("half", "float32", "zero-d")


def draw(rng: random.Random) -> Case:
    """Draw a case."""
    case = {"front": rng.choice(FRONT_ENDS), "of": rng.choice(["linearised", "sketch", "sketch of linearised"])}
    act = rng.choice(["points", "points", "made", "asked", "penalty", "held out", "saved"])
    if act in ("points", "saved"):
        return case | {"act": act, "how": rng.choice(list(CHANGES))}
    if act == "penalty":
        return case | {"act": act, "of": "linearised", "how": rng.choice(list(CHANGES))}
    if act == "held out":
        return case | {"act": act, "what": rng.choice(["X", "y"]), "how": rng.choice(list(CHANGES))}
    names = OF_INTERVAL
    if act == "made":
        names = OF_LINEARISED if case["of"] == "linearised" else OF_SKETCH
    return case | {"act": act, "name": rng.choice(names), "value": rng.choice(list(SCALARS))}


def limits(of: str, points: Any = ridge.POINTS, delta: float = ridge.DELTA, lam: float = LAM) -> np.ndarray:
    """The closed form: the width of a ridge regression around the predictions of the model."""
    if of == "sketch":
        return _wanted(points=points, delta=delta)
    lower, upper = ridge.limits(ridge.X, ridge.Y, lam, points, delta)
    center = np.asarray(points, dtype=np.float64) @ ridge.THETA
    half = (upper - lower) / 2
    return np.concatenate([center - half, center + half])


def make(case: Case, **options: Any) -> Any:
    """Make what is asked, from the model that all cases of a front end share."""
    fitted = ridge.fitted(case["front"])
    if case["of"] == "linearised":
        return fitted.linearised(**{"weight_decay": LAM} | options)
    if case["of"] == "sketch of linearised":
        fitted = fitted.linearised(LAM)
    return fitted.sketch(**options)


def run(case: Case) -> Outcome:
    """Make the call, and then ask the shared model of the front end whether it is as it was."""
    ways = {"points": _points, "made": _made, "asked": _asked, "penalty": _penalty, "held out": _held_out}
    found = (ways | {"saved": _saved})[case["act"]](case)
    if found.fails:
        return found
    after = limited(lambda: _band(ridge.fitted(case["front"]).interval(ridge.POINTS)), _wanted())
    return Outcome("wrong", f"the shared model afterwards: {after.told}") if after.fails else found


def _odd(how: str, array: np.ndarray) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return CHANGES[how](array)


def _of_points(case: Case, odd: Any) -> np.ndarray | None:
    """What must be answered at odd points; None where they may be refused."""
    if case["how"] not in KEPT and case["how"] not in ROUNDED:
        return None
    return limits(case["of"], _numbers(odd))


def _points(case: Case) -> Outcome:
    odd = _odd(case["how"], ridge.POINTS)
    return limited(lambda: _band(make(case).interval(odd)), _of_points(case, odd))


def _saved(case: Case) -> Outcome:
    """Save, load and ask at odd points."""
    odd = _odd(case["how"], ridge.POINTS)
    models = {"numpy": (ridge.linear, ridge.design), "jax": ridge.linear, "torch": ridge.module()}

    def ask():
        with tempfile.TemporaryDirectory() as root:
            make(case).save(Path(root) / "saved")
            return _band(vhat.load(Path(root) / "saved", model=models[case["front"]]).interval(odd))

    return limited(ask, _of_points(case, odd))


def _made(case: Case) -> Outcome:
    """An odd option of ``linearised`` or ``sketch``."""
    name = case["name"]
    value = SCALARS[case["value"]]
    wanted = None
    if name == "weight_decay" and case["value"] in (*NUMERIC, "1"):
        wanted = limits(case["of"], lam=float(value))
    if name in ("seed", "probes", "digests", "audit"):  # of no influence where V is exact and lam is given
        wanted = limits(case["of"])
    return limited(lambda: _band(make(case, **{name: value}).interval(ridge.POINTS)), wanted)


def _asked(case: Case) -> Outcome:
    """An odd option of ``interval``."""
    name = case["name"]
    value = SCALARS[case["value"]]
    wanted = None
    if name == "delta" and case["value"] in NUMERIC:
        wanted = limits(case["of"], delta=float(value))
    if name == "seed":
        wanted = limits(case["of"])
    options = {name: value}
    if name == "observation_noise":
        options["target"] = "observation"
    return limited(lambda: _band(make(case).interval(ridge.POINTS, **options)), wanted)


def _penalty(case: Case) -> Outcome:
    """One penalty a parameter, in an odd container."""
    odd = _odd(case["how"], np.full(2, LAM))
    wanted = limits("linearised") if case["how"] in KEPT else None
    return limited(lambda: _band(make(case, weight_decay=odd).interval(ridge.POINTS)), wanted)


def _held_out(case: Case) -> Outcome:
    """Rows that choose the penalty of a linearisation, or calibrate: other containers give the same limits."""
    given = {"X": HELD_X, "y": HELD_Y}

    def ask(X, y):
        if case["of"] == "linearised":
            return _band(make(case, weight_decay="auto", validation=(X, y)).interval(ridge.POINTS))
        return _band(make(case).calibrate(X, y).interval(ridge.POINTS, 0.3))

    wanted = None
    if case["how"] in KEPT:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = ask(**given)
    odd = given | {case["what"]: _odd(case["how"], given[case["what"]])}
    return limited(lambda: ask(**odd), wanted)
