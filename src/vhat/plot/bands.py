"""Bands over a single input: one, or one panel a method."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vhat.errors import InputError
from vhat.plot.style import BLACK, BLUE, DARK, GREY, LEGEND, ORANGE, STYLE, column, new_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Band", "band", "gallery"]

_SMALL = {"font.size": 7.5, "axes.titlesize": 8.0, "axes.titlepad": 3.0}
_THIN = 0.65
"""Lines and dots of a small panel, in those of a large one."""
_CUT = 0.25
"""The share of bands that may leave the frame at its lower and at its upper edge."""
_LINE, _MOST = 33, 190
"""Letters in a line of a panel, and in a panel."""


class Band(Protocol):
    """What can be drawn: a prediction and its limits at each point, (points,) each."""

    @property
    def center(self) -> np.ndarray:
        """The prediction."""

    @property
    def lower(self) -> np.ndarray:
        """The lower limits."""

    @property
    def upper(self) -> np.ndarray:
        """The upper limits."""


_ONE_LINE = 50
"""Letters of a legend that fit into one line above an axis of column width."""


def band(
    interval: Band,
    x: Any,
    ax: Axes | None = None,
    *,
    truth: Any = None,
    data: tuple[Any, Any] | None = None,
    gap: tuple[float, float] | None = None,
    label: str = "confidence interval",
    legend: bool = True,
) -> Axes:
    """Draw an interval over a single input: shaded band, prediction, truth, data.

    Args:
        interval: A result with ``center``, ``lower`` and ``upper``, (points,) each. Points whose limits are
            NaN (not converged) are left open.
        x: The points, (points,) or (points, 1), in any order.
        ax: Where to draw; None makes a figure of column width, reached by ``ax.figure``.
        truth: The regression function at the points, where it is known.
        data: Training inputs and responses.
        gap: Ends of a stretch without data, to be shaded.
        label: What the band is, for the legend.
        legend: Whether to write a legend above the axis.

    Returns:
        The axis.

    Raises:
        InputError: When the points are not one-dimensional or do not belong to the interval.
    """
    points, lines = _sorted(interval, x, truth)
    rows = None if data is None else _pairs(data)
    with style(ax is None):
        ax = new_axis() if ax is None else ax
        _draw(ax, points, lines, rows, gap, label)
        ax.set_xlabel("$x$")
        ax.set_ylabel("$y$")
        if legend:
            written = sum(len(each) for each in ax.get_legend_handles_labels()[1])
            columns = 5 if written <= _ONE_LINE else 1
            ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, **LEGEND)
    return ax


def gallery(
    bands: Mapping[str, Band | str],
    x: Any,
    *,
    truth: Any = None,
    data: tuple[Any, Any] | None = None,
    gap: tuple[float, float] | None = None,
    notes: Mapping[str, str] | None = None,
    columns: int = 3,
) -> Figure:
    """Draw bands over the same points, one small panel each, on the same axes.

    The axes are wide enough for most bands; the widest leave the frame, so that they do not flatten the others.

    Args:
        bands: What to draw, by name; a sentence, where there is no band, is written into its panel.
        x: The points, (points,) or (points, 1).
        truth: The regression function at the points, where it is known.
        data: Training inputs and responses.
        gap: Ends of a stretch without data, to be shaded.
        notes: A few letters for the upper right corner of a panel, by name.
        columns: Panels in a row.

    Returns:
        The figure, outside pyplot.

    Raises:
        InputError: When there is nothing to draw, or the points are not one-dimensional.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    drawn = {name: each for name, each in bands.items() if not isinstance(each, str)}
    if not drawn:
        raise InputError("there is no band to draw: every method refused.")
    pairs = None if data is None else _pairs(data)
    columns = min(columns, len(bands))
    rows = -(-len(bands) // columns)
    with mpl.rc_context({**STYLE, **_SMALL}):
        layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.03, hspace=0.03)
        figure = Figure(figsize=(2.4 * columns, 1.42 * rows + 0.4), dpi=220, layout=layout)
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis, (name, each) in zip(panels.flat, bands.items(), strict=False):
            if isinstance(each, str):
                _write(axis, each)
            else:
                _draw(axis, *_sorted(each, x, truth), pairs, gap, "interval", size=_THIN)
            axis.set_title(name, loc="left")
            axis.set_title((notes or {}).get(name, ""), loc="right", color=DARK, fontsize=7.0)
        panels[0, 0].set_ylim(*_limits(drawn, truth, data))
        for at, axis in enumerate(panels.flat):
            axis.set_visible(at < len(bands))
            lowest = at + columns >= len(bands)  # nothing is drawn below it
            if lowest and at < columns * (rows - 1):
                axis.xaxis.set_in_layout(False)  # there is room below, and no need to part the rows
            axis.tick_params(labelbottom=lowest, labelleft=at % columns == 0)
            axis.set_xlabel("$x$" if lowest else "")
            axis.set_ylabel("$y$" if at % columns == 0 else "")
        _explain(figure, panels.flat[list(bands).index(next(iter(drawn)))], list(panels.flat[len(bands) :]))
    return figure


def _explain(figure: Figure, panel: Axes, free: Sequence[Axes]) -> None:
    """Write the legend of a panel into the last free place of a gallery, or above it where there is none."""
    handles, labels = panel.get_legend_handles_labels()
    if free:
        figure.draw_without_rendering()  # settles where the places are
        place = free[-1].get_position().bounds
        figure.legend(handles, labels, loc="center", bbox_to_anchor=place, frameon=False, fontsize=8.0)
    else:
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, **LEGEND)


def _write(ax: Axes, sentence: str) -> None:
    """Write into a panel why it has no band."""
    lines = textwrap.fill(textwrap.shorten(sentence, _MOST, placeholder=" ..."), _LINE)
    ax.text(0.5, 0.5, lines, transform=ax.transAxes, ha="center", va="center", fontsize=6.5, color=DARK)


def _limits(bands: Mapping[str, Band], truth: Any, data: tuple[Any, Any] | None) -> tuple[float, float]:
    """Return vertical limits that show truth and data whole, and the better part of most bands."""
    lows, highs = (
        [float(np.nanquantile(getattr(each, name), share)) for each in bands.values()]
        for name, share in (("lower", 0.02), ("upper", 0.98))
    )
    low, high = float(np.quantile(lows, _CUT)), float(np.quantile(highs, 1 - _CUT))
    shown = [values for values in (truth, None if data is None else data[1]) if values is not None]
    for values in shown:
        low, high = min(low, float(np.min(values))), max(high, float(np.max(values)))
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def _sorted(interval: Band, x: Any, truth: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the points in order with the lines over them, or say which of them does not fit."""
    points = column("x", x)
    lines = {name: column(name, getattr(interval, name)) for name in ("center", "lower", "upper")}
    if truth is not None:
        lines["truth"] = column("truth", truth)
    for name, line in lines.items():
        if len(line) != len(points):
            raise InputError(f"{name} has {len(line)} points and x has {len(points)}.")
    order = np.argsort(points, kind="stable")
    return points[order], {name: line[order] for name, line in lines.items()}


def _pairs(data: tuple[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and responses as vectors of one length."""
    rows, responses = column("data[0]", data[0]), column("data[1]", data[1])
    if len(rows) != len(responses):
        raise InputError(f"data has {len(rows)} inputs and {len(responses)} responses.")
    return rows, responses


def _draw(
    ax: Axes,
    points: np.ndarray,
    lines: dict[str, np.ndarray],
    rows: tuple[np.ndarray, np.ndarray] | None,
    gap: tuple[float, float] | None,
    label: str,
    *,
    size: float = 1.0,
) -> None:
    """Draw the sorted band, its centre, the truth, the data and the gap; lines and dots ``size`` times as thick."""
    ax.fill_between(
        points,
        lines["lower"],
        lines["upper"],
        facecolor=(BLUE, 0.25),
        edgecolor=(BLUE, 0.7),
        linewidth=0.0 if size == 1 else 0.4,  # in a small panel a narrow band is seen by its edges
        label=label,
        zorder=1,
    )
    ax.plot(points, lines["center"], color=BLUE, linewidth=1.6 * size, label="prediction", zorder=3)
    if "truth" in lines:
        ax.plot(points, lines["truth"], "--", color=ORANGE, linewidth=1.4 * size, label="truth", zorder=4)
    if rows is not None:
        ax.plot(*rows, "o", color=BLACK, markersize=2.4 * size, markeredgewidth=0, label="data", zorder=5)
    if gap is not None:
        ax.axvspan(*gap, color=GREY, alpha=0.22, linewidth=0, zorder=0, label="no data")
    ax.margins(x=0)
