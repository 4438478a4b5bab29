"""Scores along a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from vhat.plot.style import BLACK, BLUE, LEGEND, ORANGE, new_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Scores", "decay_curve"]

_LOGARITHMIC = 8.0
"""Scores that span more than this factor are drawn on a logarithmic axis."""


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
    with style(ax is None):
        ax = new_axis() if ax is None else ax
        ax.set_xscale("log")
        if usable.any() and curve.score[usable].max() > _LOGARITHMIC * curve.score[usable].min() > 0:
            _plain_logarithmic(ax)
        _draw_scores(ax, curve, usable)
        if curve.best is not None:
            _draw_best(ax, curve, curve.best)
        ax.set_xlabel("weight decay")
        ax.set_ylabel(curve.measure.replace(", ", "\n", 1))
        if legend:
            ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, frameon=False, **LEGEND)
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
