"""Plot the confidence set of two parameters, an ellipse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from vhat.plot.style import BLUE, ORANGE, new_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Outline", "ellipse"]

_SIZE = (3.6, 3.1)
"""Width and height of the figure, in inches."""


class Outline(Protocol):
    """A closed curve around a point."""

    @property
    def center(self) -> np.ndarray:
        """Return the fitted parameters, shape (2,)."""

    @property
    def indices(self) -> tuple[int, int]:
        """Return their positions in the flat vector of parameters."""

    def boundary(self, count: int = 200) -> np.ndarray:
        """Return points on the curve, (count, 2)."""


def ellipse(outline: Outline, ax: Axes | None = None, *, label: str = "confidence set") -> Axes:
    """Draw the confidence set of two parameters.

    Args:
        outline: The result of ``ConfidenceSet.project``.
        ax: The axis to draw on; None makes a figure, available as ``ax.figure``.
        label: The name of the set in the legend.

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
