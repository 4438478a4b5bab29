"""How the cost grows with the number of test points, beyond a hundred of them."""

from __future__ import annotations

import numpy as np

from benchmarks.objective import gradient_of_loss
from benchmarks.ours import medians
from benchmarks.problems import Setting
from benchmarks.registry import Goal, Measurement, Run, at_most, row
from benchmarks.timing import Job

COUNTS = (100, 200, 400, 800)
NAMES = {"hessian": "exact", "ggn": "Gauss-Newton"}


def _slope(run: Run, n: int, curvature: str) -> Measurement:
    """A line through the seconds of more and more points on a model that is set up already."""
    trained = run.load(Setting(n=n))
    counts = COUNTS if not run.quick else (8, 16, 32)
    x = trained.points(max(counts))
    fitted = trained.fitted()
    jobs = {
        str(m): Job(lambda _, m=m: fitted.weighted_norm(x[:m], curvature=curvature), run.count(5 if m < 400 else 3))
        for m in counts
    }
    jobs["gradient"] = Job(gradient_of_loss(trained, run.watch), run.count(15))
    seconds = medians(run.watch.interleaved(jobs))
    times = [seconds[str(m)] for m in counts]
    slope, start = np.polyfit(counts, times, 1)
    power = float(np.polyfit(np.log(counts[1:]), np.log(times[1:]), 1)[0])
    return Measurement(
        value=float(slope) / seconds["gradient"],
        how=f"{trained.setting}; least-squares line through {', '.join(map(str, counts))} points on a model set up "
        f"before; seconds grow as points^{power:.2f} from {counts[1]} on.",
        details={"seconds": seconds, "exponent": power, "intercept, gradients": float(start) / seconds["gradient"]},
    )


def _register(n: int, curvature: str, goal: Goal) -> None:
    title = f"gradients of the loss for one more point, {NAMES[curvature]}, n = {n:,}"

    @row(f"slope-{curvature}-n{n}", title, unit="gradients", goal=goal)
    def measure(run: Run) -> Measurement:
        return _slope(run, n, curvature)


for _n in (1000, 10_000):
    _register(_n, "hessian", at_most(4))
    _register(_n, "ggn", at_most(0.5))  # "about nothing": less than half a gradient
