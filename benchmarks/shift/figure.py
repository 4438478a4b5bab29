"""The shift league as a picture: Winkler scores beside split conformal's, and coverage at equal mean width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shift.report import SPLIT, bootstrap, log_ratios, mean_over_tables, numbers_of

OURS = ("linearised", "linearised, calibrated", "last layer", "last layer, calibrated")


def draw(lines: list[dict[str, Any]], file: Path) -> None:
    """Draw gap and end side by side, methods in one order: by the mean of both."""
    import matplotlib.pyplot as plt

    own = [line for line in lines if "methods" in line]
    sets = {kind: [line for line in own if line["split"].endswith(kind)] for kind in ("gap", "end")}
    methods = [name for name in own[0]["methods"] if name != SPLIT and all(name in line["methods"] for line in own)]
    ratios = {kind: {name: log_ratios(chosen, name, "outside") for name in methods} for kind, chosen in sets.items()}
    methods.sort(key=lambda name: -sum(mean_over_tables(ratios[kind][name]) for kind in sets))
    figure, axes = plt.subplots(1, 4, figsize=(11, 4.6), sharey=True, layout="constrained", width_ratios=(3, 2, 3, 2))
    places = np.arange(len(methods))
    for (kind, chosen), (left, right) in zip(sets.items(), axes.reshape(2, 2), strict=True):
        means = np.array([mean_over_tables(ratios[kind][name]) for name in methods])
        ends = np.array([bootstrap(ratios[kind][name]) for name in methods])
        colours = ["C0" if name in OURS else "0.45" for name in methods]
        left.hlines(places, *ends.T, color=colours, linewidth=2)
        left.scatter(means, places, color=colours, zorder=3)
        left.axvline(0, color="black", linewidth=0.8)
        left.set(title=f"{kind}: {len(chosen)} splits", xlabel="log Winkler ratio to split conformal")
        for name, place, colour in zip(methods, places, colours, strict=True):
            given = mean_over_tables(numbers_of(chosen, name, "outside", "coverage"))
            matched = mean_over_tables(numbers_of(chosen, name, "outside", "matched overall"))
            right.plot([100 * given, 100 * matched], [place, place], color=colour, linewidth=1)
            right.scatter(100 * given, place, color=colour)
            right.scatter(100 * matched, place, facecolors="white", edgecolors=colour, zorder=3)
        plain = mean_over_tables(numbers_of(chosen, SPLIT, "outside", "coverage"))
        right.axvline(100 * plain, color="black", linewidth=0.8)
        right.set(xlabel="coverage %: given (full),\nequal mean width (open)")
    axes[0].set_yticks(places, methods)
    figure.savefig(file, dpi=130)
    plt.close(figure)
