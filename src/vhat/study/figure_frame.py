"""Style, legend, caption and files of the study's figures; the files depend only on the results."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.plot import BLUE, GREY, ORANGE
from vhat.study.cell import STEPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "GREEN", "TITLES", "own_style", "save", "write_caption", "write_inside", "write_legend"]

GREEN = "#009E73"
COLOURS = {"proposed": BLUE, "bootstrap": ORANGE}
"""Colours of the methods."""
TITLES = {
    "published": "as published: ReLU, AdamW",
    "penalised": "as published, but λ inside the loss: ReLU, Adam",
    "met": "at a minimum: smooth activation, gradient and curvature checked",
}
_STYLE = {
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.titlesize": 9.0,
    "legend.fontsize": 7.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "pdf.fonttype": 42,
}
_CAPTION_LINE = 0.115
"""Height of a line of the caption, in inches."""
_CAPTION_LETTERS = 19
"""Letters of the caption per inch."""
_LEGEND_LETTERS = 15
"""Letters of the legend per inch."""
_LEGEND_HANDLE = 7
"""Width of the mark of a legend entry with the space around it, in letters."""
_DPI = 200
"""Resolution of raster figures, in dots per inch."""


@contextmanager
def own_style() -> Iterator[None]:
    """Set matplotlib's defaults and the study's style, whatever the user's settings are."""
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def save(figure: Figure, kind: Literal["png", "pdf"]) -> bytes:
    """Return a figure as the bytes of a file without date and version, the same for the same results."""
    file = BytesIO()
    metadata: dict[str, Any] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}[kind]
    with own_style():  # matplotlib reads some settings, such as the type of fonts, only here
        figure.savefig(file, format=kind, dpi=_DPI, metadata=metadata)
    return file.getvalue()


def write_inside(ax: Axes, text: str) -> None:
    """Write text into the middle of an empty panel."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=GREY)


def write_legend(figure: Figure, axes: np.ndarray, first: Sequence[str] = ()) -> None:
    """Write one legend for all panels above them, in as many lines as it needs.

    Args:
        figure: The figure.
        axes: Its panels.
        first: Labels of the first entries.
    """
    entries: dict[str, Any] = {}
    for ax in axes.flat:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    entries = {label: entries[label] for label in dict.fromkeys([*first, *entries]) if label in entries}
    if entries:
        letters = sum(len(label) + _LEGEND_HANDLE for label in entries)
        rows = math.ceil(letters / (_LEGEND_LETTERS * figure.get_figwidth()))
        columns = math.ceil(len(entries) / rows)
        place = "outside upper center"
        figure.legend(entries.values(), entries.keys(), loc=place, ncols=columns, frameon=False, columnspacing=1.4)


def write_caption(figure: Figure, text: str, steps: int) -> None:
    """Write a caption below the figure, with a note if training was shorter than in the paper.

    Args:
        figure: The figure.
        text: The caption.
        steps: Training steps of its cells.
    """
    lines = textwrap.wrap(text, int(figure.get_figwidth() * _CAPTION_LETTERS))
    if steps != STEPS:
        lines.append(f"REDUCED: trained for {steps:,} steps instead of the paper's {STEPS:,}.")
    # A long caption makes the figure taller, not its panels smaller.
    figure.set_figheight(figure.get_figheight() + _CAPTION_LINE * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=6.5, color="0.35")
