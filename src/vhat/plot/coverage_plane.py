"""Plot coverage against width, to compare methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vhat.level import level_text
from vhat.plot.labels import write_names
from vhat.plot.style import BLUE, DARK, GREY, ORANGE, new_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["coverage_plane"]

_SIZE = (6.0, 4.0)
"""Width and height of the figure, in inches."""
_LOGARITHMIC = 20.0
"""Widths that span more than this factor are drawn on a logarithmic axis."""


def coverage_plane(
    names: Sequence[str],
    widths: np.ndarray,
    coverages: np.ndarray,
    errors: np.ndarray | None = None,
    *,
    level: float | None = None,
    notes: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """Mark every method at its width and its coverage: higher is safer, further left is narrower.

    Args:
        names: The methods.
        widths: Their median widths, (methods,).
        coverages: Their coverages, between 0 and 1.
        errors: Standard errors of the coverages, NaN if unknown.
        level: The nominal coverage, drawn as a line.
        notes: Lines below the plot.
        ax: The axis to draw on; None makes a figure, available as ``ax.figure``.

    Returns:
        The axis.
    """
    with style(ax is None):
        ax = new_axis(_SIZE) if ax is None else ax
        positive = widths[widths > 0]
        if positive.size and positive.max() > _LOGARITHMIC * positive.min():
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
        if level is not None:
            _draw_level(ax, level)
        if errors is not None:
            known = np.where(np.isfinite(errors), errors, 0.0)
            ax.errorbar(widths, 100 * coverages, 100 * known, fmt="none", ecolor=GREY, elinewidth=0.8, zorder=2)
        ax.plot(widths, 100 * coverages, "o", color=BLUE, markersize=5, markeredgewidth=0, zorder=3)
        ax.set_xlabel("median width")
        if notes:
            _write_notes(ax, notes)
        ax.set_ylabel("coverage (%)")
        ax.margins(x=0.14, y=0.1)
        write_names(ax, names, widths, 100 * coverages, line=None if level is None else 100 * level)
    return ax


def _draw_level(ax: Axes, level: float) -> None:
    """Draw the nominal coverage as a line, with its label outside the frame, where no mark can be."""
    ax.axhline(100 * level, color=ORANGE, linewidth=0.9, linestyle="--", zorder=1)
    ax.annotate(
        f"{level_text(1 - level)}\nasked for",
        (1.0, 100 * level),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        color=ORANGE,
        fontsize=7.5,
    )


def _write_notes(ax: Axes, notes: Sequence[str]) -> None:
    """Write lines below the label of the horizontal axis, where the layout of the figure makes room for them."""
    ax.annotate(
        "\n".join(notes),
        (0.0, 0.0),
        xycoords="axes fraction",
        xytext=(0, -32),
        textcoords="offset points",
        va="top",
        color=DARK,
        fontsize=7.5,
    )
