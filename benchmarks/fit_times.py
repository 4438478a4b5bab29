"""CPU seconds of the command line, cold: ``python -m benchmarks.fit_times [--shape 456x12] [--predict]``.

Three made tables with a fixed seed: a smooth non-linear truth, a few correlated columns, and noise. Each command runs
in a process of its own with one thread, and what is reported is its processor time, user and system, from the start of
the interpreter to the end: a busy machine changes it by a tenth or two.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SHAPES = ((456, 12), (1440, 10), (15642, 16))
"""Rows and features of the tables."""
GOALS = {(456, 12): 15.0, (1440, 10): 20.0, (15642, 16): 90.0}
"""CPU seconds that ``vhat fit`` may take."""
NOISE = 0.3
"""Standard deviation of the noise, in standard deviations of the truth."""
FEW = 50
"""Rows of the small table that is predicted."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Taken:
    """What a command took.

    Attributes:
        cpu: Seconds of processor time, user and system.
        wall: Seconds on the clock.
        output: What it printed.
    """

    cpu: float
    wall: float
    output: str


def made_table(rows: int, features: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and the responses of a made table."""
    rng = np.random.default_rng([seed, rows, features])
    X = rng.normal(size=(rows, features))
    X[:, 1] = 0.6 * X[:, 0] + 0.8 * X[:, 1]  # columns of real tables are correlated
    direction = rng.normal(size=features) / np.sqrt(features)
    truth = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.5 * np.tanh(2 * X[:, 3]) + X @ direction
    truth = (truth - truth.mean()) / truth.std()
    return X, 10 + 3 * (truth + NOISE * rng.normal(size=rows))


def write_table(path: Path, X: np.ndarray, y: np.ndarray | None = None) -> None:
    """Write a CSV or Parquet file with columns x0, x1, ... and, where it is given, y."""
    import pandas as pd

    frame = pd.DataFrame(X, columns=[f"x{at}" for at in range(X.shape[1])]).round(6)
    if y is not None:
        frame["y"] = np.round(y, 6)
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)


def run(*arguments: str | Path) -> Taken:
    """Run ``vhat`` with these arguments in a new process with one thread."""
    environment = os.environ | dict.fromkeys(THREADS, "1")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    line = [sys.executable, "-m", "vhat.cli", *map(str, arguments)]
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise SystemExit(f"vhat {arguments[0]} ended with {ended.returncode}:\n{ended.stderr}")
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Taken(cpu, wall, ended.stdout)


def time_fit(folder: Path, rows: int, features: int) -> Path:
    """Time ``vhat fit`` on a made table, say so, and return the model."""
    data = folder / f"{rows}x{features}.csv"
    model = folder / f"{rows}x{features}"
    write_table(data, *made_table(rows, features))
    taken = run("fit", data, "--target", "y", "--out", model, "--json", "--force")
    found = json.loads(taken.output)
    goal = GOALS.get((rows, features))
    against = "" if goal is None else f" (goal {goal:g})"
    print(
        f"fit {rows} x {features}: {taken.cpu:.1f} CPU s{against}, {taken.wall:.1f} s on the clock; weight decay "
        f"{found['weight_decay']:.6g}, error {found['training_error']:.6g}, audit holds {found['audit']['holds']}",
        flush=True,
    )
    return model


def time_predict(folder: Path, model: Path, rows: int, features: int, *options: str, form: str = "csv") -> None:
    """Time ``vhat predict`` on rows of a made table, and say so.

    Args:
        folder: Where tables are kept.
        model: The model.
        rows: How many rows.
        features: How many features.
        options: Further options of the command.
        form: ``"csv"`` or ``"parquet"``, of what is read and of what is written.
    """
    data = folder / f"new-{rows}x{features}.{form}"
    if not data.exists():
        write_table(data, made_table(rows, features, seed=1)[0])
    taken = run("predict", model, data, "--out", folder / f"intervals.{form}", "--force", *options)
    rate = f", {rows / taken.cpu:,.0f} rows a CPU second" if rows > FEW else ""
    named = " ".join(options) or "--interval mean"
    asked = f"predict {rows:,} rows of {form}, {named}"
    print(f"{asked}: {taken.cpu:.1f} CPU s, {taken.wall:.1f} s on the clock{rate}", flush=True)


def _shape(text: str) -> tuple[int, int]:
    rows, features = text.split("x")
    return int(rows), int(features)


def main() -> None:
    """Time what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", type=_shape, metavar="ROWSxFEATURES", help="only this table")
    parser.add_argument("--predict", action="store_true", help="time vhat predict too, by the model of the first table")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the long table that is predicted")
    parser.add_argument("--folder", type=Path, default=None, help="where to keep tables and models")
    options = parser.parse_args()
    shapes = options.shape or SHAPES
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        models = [time_fit(folder, *shape) for shape in shapes]
        if options.predict:
            for rows in (FEW, options.rows):
                for interval in ("mean", "observation"):
                    time_predict(folder, models[0], rows, shapes[0][1], "--interval", interval)
            time_predict(folder, models[0], options.rows, shapes[0][1], "--interval", "mean", form="parquet")


if __name__ == "__main__":
    main()
