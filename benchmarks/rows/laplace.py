"""laplace-torch: the full Gauss-Newton posterior."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

import vhat
from benchmarks.ours import medians
from benchmarks.problems import Setting, Trained
from benchmarks.registry import Measurement, Run, at_least, at_most, row
from benchmarks.rivals.foreign import Foreign, Unavailable
from benchmarks.rows.products import torch_module
from benchmarks.timing import Job

SMALLER = Setting(n=1000, hidden=(400,))
"""p = 4801, the largest of the first experiment that fitted in memory by a margin."""
SMALL = Setting(n=200, hidden=(20,), d=3, activation="tanh", steps=3000, polished=True)
AGREES = 1e-4
BATCH = 100
"""Rows at once in the full structure: with all 1000, some of its ways take more than 18 GB."""
NOISE = 0.1


def _from_torch(trained: Trained, points: np.ndarray) -> Callable[[int], None]:
    """Our Gauss-Newton V from the same torch module."""
    module, X, y = torch_module(trained), torch.tensor(trained.X), torch.tensor(trained.y)[:, None]

    def run(_: int = 0) -> None:
        vhat.from_torch(module, X, y, weight_decay=trained.setting.lam).weighted_norm(points, curvature="ggn")

    return run


def _measure(run: Run, variants: dict[str, dict[str, Any]], what: str, batch: int | None = None) -> Measurement:
    """Time the rival's variants beside ours, and compare with the quickest that has the right numbers."""
    trained = run.load(SMALLER)
    points = trained.points(run.count(100, 20))
    right = trained.fitted().weighted_norm(points, curvature="ggn", shortcut=True).value / len(trained.y)
    errors: dict[str, float] = {}

    def timed(name: str, rival: Foreign) -> float:
        seconds, found = rival.call("variances", points=len(points), batch=batch or len(trained.y))
        errors[name] = float(np.max(np.abs(np.array(found) / right - 1)))
        return seconds

    try:
        with ExitStack() as stack:
            rivals = {
                name: stack.enter_context(Foreign("laplace", trained, len(points), run.watch, **options))
                for name, options in variants.items()
            }
            jobs = {
                name: Job(lambda _, name=name, rival=rival: timed(name, rival), run.count(2, 1), warm=False)
                for name, rival in rivals.items()
            }
            jax_job = Job(lambda _: trained.fitted().weighted_norm(points, curvature="ggn"), run.count(7))
            own = {"ours": Job(_from_torch(trained, points), run.count(7)), "ours, JAX": jax_job}
            seconds = medians(run.watch.interleaved(jobs | own))
    except Unavailable as reason:
        return Measurement(None, str(reason))
    accurate = [name for name in variants if errors[name] <= AGREES] or list(variants)
    best = min(accurate, key=lambda name: seconds[name])
    others = ", ".join(f"{name} {seconds[name]:.1f} s (off by {errors[name]:.0e})" for name in variants if name != best)
    return Measurement(
        value=seconds[best] / seconds["ours"],
        how=f"{trained.setting}; {len(points)} points. {what} Compared with {best}, {seconds[best]:.1f} s, the "
        f"quickest whose variances are ours to {AGREES:g}"
        + (f"; besides: {others}" if others else "")
        + ". Ours is from_torch, "
        f"curvature='ggn', everything included; from_jax takes {seconds['ours, JAX'] / seconds['ours']:.2f} of it.",
        rival_error=errors[best],
        details={"seconds": seconds, "deviations": errors},
    )


@row("laplace-full", "laplace-torch full / our Gauss-Newton, p = 4801, n = 1000", goal=at_least(50))
def full(run: Run) -> Measurement:
    variants = {
        f"{backend} in {dtype}": {"backend": backend, "dtype": dtype}
        for backend in ("curvlinops", "backpack")
        for dtype in ("float64", "float32")
    }
    what = f"Full structure over all weights, fit ({BATCH} rows at once) and variance at the points."
    return _measure(run, variants, what, BATCH)


@row("laplace-gp", "laplace-torch in function space (gp, all rows) / our Gauss-Newton, p = 4801, n = 1000")
def function_space(run: Run) -> Measurement:
    variants = {
        f"{backend} in float64": {"backend": backend, "dtype": "float64", "structure": "gp"}
        for backend in ("curvlinops", "backpack")
    }
    return _measure(run, variants, "Its Gaussian process with every training row, the dual of the same posterior.")


@row(
    "laplace-agreement",
    "vhat.methods.LinearizedLaplace against laplace-torch full, p = 101, n = 200",
    unit="relative",
    goal=at_most(1e-6),
)
def agreement(run: Run) -> Measurement:
    trained = run.load(SMALL)
    points = trained.points(run.count(100, 20))
    method = vhat.methods.LinearizedLaplace(noise=NOISE)
    fit = method.fit(lambda *_, **__: trained.fitted(), trained.X, trained.y)
    ours = fit.interval(points).standard_error
    apart: dict[str, float] = {}
    for backend in ("curvlinops", "backpack"):
        try:
            with Foreign(
                "laplace", trained, len(points), run.watch, backend=backend, dtype="float64", noise=NOISE
            ) as rival:
                _, found = rival.call("variances", points=len(points), batch=len(trained.y))
        except Unavailable as reason:
            return Measurement(None, f"{backend}: {reason}")
        apart[backend] = float(np.max(np.abs(ours / np.sqrt(found) - 1)))
    each = ", ".join(f"{apart[name]:.1e} with {name}" for name in apart)
    return Measurement(
        value=max(apart.values()),
        how=f"{trained.setting}; {len(points)} points, noise {NOISE:g} given, both in float64. The largest "
        f"relative difference between the standard deviations of the two posteriors: {each}.",
        details={"differences": apart},
    )
