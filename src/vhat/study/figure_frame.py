"""What the study's figures have in common: style, legend, caption, and files that depend on nothing but the results."""

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
TITLES = {
    "published": "as published: ReLU, AdamW",
    "penalised": "as published, but λ inside the loss: ReLU, Adam",
    "met": "every assumption met: smooth activation, certified minimum",
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
_LINE = 0.115
"""Height of a line of the caption, in inches."""
_LETTERS = 19
"""Letters of the caption in an inch."""
_LEGEND_LETTERS = 15
"""Letters of the legend in an inch."""
_HANDLE = 7
"""Letters that the mark of an entry takes, with the space around it."""


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


def write_inside(ax: Axes, text: str) -> None:
    """Write a word into the middle of a panel that has nothing to show."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=GREY)


def write_legend(figure: Figure, axes: np.ndarray, first: Sequence[str] = ()) -> None:
    """Write one legend above all panels, in as many lines as it needs; the entries ``first`` before the others."""
    every = [pair for ax in axes.flat for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    named: dict[str, Any] = {}
    for handle, label in every:
        named.setdefault(label, handle)
    named = {label: named[label] for label in dict.fromkeys([*first, *named]) if label in named}
    if named:
        letters = sum(len(label) + _HANDLE for label in named)
        rows = math.ceil(letters / (_LEGEND_LETTERS * figure.get_figwidth()))
        columns = math.ceil(len(named) / rows)
        place = "outside upper center"
        figure.legend(named.values(), named.keys(), loc=place, ncols=columns, frameon=False, columnspacing=1.4)


def write_caption(figure: Figure, text: str, steps: int) -> None:
    """Say below the figure what it shows, and that its training was cut short where it was."""
    lines = textwrap.wrap(text, int(figure.get_figwidth() * _LETTERS))
    if steps != STEPS:
        lines.append(f"REDUCED: trained for {steps:,} steps instead of the paper's {STEPS:,}.")
    # A long caption makes the figure taller, not its panels smaller.
    figure.set_figheight(figure.get_figheight() + _LINE * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=6.5, color="0.35")
