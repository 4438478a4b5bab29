"""Signals in the middle of commands: the old model or the new one, whole; a part of a file after SIGKILL alone."""

from __future__ import annotations

import functools
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

import vhat
from tests.hostile.commands import contents, place, shell
from tests.hostile.outcome import Outcome

Case = dict[str, Any]
LINES = {
    "fit": ["fit", "data.csv", "--target", "y", "--hidden", "0", "--weight-decay", "0.1", "--out", "model", "--force"],
    "calibrate": ["calibrate", "model", "new.csv"],
    "predict": ["predict", "model", "new.csv", "--out", "out.csv"],
    "report": ["report", "model", "--out", "page.html"],
    "sketch": ["sketch", "model", "--out", "deployed", "--force"],
    "directory": ["predict", "model", "parts", "--out", "intervals"],
}
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")


@functools.cache
def seconds(command: str) -> float:
    """How long a command takes on this machine, now: signals must fall into it, however busy the machine is."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "here"
        shutil.copytree(place(), folder)
        began = time.monotonic()
        shell().run(LINES[command], folder)
        return time.monotonic() - began


def draw(rng: random.Random) -> Case:
    """Draw a case: the signal comes after a share of the time that the command takes; some come after its end."""
    return {"command": rng.choice(list(LINES)), "signal": rng.choice(SIGNALS), "share": round(rng.uniform(0, 1.2), 4)}


def run(case: Case) -> Outcome:  # noqa: PLR0911  (one return a verdict)
    """Send the signal, and look at what is left."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "here"
        shutil.copytree(place(), folder)
        before = contents(folder)
        number = getattr(signal, case["signal"])
        ended = shell().signalled(LINES[case["command"]], folder, number, case["share"] * seconds(case["command"]))
        after = contents(folder)
        told = f"exit {ended.code}: {ended.err.strip()[-400:]}"
        if "Traceback" in ended.err or "unexpected" in ended.err:
            return Outcome("raw", told)
        if ended.code not in (0, 3, 128 + number):
            return Outcome("raw", told)
        parts = [name for name in after if name.endswith(".part")]
        if parts and number != signal.SIGKILL:
            return Outcome("wrong", f"{parts} left behind; {told}")
        for name in ("out.csv", "page.html"):
            if name in after and not _whole(folder / name):
                return Outcome("wrong", f"{name} is cut off; {told}")
        for part in (folder / "intervals").glob("*.parquet"):
            if len(pd.read_parquet(part)) != 6:
                return Outcome("wrong", f"{part.name} is cut off; {told}")
        if any(before[name] != after.get(name) for name in before if name.endswith(".csv")):
            return Outcome("wrong", f"a table was changed; {told}")
        for name in ("model", "deployed"):
            try:
                vhat.NetworkRegressor.load(folder / name)
            except Exception as error:
                return Outcome("wrong", f"{name} cannot be loaded: {error}; {told}")
        return Outcome("finished" if ended.code in (0, 3) else "stopped", told)


def _whole(path: Path) -> bool:
    text = path.read_text()
    return text.count("\n") == 13 if path.suffix == ".csv" else text.rstrip().endswith("</html>")
