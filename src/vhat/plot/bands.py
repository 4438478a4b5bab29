"""Confidence bands over a single input: one plot, or one small panel per method."""

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
"""Style of small panels, beside the common style."""
_THIN = 0.65
"""Width of lines and dots in a small panel, relative to those of a large plot."""
_CUT = 0.25
"""Share of the bands that may extend beyond the frame, at its lower edge and at its upper edge."""
_TAIL = 0.02
"""Share of the points of a band that is ignored at each end, for the limits of the vertical axis."""
_MARGIN = 0.05
"""Margin above and below what is drawn, as a share of its height."""
_LINE_LETTERS = 33
"""Letters per line of a sentence in a panel."""
_PANEL_LETTERS = 190
"""Letters of a sentence in a panel; more are cut."""
_LEGEND_LETTERS = 50
"""Letters of a legend that fit into one line above an axis of column width."""


class Band(Protocol):
    """A prediction and its limits at each point, shape (points,) each."""

    @property
    def center(self) -> np.ndarray:
        """Return the predictions."""

    @property
    def lower(self) -> np.ndarray:
        """Return the lower limits."""

    @property
    def upper(self) -> np.ndarray:
        """Return the upper limits."""


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
    """Plot intervals over a single input: shaded band, prediction, truth and data.

    Args:
        interval: A result with ``center``, ``lower`` and ``upper``, shape (points,) each. The band has a gap where the
            limits are NaN (not converged).
        x: The points, (points,) or (points, 1), in any order.
        ax: The axis to draw on; None makes a figure of column width, available as ``ax.figure``.
        truth: The regression function at the points, if it is known.
        data: Training inputs and responses.
        gap: Ends of a range without data, which is shaded.
        label: The name of the band in the legend.
        legend: Whether to draw a legend above the axis.

    Returns:
        The axis.

    Raises:
        InputError: If the points are not one-dimensional or not as many as those of the interval.
    """
    points, lines = _sorted(interval, x, truth)
    rows = None if data is None else _pairs(data)
    with style(ax is None):
        ax = new_axis() if ax is None else ax
        _draw(ax, points, lines, rows, gap, label)
        ax.set_xlabel("$x$")
        ax.set_ylabel("$y$")
        if legend:
            letters = sum(len(each) for each in ax.get_legend_handles_labels()[1])
            columns = 5 if letters <= _LEGEND_LETTERS else 1
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
    """Plot bands over the same points, in one small panel each, with shared axes.

    The vertical axis shows most bands completely. The widest bands extend beyond the frame, so that the others are not
    squeezed.

    Args:
        bands: The bands by name; or a sentence instead of a band, which is written into its panel.
        x: The points, (points,) or (points, 1).
        truth: The regression function at the points, if it is known.
        data: Training inputs and responses.
        gap: Ends of a range without data, which is shaded.
        notes: A few letters for the upper right corner of a panel, by name.
        columns: The number of panels in a row.

    Returns:
        The figure. It is not registered with pyplot.

    Raises:
        InputError: If there is nothing to draw, or the points are not one-dimensional.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    drawn = {name: each for name, each in bands.items() if not isinstance(each, str)}
    if not drawn:
        raise InputError("there is no band to draw: every method refused.")
    pairs = None if data is None else _pairs(data)
    columns = min(columns, len(bands))
    rows = -(-len(bands) // columns)  # rounded up
    with mpl.rc_context({**STYLE, **_SMALL}):
        layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.03, hspace=0.03)
        figure = Figure(figsize=(2.4 * columns, 1.42 * rows + 0.4), dpi=220, layout=layout)
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis, (name, each) in zip(panels.flat, bands.items(), strict=False):
            if isinstance(each, str):
                _write_reason(axis, each)
            else:
                _draw(axis, *_sorted(each, x, truth), pairs, gap, "interval", size=_THIN)
            axis.set_title(name, loc="left")
            axis.set_title((notes or {}).get(name, ""), loc="right", color=DARK, fontsize=7.0)
        panels[0, 0].set_ylim(*_limits(drawn, truth, data))
        for index, axis in enumerate(panels.flat):
            _label_panel(axis, index, len(bands), columns)
        first_drawn = list(bands).index(next(iter(drawn)))
        _draw_legend(figure, panels.flat[first_drawn], list(panels.flat[len(bands) :]))
    return figure


def _label_panel(axis: Axes, index: int, count: int, columns: int) -> None:
    """Label the axes of a panel at the left and the lower edge of the gallery, and hide panels beyond the last band.

    Args:
        axis: The panel.
        index: Its position, counted row by row.
        count: The number of bands.
        columns: The number of panels in a row.
    """
    rows = -(-count // columns)  # rounded up
    axis.set_visible(index < count)
    is_lowest = index + columns >= count  # there is no band below this panel
    if is_lowest and index < columns * (rows - 1):
        axis.xaxis.set_in_layout(False)  # the label uses the free panel below, and the rows need not move apart
    is_leftmost = index % columns == 0
    axis.tick_params(labelbottom=is_lowest, labelleft=is_leftmost)
    axis.set_xlabel("$x$" if is_lowest else "")
    axis.set_ylabel("$y$" if is_leftmost else "")


def _draw_legend(figure: Figure, panel: Axes, free: Sequence[Axes]) -> None:
    """Draw the legend of a panel into the last free panel of a gallery, or above the gallery if there is none."""
    handles, labels = panel.get_legend_handles_labels()
    if free:
        figure.draw_without_rendering()  # computes the positions of the panels
        place = free[-1].get_position().bounds
        figure.legend(handles, labels, loc="center", bbox_to_anchor=place, frameon=False, fontsize=8.0)
    else:
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, **LEGEND)


def _write_reason(ax: Axes, sentence: str) -> None:
    """Write the reason for the missing band into a panel."""
    lines = textwrap.fill(textwrap.shorten(sentence, _PANEL_LETTERS, placeholder=" ..."), _LINE_LETTERS)
    ax.text(0.5, 0.5, lines, transform=ax.transAxes, ha="center", va="center", fontsize=6.5, color=DARK)


def _limits(bands: Mapping[str, Band], truth: Any, data: tuple[Any, Any] | None) -> tuple[float, float]:
    """Return limits of the vertical axis that show truth and data completely, and most of the bands."""
    lows = [float(np.nanquantile(band.lower, _TAIL)) for band in bands.values()]
    highs = [float(np.nanquantile(band.upper, 1 - _TAIL)) for band in bands.values()]
    low = float(np.quantile(lows, _CUT))
    high = float(np.quantile(highs, 1 - _CUT))
    shown = []
    if truth is not None:
        shown.append(truth)
    if data is not None:
        shown.append(data[1])
    for values in shown:
        low = min(low, float(np.min(values)))
        high = max(high, float(np.max(values)))
    margin = _MARGIN * (high - low)
    return low - margin, high + margin


def _sorted(interval: Band, x: Any, truth: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the points in increasing order, and the lines over them by name.

    Raises:
        InputError: If a line has another number of points.
    """
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
    """Return inputs and responses as vectors of the same length."""
    rows = column("data[0]", data[0])
    responses = column("data[1]", data[1])
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
    """Draw the band, the prediction, the truth, the data and the gap.

    Args:
        ax: The axis to draw on.
        points: The points in increasing order.
        lines: ``lower``, ``upper``, ``center`` and, if it is known, ``truth`` at these points.
        rows: Training inputs and responses, or None.
        gap: Ends of a range without data, or None.
        label: The name of the band in the legend.
        size: Width of lines and dots, relative to a large plot.
    """
    ax.fill_between(
        points,
        lines["lower"],
        lines["upper"],
        facecolor=(BLUE, 0.25),
        edgecolor=(BLUE, 0.7),
        linewidth=0.0 if size == 1 else 0.4,  # edges keep a narrow band visible in a small panel
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
