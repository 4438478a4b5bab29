"""The one look of all pictures: palette, type, and figures that no global state remembers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

__all__ = ["BLACK", "BLUE", "DARK", "GREY", "LEGEND", "ORANGE", "STYLE", "column", "new_axis", "style"]

# Okabe and Ito's palette: told apart by readers with any kind of colour vision.
BLUE, ORANGE, BLACK, DARK, GREY = "#0072B2", "#D55E00", "#000000", "#555555", "#999999"

STYLE = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.fontsize": 8.0,
}
LEGEND = {"handlelength": 1.4, "handletextpad": 0.5, "columnspacing": 1.2, "borderaxespad": 0.3}


def column(name: str, values: Any) -> np.ndarray:
    """Return (points,) or (points, 1) as a vector, or refuse it."""
    array = np.asarray(values, dtype=float)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(
            f"{name} has shape {array.shape}; a band is drawn over one input and for one output: give (points,)."
        )
    return array


def style(own: bool) -> AbstractContextManager[Any]:
    """Return the style for a figure of our own; a caller's axis keeps the caller's."""
    import matplotlib as mpl

    return mpl.rc_context(STYLE) if own else nullcontext()


def new_axis(size: tuple[float, float] = (5.0, 3.1)) -> Axes:
    """Return the axis of a figure outside pyplot, which no global state remembers; the size in inches."""
    from matplotlib.figure import Figure

    axis: Axes = Figure(figsize=size, dpi=220, layout="constrained").add_subplot()
    return axis
