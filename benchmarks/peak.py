"""Peak memory of one solve, in a process of its own: ``python -m benchmarks.peak SETTING POINTS CURVATURE SOLVER``."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from benchmarks.problems import Setting, load


class Peak(NamedTuple):
    """Bytes over what the process had before the solve, and what the plan had said."""

    peak: int
    planned: int
    solver: str
    status: str


def peak(setting: Setting, points: int, curvature: str, solver: str) -> Peak:
    """Measure in a fresh process."""
    arguments = [json.dumps(asdict(setting)), str(points), curvature, solver]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peak", *arguments],
        cwd=Path(__file__).parents[1],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.splitlines() or [f"ended with {done.returncode}"])[-1])
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def _resident(key: str) -> int:
    """VmRSS or VmHWM of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"{key} is not in /proc/self/status: peak memory is measured on Linux only")


def _main() -> None:
    import vhat

    fields = json.loads(sys.argv[1])
    setting = Setting(**{**fields, "hidden": tuple(fields["hidden"])})
    points, curvature, solver = int(sys.argv[2]), sys.argv[3], sys.argv[4]
    trained = load(setting)
    fitted, x = trained.fitted(), trained.points(points)
    options = "auto" if solver == "auto" else getattr(vhat, solver)()
    plan = fitted.plan(x, solver=options)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew from what is resident now
    before = _resident("VmRSS")
    found = fitted.weighted_norm(x, solver=options, curvature=curvature)
    status = ", ".join(sorted(set(found.status.tolist())))
    print(json.dumps(Peak(_resident("VmHWM") - before, int(plan.memory), found.solver, status)._asdict()))


if __name__ == "__main__":
    _main()
