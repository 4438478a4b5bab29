"""The paper's one-dimensional network, half a million parameters: Gauss-Newton.

Its first weights are of unit variance scaling here. With the paper's standard deviation of 100 the largest eigenvalue
of ``JJ'/n`` is 6e10 and rounding alone is 1e-5, a thousand times lam = 1e-8: no V is defined there in float64.
"""

from __future__ import annotations

from benchmarks.objective import gradient_of_loss
from benchmarks.ours import Ours, medians
from benchmarks.peak import peak
from benchmarks.problems import Setting
from benchmarks.registry import Measurement, Run, at_most, row
from benchmarks.timing import Job

WIDE = Setting(d=1, n=10_000, hidden=(1024, 512), lam=1e-8, steps=200)
POINTS = 200
WHERE = "Parameters after 200 steps of the recipe (10,000 would take hours and change no cost of Gauss-Newton)"


@row(
    "wide-gradients",
    "1-1024-512-1, n = 10,000, 200 points, Gauss-Newton: cost in all",
    unit="gradients",
    goal=at_most(60),
)
def gradients(run: Run) -> Measurement:
    trained = run.load(WIDE)
    points = run.count(POINTS, 20)
    ours = Ours(trained, trained.points(points), curvature="ggn")
    gradient = gradient_of_loss(trained, run.watch)
    jobs = {"ours": Job(ours, run.count(2)), "gradient": Job(gradient, run.count(9))}
    seconds = medians(run.watch.interleaved(jobs))
    unsolved = points - ours.details["converged"]
    return Measurement(
        value=seconds["ours"] / seconds["gradient"] if not unsolved else None,
        how=f"{trained.setting}; {points} points, everything included. {WHERE}. {unsolved} points not converged; "
        f"largest relative residual {ours.details['residual']:.0e}.",
        details={"seconds": seconds, "ours": ours.details},
    )


@row("wide-memory", "1-1024-512-1, n = 10,000, 200 points, Gauss-Newton: peak memory", unit="GB", goal=at_most(8))
def memory(run: Run) -> Measurement:
    trained = run.load(WIDE)
    found = peak(trained.setting, run.count(POINTS, 20), "ggn", "auto")
    return Measurement(
        value=found.peak / 1e9,
        how=f"{trained.setting}; peak resident memory of a process of its own, less what it had before the solve. "
        f"{WHERE}.",
        details=found._asdict(),
    )
