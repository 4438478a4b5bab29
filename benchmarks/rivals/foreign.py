"""The parent's side of rivals that run in their own environment: see :mod:`benchmarks.foreign`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.problems import Trained
from benchmarks.timing import Stopwatch

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-bench" / "bin" / "python"
_KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""For glibc: freed memory is used again. Otherwise these spend most of their time asking for fresh pages; others need
the memory back."""
_KEEP_MEMORY = ("curvlinops", "pydvl")


class Unavailable(Exception):  # noqa: N818  (a finding, not a fault)
    """The rival cannot be run here; the message says why."""


class Foreign:
    """A rival in a process of its own, to be used as a context manager.

    Args:
        name: "curvlinops", "laplace", "laplace_shift", "laplace_sketch" or "pydvl".
        problem: The trained network, or the arrays of a table.
        points: How many test points it is given with a network.
        watch: The clock that it is to use.
        options: Of the rival.

    Raises:
        Unavailable: When the environment is missing or the package cannot be imported.
    """

    def __init__(
        self, name: str, problem: Trained | dict[str, np.ndarray], points: int, watch: Stopwatch, **options: Any
    ) -> None:
        if not PYTHON.exists():
            raise Unavailable("not run: the rivals' environment is missing (make bench builds .venv-bench)")
        self.clock = watch.name
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name) / "problem.npz"
        if isinstance(problem, dict):
            np.savez(file, **problem)
        else:
            _write(file, problem, points)
        self.process = subprocess.Popen(
            [str(PYTHON), "-m", "benchmarks.foreign"],
            cwd=ROOT,
            env=os.environ | (_KEEPS_MEMORY if name in _KEEP_MEMORY else {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self._ask({"make": name, "file": str(file), "options": options})
        except Unavailable:
            self.__exit__()
            raise

    def __enter__(self) -> Foreign:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()

    def call(self, method: str, **arguments: Any) -> tuple[float, Any]:
        """Call a method of the rival; return its seconds and what it gave.

        Raises:
            Unavailable: When it fails.
        """
        answer = self._ask({"call": method, "arguments": arguments, "clock": self.clock})
        return float(answer["seconds"]), answer["value"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Unavailable(f"not run: its process ended with {self.process.wait()} (killed for memory?)")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Unavailable(f"not run: {answer['error']}")
        return answer


def _write(file: Path, trained: Trained, points: int) -> None:
    leaves = {f"{key}{i}": layer[key] for i, layer in enumerate(trained.params) for key in ("w", "b")}
    setting = trained.setting
    facts = {"layers": len(trained.params), "activation": setting.activation, "lam": setting.lam}
    np.savez(file, X=trained.X, y=trained.y, points=trained.points(points), **leaves, **facts)
