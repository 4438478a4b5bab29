"""Results as a file that grows row by row, as a table on the terminal and as Markdown."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rivals.foreign import PYTHON

OURS = ("vhat", "jax", "jaxlib", "numpy", "scipy", "torch", "optax", "scikit-learn", "MAPIE")
THEIRS = (
    "curvlinops-for-pytorch",
    "laplace-torch",
    "pyDVL",
    "backpack-for-pytorch",
    "scikit-learn",
    "linear_operator",
    "numpy",
    "torch",
)
_READ = "import json,sys;from importlib.metadata import version as v;print(json.dumps({n: v(n) for n in sys.argv[1:]}))"


def configuration(clock: str, kept: dict[str, Any]) -> dict[str, Any]:
    """Versions, cores and date of a run; versions of rivals as they were where their environment is missing."""
    return {
        "date": date.today().isoformat(),
        "clock": clock,
        "cores": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS", "unset"),
        "processor": _processor(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in OURS},
        "versions of rivals": _rivals() or kept.get("versions of rivals", {}),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _rivals() -> dict[str, str]:
    if not PYTHON.exists():
        return {}
    done = subprocess.run([str(PYTHON), "-c", _READ, *THEIRS], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


class Results:
    """What has been measured so far, written after every row.

    Attributes:
        file: The JSON file.
        rows: By name; rows of earlier runs stay until they are measured again.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        kept = json.loads(file.read_text()) if file.exists() else {}
        self.configuration: dict[str, Any] = kept.get("configuration", {})
        self.rows: dict[str, dict[str, Any]] = {found["name"]: found for found in kept.get("rows", [])}
        for found in self.rows.values():  # rows that were written without it are of the run that wrote them
            found.setdefault("processor", self.configuration["processor"])
        self.growth: dict[str, Any] = kept.get("growth", {})

    def write(self, order: list[str]) -> None:
        """Save, rows in the order of the registry; rows that are registered no more are dropped."""
        self.rows = {name: self.rows[name] for name in order if name in self.rows}
        whole = {"configuration": self.configuration, "rows": list(self.rows.values()), "growth": self.growth}
        draft = self.file.with_suffix(".tmp")
        draft.write_text(json.dumps(_plain(whole), indent=1, ensure_ascii=False) + "\n")
        draft.replace(self.file)


def _plain(value: Any) -> Any:
    """Numbers to six digits; JSON has neither NaN nor infinity."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def measured(found: dict[str, Any]) -> str:
    """The value with its unit."""
    value = found["measured"]
    if value is None:
        return "not measured"
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{number}x" if found["unit"] == "x" else f"{number} {found['unit']}"


def _mark(found: dict[str, Any]) -> str:
    return {True: "yes", False: "no", None: ""}[found["reached"]]


def _small(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"


def table(results: Results) -> Table:
    """For the terminal."""
    shown = Table(title="Costs, each a ratio within one run")
    shown.add_column("", min_width=34)
    for name in ("measured", "goal", "reached", "error of V"):
        shown.add_column(name, justify="right", no_wrap=True)
    for found in results.rows.values():
        style = {True: "green", False: "red", None: ""}[found["reached"]]
        shown.add_row(*_cells(found), style=style)
    return shown


def print_row(console: Console, found: dict[str, Any]) -> None:
    """One line as soon as a row is done."""
    verdict = {True: ": reached", False: ": not reached", None: ""}[found["reached"]]
    goal = f", goal {found['goal']}{verdict}" if found["goal"] else ""
    console.print(f"[bold]{found['title']}[/]: {measured(found)}{goal}", highlight=False)
    console.print(f"    [dim]{found['how']}[/]", highlight=False)


def markdown(results: Results) -> str:
    """For the documentation: the table, then how each row was measured."""
    facts = results.configuration
    lines = [
        "| | measured | goal | reached | error of V |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(_cells(found))} |" for found in results.rows.values()),
        "",
        f"{facts['date']}, {_processors(results)}, {facts['cores']} cores, {facts['clock']} time, float64; "
        + ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
        + ("; rivals: " + ", ".join(f"{name} {number}" for name, number in facts["versions of rivals"].items()))
        + ". The error of V is our largest relative error against a dense Cholesky factorisation of the exact Hessian.",
        "",
        *(f"- **{found['title']}.** {found['how']}{_theirs(found)}" for found in results.rows.values()),
    ]
    return "\n".join(lines) + "\n"


def _processors(results: Results) -> str:
    """The processor of the rows; where there are several, that of most, and whose rows are of another."""
    names: dict[str, list[str]] = {}
    for found in results.rows.values():
        names.setdefault(found["processor"], []).append(found["name"])
    most, *others = sorted(names, key=lambda processor: -len(names[processor]))
    return most + "".join(f" ({', '.join(names[processor])}: {processor})" for processor in others)


def write_between(file: Path, name: str, text: str) -> None:
    """Replace what stands between the two comments of that name in a Markdown file."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = file.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{file.name} has no {begin} ... {end}")
    file.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def _cells(found: dict[str, Any]) -> tuple[str, ...]:
    return found["title"], measured(found), found["goal"] or "", _mark(found), _small(found["error"])


def _theirs(found: dict[str, Any]) -> str:
    return "" if found["rival_error"] is None else f" Error of the rival: {found['rival_error']:.0e}."
