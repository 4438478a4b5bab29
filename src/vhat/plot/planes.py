"""Coverage against width: where a method stands among others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vhat.plot.look import BLUE, GREY, ORANGE, new_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["coverage_plane"]

_WIDE = 20.0
"""Widths that span more than this factor are drawn on a logarithmic axis."""


def coverage_plane(
    names: Sequence[str],
    widths: np.ndarray,
    coverages: np.ndarray,
    errors: np.ndarray | None = None,
    *,
    level: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Mark every method by its width and its coverage: up is safer, left is sharper.

    Args:
        names: The methods.
        widths: Their median widths, (methods,).
        coverages: Their coverages, between 0 and 1.
        errors: Standard errors of the coverages, NaN where there is none.
        level: The coverage that was asked for, drawn as a line.
        ax: Where to draw; None makes a figure of column width, reached by ``ax.figure``.

    Returns:
        The axis.
    """
    with style(ax is None):
        ax = new_axis() if ax is None else ax
        positive = widths[widths > 0]
        if positive.size and positive.max() > _WIDE * positive.min():
            ax.set_xscale("log")
        if level is not None:
            ax.axhline(100 * level, color=ORANGE, linewidth=0.9, linestyle="--", zorder=1)
            ax.annotate(
                f"{100 * level:g}% asked for",
                (1.0, 100 * level),
                xycoords=("axes fraction", "data"),
                xytext=(0, 2),
                textcoords="offset points",
                ha="right",
                color=ORANGE,
                fontsize=7.5,
            )
        if errors is not None:
            known = np.where(np.isfinite(errors), errors, 0.0)
            ax.errorbar(widths, 100 * coverages, 100 * known, fmt="none", ecolor=GREY, elinewidth=0.8, zorder=2)
        ax.plot(widths, 100 * coverages, "o", color=BLUE, markersize=5, markeredgewidth=0, zorder=3)
        _label(ax, names, widths, 100 * coverages)
        ax.set_xlabel("median width")
        ax.set_ylabel("coverage (%)")
        ax.margins(x=0.12, y=0.08)
    return ax


def _label(ax: Axes, names: Sequence[str], x: np.ndarray, y: np.ndarray) -> None:
    """Write the names beside their marks, stepping aside where two marks are close."""
    taken: list[tuple[float, float]] = []
    ax.figure.canvas.draw()
    for i in np.lexsort((x, y)):
        at, height = ax.transData.transform((x[i], y[i])), 9.0 * ax.figure.dpi / 72
        lift = 0.0
        while any(abs(at[0] - u) < 9 * height and abs(at[1] + lift - v) < height for u, v in taken):
            lift += height
        taken.append((float(at[0]), float(at[1] + lift)))
        offset = (5, lift * 72 / ax.figure.dpi - 2.5)
        ax.annotate(names[i], (x[i], y[i]), xytext=offset, textcoords="offset points", fontsize=7.5)
