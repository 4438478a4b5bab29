"""A certified minimum: the way there, and exact intervals where Gauss-Newton is not good enough."""

from __future__ import annotations

import math
from dataclasses import replace

from benchmarks.problems import Setting, save
from benchmarks.registry import Measurement, Run, at_least, at_most, row
from benchmarks.rows.pointwise import against_pointwise

START = Setting(n=1000, hidden=(512,), activation="tanh", lam=1e-4, steps=0)


@row("polish", "Hessian products to a certified minimum, 512 tanh units", unit="products", goal=at_most(600))
def polish(run: Run) -> Measurement:
    trained = run.load(START)
    kept = {}

    def work() -> None:
        kept["fitted"] = trained.fitted().polish()

    run.watch.say("polish")
    seconds = run.watch.seconds(work)
    found = kept["fitted"].polished
    save(replace(trained.setting, polished=True), trained.X, trained.y, kept["fitted"].params)
    arrived = found.gradient_norm <= 1e-10 and found.definiteness.verdict == "positive"
    return Measurement(
        value=float(found.products) if arrived else math.inf,
        how=f"{trained.setting}; polish() from the first parameters, certificates included in the count; "
        f"|grad L_lam| = {found.gradient_norm:.1e} (to be 1e-10), Hessian {found.definiteness.verdict}, smallest "
        f"eigenvalue {found.definiteness.value:.1e} in unit-free scale.",
        details={
            "seconds": seconds,
            "L-BFGS steps": found.warmup_steps,
            "Newton steps": found.steps,
            "saddles left": found.escapes,
            "gradient norm": found.gradient_norm,
        },
    )


@row("per-point-minimum", "per-point CG / ours at that minimum, 100 points", goal=at_least(10))
def at_the_minimum(run: Run) -> Measurement:
    return against_pointwise(run, replace(START, polished=True), points=100, times=3)
