"""Other people's solvers for the same V, all on n = 1000 and 100 points, each at its best."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import truth
from benchmarks.ours import Ours, medians
from benchmarks.problems import Setting, Trained
from benchmarks.registry import Measurement, Run, row
from benchmarks.rivals.foreign import Foreign, Unavailable
from benchmarks.rivals.jax_cg import JaxCG
from benchmarks.timing import Job

RUNGS = 10.0 ** -np.arange(1, 10.1, 0.5)
WANTED = 1e-6
_FEW = 20
"""Points on which the tolerance of a slow rival is found."""


def loosest(solve: Callable[[float], Sequence[float]], V: np.ndarray, say: Callable[[str], None]) -> float:
    """The largest tolerance at which a rival has V to 1e-6 on its own points, by halving; else the smallest rung."""

    def reached(rung: int) -> bool:
        say(f"tolerance {RUNGS[rung]:.0e}")
        return truth.error(solve(float(RUNGS[rung])), V) <= WANTED

    return float(RUNGS[bisect_left(range(len(RUNGS) - 1), True, key=reached)])


def _problem(run: Run) -> tuple[Trained, np.ndarray, Ours]:
    trained = run.load(Setting(n=1000))
    ours = Ours(trained, trained.points(run.count(100, 20)), curvature="hessian")
    return trained, truth.true_norm(trained), ours


def _compare(run: Run, ours: Ours, V: np.ndarray, rival: Job, block: int, values: list[Any], how: str) -> Measurement:
    """Interleave ours with a rival that solves ``block`` points at a time, and take the ratio for all points."""
    seconds = medians(run.watch.interleaved({"rival": rival, "ours": Job(ours, run.count(5))}))
    points = len(ours.points)
    scaled = f" Timed on {block} points, times {points / block:g}." if block < points else ""
    return Measurement(
        value=points / block * seconds["rival"] / seconds["ours"],
        how=f"{ours.trained.setting}; {points} points. {how}{scaled}",
        error=ours.error(V),
        rival_error=truth.error(values[-1], V),
        details={"seconds": seconds, "points timed": block, "ours": ours.details},
    )


@row("jax-cg", "plain CG (jax.scipy.sparse.linalg.cg), batched over points or not / ours, n = 1000")
def jax_cg(run: Run) -> Measurement:
    trained, V, ours = _problem(run)
    block = ours.points[: run.count(16)]
    ways = {"one by one": JaxCG(trained, together=False), "under vmap": JaxCG(trained, together=True)}
    rtol = loosest(lambda rtol: ways["one by one"](block, rtol), V, run.watch.say)
    best = run.watch.fastest({name: lambda way=way: way(block, rtol) for name, way in ways.items()}, times=1)
    values: list[Any] = []
    how = f"Around the linearised product, {best} (the quicker way), tol = {rtol:.0e}, the largest with V to 1e-6."
    job = Job(lambda _: values.append(ways[best](block, rtol)), run.count(3))
    return _compare(run, ours, V, job, len(block), values, how)


def _foreign(run: Run, name: str, block: int, how: str, *, times: int = 3, **options: Any) -> Measurement:
    """Compare with a rival that solves ``block`` points together; its tolerance is found on a few of them."""
    trained, V, ours = _problem(run)
    block = min(block, len(ours.points))
    few = min(block, _FEW)
    try:
        with Foreign(name, trained, len(ours.points), run.watch, **options) as rival:
            values: list[Any] = []

            def solve(rtol: float) -> Sequence[float]:
                return rival.call("norms", start=0, stop=few, rtol=rtol)[1]

            def timed(_: int) -> float:
                seconds, found = rival.call("norms", start=0, stop=block, rtol=rtol)
                values.append(found)
                return seconds

            rtol = loosest(solve, V, run.watch.say)
            text = f"{how}, relative residual {rtol:.0e}, the largest with V to 1e-6."
            return _compare(run, ours, V, Job(timed, run.count(times), warm=False), block, values, text)
    except Unavailable as reason:
        return Measurement(None, str(reason))


@row("curvlinops-cg", "curvlinops, CG inverse of its Hessian / ours, n = 1000")
def curvlinops_cg(run: Run) -> Measurement:
    how = "CGInverseLinearOperator of HessianLinearOperator + lam, float64, one batch, right-hand sides together"
    return _foreign(run, "curvlinops", 20, how)


@row("pydvl-cg", "pyDVL, CG influence factors / ours, n = 1000")
def pydvl_cg(run: Run) -> Measurement:
    how = "CgInfluence, float64, one batch, solve_simultaneously=True (its block CG, by far the quicker way)"
    return _foreign(run, "pydvl", 100, how, times=1, together=True)
