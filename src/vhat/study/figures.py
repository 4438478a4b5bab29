"""The paper's two figures, drawn from results that are there; a panel without results says so."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.plot import BLACK, BLUE, GREY, ORANGE, band
from vhat.study.cell import Cell, decay_text
from vhat.study.protocol import ALPHA, GAP, PAPER_CG, draw
from vhat.study.results import Results
from vhat.study.summary import Gaps, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["bands", "own_style", "save", "trade_off"]

_COLOURS = {"proposed": BLUE, "bootstrap": ORANGE}
_STYLE = {
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.titlesize": 9.0,
    "legend.fontsize": 7.5,
    "pdf.fonttype": 42,
}
_TITLES = {
    "published": "as published: ReLU, AdamW",
    "penalised": "as published, but lam inside the loss: ReLU, Adam",
    "met": "every assumption met: smooth activation, certified minimum",
}
_GREEN = "#009E73"
_MARGIN = 0.5
"""How much is shown above and below the truth, in units of its range: intervals may be far larger."""
_LINE = 0.115
"""Height of a line of the caption, in inches."""
_MANY = 200
"""Training points that are drawn as a cloud."""


@dataclass(frozen=True)
class _Drawn:
    """A stored band, as :func:`vhat.plot.band` takes it."""

    center: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    @classmethod
    def of(cls, result: dict[str, Any]) -> _Drawn:
        return cls(*(np.array(result["test"][name], dtype=float) for name in ("center", "lower", "upper")))


@contextmanager
def own_style() -> Iterator[None]:
    """Set matplotlib's defaults and the study's style: a user's own settings must not change the figures."""
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def save(figure: Figure, kind: Literal["png", "pdf"]) -> bytes:
    """Return a figure as a file, without a date: the same results give the same bytes."""
    file = BytesIO()
    dateless: dict[str, Any] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}[kind]
    with own_style():  # matplotlib reads some settings, such as the kind of fonts, only now
        figure.savefig(file, format=kind, dpi=200, metadata=dateless)
    return file.getvalue()


def bands(cells: Sequence[Cell], results: Results, gaps: Gaps) -> Figure:
    """Draw figure 1 for the cells of one version: a row for each method, a column for each n."""
    from matplotlib.figure import Figure

    methods = [m for m in dict.fromkeys(cell.method for cell in cells) if m != PAPER_CG]
    sizes = sorted({cell.n for cell in cells})
    by_place = {(cell.method, cell.n): cell for cell in cells}
    with own_style():
        figure = Figure(figsize=(2.5 * len(sizes) + 0.3, 1.85 * len(methods) + 0.6), layout="constrained")
        axes = figure.subplots(len(methods), len(sizes), sharex=True, sharey=True, squeeze=False)
        for row, method in enumerate(methods):
            for column, n in enumerate(sizes):
                ax = axes[row, column]
                _panel(ax, by_place[method, n], results, by_place.get((PAPER_CG, n)) if method == "proposed" else None)
                ax.set_title(f"$n = {n}$" if row == 0 else "")
                ax.set_xlabel("$x$" if row == len(methods) - 1 else "")
                ax.set_ylabel(method if column == 0 else "")
        _legend(figure, axes)
        _caption(figure, f"{_TITLES[cells[0].version]}; λ = {decay_text(cells[0].lam)}", gaps)
    return figure


def _panel(ax: Axes, cell: Cell, results: Results, iterated: Cell | None) -> None:
    result = results.read(cell)
    data = draw(cell)
    low, high = float(np.min(data.test.truth)), float(np.max(data.test.truth))
    ax.set_xlim(data.test.X.min(), data.test.X.max())
    ax.set_ylim(low - _MARGIN * (high - low), high + _MARGIN * (high - low))
    if result is None or result["status"] != "done":
        _say(ax, "missing" if result is None else "failed")
        return
    band(_Drawn.of(result), data.test.X, ax, truth=data.test.truth, gap=(-GAP, GAP), label="interval", legend=False)
    many = len(data.train.X) > _MANY
    size, shade = (0.8, 0.35) if many else (2.0, 1.0)
    pairs = data.train.X[:, 0], data.train.y
    ax.plot(*pairs, "o", color=BLACK, markersize=size, alpha=shade, markeredgewidth=0, zorder=2, label="data")
    if result["curvature"] == "ggn":
        plate = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
        ax.text(
            0.03, 0.95, "Gauss-Newton", transform=ax.transAxes, va="top", fontsize=6.5, color=BLUE, bbox=plate, zorder=7
        )
    if iterated is not None and (other := results.read(iterated)) is not None and other["status"] == "done":
        points = _Drawn.of(other)
        ax.vlines(
            draw(iterated).test.X[:, 0], points.lower, points.upper, color=_GREEN, linewidth=1.0, zorder=6,
            label="interval by the paper's 1000 iterations",
        )  # fmt: skip


def _say(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=GREY)


def trade_off(rows: Sequence[Row], gaps: Gaps) -> Figure:
    """Draw figure 2 for the rows of one version: coverage against median width, a panel for each d and n."""
    from matplotlib.figure import Figure

    dimensions = sorted({row.first.d for row in rows})
    sizes = sorted({row.first.n for row in rows})
    with own_style():
        figure = Figure(figsize=(2.7 * len(sizes) + 0.3, 2.2 * len(dimensions) + 0.4), layout="constrained")
        axes = figure.subplots(len(dimensions), len(sizes), sharey=True, squeeze=False)
        for i, d in enumerate(dimensions):
            for j, n in enumerate(sizes):
                ax = axes[i, j]
                _cloud(ax, [row for row in rows if row.first.d == d and row.first.n == n])
                ax.set_title(f"$d = {d}$, $n = {n}$")
                ax.set_xlabel("median width" if i == len(dimensions) - 1 else "")
                ax.set_ylabel("coverage of the truth, %" if j == 0 else "")
        _legend(figure, axes)
        legend = "best is the upper left corner; labels are λ, shades standard deviations over trials; dotted: 99%"
        _caption(figure, f"{_TITLES[rows[0].first.version]}; {legend}", gaps)
    return figure


def _cloud(ax: Axes, rows: Sequence[Row]) -> None:
    """Points with their labels, joined in the order of the decays, standard deviations shaded."""
    from matplotlib.patches import Ellipse

    ax.set_ylim(-4, 108)
    drawn = False
    for method in dict.fromkeys(row.first.method for row in rows):
        known = [row for row in rows if row.first.method == method and row.ours["median width"] is not None]
        if not known:
            continue
        most = max(row.done for row in known)  # means over other trials are no points of the same curve
        known = sorted((row for row in known if row.done == most), key=lambda row: row.first.lam)
        drawn = True
        colour = _COLOURS.get(method, GREY)
        spots = [(row.ours["median width"], row.ours["coverage %"], row) for row in known]
        x = [width.mean for width, _, _ in spots if width is not None]
        y = [cover.mean for _, cover, _ in spots if cover is not None]
        ax.plot(x, y, "-o", color=colour, markersize=3, linewidth=0.8, label=method, zorder=3)
        below = method != "proposed"
        for width, cover, _ in spots:
            assert width is not None
            assert cover is not None
            size = (2 * (width.sd or 0.0), 2 * (cover.sd or 0.0))
            ax.add_patch(Ellipse((width.mean, cover.mean), *size, color=colour, alpha=0.18, linewidth=0, zorder=1))
        for near in _near(x, y):
            decays = [_power(spots[at][2].first.lam) for at in (near[0], near[-1])]
            ax.annotate(
                " to ".join(dict.fromkeys(decays)), (x[near[-1]], y[near[-1]]), xytext=(3, -3 if below else 3),
                textcoords="offset points", va="top" if below else "bottom", fontsize=6, color=colour,
                zorder=4,
            )  # fmt: skip
    ax.axhline(100 * (1 - ALPHA), color=GREY, linewidth=0.6, linestyle=":", zorder=0)
    if not drawn:
        _say(ax, "missing")
        ax.set_xticks([])


def _near(x: Sequence[float], y: Sequence[float]) -> list[list[int]]:
    """Group neighbours that lie too close together for a label each."""
    groups: list[list[int]] = []
    for at in range(len(x)):
        last = groups[-1][-1] if groups else at
        if groups and abs(x[at] - x[last]) <= 0.06 * max(x) and abs(y[at] - y[last]) <= 5:
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def _power(lam: float) -> str:
    digits, power = decay_text(lam).split("e")
    return f"$10^{{{power}}}$" if digits == "1" else f"${digits}\\cdot 10^{{{power}}}$"


def _legend(figure: Figure, axes: np.ndarray) -> None:
    """Write one legend for all panels."""
    every = [pair for ax in axes.flat for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    named: dict[str, Any] = {}
    for handle, label in every:
        named.setdefault(label, handle)
    if named:
        place = "outside upper center"
        figure.legend(named.values(), named.keys(), loc=place, ncols=len(named), frameon=False)


def _caption(figure: Figure, text: str, gaps: Gaps) -> None:
    """Say below the figure what it shows, what is missing and what was reduced."""
    width = int(figure.get_figwidth() * 19)
    lines = [part for line in (text, *gaps.lines()) for part in textwrap.wrap(line, width)]
    # A long list makes the figure taller, not its panels smaller.
    figure.set_figheight(figure.get_figheight() + _LINE * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=6.5, color="0.35")
