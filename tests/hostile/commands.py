"""Command lines with hostile words, tables and streams: a sentence and an exit code, and nothing else touched."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.outcome import Outcome
from tests.hostile.shell import Shell

Case = dict[str, Any]
LINES = [
    ["fit", "data.csv", "--target", "y", "--hidden", "0", "--weight-decay", "0.01", "--out", "made"],
    ["fit", "data.csv", "--target", "y", "--hidden", "2", "--weight-decay", "0.01", "--hold-out", "0.3"],
    ["predict", "model", "new.csv"],
    ["predict", "model", "new.csv", "--interval", "observation", "--delta", "0.1", "--out", "out.csv"],
    ["predict", "model", "new.csv", "--keep", "a,b", "--json", "--quiet"],
    ["audit", "model"],
    ["audit", "model", "--json", "--noise", "0.3"],
    ["calibrate", "model", "data.csv"],
    ["plan", "model", "new.csv"],
    ["report", "model", "--out", "page.html", "--unit", "kg"],
    ["sketch", "model", "--out", "made", "--probes", "64", "--json"],
    ["predict", "deployed", "new.csv", "--interval", "observation", "--out", "out.csv"],
    ["calibrate", "deployed", "new.csv"],
    ["predict", "model", "parts", "--out", "made", "--engine", "local", "--jobs", "1"],
    ["predict", "deployed", "parts", "--out", "made", "--keep", "a", "--quiet"],
]  # fmt: skip
WORDS = [
    "", "-", "--", "-1", "0", "1e308", "-1e308", "nan", "inf", "1" * 400, "0x10", "\udcff\udcfe", "é\u202e", "=1+1",
    "/dev/null", "/dev/full", "/", ".", "missing/place", "model", "data.csv", "a,a,a", ",,,", "a=number,b=", "--help",
    "--version", "--debug", "--force", "--quiet", "--json", "--no-such", "x" * 5000, "99999999999,99999999999",
    "\t", "\u0663",
]  # fmt: skip
TABLES = {
    "empty": b"", "header": b"a,b,y\n", "one row": b"a,b,y\n1,2,3\n", "ragged": b"a,b,y\n1,2\n3,4,5,6\n",
    "binary": bytes(range(256)) * 20, "zeros": bytes(4000), "bom": b"\xef\xbb\xbfa,b,y\n1,2,3\n4,5,7\n8,1,1\n",
    "latin": "a,b,y\nä,1,2\n".encode("latin-1"), "quotes": b'a,b,y\n"1,2,3\n', "twice": b"a,a,y\n1,2,3\n",
    "infinite": b"a,b,y\ninf,1,2\n1,nan,3\n2,2,-inf\n", "huge": b"a,b,y\n1e308,1,2\n-1e308,2,3\n1,3,4\n2,1,9\n",
    "long cell": b"a,b,y\n" + b"9" * 200_000 + b",1,2\n", "constant": b"a,b,y\n1,1,1\n" * 1 + b"1,1,1\n" * 20,
    "formula": b"a,b,y\n=1+1,2,3\n=2,3,4\n", "semicolon": b"a;b;y\n1;2;3\n", "carriage": b"a,b,y\r1,2,3\r4,5,6\r",
    "utf16": "a,b,y\n1,2,3\n".encode("utf-16"), "no names": b"1,2,3\n4,5,6\n7,8,9.5\n", "parquet": b"PAR1" + bytes(100),
}  # fmt: skip


def table(rows: int, seed: int) -> bytes:
    """A table of a linear model, as CSV."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    y = x @ [1.0, -2.0] + 0.3 * rng.normal(size=rows)
    return (
        "a,b,y\n" + "".join(f"{p!r},{q!r},{r!r}\n" for (p, q), r in zip(x.tolist(), y.tolist(), strict=True))
    ).encode()


@functools.cache
def shell() -> Shell:
    made = Shell().__enter__()
    atexit.register(made.__exit__)
    return made


@functools.cache
def place() -> Path:
    """A directory with a table and a model of it, which every case gets a copy of."""
    root = Path(tempfile.mkdtemp(prefix="vhat-hostile-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    start = root / "start"
    start.mkdir()
    (start / "data.csv").write_bytes(table(40, 1))
    (start / "new.csv").write_bytes(table(12, 2))
    line = [
        "fit",
        "data.csv",
        "--target",
        "y",
        "--hidden",
        "0",
        "--weight-decay",
        "0.01",
        "--hold-out",
        "0.2",
        "--quiet",
    ]
    assert shell().run(line, start).code == 0
    assert shell().run(["sketch", "model", "--out", "deployed", "--quiet"], start).code == 0
    (start / "parts").mkdir()
    for name, seed in (("one.csv", 3), ("two.csv", 4)):
        (start / "parts" / name).write_bytes(table(6, seed))
    return start


def draw(rng: random.Random) -> Case:
    """Draw a case."""
    line = list(rng.choice(LINES))
    table_at = rng.random()
    case: Case = {"tables": {}, "closed": [], "full": False}
    if table_at < 0.35:
        name = "parts/two.csv" if "parts" in line else rng.choice(["data.csv", "new.csv"])
        case["tables"] = {name: rng.choice(list(TABLES))}
    elif table_at < 0.45:
        case["closed"] = rng.sample([0, 1, 2], rng.randrange(1, 3))
    elif table_at < 0.5:
        case["full"] = True
    else:
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(1, len(line) + 1)
            act = rng.choice(["replace", "insert", "drop", "twice"])
            if act == "insert" or at == len(line):
                line.insert(at, rng.choice(WORDS))
            elif act == "replace":
                line[at] = rng.choice(WORDS)
            elif act == "drop":
                del line[at]
            else:
                line.insert(at, line[at])
    return case | {"line": line}


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def run(case: Case) -> Outcome:
    """Run the command in a copy of the directory."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "here"
        shutil.copytree(place(), folder)
        for name, kind in case["tables"].items():
            (folder / name).write_bytes(TABLES[kind])
        before = contents(folder)
        ended = shell().run(case["line"], folder, stdout="/dev/full" if case["full"] else None, closed=case["closed"])
        return judged(case["line"], ended, before, contents(folder), mute=2 in case["closed"])


def judged(line, ended, before, after, *, mute=False) -> Outcome:  # noqa: PLR0911  (one return a verdict)
    """Say whether a command may end like this."""
    told = f"exit {ended.code}: {ended.err.strip()[-600:]}"
    if ended.code >= 128 and ended.code not in (130, 141):
        return Outcome("raw", told)
    if "Traceback" in ended.err and "--debug" not in line:
        return Outcome("raw", told)
    if ended.code in (1, 120) and "--debug" not in line:
        return Outcome("raw", told)
    if ended.code and not ended.err.strip() and not mute and not (ended.code == 3 and "--quiet" in line):
        return Outcome("mute", told)
    parts = [name for name in after if name.endswith(".part")]
    if parts:
        return Outcome("wrong", f"{parts} left behind; {told}")
    allowed = {"made", "out.csv", "page.html"}
    if line[0] in ("calibrate", "fit"):
        allowed |= {"model", "deployed"}
    if "--force" in line:
        allowed |= {word.split("/")[0] for word in line}
    changed = {
        name.split("/")[0] for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    } - allowed
    new = {name for name in changed if name in {path.split("/")[0] for path in before}}
    if new:
        return Outcome("wrong", f"{sorted(new)} changed; {told}")
    return Outcome("answered" if not ended.code else "refused", told)


def environment() -> None:
    """Refuse to run where commands cannot be forked."""
    assert hasattr(os, "fork")
