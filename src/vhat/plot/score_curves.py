"""Plot scores over a grid of weight decays."""

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
    """Scores over a grid of weight decays, such as :class:`vhat.fit.Curve`; arrays have the shape (grid points,)."""

    @property
    def weight_decay(self) -> np.ndarray:
        """Return the weight decays, increasing."""

    @property
    def score(self) -> np.ndarray:
        """Return the scores; not finite where a fit has none."""

    @property
    def standard_error(self) -> np.ndarray:
        """Return the standard errors of the scores."""

    @property
    def status(self) -> np.ndarray:
        """Return the status of each fit, ``"converged"`` if it succeeded."""

    @property
    def best(self) -> int | None:
        """Return the index of the best score, or None."""

    @property
    def measure(self) -> str:
        """Return the name of the score."""


def decay_curve(curve: Scores, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """Plot scores over weight decays with a band of one standard error, and mark the best weight decay.

    Args:
        curve: The scores. A weight decay without a score is a cross at the foot of the plot.
        ax: The axis to draw on; None makes a figure of column width, available as ``ax.figure``.
        legend: Whether to draw a legend above the axis.

    Returns:
        The axis.
    """
    usable = np.isfinite(curve.score)
    with style(ax is None):
        ax = new_axis() if ax is None else ax
        ax.set_xscale("log")
        if usable.any() and curve.score[usable].max() > _LOGARITHMIC * curve.score[usable].min() > 0:
            _set_log_scale(ax)
        _draw_scores(ax, curve, usable)
        if curve.best is not None:
            _draw_best(ax, curve, curve.best)
        ax.set_xlabel("weight decay")
        ax.set_ylabel(curve.measure.replace(", ", "\n", 1))
        if legend:
            ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, frameon=False, **LEGEND)
    return ax


def _draw_scores(ax: Axes, curve: Scores, usable: np.ndarray) -> None:
    """Draw the line of scores, and mark fits that did not converge or have no score."""
    lam = curve.weight_decay
    size = 3.6  # of the dots, in points
    score = np.where(usable, curve.score, np.nan)
    error = np.where(usable, curve.standard_error, np.nan)
    label = "one standard error"
    ax.fill_between(lam, score - error, score + error, color=BLUE, alpha=0.2, linewidth=0, label=label, zorder=1)
    ax.plot(lam, score, "o-", color=BLUE, linewidth=1.4, markersize=size, zorder=3)
    doubtful = usable & (curve.status != "converged")
    if doubtful.any():
        names = " or ".join(dict.fromkeys(str(status) for status in curve.status[doubtful]))
        ax.plot(lam[doubtful], score[doubtful], "o", color=BLUE, mfc="white", markersize=size, label=names, zorder=4)
    if not usable.all():
        failed = lam[~usable]
        foot = np.full(failed.size, 0.03)  # as a share of the height of the axis
        ax.plot(failed, foot, "x", color=BLACK, markersize=5, transform=ax.get_xaxis_transform(), label="no score")


def _draw_best(ax: Axes, curve: Scores, best: int) -> None:
    """Mark the best weight decay, and say in the legend if it is an end of the grid."""
    lam = curve.weight_decay
    where = ", end of the grid" if best in (0, len(lam) - 1) else ""
    ax.axvline(lam[best], color=ORANGE, linewidth=0.9, linestyle="--", zorder=2)
    label = f"best: {lam[best]:.2g}{where}"
    ax.plot(lam[best], curve.score[best], "D", color=ORANGE, markersize=6.5, markeredgewidth=0, label=label, zorder=5)


def _set_log_scale(ax: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers such as 0.2 and 5 in place of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
