"""The bootstrap: ten refits by the paper's recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks import truth
from benchmarks.ours import Ours, medians
from benchmarks.problems import Setting
from benchmarks.registry import Measurement, Run, at_least, row
from benchmarks.timing import Job
from vhat.fit import fit_many

REFITS = 10
FEW, MORE = 500, 1500


@row("bootstrap", "bootstrap of 10 refits / ours, n = 1000, 100 points", goal=at_least(20))
def bootstrap(run: Run) -> Measurement:
    trained = run.load(Setting(n=1000))
    ours = Ours(trained, trained.points(run.count(100, 20)), curvature="hessian")
    n = len(trained.y)
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=REFITS)
    recipe = trained.setting.recipe

    def together(steps: int) -> None:
        seeds = [0] * REFITS
        fit_many(replace(recipe, steps=steps), trained.X, trained.y, seeds=seeds, sample_weights=counts)

    def alone(steps: int) -> None:
        replace(recipe, steps=steps)(trained.X, trained.y, seed=0, sample_weight=counts[0])

    jobs = {
        "together, few": Job(lambda _: together(FEW), run.count(2, 1)),
        "together, more": Job(lambda _: together(MORE), run.count(2, 1)),
        "alone, few": Job(lambda _: alone(FEW), run.count(3, 1)),
        "alone, more": Job(lambda _: alone(MORE), run.count(3, 1)),
        "ours": Job(ours, run.count(5)),
    }
    seconds = medians(run.watch.interleaved(jobs))
    steps = recipe.steps
    totals = {
        "together": _extrapolated(seconds["together, few"], seconds["together, more"], steps),
        "one after the other": REFITS * _extrapolated(seconds["alone, few"], seconds["alone, more"], steps),
    }
    way = min(totals, key=lambda name: totals[name])
    return Measurement(
        value=totals[way] / seconds["ours"],
        how=f"{trained.setting}; AdamW, {steps:,} full-batch steps, float32, refits {way} (the quicker way); a line "
        f"through {FEW} and {MORE} steps carried on to {steps:,}. Ours: exact V at {len(ours.points)} points, "
        "everything included.",
        error=ours.error(truth.true_norm(trained)),
        details={"seconds": seconds, "seconds of ten refits": totals, "ours": ours.details},
    )


def _extrapolated(few: float, more: float, steps: int) -> float:
    return few + (more - few) / (MORE - FEW) * (steps - FEW)
