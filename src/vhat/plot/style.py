"""The common style of all plots: colours, letters, and figures that are not registered with pyplot."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

__all__ = ["BLACK", "BLUE", "DARK", "GREY", "LEGEND", "ORANGE", "STYLE", "column", "new_axis", "style"]

# Blue and orange of the palette of Okabe and Ito, which readers with colour blindness can tell apart.
BLUE = "#0072B2"
ORANGE = "#D55E00"
BLACK = "#000000"
DARK = "#555555"
GREY = "#999999"

STYLE = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.fontsize": 8.0,
}
LEGEND = {"handlelength": 1.4, "handletextpad": 0.5, "columnspacing": 1.2, "borderaxespad": 0.3}


def column(name: str, values: Any) -> np.ndarray:
    """Return an array of shape (points,) or (points, 1) as a vector.

    Raises:
        InputError: For another shape.
    """
    array = np.asarray(values, dtype=float)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(
            f"{name} has shape {array.shape}; a band is drawn over one input and for one output: give (points,)."
        )
    return array


def style(own: bool) -> AbstractContextManager[Any]:
    """Return the context of the common style for a new figure. The axis of a caller keeps the style of the caller."""
    import matplotlib as mpl

    return mpl.rc_context(STYLE) if own else nullcontext()


def new_axis(size: tuple[float, float] = (5.0, 3.1)) -> Axes:
    """Return the axis of a new figure of this size in inches. The figure is not registered with pyplot."""
    from matplotlib.figure import Figure

    axis: Axes = Figure(figsize=size, dpi=220, layout="constrained").add_subplot()
    return axis
