"""Saved models that were damaged by accident or forged on purpose, the checksums made right again.

What was damaged must be refused, or be the model that was saved. What was forged may be any model that vhat could have
saved; otherwise it must be refused. Nothing may end in an error that is not vhat's, or not end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import random
import shutil
import struct
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

import vhat
from tests.hostile import ridge
from tests.hostile.outcome import Outcome, limited

Case = dict[str, Any]
NAMES = {"pointer": "vhat.json", "manifest": "v0001/manifest.json", "arrays": "v0001/arrays.safetensors"}
DAMAGE = ("flip", "truncate", "extend", "empty", "zeros", "pipe", "folder", "loop", "missing", "sparse", "nested")
ARRAY_ACTS = ("drop", "shape", "dtype", "nan", "huge", "empty", "cut", "scale")
_NEST = json.loads("[" * 60 + "]" * 60)
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 3.5, 1e308, 10**400, -(10**19), "", "x", "nan", "\0", [], {}, [None], [[]], [1, "a"],
    {"$array": "nothing"}, {"$array": 3}, {"$float": "abc"}, {"$float": None}, {"$float": "nan"}, {"$float": "inf"},
    {"$tuple": 3}, {"$tuple": []}, {"$dict": [[1]]}, {"$dict": [[[1], 2]]}, {"$dict": []}, {"$new": 1}, {"a": {"b": 1}},
    _NEST,
]  # fmt: skip


# -- the models that are spoiled ---------------------------------------------------------------------
def _ridge(folder):
    ridge.from_numpy().polish().save(folder, factorisation=False)


def _weighted(folder):
    fitted = ridge.from_numpy(sample_weight=np.linspace(0.5, 2.0, ridge.N))
    fitted.interval(ridge.POINTS, noise=0.1)
    fitted.with_validation(ridge.X + 0.3, ridge.Y).save(folder, factorisation=True)


def _table():
    import pandas as pd

    rng = np.random.default_rng(3)
    size = rng.normal(size=40)
    kind = np.array(["old", "new", "mid"])[rng.integers(0, 3, 40)]
    return pd.DataFrame({"size": size, "kind": kind}), size + (kind == "old") + 0.1 * rng.normal(size=40)


def _estimator(folder):
    frame, y = _table()
    network = vhat.NetworkRegressor((2,), weight_decay=0.01, random_state=0)
    network.fit(frame, y)
    network.audit()
    network.calibrate()
    network.save(folder)


def _torch(folder):
    ridge.from_torch().save(folder)


def _jax(folder):
    ridge.from_jax().save(folder)


def _sketch(folder):
    ridge.from_numpy().sketch(audit=True).save(folder)


def _linearised(folder):
    ridge.from_numpy().linearised(0.3).save(folder)


def _deployed(folder):
    """A messy table's model without its rows."""
    frame, y = _table()
    network = vhat.NetworkRegressor((), weight_decay=0.01).fit(frame, y)
    network.calibrate()
    network.sketch().save(folder)


def _ask_deployed(folder):
    network = vhat.NetworkRegressor.load(folder)
    mean = network.predict_interval(_table()[0][:3])
    new = network.predict_interval(_table()[0][:3], target="observation")
    return np.concatenate([mean.lower, mean.upper, new.lower, new.upper])


def _ask_ridge(folder):
    band = vhat.load(folder, model=(ridge.linear, ridge.design)).interval(ridge.POINTS)
    return np.concatenate([band.lower, band.upper])


def _ask_weighted(folder):
    band = vhat.load(folder, model=(ridge.linear, ridge.design)).interval(ridge.POINTS, noise=0.1)
    return np.concatenate([band.lower, band.upper])


def _ask_estimator(folder):
    network = vhat.NetworkRegressor.load(folder)
    mean = network.predict_interval(_table()[0][:3])
    new = network.predict_interval(_table()[0][:3], target="observation")
    repr(network.audited_), repr(network.selection_), repr(network.fitted_)
    return np.concatenate([mean.lower, mean.upper, new.lower, new.upper])


def _ask_torch(folder):
    band = vhat.load(folder, model=ridge.module()).interval(ridge.POINTS)
    return np.concatenate([band.lower, band.upper])


def _ask_jax(folder):
    band = vhat.load(folder, model=ridge.linear).interval(ridge.POINTS)
    return np.concatenate([band.lower, band.upper])


MODELS = {
    "ridge": (_ridge, _ask_ridge),
    "weighted": (_weighted, _ask_weighted),
    "estimator": (_estimator, _ask_estimator),
    "torch": (_torch, _ask_torch),
    "jax": (_jax, _ask_jax),
    "sketch": (_sketch, _ask_ridge),
    "linearised": (_linearised, _ask_ridge),
    "deployed": (_deployed, _ask_deployed),
}


@functools.cache
def saved(model):
    """The directory of a model, saved once, and what it answers."""
    root = Path(tempfile.mkdtemp(prefix="vhat-hostile-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    make, ask = MODELS[model]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(root / "model")
        return root / "model", ask(root / "model")


# -- cases -----------------------------------------------------------------------------------------
def draw(rng: random.Random, models=tuple(MODELS)) -> Case:
    """Draw a case: plain data that says what is done to which model."""
    model = rng.choice(models)
    folder, _ = saved(model)
    act = rng.choice(["damage", "document", "document", "document", "array", "header"])
    if act == "damage":
        file = rng.choice(list(NAMES))
        return {"model": model, "act": rng.choice(DAMAGE), "file": file, "at": rng.random(), "bit": rng.randrange(8)}
    manifest = json.loads((folder / NAMES["manifest"]).read_text())
    if act == "document":
        path = rng.choice(list(_paths(manifest)))
        how = rng.choice(["delete", "replace", "replace", "replace", "swap", "extra"])
        case = {"model": model, "act": "document", "path": path, "how": how}
        return case | ({"value": rng.choice(VALUES)} if how == "replace" else {})
    if act == "array":
        name = rng.choice(sorted(load_file(folder / NAMES["arrays"])))
        return {"model": model, "act": "array", "name": name, "how": rng.choice(ARRAY_ACTS)}
    header = rng.choice(["length", "offsets", "dtype", "shape", "twice", "text", "deep"])
    return {
        "model": model,
        "act": "header",
        "how": header,
        "number": rng.choice([-1, 0, 7, 2**31, 2**63 - 1, 2**64 - 1]),
    }


def _paths(node, path=()):
    if path and path[0] not in ("versions", "directory"):
        yield list(path)
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from _paths(value, (*path, key))


def run(case: Case) -> Outcome:
    """Spoil a copy of the model, load it and ask it."""
    folder, answer = saved(case["model"])
    with tempfile.TemporaryDirectory() as root:
        copy = Path(root) / "model"
        shutil.copytree(folder, copy)
        _spoil(copy, case)
        damaged = case["act"] in DAMAGE
        ask = MODELS[case["model"]][1]
        return limited(lambda: ask(copy), answer if damaged else None, {"same": answer})


def _spoil(folder: Path, case: Case) -> None:
    if case["act"] in DAMAGE:
        _damage(folder / NAMES[case["file"]], case)
        return
    if case["act"] == "document":
        manifest = json.loads((folder / NAMES["manifest"]).read_text())
        _change(manifest, case)
        _seal(folder, manifest)
        return
    path = folder / NAMES["arrays"]
    if case["act"] == "array":
        arrays = load_file(path)
        changed = _changed(arrays[case["name"]], case["how"])
        arrays = {name: array for name, array in arrays.items() if name != case["name"]}
        path.write_bytes(save(arrays if changed is None else {**arrays, case["name"]: changed}))
    else:
        path.write_bytes(_with_header(path.read_bytes(), case))
    manifest = json.loads((folder / NAMES["manifest"]).read_text())
    content = path.read_bytes()
    manifest["arrays"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    _seal(folder, manifest)


def _seal(folder: Path, manifest: Any) -> None:
    """Write a manifest, and let the pointer have its checksum."""
    text = json.dumps(manifest).encode()
    (folder / NAMES["manifest"]).write_bytes(text)
    pointer = json.loads((folder / NAMES["pointer"]).read_text())
    pointer["manifest_sha256"] = hashlib.sha256(text).hexdigest()
    (folder / NAMES["pointer"]).write_text(json.dumps(pointer))


def _damage(path: Path, case: Case) -> None:
    content = path.read_bytes()
    at = int(case["at"] * len(content))
    act = case["act"]
    path.unlink()
    if act == "pipe":
        os.mkfifo(path)
    elif act == "folder":
        path.mkdir()
    elif act == "loop":
        path.symlink_to(path.name)
    elif act == "sparse":
        path.touch()
        os.truncate(path, 8 << 30)
    elif act != "missing":
        flipped = content[:at] + bytes([content[at] ^ (1 << case["bit"])]) + content[at + 1 :]
        path.write_bytes(
            {
                "flip": flipped,
                "truncate": content[:at],
                "extend": content + content[:at] + b"\n}",
                "empty": b"",
                "zeros": bytes(len(content)),
                "nested": b"[" * 200_000,
            }[act]
        )


def _change(manifest: Any, case: Case) -> None:
    *way, last = case["path"]
    node = manifest
    for key in way:
        node = node[key]
    how = case["how"]
    if how == "delete":
        del node[last]
    elif how == "replace":
        node[last] = case["value"]
    elif how == "extra" and isinstance(node, dict):
        node["extra"] = node[last]
    elif how == "extra":
        node.append(node[last])
    else:  # swap with the entry that comes next
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        other = keys[(keys.index(last) + 1) % len(keys)]
        node[last], node[other] = node[other], node[last]


def _changed(array: np.ndarray, how: str) -> np.ndarray | None:
    if how == "drop":
        return None
    made = {
        "shape": lambda: array.reshape(-1)[:, None],
        "dtype": lambda: array.astype(np.int8 if array.dtype.kind == "f" else np.float32),
        "nan": lambda: np.full(array.shape, np.nan),
        "huge": lambda: np.full(array.shape, 1e308),
        "empty": lambda: np.zeros(0),
        "cut": lambda: array.reshape(-1)[:-1],
        "scale": lambda: (array * 3).astype(array.dtype),
    }[how]
    with contextlib.suppress(OverflowError), np.errstate(all="ignore"):
        return np.ascontiguousarray(made())
    return None


def _with_header(content: bytes, case: Case) -> bytes:
    """Forge the header of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    header, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    number = case["number"]
    if case["how"] == "length":
        return struct.pack("<Q", number % 2**64) + content[8:]
    first = next(name for name in header if name != "__metadata__")
    entry = header[first]
    if case["how"] == "offsets":
        entry["data_offsets"] = [0, number]
    elif case["how"] == "dtype":
        entry["dtype"] = {-1: "BF16", 0: "O", 7: "F8_E4M3"}.get(number, "U8")
    elif case["how"] == "shape":
        entry["shape"] = [number, 0]
    elif case["how"] == "twice":
        header["again"] = entry
    text = json.dumps(header).encode()
    if case["how"] == "text":
        text = b"[1, 2]"
    elif case["how"] == "deep":
        text = b"[" * 100_000
    return struct.pack("<Q", len(text)) + text + rest
