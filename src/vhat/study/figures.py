"""The paper's figure 1 from stored results: bands in one dimension, and below them their widths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.plot import BLACK, GREY
from vhat.study.cell import Cell, decay_text
from vhat.study.figure_frame import COLOURS, GREEN, TITLES, own_style, write_caption, write_inside, write_legend
from vhat.study.protocol import GAP, PAPER_CG, draw
from vhat.study.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["bands"]

_FEW_POINTS = 200
"""Largest number of training points drawn above the band; more are small grey dots under it."""
_TALL_BAND = 3.0
"""Height of a band, in units of the range of the truth, above which the axis is logarithmic outside of that range."""
_LINEAR_DECADES = 2.5
"""Height of the linear half of that axis, in decades of the logarithmic part."""
_CUT_SHARE = 0.03
"""Share of a band's limits that may lie outside of a linear axis; the widths below show them."""
_END = 3.05
"""Ends of the horizontal axis: a little beyond the last test points, 3, so that their marks are whole."""
_PAPER_CG_LABEL = "the paper's 1000 CG steps"


@dataclass(frozen=True)
class _Band:
    """A band from a result.

    Attributes:
        x: Test points, (points,).
        center: Predictions.
        lower: Lower limits.
        upper: Upper limits.
        curvature: ``"hessian"``, ``"ggn"`` or empty.
    """

    x: np.ndarray
    center: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    curvature: str

    @property
    def width(self) -> np.ndarray:
        return self.upper - self.lower


def bands(cells: Sequence[Cell], results: Results) -> Figure:
    """Draw figure 1 for the cells of one version.

    There is a column for each n that has a result, a row for each method, and a last row with the widths of all
    methods. If bands are far larger than the truth, the vertical axes are linear over its range and logarithmic beyond.
    """
    from matplotlib.figure import Figure

    methods = [method for method in dict.fromkeys(cell.method for cell in cells) if method != PAPER_CG]
    found: dict[tuple[str, int], _Band] = {}
    for cell in cells:
        band = _read(cell, results)
        if band is not None:
            found[cell.method, cell.n] = band
    sizes = sorted({n for _, n in found}) or sorted({cell.n for cell in cells})
    by_size = {cell.n: cell for cell in cells if cell.method != PAPER_CG}
    heights = [*(1.8 for _ in methods), 1.35]
    with own_style():
        figure = Figure(figsize=(2.45 * len(sizes) + 0.5, sum(heights) + 0.5), layout="constrained")
        axes = figure.subplots(
            len(heights), len(sizes), sharex=True, sharey="row", squeeze=False, height_ratios=heights
        )
        for column, n in enumerate(sizes):
            for row, method in enumerate(methods):
                iterated = found.get((PAPER_CG, n)) if method == "proposed" else None
                _draw_band(axes[row, column], by_size[n], method, found.get((method, n)), iterated)
            _draw_widths(axes[-1, column], {name: found.get((name, n)) for name in (*methods, PAPER_CG)})
            axes[0, column].set_title(f"$n = {n:,}$".replace(",", "{,}"))
            axes[-1, column].set_xlabel("$x$")
        for row, method in enumerate(methods):
            shown = [found[method, n] for n in sizes if (method, n) in found]
            gauss_newton = any(band.curvature == "ggn" for band in shown)
            axes[row, 0].set_ylabel(f"{method}\n(Gauss-Newton)" if gauss_newton else method)
        axes[-1, 0].set_ylabel("width")
        scale = _scale(axes[:-1], list(found.values()), draw(cells[0]).test.truth)
        write_legend(figure, axes, first=methods)
        caption = [TITLES[cells[0].version], f"λ = {decay_text(cells[0].lam)}", scale]
        left_out = sorted({cell.n for cell in cells} - set(sizes))
        caption.extend(f"n = {n:,} was not computed" for n in left_out)
        write_caption(figure, "; ".join(filter(None, caption)), cells[0].steps)
    return figure


def _read(cell: Cell, results: Results) -> _Band | None:
    """Return the band of a cell; None if it has no result, or a failed one."""
    result: dict[str, Any] | None = results.read(cell)
    if result is None or result["status"] != "done":
        return None
    center, lower, upper = (np.array(result["test"][name], dtype=float) for name in ("center", "lower", "upper"))
    return _Band(draw(cell).test.X[:, 0], center, lower, upper, str(result["curvature"]))


def _draw_band(ax: Axes, cell: Cell, method: str, band: _Band | None, iterated: _Band | None) -> None:
    """Draw a band with its edges, the training data, the prediction and the truth.

    Args:
        ax: The panel.
        cell: A cell of this size, for its data.
        method: Name of the method.
        band: Its band; None if it is missing.
        iterated: The intervals of the paper's iteration, if shown.
    """
    if band is None:
        write_inside(ax, "not computed")
        return
    data = draw(cell)
    colour = COLOURS.get(method, GREY)
    edges = {"facecolor": (colour, 0.28), "edgecolor": (colour, 0.8), "linewidth": 0.4}
    ax.fill_between(band.x, band.lower, band.upper, label=f"{method}", zorder=2, **edges)  # type: ignore[arg-type]
    ax.plot(band.x, band.center, color=colour, linewidth=0.9, label="prediction", zorder=3)
    ax.plot(band.x, data.test.truth, "--", color=BLACK, linewidth=0.9, label="truth", zorder=5)
    few = len(data.train.X) <= _FEW_POINTS
    # Few data are large dots above the band, many are small dots under it.
    size, shade, height = (2.2, "0.35", 4) if few else (1.2, "0.6", 1)
    ax.plot(
        data.train.X[:, 0],
        data.train.y,
        "o",
        color=shade,
        markersize=size,
        markeredgewidth=0,
        zorder=height,
        label="data",
        rasterized=not few,
    )
    _shade_gap(ax)
    if iterated is not None:
        limits = (iterated.lower, iterated.upper)
        ax.vlines(iterated.x, *limits, color=GREEN, linewidth=0.6, alpha=0.7, zorder=1.5, label=_PAPER_CG_LABEL)


def _draw_widths(ax: Axes, by_method: dict[str, _Band | None]) -> None:
    """Draw the widths of all methods on a logarithmic axis."""
    _shade_gap(ax)
    ax.set_yscale("log")
    for method, band in by_method.items():
        if band is None:
            continue
        if method == PAPER_CG:
            ax.plot(band.x, band.width, "D", color=GREEN, markersize=2.2, markeredgewidth=0, zorder=3)
            continue
        ax.plot(band.x, band.width, color=COLOURS.get(method, GREY), linewidth=1.1, zorder=2)


def _shade_gap(ax: Axes) -> None:
    """Shade the interval without training data."""
    ax.axvspan(-GAP, GAP, color=GREY, alpha=0.2, linewidth=0, zorder=0, label="no data")


def _scale(axes: np.ndarray, found: Sequence[_Band], truth: np.ndarray) -> str:
    """Set the vertical axes of all bands: linear, or logarithmic beyond the range of the truth.

    Returns:
        What the caption says of them.
    """
    top = float(np.max(np.abs(truth)))
    lows = [float(np.nanquantile(band.lower, _CUT_SHARE)) for band in found]
    highs = [float(np.nanquantile(band.upper, 1 - _CUT_SHARE)) for band in found]
    far = max([top, *(float(np.nanmax(np.abs([band.lower, band.upper]))) for band in found)])
    tall = max([top, *(abs(each) for each in (*lows, *highs))]) > _TALL_BAND * top
    linear = math.ceil(top) + 1
    margin = 0.05 * top
    bottom = min([float(np.min(truth)), *lows]) - margin
    ceiling = max([float(np.max(truth)), *highs]) + margin
    for ax in axes.flat:
        ax.set_xlim(-_END, _END)
        ax.set_xticks(range(-3, 4))
        if tall:
            _scale_by_logarithm(ax, linear=linear, far=far)
        else:
            ax.set_ylim(bottom, ceiling)
    if tall:
        return f"logarithmic beyond the dotted lines at ±{linear}"
    cut = any(float(np.nanmin(band.lower)) < bottom or float(np.nanmax(band.upper)) > ceiling for band in found)
    return "bands are cut at the ends of the axis, the widths are not" if cut else ""


def _scale_by_logarithm(ax: Axes, *, linear: int, far: float) -> None:
    """Make an axis linear from ``-linear`` to ``linear``, marked by dotted lines, and logarithmic up to ``far``."""
    ax.set_yscale("symlog", linthresh=linear, linscale=_LINEAR_DECADES)
    ax.set_ylim(-1.3 * far, 1.3 * far)
    powers = [10.0**k for k in range(2, math.floor(math.log10(far)) + 1, 2)]
    near = [-linear / 2, 0, linear / 2]
    ticks = [*(-power for power in reversed(powers)), *near, *powers]
    ax.set_yticks(ticks, [_tick(value) for value in ticks])
    ax.minorticks_off()
    for edge in (-linear, linear):
        ax.axhline(edge, color=GREY, linewidth=0.5, linestyle=(0, (1, 3)), zorder=1)


def _tick(value: float) -> str:
    """Return a tick label: numbers below ten in full, larger ones as powers of ten."""
    if abs(value) < 10:
        return f"{value:g}".replace("-", "\N{MINUS SIGN}")
    sign = "-" if value < 0 else ""
    return f"${sign}10^{{{round(math.log10(abs(value)))}}}$"
