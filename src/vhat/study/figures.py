"""The paper's figure 1, drawn from results that are there: bands in one dimension, and below them their widths."""

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

_FEW = 200
"""Training points that are drawn one by one; more are a cloud of small grey dots under the band."""
_TALL = 3.0
"""Bands beyond this many times the range of the truth are drawn on an axis that is logarithmic outside of it."""
_LINEAR_SHARE = 2.5
"""Height of the linear half of that axis, in decades of the logarithmic part."""
_CUT = 0.03
"""Share of a band's limits that may leave the frame of a linear axis; the widths below show them."""
_PAPER_CG_LABEL = "the paper's 1000 CG steps"


@dataclass(frozen=True)
class _Band:
    """What a result holds of a band."""

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

    A column for each n that has a result, a row for each method, and a last row with the widths of all methods. Where
    bands are far larger than the truth the vertical axes are linear over its range and logarithmic beyond.
    """
    from matplotlib.figure import Figure

    methods = [m for m in dict.fromkeys(cell.method for cell in cells) if m != PAPER_CG]
    found = {(cell.method, cell.n): band for cell in cells if (band := _read(cell, results)) is not None}
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
        _scale(axes[:-1], list(found.values()), draw(cells[0]).test.truth)
        write_legend(figure, axes, first=methods)
        write_caption(figure, f"{TITLES[cells[0].version]}; λ = {decay_text(cells[0].lam)}", cells[0].steps)
    return figure


def _read(cell: Cell, results: Results) -> _Band | None:
    result: dict[str, Any] | None = results.read(cell)
    if result is None or result["status"] != "done":
        return None
    center, lower, upper = (np.array(result["test"][name], dtype=float) for name in ("center", "lower", "upper"))
    return _Band(draw(cell).test.X[:, 0], center, lower, upper, str(result["curvature"]))


def _draw_band(ax: Axes, cell: Cell, method: str, band: _Band | None, iterated: _Band | None) -> None:
    """Many data under the band, the band with its edges, few data above it, then the prediction and the truth."""
    if band is None:
        write_inside(ax, "not computed")
        return
    data = draw(cell)
    colour = COLOURS.get(method, GREY)
    edges = {"facecolor": (colour, 0.28), "edgecolor": (colour, 0.8), "linewidth": 0.4}
    ax.fill_between(band.x, band.lower, band.upper, label=f"{method}", zorder=2, **edges)  # type: ignore[arg-type]
    ax.plot(band.x, band.center, color=colour, linewidth=0.9, label="prediction", zorder=3)
    ax.plot(band.x, data.test.truth, "--", color=BLACK, linewidth=0.9, label="truth", zorder=5)
    few = len(data.train.X) <= _FEW
    size, shade, height = (2.2, "0.35", 4) if few else (0.9, "0.68", 1)
    ax.plot(
        data.train.X[:, 0], data.train.y, "o", color=shade, markersize=size, markeredgewidth=0, zorder=height,
        label="data", rasterized=not few,
    )  # fmt: skip
    _shade_gap(ax)
    if iterated is not None:
        ax.vlines(
            iterated.x, iterated.lower, iterated.upper, color=GREEN, linewidth=1.0, zorder=6, label=_PAPER_CG_LABEL
        )


def _draw_widths(ax: Axes, by_method: dict[str, _Band | None]) -> None:
    """The widths of all methods on one logarithmic axis."""
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
    ax.axvspan(-GAP, GAP, color=GREY, alpha=0.2, linewidth=0, zorder=0, label="no data")


def _scale(axes: np.ndarray, found: Sequence[_Band], truth: np.ndarray) -> None:
    """Set the vertical axes of all bands: linear, or logarithmic beyond the range of the truth."""
    top = float(np.max(np.abs(truth)))
    lows = [float(np.nanquantile(band.lower, _CUT)) for band in found]
    highs = [float(np.nanquantile(band.upper, 1 - _CUT)) for band in found]
    far = max([top, *(float(np.nanmax(np.abs([band.lower, band.upper]))) for band in found)])
    tall = max([top, *(abs(each) for each in (*lows, *highs))]) > _TALL * top
    for ax in axes.flat:
        ax.set_xlim(-3.0, 3.0)
        if tall:
            _scale_by_logarithm(ax, linear=math.ceil(top) + 1, far=far)
            continue
        margin = 0.05 * top
        ax.set_ylim(min([float(np.min(truth)), *lows]) - margin, max([float(np.max(truth)), *highs]) + margin)


def _scale_by_logarithm(ax: Axes, *, linear: int, far: float) -> None:
    """Make an axis linear between give and take ``linear``, which dotted lines mark, and logarithmic beyond."""
    ax.set_yscale("symlog", linthresh=linear, linscale=_LINEAR_SHARE)
    ax.set_ylim(-1.3 * far, 1.3 * far)
    powers = [10.0**k for k in range(2, math.floor(math.log10(far)) + 1, 2)]
    near = [-linear / 2, 0, linear / 2]
    ticks = [*(-power for power in reversed(powers)), *near, *powers]
    ax.set_yticks(ticks, [_tick(value) for value in ticks])
    ax.minorticks_off()
    for edge in (-linear, linear):
        ax.axhline(edge, color=GREY, linewidth=0.5, linestyle=(0, (1, 3)), zorder=1)


def _tick(value: float) -> str:
    """Small numbers in full, tens and more as powers."""
    if abs(value) < 10:
        return f"{value:g}".replace("-", "\N{MINUS SIGN}")
    sign = "-" if value < 0 else ""
    return f"${sign}10^{{{round(math.log10(abs(value)))}}}$"
