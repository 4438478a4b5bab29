"""Cost against the number of test points, of training rows and of parameters: measured here, drawn by ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.objective import gradient_of_loss
from benchmarks.ours import Ours, medians
from benchmarks.problems import Setting
from benchmarks.registry import Run
from benchmarks.rivals.pointwise import Pointwise
from benchmarks.timing import Job

POINTS = (1, 3, 10, 30, 100, 300, 1000)
ROWS = (500, 1000, 2000, 5000, 10_000)
HIDDEN = (256, 512, 1024, 2048, 4096)
AT = 100
"""Test points where something else grows."""
TIMED = 3
"""Test points on which per-point conjugate gradients are timed."""

CURVES = {
    "per-point": "conjugate gradients, point by point",
    "exact": "vhat, exact Hessian",
    "ggn": "vhat, Gauss-Newton",
    "gradient": "one gradient of the loss",
}
PANELS = {
    "points": "test points",
    "rows": "training rows $n$",
    "parameters": "parameters $p$",
}


def measure(run: Run) -> dict[str, Any]:
    """Seconds of each curve in each panel: ``{panel: {"x": [...], "fixed": text, curve: [...]}}``."""
    if run.quick:
        return {
            "points": _points(run, Setting(), (2, 4, 8)),
            "rows": _sizes(run, [Setting(n=n) for n in (50, 100, 200)], [50, 100, 200], "p = 3,073", 8),
        }
    rows, wide = [Setting(n=n) for n in ROWS], [Setting(hidden=(h,)) for h in HIDDEN]
    sizes = [setting.network.parameters for setting in wide]
    return {
        "points": _points(run, Setting(), POINTS),
        "rows": _sizes(run, rows, list(ROWS), f"p = 12,289, {AT} points", AT),
        "parameters": _sizes(run, wide, sizes, f"n = 1000, {AT} points", AT),
    }


def _points(run: Run, setting: Setting, counts: Sequence[int]) -> dict[str, Any]:
    trained = run.load(setting)
    seconds = {}
    for m in counts:
        for curve, curvature in (("exact", "hessian"), ("ggn", "ggn")):
            seconds[curve, m] = Ours(trained, trained.points(m), curvature=curvature)
    jobs = {f"{curve} {m}": Job(ours, run.count(3, 1)) for (curve, m), ours in seconds.items()}
    jobs |= _others(run, trained)
    found = medians(run.watch.interleaved(jobs))
    return {
        "x": list(counts),
        "fixed": "n = 1000, p = 12,289",
        "per-point": [m * found["per-point"] for m in counts],
        "exact": [found[f"exact {m}"] for m in counts],
        "ggn": [found[f"ggn {m}"] for m in counts],
        "gradient": [found["gradient"]] * len(counts),
    }


def _sizes(run: Run, settings: Sequence[Setting], x: Sequence[int], fixed: str, points: int) -> dict[str, Any]:
    panel: dict[str, Any] = {"x": list(x), "fixed": fixed, **{curve: [] for curve in CURVES}}
    for setting in settings:
        trained = run.load(setting)
        inputs = trained.points(points)
        jobs = {
            "exact": Job(Ours(trained, inputs, curvature="hessian"), run.count(3, 1)),
            "ggn": Job(Ours(trained, inputs, curvature="ggn"), run.count(3, 1)),
            **_others(run, trained),
        }
        found = medians(run.watch.interleaved(jobs))
        found["per-point"] *= points
        for curve in CURVES:
            panel[curve].append(found[curve])
    return panel


def _others(run: Run, trained: Any) -> dict[str, Job]:
    """One gradient, and conjugate gradients as accurate as V to 1e-6, by our own V (dense at p = 12,289 agrees)."""
    x = trained.points(TIMED)
    reference = trained.fitted().weighted_norm(x, curvature="hessian").value
    rival = Pointwise(trained, run.watch)
    rival.calibrate(x, reference)
    return {
        "per-point": Job(lambda i: rival(x[i]), TIMED),
        "gradient": Job(gradient_of_loss(trained, run.watch), run.count(9)),
    }


def slopes(growth: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Powers at which seconds grow over the last three sizes of each panel."""
    return {
        name: {
            curve: float(np.polyfit(np.log(panel["x"][-3:]), np.log(panel[curve][-3:]), 1)[0])
            for curve in CURVES
            if len(panel[curve]) > 2
        }
        for name, panel in growth.items()
    }


STYLES = {  # Okabe and Ito's colours, told apart by marker and line as well
    "per-point": {"color": "#D55E00", "marker": "s", "linestyle": "-"},
    "exact": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "ggn": {"color": "#009E73", "marker": "^", "linestyle": "-"},
    "gradient": {"color": "#666666", "marker": "", "linestyle": "--"},
}


def plot(growth: dict[str, Any], file: Path) -> None:
    """Draw one panel for each thing that grows, on logarithmic axes of one scale."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(1, len(growth), figsize=(4.1 * len(growth), 4.1), sharey=True, squeeze=False)
        for axis, (name, panel) in zip(axes[0], growth.items(), strict=True):
            for curve, style in STYLES.items():
                axis.loglog(panel["x"], panel[curve], markersize=5, linewidth=1.7, label=CURVES[curve], **style)
            axis.set_xlabel(PANELS[name])
            axis.set_title(panel["fixed"], fontsize=10, color="#444444")
            axis.grid(visible=True, which="major", color="#e6e6e6", linewidth=0.8)
            axis.margins(x=0.12)
            axis.minorticks_off()
            axis.set_xticks(panel["x"], [_short(value) for value in panel["x"]])
        axes[0][0].set_ylabel("seconds, everything included")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, bbox_to_anchor=(0.5, 0.035))
        note = "Numbers beside the curves: the power at which the time grows over the last three sizes."
        figure.text(0.5, 0.015, note, ha="center", fontsize=8.5, color="#555555")
        figure.tight_layout(rect=(0, 0.1, 1, 1))
        for axis, (name, powers) in zip(axes[0], slopes(growth).items(), strict=True):
            _name_slopes(axis, growth[name], powers)
        figure.savefig(file, dpi=180)
        plt.close(figure)


def _short(value: int) -> str:
    """3,073 as 3.1k: what stands under the axis."""
    return f"{value / 1000:.2g}k" if value >= 1000 else str(value)


def _name_slopes(axis: Any, panel: dict[str, Any], powers: dict[str, float]) -> None:
    """Write the power of growth beside the end of each curve, with room between the numbers."""
    last = -np.inf
    for curve in sorted(powers, key=lambda curve: panel[curve][-1]):
        end = (panel["x"][-1], panel[curve][-1])
        height = max(axis.transData.transform(end)[1], last + 15 * axis.figure.dpi / 100)
        last = height
        axis.annotate(
            f"{powers[curve]:.1f}".replace("-0.0", "0.0"),
            (end[0], axis.transData.inverted().transform((0, height))[1]),
            xytext=(7, 0),
            textcoords="offset points",
            color=STYLES[curve]["color"],
            fontsize=9,
            verticalalignment="center",
        )
