"""Calls of the library with data of odd containers, shapes, dtypes and values, from threads, and changed afterwards.

The model is a ridge regression: whatever is answered must be its closed form for the numbers that were given.
"""

from __future__ import annotations

import contextlib
import random
import threading
import warnings
from typing import Any

import numpy as np

import vhat
from tests.hostile import ridge
from tests.hostile.outcome import Outcome, limited

Case = dict[str, Any]
FRONT_ENDS = ("numpy", "numpy", "numpy", "torch", "jax")
"""NumPy most often: JAX compiles for every new shape."""


class Sequence:
    """A sequence that says of its length what it likes."""

    def __init__(self, array, length):
        self.array = array
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, at):
        return self.array[at]


def _torch(array, **options):
    import torch

    return torch.tensor(np.asarray(array), **options)


def _meta(array):
    import torch

    return torch.zeros(np.shape(array), device="meta")


def _jax(array):
    import jax.numpy as jnp

    return jnp.asarray(array)


def _frame(array):
    import pandas as pd

    return pd.DataFrame(array) if np.ndim(array) == 2 else pd.Series(array)


def _read_only(array):
    array = np.array(array)
    array.flags.writeable = False
    return array


def _with(array, value, at):
    array = np.array(array, dtype=np.float64)
    array.reshape(-1)[at % array.size] = value
    return array


def _masked(array):
    return np.ma.masked_array(array, mask=np.arange(np.size(array)).reshape(np.shape(array)) % 5 == 0)


KEPT = {
    "list": lambda a: np.asarray(a).tolist(),
    "tuple": lambda a: tuple(np.asarray(a).tolist()),
    "fortran": np.asfortranarray,
    "backwards": lambda a: np.ascontiguousarray(np.asarray(a)[::-1])[::-1],
    "every second": lambda a: np.repeat(np.asarray(a), 2, axis=0)[::2],
    "big endian": lambda a: np.asarray(a).astype(">f8"),
    "long double": lambda a: np.asarray(a).astype(np.longdouble),
    "read only": _read_only,
    "frame": _frame,
    "torch": _torch,
    "jax": _jax,
    "unmasked": lambda a: np.ma.masked_array(a, mask=False),
    "short length": lambda a: Sequence(a, 1),
    "long length": lambda a: Sequence(a, 10_000),
}
"""Other containers of the same numbers."""
ROUNDED = {
    "float32": lambda a: np.asarray(a).astype(np.float32),
    "float16": lambda a: np.asarray(a).astype(np.float16),
    "int8": lambda a: np.rint(np.asarray(a)).astype(np.int8),
    "uint64": lambda a: np.rint(np.abs(a)).astype(np.uint64),
    "bool": lambda a: np.asarray(a) > 0,
    "torch float32": lambda a: _torch(a, dtype=__import__("torch").float32),
}
"""Other numbers, which count as their values."""
BROKEN = {
    "nan": lambda a: _with(a, np.nan, 3),
    "infinite": lambda a: _with(a, -np.inf, 1),
    "1e308": lambda a: _with(a, 1e308, 2),
    "all 1e308": lambda a: np.full(np.shape(a), 1e308),
    "tiny": lambda a: np.full(np.shape(a), 1e-320),
    "zero": lambda a: np.zeros(np.shape(a)),
    "masked": _masked,
    "complex": lambda a: np.asarray(a) + 1j,
    "text": lambda a: np.asarray(a).astype(str),
    "objects": lambda a: np.asarray(a).astype(object),
    "dates": lambda a: np.zeros(np.shape(a), "datetime64[D]"),
    "empty": lambda a: np.asarray(a)[:0],
    "one row": lambda a: np.asarray(a)[:1],
    "row less": lambda a: np.asarray(a)[:-1],
    "axis more": lambda a: np.asarray(a)[..., None],
    "axis less": lambda a: np.asarray(a).reshape(-1),
    "turned": lambda a: np.asarray(a).T,
    "ragged": lambda a: [*np.asarray(a).tolist()[:-1], [1.0, 2.0, 3.0]],
    "none": lambda a: None,
    "huge integer": lambda a: [10**400, *np.ravel(a).tolist()[1:]],
    "meta": _meta,
    "a set": lambda a: {1.0, 2.0},
    "a dict": lambda a: {"x": np.asarray(a)},
    "a generator": lambda a: (row for row in np.asarray(a)),
    "bytes": lambda a: np.asarray(a).tobytes(),
    "negative length": lambda a: Sequence(a, -1),
}  # fmt: skip
"""What may be refused; where it is answered, the numbers in it count."""
CHANGES = KEPT | ROUNDED | BROKEN
SCALARS: dict[str, Any] = {
    "0": 0, "-1": -1, "1": 1, "nan": np.nan, "inf": np.inf, "1e308": 1e308, "1e-320": 1e-320, "10**400": 10**400,
    "text": "x", "none": None, "list": [0.05], "array": np.array([0.05]), "object": object(), "true": True,
    "zero-d": np.array(0.05), "float32": np.float32(0.05), "masked": np.ma.masked, "half": 0.5, "nothing": b"",
}  # fmt: skip
OPTIONS = ("delta", "noise", "observation_noise", "bias", "weight_decay", "memory", "solver", "curvature", "bound",
           "target", "simultaneous", "tail", "sample_weight")  # fmt: skip


def draw(rng: random.Random) -> Case:
    """Draw a case."""
    act = rng.choice(["data", "data", "data", "option", "option", "threads", "changed"])
    front = rng.choice(FRONT_ENDS)
    if act == "data":
        return {
            "act": act,
            "front": front,
            "what": rng.choice(["X", "y", "points", "theta"]),
            "how": rng.choice(list(CHANGES)),
        }
    if act == "option":
        return {"act": act, "front": front, "name": rng.choice(OPTIONS), "value": rng.choice(list(SCALARS))}
    if act == "threads":
        return {"act": act, "front": rng.choice(["numpy", "torch"]), "threads": rng.randrange(2, 6)}
    return {"act": act, "front": front, "what": rng.choice(["X", "y", "theta", "sample_weight"])}


def run(case: Case) -> Outcome:
    """Make the call, and then ask the shared model of the front end whether it is as it was."""
    found = {"data": _data, "option": _option, "threads": _threads, "changed": _changed}[case["act"]](case)
    if found.fails:
        return found
    after = limited(lambda: _band(ridge.fitted(case["front"]).interval(ridge.POINTS)), _wanted())
    return Outcome("wrong", f"the shared model afterwards: {after.told}") if after.fails else found


def _band(band) -> np.ndarray:
    return np.concatenate([np.ravel(band.lower), np.ravel(band.upper)])


def _wanted(X=ridge.X, y=ridge.Y, lam=ridge.LAM, points=ridge.POINTS, delta=ridge.DELTA) -> np.ndarray:
    return np.concatenate(ridge.limits(X, y, lam, points, delta))


def _numbers(given: Any) -> np.ndarray:
    """The numbers that something holds."""
    if isinstance(given, Sequence):
        return np.asarray(given.array, dtype=np.float64)
    return np.asarray(given, dtype=np.float64)


def _data(case: Case) -> Outcome:
    given = {"X": ridge.X, "y": ridge.Y, "points": ridge.POINTS, "theta": ridge.THETA}
    what, how = case["what"], case["how"]
    if what == "theta" and case["front"] == "torch":
        what = "X"  # the parameters of a module are torch's own
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        odd = CHANGES[how](given[what])
        wanted = None
        with contextlib.suppress(Exception):  # an oracle that cannot answer asks for nothing
            numbers = {**given, what: _numbers(odd)}
            assert all(np.isfinite(each).all() for each in numbers.values())
            wanted = _wanted(numbers["X"], numbers["y"], points=numbers["points"])
            given["theta"] = np.linalg.solve(
                numbers["X"].T @ numbers["X"] / len(numbers["X"]) + ridge.LAM * np.eye(2),
                numbers["X"].T @ numbers["y"] / len(numbers["X"]),
            )
        before = odd.tobytes() if isinstance(odd, np.ndarray) and odd.dtype != object else None
    given[what] = odd
    judged = wanted if how in KEPT or (how in ROUNDED and what != "theta") else None
    if what == "theta":
        judged = judged if how in KEPT else None

    def ask():
        model = ridge.FRONT_ENDS[case["front"]](theta=given["theta"], X=given["X"], y=given["y"])
        return _band(model.interval(given["points"]))

    found = limited(ask, judged)
    if before is not None and odd.tobytes() != before:
        return Outcome("wrong", f"{what} was changed by the call")
    return found


def _option(case: Case) -> Outcome:
    name, value = case["name"], SCALARS[case["value"]]
    made = {name: value} if name in ("weight_decay", "memory", "sample_weight") else {}
    asked = {} if made else {name: value}
    if name in ("observation_noise", "bias"):
        asked["target"] = "observation" if name == "observation_noise" else "mean"
    wanted = None
    # a budget too small for the exact noise level makes do with another estimate, and says so in its guarantee
    if (name == "memory" and case["value"] in ("1e308", "10**400")) or (
        name == "weight_decay" and case["value"] in ("half", "float32", "zero-d")
    ):
        wanted = _wanted(lam=ridge.LAM if name == "memory" else float(value))
    if name == "delta" and case["value"] in ("half", "float32", "zero-d"):
        wanted = _wanted(delta=float(value))

    def ask():
        theta = ridge.THETA
        if name == "weight_decay" and wanted is not None:
            n = len(ridge.X)
            theta = np.linalg.solve(ridge.X.T @ ridge.X / n + float(value) * np.eye(2), ridge.X.T @ ridge.Y / n)
        front = ridge.FRONT_ENDS[case["front"]]
        model = front(theta=theta, **made) if made else ridge.fitted(case["front"])
        return _band(model.interval(ridge.POINTS, **asked))

    return limited(ask, wanted)


def _threads(case: Case) -> Outcome:
    """Several threads ask one new model at once."""
    model = ridge.FRONT_ENDS[case["front"]]()
    found: list[Any] = [None] * case["threads"]

    def ask(number):
        try:
            points = ridge.POINTS + 0.1 * number
            found[number] = _band(model.interval(points)) - _wanted(points=points)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(case["threads"])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for each in found:
        if isinstance(each, Exception):
            name = "refused" if isinstance(each, vhat.VhatError) else "raw"
            return Outcome(name, f"{type(each).__name__}: {each} in a thread")
        if not np.allclose(each, 0, atol=1e-7):
            return Outcome("wrong", f"threads disturb each other by {np.abs(each).max():.3g}")
    return Outcome("answered")


def _changed(case: Case) -> Outcome:
    """The caller overwrites its arrays after the model was made."""
    own = {"X": ridge.X.copy(), "y": ridge.Y.copy(), "theta": ridge.THETA.copy(), "sample_weight": np.ones(ridge.N)}

    def ask():
        model = ridge.FRONT_ENDS[case["front"]](**own)
        own[case["what"]][...] = 7.0
        return _band(model.interval(ridge.POINTS))

    return limited(ask, _wanted())
