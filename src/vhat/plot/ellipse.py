"""The ellipse of two parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from vhat.plot.style import BLUE, ORANGE, new_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Outline", "ellipse"]

_SIZE = (3.6, 3.1)


class Outline(Protocol):
    """What can be drawn: a closed curve around a point."""

    @property
    def center(self) -> np.ndarray:
        """The fitted parameters, (2,)."""

    @property
    def indices(self) -> tuple[int, int]:
        """Their positions in the flat vector."""

    def boundary(self, count: int = 200) -> np.ndarray:
        """Return points on the curve, (count, 2)."""


def ellipse(outline: Outline, ax: Axes | None = None, *, label: str = "confidence set") -> Axes:
    """Draw the confidence set of two parameters.

    Args:
        outline: What ``ConfidenceSet.project`` returns.
        ax: Where to draw; None makes a figure, reached by ``ax.figure``.
        label: What the set is, for the legend.

    Returns:
        The axis.
    """
    x, y = outline.boundary().T
    i, j = outline.indices
    with style(ax is None):
        ax = new_axis(_SIZE) if ax is None else ax
        ax.fill(x, y, color=BLUE, alpha=0.15, linewidth=0)
        ax.plot(x, y, color=BLUE, linewidth=1.0, label=label)
        ax.plot(*outline.center, "o", color=ORANGE, markersize=4, label="fit")
        ax.set_xlabel(f"parameter {i}")
        ax.set_ylabel(f"parameter {j}")
        ax.legend(frameon=False)
    return ax
