"""A large table through ``vhat predict``: rows per second beside plain prediction, and peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import vhat
from benchmarks.registry import Measurement, Run, at_most, row

ROWS, QUICK = 1_000_000, 20_000
COLUMNS, TRAINING, HIDDEN = 10, 500, 16
HOW = (
    f"NetworkRegressor(({HIDDEN},)) fitted to {TRAINING:,} rows of {COLUMNS} columns; vhat predict NEW.csv --out "
    "OUT.csv in a process of its own, start, compilation, reading and writing included"
)


class Streamed(NamedTuple):
    """One run of ``vhat predict``.

    Attributes:
        rows: How many.
        seconds: Of the whole process.
        peak: Most memory that was resident, in bytes, the interpreter and its libraries included.
        plain: Seconds of ``network.predict`` on the same rows, in memory.
    """

    rows: int
    seconds: float
    peak: int
    plain: float


def _stream(run: Run) -> Streamed:
    rows = QUICK if run.quick else ROWS
    rng = np.random.default_rng(0)
    names = [f"x{at}" for at in range(COLUMNS)]
    X = pd.DataFrame(rng.normal(size=(TRAINING, COLUMNS)), columns=names)
    y = np.sin(X["x0"]) + X["x1"] * X["x2"] + 0.1 * rng.normal(size=TRAINING)
    run.watch.say("training")
    network = vhat.NetworkRegressor((HIDDEN,), weight_decay=1e-2).fit(X, y)
    new = pd.DataFrame(rng.normal(size=(rows, COLUMNS)), columns=names)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        network.save(place / "model")
        run.watch.say(f"writing {rows:,} rows")
        new.to_csv(place / "new.csv", index=False)
        run.watch.say("vhat predict")
        paths = [str(place / name) for name in ("model", "new.csv")]
        seconds, peak = _run(["predict", *paths, "--out", str(place / "out.csv")], run.watch.name)
        written = sum(1 for _ in (place / "out.csv").open()) - 1
    if written != rows:
        raise RuntimeError(f"{written:,} of {rows:,} rows were written")
    network.predict(new)  # compiles
    plain = min(run.watch.seconds(lambda: np.asarray(network.predict(new))) for _ in range(run.count(5)))
    return Streamed(rows, seconds, peak, plain)


def _run(arguments: list[str], clock: str) -> tuple[float, int]:
    """Seconds by the run's clock, and most memory that was resident, of one command."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen([sys.executable, "-m", "vhat.cli", *arguments], stderr=told)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            told.seek(0)
            raise RuntimeError(told.read().decode().strip() or f"ended with {process.returncode}")
    wall = time.perf_counter() - began
    return (used.ru_utime + used.ru_stime if clock == "cpu" else wall), 1024 * used.ru_maxrss


_runs: dict[tuple[bool, str], Streamed] = {}
"""Both rows below are of one run."""


def _streamed(run: Run) -> Streamed:
    key = (run.quick, run.watch.name)
    if key not in _runs:
        _runs[key] = _stream(run)
    return _runs[key]


@row("stream", f"vhat predict over plain prediction in memory, {ROWS:,} rows")
def stream(run: Run) -> Measurement:
    found = _streamed(run)
    how = (
        f"{HOW}: {found.rows / found.seconds:,.0f} rows a second. Plain: network.predict on the same rows in memory, "
        f"compiled, {found.rows / found.plain:,.0f} rows a second."
    )
    return Measurement(found.seconds / found.plain, how, details=found._asdict())


@row("stream-memory", f"peak memory of vhat predict, {ROWS:,} rows", unit="GB", goal=at_most(1))
def stream_memory(run: Run) -> Measurement:
    found = _streamed(run)
    how = f"{HOW}; most memory that was resident, the interpreter and its libraries included."
    return Measurement(found.peak / 1e9, how, details=found._asdict())
