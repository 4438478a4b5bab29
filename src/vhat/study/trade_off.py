"""The paper's figure 2: coverage against median width for all decays, in a panel for each d and n."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vhat.plot import GREY
from vhat.plot.labels import write_names
from vhat.study.cell import decay_text
from vhat.study.figure_frame import COLOURS, TITLES, own_style, write_caption, write_inside, write_legend
from vhat.study.protocol import ALPHA
from vhat.study.published import Value
from vhat.study.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["trade_off"]

_THIN_WIDTH = 0.004
"""Least width of a shade, in the unit of the responses."""
_THIN_COVERAGE = 0.8
"""Least height of a shade, in percent."""
_CLOSE = 12.0
"""Distance below which marks share a label, in points (1/72 inch): a little more than the height of a label."""


@dataclass(frozen=True)
class _Mark:
    """The mean of a row over its trials.

    Attributes:
        width: Median width.
        coverage: Coverage in percent.
        row: The row.
    """

    width: Value
    coverage: Value
    row: Row


def trade_off(rows: Sequence[Row]) -> Figure:
    """Draw figure 2 for the rows of one version; all panels have the same axes."""
    from matplotlib.figure import Figure

    dimensions = sorted({row.first.d for row in rows})
    sizes = sorted({row.first.n for row in rows})
    with own_style():
        figure = Figure(figsize=(2.45 * len(sizes) + 0.4, 1.95 * len(dimensions) + 0.4), layout="constrained")
        axes = figure.subplots(len(dimensions), len(sizes), sharex=True, sharey=True, squeeze=False)
        panels: list[tuple[Axes, list[list[_Mark]]]] = []
        for i, d in enumerate(dimensions):
            for j, n in enumerate(sizes):
                curves = _curves([row for row in rows if row.first.d == d and row.first.n == n])
                panels.append((axes[i, j], curves))
                _draw_curves(axes[i, j], curves)
                axes[i, j].set_title(f"$d = {d}$, $n = {n:,}$".replace(",0", "{,}0"))
                axes[i, j].set_xlabel("median width (upper - lower)" if i == len(dimensions) - 1 else "")
                axes[i, j].set_ylabel("% of the truth covered" if j == 0 else "")
        _set_axes(axes, rows)
        write_legend(figure, axes)
        version = TITLES[rows[0].first.version]
        caption = f"{version}; labels: λ; shades: standard deviations over trials; dotted: {100 * (1 - ALPHA):g}%"
        if any(_incomplete(curve) for _, panel in panels for curve in panel):
            caption += "; open marks: fewer trials"
        write_caption(figure, caption, rows[0].first.steps)
        # The labels come last: their places depend on the final axes.
        for ax, curves in panels:
            _label(ax, curves)
    return figure


def _curves(rows: Sequence[Row]) -> list[list[_Mark]]:
    """Return the marks of each method, by ascending decay.

    Only decays with the largest number of trials are kept, because means over different trials do not form one curve.
    """
    curves = []
    for method in dict.fromkeys(row.first.method for row in rows):
        marks = []
        for row in rows:
            width = row.ours["median width"]
            coverage = row.ours["coverage %"]
            if row.first.method == method and width is not None and coverage is not None:
                marks.append(_Mark(width, coverage, row))
        if marks:
            most = max(mark.row.done for mark in marks)
            complete = [mark for mark in marks if mark.row.done == most]
            curves.append(sorted(complete, key=lambda mark: mark.row.first.lam))
    return curves


def _incomplete(marks: Sequence[_Mark]) -> bool:
    """Return whether a curve has fewer trials than were asked for."""
    return marks[0].row.done < marks[0].row.asked


def _draw_curves(ax: Axes, curves: Sequence[Sequence[_Mark]]) -> None:
    """Draw marks joined in the order of the decays, with standard deviations shaded."""
    from matplotlib.patches import Ellipse

    ax.axhline(100 * (1 - ALPHA), color=GREY, linewidth=0.6, linestyle=":", zorder=0)
    if not curves:
        write_inside(ax, "not computed")
    for marks in curves:
        method = marks[0].row.first.method
        colour = COLOURS.get(method, GREY)
        face = colour
        label = method
        if _incomplete(marks):
            face = "white"
            label = f"{method}, fewer trials"
        x = [mark.width.mean for mark in marks]
        y = [mark.coverage.mean for mark in marks]
        ax.plot(x, y, "-", color=colour, linewidth=0.8, zorder=2)
        ax.plot(
            x,
            y,
            "o",
            color=colour,
            markersize=3.4,
            markerfacecolor=face,
            markeredgewidth=0.8,
            label=label,
            zorder=3,
        )
        for mark in marks:
            center = (mark.width.mean, mark.coverage.mean)
            # A standard deviation of zero is drawn as a thin line.
            axes = (max(2 * (mark.width.sd or 0.0), _THIN_WIDTH), max(2 * (mark.coverage.sd or 0.0), _THIN_COVERAGE))
            ax.add_patch(Ellipse(center, *axes, color=colour, alpha=0.15, linewidth=0, zorder=1))


def _set_axes(axes: np.ndarray, rows: Sequence[Row]) -> None:
    """Give all panels the same axes, wide enough for every point."""
    widths = [value.mean + (value.sd or 0.0) for row in rows if (value := row.ours["median width"]) is not None]
    shares = [value.mean - (value.sd or 0.0) for row in rows if (value := row.ours["coverage %"]) is not None]
    axes.flat[0].set_xlim(0.0, 1.15 * max(widths, default=1.0))
    lowest = 20 * math.floor(min(shares, default=0.0) / 20)
    axes.flat[0].set_ylim(lowest - 2, 104)
    axes.flat[0].set_yticks(range(lowest, 101, 20))


def _label(ax: Axes, curves: Sequence[Sequence[_Mark]]) -> None:
    """Write the decays beside their marks, with a common label for marks that are close together."""
    names = []
    x = []
    y = []
    colours = []
    for marks in curves:
        positions = np.array([(mark.width.mean, mark.coverage.mean) for mark in marks])
        in_points = ax.transData.transform(positions) * 72 / ax.figure.figure.dpi
        for group in _group_close(in_points):
            middle = group[len(group) // 2]
            ends = [_power(marks[at].row.first.lam) for at in (group[0], group[-1])]
            names.append(" to ".join(dict.fromkeys(ends)))
            x.append(positions[middle, 0])
            y.append(positions[middle, 1])
            colours.append(COLOURS.get(marks[0].row.first.method, GREY))
    if names:
        write_names(ax, names, np.array(x), np.array(y), line=100 * (1 - ALPHA), size=6.5, colours=colours)


def _group_close(positions: np.ndarray) -> list[list[int]]:
    """Return groups of consecutive marks that are too close together for separate labels.

    Args:
        positions: Positions in the figure, in points, (marks, 2).
    """
    groups: list[list[int]] = []
    for at in range(len(positions)):
        if groups and np.linalg.norm(positions[at] - positions[groups[-1][0]]) <= _CLOSE:
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def _power(lam: float) -> str:
    """Return a decay as LaTeX."""
    digits, power = decay_text(lam).split("e")
    if digits == "1":
        return f"$10^{{{power}}}$"
    return f"${digits}\\cdot 10^{{{power}}}$"
