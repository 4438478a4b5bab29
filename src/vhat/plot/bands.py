"""Bands over a single input: one, or one panel a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vhat.errors import InputError
from vhat.plot.look import BLACK, BLUE, GREY, LEGEND, ORANGE, STYLE, column, new_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Band", "band", "gallery"]


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
        _draw(ax, points, lines, label)
        if rows is not None:
            ax.plot(*rows, "o", color=BLACK, markersize=2.4, markeredgewidth=0, label="data", zorder=5)
        if gap is not None:
            ax.axvspan(*gap, color=GREY, alpha=0.22, linewidth=0, zorder=0, label="no data")
        ax.set_xlabel("$x$")
        ax.set_ylabel("$y$")
        if legend:
            ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, frameon=False, **LEGEND)
    return ax


def gallery(
    bands: Mapping[str, Band],
    x: Any,
    *,
    truth: Any = None,
    data: tuple[Any, Any] | None = None,
    columns: int = 4,
) -> Figure:
    """Draw bands over the same points, one small panel each, on the same axes.

    Args:
        bands: What to draw, by name.
        x: The points, (points,) or (points, 1).
        truth: The regression function at the points, where it is known.
        data: Training inputs and responses.
        columns: Panels in a row.

    Returns:
        The figure, outside pyplot.

    Raises:
        InputError: When there is nothing to draw, or the points are not one-dimensional.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if not bands:
        raise InputError("there is no band to draw: every method refused.")
    columns = min(columns, len(bands))
    rows = -(-len(bands) // columns)
    with mpl.rc_context({**STYLE, "font.size": 8.0}):
        figure = Figure(figsize=(1.9 * columns, 1.55 * rows + 0.35), dpi=220, layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis, (name, each) in zip(panels.flat, bands.items(), strict=False):
            band(each, x, axis, truth=truth, data=data, label="interval", legend=False)
            axis.set_title(name, fontsize=8.5, loc="left", pad=3)
            axis.label_outer()
        for axis in panels.flat[len(bands) :]:
            axis.set_visible(False)
        low, high = _limits(bands, truth, data)
        panels[0, 0].set_ylim(low, high)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, **LEGEND)
    return figure


def _limits(bands: Mapping[str, Band], truth: Any, data: tuple[Any, Any] | None) -> tuple[float, float]:
    """Return vertical limits that show most bands whole: the widest must not flatten the others."""
    lows = [float(np.nanmin(each.lower)) for each in bands.values()]
    highs = [float(np.nanmax(each.upper)) for each in bands.values()]
    low, high = float(np.quantile(lows, 0.3)), float(np.quantile(highs, 0.7))
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


def _draw(ax: Axes, points: np.ndarray, lines: dict[str, np.ndarray], label: str) -> None:
    """Draw the sorted band, its centre and the truth."""
    ax.fill_between(points, lines["lower"], lines["upper"], color=BLUE, alpha=0.25, linewidth=0, label=label, zorder=1)
    ax.plot(points, lines["center"], color=BLUE, linewidth=1.6, label="prediction", zorder=3)
    if "truth" in lines:
        ax.plot(points, lines["truth"], "--", color=ORANGE, linewidth=1.4, label="truth", zorder=4)
    ax.margins(x=0)
