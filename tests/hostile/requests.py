"""Requests to the HTTP example: bodies, fields, values, methods and headers that no client should send.

The model is linear: rows beside a hostile value must have the limits of the ridge regression in closed form. Whatever
else comes must be a refusal in words with a status below 500.
"""

from __future__ import annotations

import atexit
import functools
import gzip
import importlib.util
import json
import random
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import vhat
from tests.hostile import ridge
from tests.hostile.outcome import Outcome

Case = dict[str, Any]
SOURCE = Path(__file__).parents[2] / "examples" / "serve.py"
LAM, ROWS = 0.01, 30
_RNG = np.random.default_rng(8)
TABLE = pd.DataFrame({"a": _RNG.normal(5, 3, ROWS + 6), "b": _RNG.normal(-1, 0.5, ROWS + 6)})
Y = TABLE["a"].to_numpy() - 2 * TABLE["b"].to_numpy() + 0.3 * _RNG.standard_normal(ROWS + 6)
VALUES = [
    "null", "true", "1e308", "-1e308", "1e400", "NaN", "-Infinity", "1" + "0" * 30, "1" + "0" * 400, "9" * 6000, "-0.0",
    '""', '"abc"', '"1.5"', '"1,5"', '"\\ud800"', '"\\u0000"', "[]", "{}", '{"a": 1}', "[[[[1]]]]", "01",
    '"' + "x" * 20_000 + '"', "1e", "'1'", "0x10", "1e-400", '"=1+1"', '"\\u0663"', '"2024-01-31"', "undefined",
]  # fmt: skip
"""JSON, and what looks like it."""
NAMES = ["", "A", "a ", "\\u0000", "\\ud800", "__class__", "index", "c" * 3000, "center", "rows"]
BODIES = [
    b"", b"{", b"null", b"[]", b"3", b"rows=1", b"\xff\xfe{}", b"\x00" * 50, b"[" * 5000, b'{"rows": ' * 500,
    b'{"rows": {}}', b'{"rows": null}', b'{"rows": [[1, 2]]}', b'{"rows": [null]}', b'{"rows": [{}]}',
    b'{"rows": [{}], "rows": [{}]}', b" " * 30_000,
    b'{"rows": [' + b'{"a": 1, "b": 2},' * 200 + b'{"a": 1, "b": 2}]}', b"\xef\xbb\xbf{}",
]  # fmt: skip
PLACES = [
    ("GET", "/intervals"), ("PUT", "/intervals"), ("DELETE", "/intervals"), ("POST", "/"), ("POST", "/intervals/../x"),
    ("POST", "/health"), ("GET", "/%00"), ("GET", "/" + "x" * 5000), ("POST", "/intervals?rows=1"),
    ("OPTIONS", "/health"),
]  # fmt: skip
HEADERS = [
    {"content-type": "text/plain"}, {"content-type": "application/json; charset=utf-16"}, {"content-encoding": "gzip"},
    {"content-type": "\xff"}, {"accept": "text/html"}, {"x-forwarded-for": "'; drop"}, {"expect": "100-continue"},
]  # fmt: skip


def draw(rng: random.Random) -> Case:
    """Draw a case."""
    case: Case = {"rows": rng.randrange(1, 6), "delta": rng.choice(["0.05", "0.1", "0.3"])}
    act = rng.choice(
        ["plain", "value", "value", "value", "name", "delta", "target", "field", "body", "place", "header"]
    )
    case["act"] = act
    if act == "value":
        case |= {"at": rng.randrange(case["rows"]), "name": rng.choice("ab"), "is": rng.choice(VALUES)}
    elif act == "name":
        case |= {"at": rng.randrange(case["rows"]), "name": rng.choice(NAMES), "all": rng.random() < 0.5}
    elif act in ("delta", "target", "field"):
        case["is"] = rng.choice(VALUES)
    elif act in ("body", "place", "header"):
        known = {"body": BODIES, "place": PLACES, "header": HEADERS}[act]
        case["number"] = rng.randrange(len(known))  # type: ignore[arg-type]
    return case


@functools.cache
def model() -> Path:
    """A directory with a sketch of the model."""
    root = Path(tempfile.mkdtemp(prefix="vhat-hostile-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vhat.NetworkRegressor((), weight_decay=LAM).fit(TABLE[:ROWS], Y[:ROWS]).sketch().save(root / "model")
    return root / "model"


def example() -> Any:
    """The module of the example."""
    spec = importlib.util.spec_from_file_location("serve_example", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve_example"] = module  # where its dataclass looks up the names of types
    spec.loader.exec_module(module)
    return module


@functools.cache
def client() -> Any:
    """A client of the application; what would be a status of 500 comes as one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions want another HTTP client
        from fastapi.testclient import TestClient

        serve = example()
        app = serve.application(str(model()), serve.Limits(body=25_000, rows=60))
        return TestClient(app, raise_server_exceptions=False)


def limits(delta: float) -> np.ndarray:
    """The closed form at the rows that are asked for, (2, 6)."""
    columns = [(TABLE[name] - TABLE[name][:ROWS].mean()) / TABLE[name][:ROWS].std(ddof=0) for name in TABLE]
    return ridge.standardised_limits([each.to_numpy() for each in columns], Y[:ROWS], LAM, delta)


def body(case: Case) -> bytes:
    """The body of a request, as text: not everything in it is JSON."""
    if case["act"] == "body":
        return BODIES[case["number"]]
    rows = []
    for number in range(case["rows"]):
        row = TABLE.iloc[ROWS + number]
        cells = {name: repr(float(row[name])) for name in TABLE}
        hit = case.get("at") == number
        if case["act"] == "value" and hit:
            cells[case["name"]] = case["is"]
        if case["act"] == "name" and (hit or case["all"]):
            cells = {case["name"] if name == "b" else name: value for name, value in cells.items()}
        rows.append("{" + ", ".join(f'"{name}": {value}' for name, value in cells.items()) + "}")
    fields = {"rows": "[" + ", ".join(rows) + "]", "delta": case["delta"]}
    if case["act"] in ("delta", "target", "field"):
        fields[case["act"]] = case["is"]
    return ("{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}").encode()


def run(case: Case) -> Outcome:
    """Send the request."""
    method, place = PLACES[case["number"]] if case["act"] == "place" else ("POST", "/intervals")
    headers: dict[str, str] = HEADERS[case["number"]] if case["act"] == "header" else {}
    content = body(case)
    if "content-encoding" in headers:
        content = gzip.compress(content)
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = client().request(method, place, content=content, headers=sent)
    return judged(case, answer.status_code, answer.text)


def judged(case: Case, status: int, text: str) -> Outcome:  # noqa: PLR0911  (one return a verdict)
    """Say whether a request may be answered like this."""
    told = f"{status}: {text[:300]}"
    if status >= 500 or "Traceback" in text:
        return Outcome("raw", told)
    if case["act"] == "place":
        return Outcome("refused" if status in (400, 404, 405) else "answered", told)
    try:
        found = json.loads(text, parse_constant=lambda word: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return Outcome("wrong", f"no JSON: {told}")
    if status != 200:
        words = found.get("error", {}).get("message", "")
        return Outcome("refused" if len(words.split()) >= 4 else "mute", told)
    if case["act"] == "body":
        return Outcome("wrong", told)  # none of them can be answered
    if case["act"] in ("delta", "field", "target"):
        return Outcome("answered")
    rows = found["intervals"]
    wanted = limits(float(case["delta"]))[:, : case["rows"]]
    if len(rows) != case["rows"]:
        return Outcome("wrong", f"{len(rows)} rows: {told}")
    for number, row in enumerate(rows):
        if case["act"] == "value" and case["at"] == number:
            if row["status"] == "converged" and None in (row["lower"], row["upper"]):
                return Outcome("mute", told)
        elif not np.allclose([row["lower"], row["upper"]], wanted[:, number], rtol=1e-6):
            return Outcome("wrong", f"row {number} and not {wanted[:, number].tolist()}: {told}")
    return Outcome("answered")
