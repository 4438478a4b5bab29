"""Half widths of the bounds in standard errors, against the probability of a miss: the picture of docs/bounds.md.

Run it from the root of the repository: ``python examples/bound_multipliers.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from vhat.bounds import asymptotic, chebyshev, isoperimetric_multiplier, theorem, tight

PICTURE = Path("docs/images/multipliers.png")
LEVELS = np.geomspace(0.2, 1e-4, 60)
"""Probabilities of a miss, from 80% to 99.99% confidence."""
BOTTOM, TOP = 1.0, 7.4
"""Limits of the vertical axis, in standard errors; two curves continue above it."""
TICKS = {
    0.2: ("0.2", "80%"),
    0.1: ("0.1", "90%"),
    0.05: ("0.05", "95%"),
    0.01: ("0.01", "99%"),
    0.001: ("0.001", "99.9%"),
    0.0001: ("0.0001", "99.99%"),
}
"""Labels of the horizontal axis: delta and confidence."""
STYLE = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
}


class Curve(NamedTuple):
    """One bound: its multipliers at ``LEVELS``, the style of its line, and the position of its label.

    Attributes:
        name: The label.
        values: Multipliers.
        colour: Colour of line and label, from Okabe and Ito's palette.
        width: Width of the line, in points.
        dashes: Style of the line.
        at: Position of the left end of the label: delta and multiplier.
    """

    name: str
    values: np.ndarray
    colour: str
    width: float
    dashes: str
    at: tuple[float, float]


def curves() -> list[Curve]:
    """Compute every curve with E[V] = 1, n = 1 and noise 1: the half width is then the multiplier."""
    one = (1.0, 1, 1.0)
    default = {"v": 0.5, "c": 0.25}
    grey, light, blue, orange, green, black = "#8A8A8A", "#56B4E9", "#0072B2", "#D55E00", "#009E73", "#000000"
    isoperimetric = isoperimetric_multiplier
    return [
        Curve("chebyshev", chebyshev(*one, LEVELS), grey, 1.2, "-", (0.0163, 7.05)),
        Curve("isoperimetric,\ntail='any'", isoperimetric(LEVELS, v=np.inf), light, 1.6, "-", (0.00225, 7.0)),
        Curve("theorem, V constant", theorem(*one, LEVELS), grey, 1.2, "--", _beside(6.95)),
        Curve("tight, default tail", tight(*one, LEVELS, **default), orange, 1.6, "-", _beside(7.38)),
        Curve("isoperimetric,\ndefault tail", isoperimetric(LEVELS, **default), blue, 2.6, "-", _beside(5.5)),
        Curve("tight, V constant", tight(*one, LEVELS), orange, 1.6, "--", _beside(4.48)),
        Curve(
            "isoperimetric, V constant,\nand the normal quantile", isoperimetric(LEVELS), green, 1.8, "-", _beside(3.82)
        ),
        Curve("", asymptotic(*one, LEVELS), black, 1.0, ":", _beside(0.0)),
    ]


def _beside(height: float) -> tuple[float, float]:
    """Return the position of a label to the right of the axis."""
    return float(LEVELS[-1]) * 0.86, height


def draw() -> Figure:
    """Draw the curves with their labels."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.9), dpi=220, layout="constrained")
        axis = figure.add_subplot()
        for curve in curves():
            axis.plot(LEVELS, curve.values, curve.dashes, color=curve.colour, linewidth=curve.width)
            axis.text(*curve.at, curve.name, color=curve.colour, va="center", fontsize=8.5, linespacing=1.15)
        axis.set_xscale("log")
        axis.set_xlim(LEVELS[0], LEVELS[-1])
        axis.set_ylim(BOTTOM, TOP)
        axis.set_xticks(list(TICKS), [f"{delta}\n{confidence}" for delta, confidence in TICKS.values()])
        axis.minorticks_off()
        axis.grid(axis="x", color="#E6E6E6", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.set_xlabel("delta, the probability of a miss, and the confidence")
        axis.set_ylabel("half width in standard errors")
        return figure


def main() -> None:
    """Write the picture."""
    draw().savefig(PICTURE)


if __name__ == "__main__":
    main()
