"""The paper's algorithm, one test point at a time, against all points at once."""

from __future__ import annotations

from benchmarks import truth
from benchmarks.objective import gradient_of_loss
from benchmarks.ours import Ours, medians
from benchmarks.problems import Setting
from benchmarks.registry import Measurement, Run, at_least, at_most, row
from benchmarks.rivals.pointwise import Pointwise
from benchmarks.timing import Job

TIMED = 10


def against_pointwise(run: Run, setting: Setting, points: int, times: int) -> Measurement:
    """Time per-point conjugate gradients on ten points, ours on all of them, and take the ratio."""
    trained = run.load(setting)
    points, timed = run.count(points, 20), run.count(TIMED)
    run.watch.say("V by dense Cholesky")
    V = truth.true_norm(trained)
    x = trained.points(points)
    rival, ours = Pointwise(trained, run.watch), Ours(trained, x, curvature="hessian")
    run.watch.say("how early per-point conjugate gradients may stop")
    rtol = rival.calibrate(x[:timed], V)
    solved = {}

    def one(i: int) -> None:
        solved[i] = rival(x[i])

    jobs = {
        "per-point": Job(one, timed),
        "ours": Job(ours, run.count(times)),
        "gradient": Job(gradient_of_loss(trained, run.watch), run.count(15)),
    }
    seconds = medians(run.watch.interleaved(jobs))
    rival_total = points * seconds["per-point"]
    return Measurement(
        value=rival_total / seconds["ours"],
        how=f"{trained.setting}; {points} points. Conjugate gradients from zero, one compiled program a point around "
        f"the linearised product, stopped at a relative residual of {rtol:.1e}, the largest with which all timed "
        f"points have V to 1e-6; median of {timed} points, times {points}. Ours from the fitted model on, compiled "
        "beforehand like it.",
        error=ours.error(V),
        rival_error=truth.error([solved[i].V for i in range(timed)], V),
        details={
            "seconds": seconds,
            "gradients a point, ours": seconds["ours"] / seconds["gradient"] / points,
            "gradients a point, rival": seconds["per-point"] / seconds["gradient"],
            "steps, rival": [solved[i].steps for i in range(timed)],
            "ours": ours.details,
        },
    )


@row("per-point-n10000", "per-point CG / ours, n = 10,000, 100 points", goal=at_least(50))
def per_point_many_rows(run: Run) -> Measurement:
    return against_pointwise(run, Setting(n=10_000), points=100, times=3)


@row("per-point-n1000", "per-point CG / ours, n = 1000, 1000 points", goal=at_least(100))
def per_point_many_points(run: Run) -> Measurement:
    return against_pointwise(run, Setting(n=1000), points=1000, times=5)


@row("gradients-n10000", "gradients of the loss a point, n = 10,000, 1000 points", unit="gradients", goal=at_most(4))
def gradients_a_point(run: Run) -> Measurement:
    trained = run.load(Setting(n=10_000))
    points = run.count(1000, 20)
    V = truth.true_norm(trained)
    ours = Ours(trained, trained.points(points), curvature="hessian")
    gradient = gradient_of_loss(trained, run.watch)
    seconds = medians(run.watch.interleaved({"ours": Job(ours, run.count(3)), "gradient": Job(gradient, 15)}))
    return Measurement(
        value=seconds["ours"] / seconds["gradient"] / points,
        how=f"{trained.setting}; {points} points, everything from the fitted model on, against one gradient of the "
        "loss (float64, compiled, whole or in chunks, whichever is quickest).",
        error=ours.error(V),
        details={"seconds": seconds, "ours": ours.details},
    )
