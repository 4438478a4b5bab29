"""Three tiers of tests, by what they cost in a cold run.

========  =====================================================================================================
tier      what belongs to it
========  =====================================================================================================
core      everything that is not in another tier, and tests marked ``core``: ``make test``, what a newcomer waits for
slow      tests of at least ``SLOW`` CPU seconds in a cold run, tests marked ``slow``, and, of tests that run once a
          framework, all but a sample of the JAX and torch cases: ``make test-slow``
dear      tests of at least ``DEAR`` CPU seconds: ``make test-dear`` runs one fifth of them, chosen by the commit
========  =====================================================================================================

``make test-all`` runs everything, and so does plain ``pytest`` on a file. The costs stand in ``costs.json``, which
``make test-costs`` records anew: CPU seconds of each test, its fixtures and its child processes included, with no
program compiled beforehand. Tests that cost less than ``RECORDED`` are left out of the file.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

RECORDED = 0.5
SLOW = 1.2
DEAR = 10.0
SLICES = 5
SAMPLED = 4
"""Of the JAX and torch cases of a test that every framework runs, one in so many stays in the core."""
SHARED_DRAWS = (
    "tests/evidence/test_acquire.py",
    "tests/evidence/test_leave_one_out.py",
    "tests/evidence/test_polish.py",
    "tests/intervals/test_classical.py",
    "tests/intervals/test_estimated_tail.py",
    "tests/linalg/test_dual.py",
    "tests/linalg/test_solve.py",
    "tests/models/test_changed_functions.py",
    "tests/models/test_stranger_models.py",
    "tests/test_interrupt.py",
    "tests/test_progress.py",
)
"""Files whose tests draw from one generator in turn: each is run whole, so that every test has the draws it was written
with. A test of such a file leaves this list when it has a generator of its own."""
_FRAMEWORK = ("framework", "frontend", "front_end", "front")
"""What the parameter of a test is called that names its framework."""

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
COSTS = _HERE / "costs.json"


def add_options(parser: pytest.Parser) -> None:
    """Add ``--tier``, ``--slice`` and ``--record``."""
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=("core", "slow", "dear", "all"), default="all", help="which tests to run (all)")
    group.addoption("--slice", type=int, default=None, help=f"which fifth of the dear tests (0 to {SLICES - 1})")
    group.addoption("--record", metavar="FILE", default=None, help="write the CPU seconds of every test to FILE")


def select(items: Sequence[pytest.Item], tier: str, number: int | None) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that belong to a run of ``tier``, and the others."""
    if tier == "all":
        return list(items), []
    costs = read_costs()
    chosen = slice_of_commit() if number is None else number
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        of = tier_of(item, costs)
        runs = of == tier and (of != "dear" or slice_of(item.nodeid) == chosen)
        (kept if runs else left).append(item)
    return kept, left


def tier_of(item: pytest.Item, costs: dict[str, float]) -> str:
    """Return ``"core"``, ``"slow"`` or ``"dear"``."""
    cost = costs.get(item.nodeid, 0.0)
    if item.get_closest_marker("core"):
        return "core"
    if item.nodeid.startswith(SHARED_DRAWS):
        return "slow"
    if cost >= DEAR:
        return "dear"
    if cost >= SLOW or item.get_closest_marker("slow") or _is_left_to_numpy(item):
        return "slow"
    return "core"


def _is_left_to_numpy(item: pytest.Item) -> bool:
    """Return whether this is a case of JAX or torch that is not in the sample: the core has the same one for NumPy."""
    given = getattr(item, "callspec", None)
    if given is None or not {given.params.get(name) for name in _FRAMEWORK} & {"jax", "torch"}:
        return False
    return zlib.crc32(item.nodeid.encode()) % SAMPLED != 0


def read_costs() -> dict[str, float]:
    """Return the recorded CPU seconds of tests by their node ids."""
    costs: dict[str, float] = json.loads(COSTS.read_text(encoding="utf-8"))
    return costs


def slice_of(nodeid: str) -> int:
    """Return the fifth of the dear tests to which a test belongs."""
    return zlib.crc32(nodeid.encode()) % SLICES


def slice_of_commit() -> int:
    """Return the fifth that the checked-out commit runs; 0 outside a git checkout."""
    command = ["git", "-C", str(_ROOT), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(commit[:8], 16) % SLICES


class Recorder:
    """Write the CPU seconds of each test as it ends, one JSON line each; processes have files of their own."""

    def __init__(self, path: Path) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
        self._path = path.with_name(f"{path.name}.{worker}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        before = _cpu_seconds()
        began = time.monotonic()
        outcome = yield
        line = [item.nodeid, round(_cpu_seconds() - before, 2), round(time.monotonic() - began, 2)]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return outcome


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def write_costs(records: Sequence[Path]) -> None:
    """Make ``costs.json`` from the files of a recorded run."""
    lines = [json.loads(line) for path in records for line in path.read_text(encoding="utf-8").splitlines()]
    costs = {nodeid: cpu for nodeid, cpu, _ in lines if cpu >= RECORDED}
    COSTS.write_text(json.dumps(dict(sorted(costs.items())), indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    import sys

    write_costs([Path(name) for name in sys.argv[1:]])
