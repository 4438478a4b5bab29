"""Pictures of results: each takes a result and an optional axis, returns the axis, and computes nothing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vhat.errors import InputError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

__all__ = ["Band", "Scores", "band", "decay_curve"]

# Okabe and Ito's palette: told apart by readers with any kind of colour vision.
BLUE, ORANGE, BLACK, GREY = "#0072B2", "#D55E00", "#000000", "#999999"

_STYLE = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.fontsize": 8.0,
}
_LEGEND = {"handlelength": 1.4, "handletextpad": 0.5, "columnspacing": 1.2, "borderaxespad": 0.3}
_LOGARITHMIC = 8.0
"""Scores that span more than this factor are drawn on a logarithmic axis."""


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
    with _style(ax is None):
        ax = _new_axis() if ax is None else ax
        _draw(ax, points, lines, label)
        if rows is not None:
            ax.plot(*rows, "o", color=BLACK, markersize=2.4, markeredgewidth=0, label="data", zorder=5)
        if gap is not None:
            ax.axvspan(*gap, color=GREY, alpha=0.22, linewidth=0, zorder=0, label="no data")
        ax.set_xlabel("$x$")
        ax.set_ylabel("$y$")
        if legend:
            ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, frameon=False, **_LEGEND)
    return ax


class Scores(Protocol):
    """Scores over a grid of weight decays, (lams,) each, as :class:`vhat.fit.Curve` has them."""

    @property
    def weight_decay(self) -> np.ndarray:
        """The grid, rising."""

    @property
    def score(self) -> np.ndarray:
        """The scores; not finite where there is none."""

    @property
    def standard_error(self) -> np.ndarray:
        """Their standard errors."""

    @property
    def status(self) -> np.ndarray:
        """How the fits ended: all is well where it is ``"converged"``."""

    @property
    def best(self) -> int | None:
        """The index of the best."""

    @property
    def measure(self) -> str:
        """What the score is."""


def decay_curve(curve: Scores, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """Draw scores over weight decays, with one standard error either side, the best lam marked.

    Args:
        curve: The scores. A lam without one is a cross at the foot of the axis.
        ax: Where to draw; None makes a figure of column width, reached by ``ax.figure``.
        legend: Whether to write a legend above the axis.

    Returns:
        The axis.
    """
    usable = np.isfinite(curve.score)
    with _style(ax is None):
        ax = _new_axis() if ax is None else ax
        ax.set_xscale("log")
        if usable.any() and curve.score[usable].max() > _LOGARITHMIC * curve.score[usable].min() > 0:
            _plain_logarithmic(ax)
        _draw_scores(ax, curve, usable)
        if curve.best is not None:
            _draw_best(ax, curve, curve.best)
        ax.set_xlabel("weight decay")
        ax.set_ylabel(curve.measure.replace(", ", "\n", 1))
        if legend:
            ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, frameon=False, **_LEGEND)
    return ax


def _draw_scores(ax: Axes, curve: Scores, usable: np.ndarray) -> None:
    """Draw the line of scores, left open where there is none, and mark the lams that are not quite in order."""
    lam, size = curve.weight_decay, 3.6
    score, error = (np.where(usable, values, np.nan) for values in (curve.score, curve.standard_error))
    label = "one standard error"
    ax.fill_between(lam, score - error, score + error, color=BLUE, alpha=0.2, linewidth=0, label=label, zorder=1)
    ax.plot(lam, score, "o-", color=BLUE, linewidth=1.4, markersize=size, zorder=3)
    doubtful = usable & (curve.status != "converged")
    if doubtful.any():
        names = " or ".join(dict.fromkeys(str(status) for status in curve.status[doubtful]))
        ax.plot(lam[doubtful], score[doubtful], "o", color=BLUE, mfc="white", markersize=size, label=names, zorder=4)
    if not usable.all():
        foot, lost = ax.get_xaxis_transform(), lam[~usable]
        ax.plot(lost, np.full(lost.size, 0.03), "x", color=BLACK, markersize=5, transform=foot, label="no score")


def _draw_best(ax: Axes, curve: Scores, best: int) -> None:
    lam = curve.weight_decay
    where = ", end of the grid" if best in (0, len(lam) - 1) else ""
    ax.axvline(lam[best], color=ORANGE, linewidth=0.9, linestyle="--", zorder=2)
    label = f"best: {lam[best]:.2g}{where}"
    ax.plot(lam[best], curve.score[best], "D", color=ORANGE, markersize=6.5, markeredgewidth=0, label=label, zorder=5)


def _plain_logarithmic(ax: Axes) -> None:
    """Make the vertical axis logarithmic, with numbers a reader need not decode."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _sorted(interval: Band, x: Any, truth: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the points in order with the lines over them, or say which of them does not fit."""
    points = _column("x", x)
    lines = {name: _column(name, getattr(interval, name)) for name in ("center", "lower", "upper")}
    if truth is not None:
        lines["truth"] = _column("truth", truth)
    for name, line in lines.items():
        if len(line) != len(points):
            raise InputError(f"{name} has {len(line)} points and x has {len(points)}.")
    order = np.argsort(points, kind="stable")
    return points[order], {name: line[order] for name, line in lines.items()}


def _pairs(data: tuple[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and responses as vectors of one length."""
    rows, responses = _column("data[0]", data[0]), _column("data[1]", data[1])
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


def _column(name: str, values: Any) -> np.ndarray:
    """Return (points,) or (points, 1) as a vector, or refuse it."""
    array = np.asarray(values, dtype=float)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(
            f"{name} has shape {array.shape}; a band is drawn over one input and for one output: give (points,)."
        )
    return array


def _style(own: bool) -> AbstractContextManager[Any]:
    """Return the style for a figure of our own; a caller's axis keeps the caller's."""
    import matplotlib as mpl

    return mpl.rc_context(_STYLE) if own else nullcontext()


def _new_axis() -> Axes:
    """Return the axis of a figure outside pyplot, which no global state remembers."""
    from matplotlib.figure import Figure

    axis: Axes = Figure(figsize=(5.0, 3.1), dpi=220, layout="constrained").add_subplot()
    return axis
