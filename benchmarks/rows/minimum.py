"""A certified minimum: the way there, and exact intervals where Gauss-Newton is not good enough."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from benchmarks.ours import medians
from benchmarks.problems import Setting, save
from benchmarks.registry import Measurement, Run, at_least, at_most, row
from benchmarks.rows.pointwise import against_pointwise
from benchmarks.timing import Job
from vhat.fit import AdamW, Minimum, Network, glorot, normal
from vhat.study import MaternTruth, sample

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


@row("recipe-d1", "recipe Minimum, to a certified minimum / the paper's training, d = 1, n = 100")
def one_input(run: Run) -> Measurement:
    network = Network((1, 64, 1), "tanh", initial=(normal(3.0), glorot()))
    return _recipes(run, MaternTruth(dimension=1, seed=0), network, 1e-5)


@row("recipe-d10", "the same, d = 10, n = 100")
def ten_inputs(run: Run) -> Measurement:
    return _recipes(run, MaternTruth(dimension=10, seed=0, amplitude=0.1), Network((10, 256, 1), "tanh"), 1e-3)


def _recipes(run: Run, truth: MaternTruth, network: Network, lam: float) -> Measurement:
    """Train one network both ways, compiled beforehand, and say where each of them ended."""
    data = sample(truth, 100, seed=0)
    recipes = {"AdamW": AdamW(network, lam, steps=run.count(10_000, 100)), "Minimum": Minimum(network, lam)}
    ended: dict[str, Any] = {}

    def train(name: str) -> None:
        ended[name] = recipes[name](data.X, data.y, seed=0)

    jobs = {name: Job(lambda _, name=name: train(name), run.count(3, 1)) for name in recipes}
    seconds = medians(run.watch.interleaved(jobs))
    audits = {name: fitted.audit() for name, fitted in ended.items()}
    found = ended["Minimum"].polished
    aligned = {name: audit["alignment"].value for name, audit in audits.items()}
    lowest = audits["Minimum"]["smallest eigenvalue"]
    took = {name: f"{seconds[name]:.1f} s" for name in recipes}
    return Measurement(
        value=seconds["Minimum"] / seconds["AdamW"],
        how=f"{'-'.join(map(str, network.widths))} {network.activation}, lam = {lam:g}. Minimum, {took['Minimum']}, "
        f"ends at a relative gradient of {found.relative_gradient:.0e}, alignment {aligned['Minimum']:.6f}, smallest "
        f"eigenvalue {lowest.value:.1e} ({lowest.verdict}); AdamW, 10,000 full-batch steps, float32, {took['AdamW']}, "
        f"at alignment {aligned['AdamW']:.3f}.",
        details={"seconds": seconds, "alignment": aligned, "relative gradient": found.relative_gradient},
    )
