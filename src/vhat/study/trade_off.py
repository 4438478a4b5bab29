"""The paper's figure 2: coverage against median width over the decays, a panel for each d and n."""

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

_CLOSE = 12.0
"""Points closer than this share a label, in points of the figure (1/72 inch): a little more than a label's height."""


@dataclass(frozen=True)
class _Spot:
    """A mean over trials."""

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
        panels: list[tuple[Axes, list[list[_Spot]]]] = []
        for i, d in enumerate(dimensions):
            for j, n in enumerate(sizes):
                curves = _curves([row for row in rows if row.first.d == d and row.first.n == n])
                panels.append((axes[i, j], curves))
                _draw_curves(axes[i, j], curves)
                axes[i, j].set_title(f"$d = {d}$, $n = {n:,}$".replace(",0", "{,}0"))
                axes[i, j].set_xlabel("median width" if i == len(dimensions) - 1 else "")
                axes[i, j].set_ylabel("% of the truth covered" if j == 0 else "")
        _set_axes(axes, rows)
        write_legend(figure, axes)
        write_caption(figure, _says(rows), rows[0].first.steps)
        for ax, curves in panels:
            _label(ax, curves)
    return figure


def _says(rows: Sequence[Row]) -> str:
    return (
        f"{TITLES[rows[0].first.version]}; labels: λ; shades: standard deviations over trials; open marks: fewer trials"
    )


def _curves(rows: Sequence[Row]) -> list[list[_Spot]]:
    """The points of each method in the order of the decays, those with the most trials."""
    curves = []
    for method in dict.fromkeys(row.first.method for row in rows):
        spots = []
        for row in rows:
            width, coverage = row.ours["median width"], row.ours["coverage %"]
            if row.first.method == method and width is not None and coverage is not None:
                spots.append(_Spot(width, coverage, row))
        most = max((spot.row.done for spot in spots), default=0)  # means over other trials are no points of one curve
        if spots:
            curves.append(sorted((s for s in spots if s.row.done == most), key=lambda s: s.row.first.lam))
    return curves


def _draw_curves(ax: Axes, curves: Sequence[Sequence[_Spot]]) -> None:
    """Points joined in the order of the decays, standard deviations shaded."""
    from matplotlib.patches import Ellipse

    ax.axhline(100 * (1 - ALPHA), color=GREY, linewidth=0.6, linestyle=":", zorder=0)
    if not curves:
        write_inside(ax, "not computed")
    for spots in curves:
        method = spots[0].row.first.method
        colour = COLOURS.get(method, GREY)
        full = spots[0].row.done == spots[0].row.asked
        x, y = [spot.width.mean for spot in spots], [spot.coverage.mean for spot in spots]
        ax.plot(x, y, "-", color=colour, linewidth=0.8, zorder=2)
        ax.plot(
            x, y, "o", color=colour, markersize=3.4, markerfacecolor=colour if full else "white", markeredgewidth=0.8,
            label=method if full else f"{method}, fewer trials", zorder=3,
        )  # fmt: skip
        for spot in spots:
            size = (2 * (spot.width.sd or 0.0), 2 * (spot.coverage.sd or 0.0))
            ax.add_patch(
                Ellipse((spot.width.mean, spot.coverage.mean), *size, color=colour, alpha=0.15, linewidth=0, zorder=1)
            )


def _set_axes(axes: np.ndarray, rows: Sequence[Row]) -> None:
    """Give all panels the same axes, wide enough for every point."""
    widths = [value.mean + (value.sd or 0.0) for row in rows if (value := row.ours["median width"]) is not None]
    shares = [value.mean - (value.sd or 0.0) for row in rows if (value := row.ours["coverage %"]) is not None]
    axes.flat[0].set_xlim(0.0, 1.15 * max(widths, default=1.0))
    lowest = 20 * math.floor(min(shares, default=0.0) / 20)
    axes.flat[0].set_ylim(lowest - 2, 104)
    axes.flat[0].set_yticks(range(lowest, 101, 20))


def _label(ax: Axes, curves: Sequence[Sequence[_Spot]]) -> None:
    """Write the decays beside their points, those of points that lie close together as one."""
    names, x, y, colours = [], [], [], []
    for spots in curves:
        place = np.array([(spot.width.mean, spot.coverage.mean) for spot in spots])
        dots = ax.transData.transform(place) * 72 / ax.figure.figure.dpi
        for near in _near(dots):
            middle = near[len(near) // 2]
            ends = [_power(spots[at].row.first.lam) for at in (near[0], near[-1])]
            names.append(" to ".join(dict.fromkeys(ends)))
            x.append(place[middle, 0])
            y.append(place[middle, 1])
            colours.append(COLOURS.get(spots[0].row.first.method, GREY))
    if names:
        write_names(ax, names, np.array(x), np.array(y), line=100 * (1 - ALPHA), size=6.5, colours=colours)


def _near(dots: np.ndarray) -> list[list[int]]:
    """Group neighbours, (points, 2) as they lie on paper, that are too close together for a label each."""
    groups: list[list[int]] = []
    for at in range(len(dots)):
        if groups and np.linalg.norm(dots[at] - dots[groups[-1][0]]) <= _CLOSE:
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def _power(lam: float) -> str:
    digits, power = decay_text(lam).split("e")
    return f"$10^{{{power}}}$" if digits == "1" else f"${digits}\\cdot 10^{{{power}}}$"
