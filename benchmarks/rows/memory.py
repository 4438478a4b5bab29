"""Peak memory, and whether the plan foresaw it."""

from __future__ import annotations

from benchmarks.peak import peak
from benchmarks.problems import Setting
from benchmarks.registry import Measurement, Run, at_most, row, within_factor

HOW = "peak resident memory of a process of its own, less what it had before the solve"


@row("memory-n10000", "peak memory, n = 10,000, p = 12,289, 100 points, exact", unit="GB", goal=at_most(3))
def many_rows(run: Run) -> Measurement:
    setting = run.load(Setting(n=10_000)).setting
    found = peak(setting, run.count(100, 20), "hessian", "auto")
    return Measurement(found.peak / 1e9, f"{setting}; {HOW}.", details=found._asdict())


PLANS = {
    "plan-dense": ("dense", Setting(n=1000, hidden=(200,)), 100, "ggn", "auto"),
    "plan-dual": ("dual, n = 1000", Setting(n=1000), 100, "hessian", "auto"),
    "plan-dual-n10000": ("dual, n = 10,000", Setting(n=10_000), 100, "hessian", "auto"),
    "plan-cg": ("CG, n = 1000", Setting(n=1000), 64, "ggn", "CG"),
}


def _register(name: str, title: str, setting: Setting, points: int, curvature: str, solver: str) -> None:
    @row(name, f"measured / planned memory: {title}", goal=within_factor(1.5))
    def measure(run: Run) -> Measurement:
        chosen = run.load(setting).setting
        found = peak(chosen, run.count(points, 20), curvature, solver)
        how = f"{chosen}, {points} points, {curvature}; {HOW}, over the memory that fitted.plan names."
        return Measurement(found.peak / found.planned, how, details=found._asdict())


for _name, _case in PLANS.items():
    _register(_name, *_case)
