"""Names beside marks that cover neither each other nor a mark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vhat.plot.style import BLACK, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

__all__ = ["write_names"]

_FONT = 7.5
_MARK = 3.5
"""Half the side of what a mark takes, in points."""
_NEAR = 7.0
_RINGS = (_NEAR, 13.0, 20.0, 28.0, 38.0, 50.0, 64.0)
"""Distances from a mark that are tried, in points; beyond the first a thin line leads back to it."""
_DIRECTIONS = np.deg2rad([0, 180, 90, -90, 45, -45, 135, -135, 22, -22, 158, -158, 67, -67, 113, -113])


def write_names(
    ax: Axes,
    names: Sequence[str],
    x: np.ndarray,
    y: np.ndarray,
    *,
    line: float | None = None,
    size: float = _FONT,
    colours: Sequence[str] | None = None,
) -> None:
    """Write each name at the nearest free place beside its mark.

    Marks in a crowd go first, for they have the fewest places. A name for which no place is free takes the first.

    Args:
        ax: The axis, its scales and limits as they are to stay.
        names: The names.
        x: Where the marks are, in units of the data, (names,).
        y: Likewise.
        line: The height of a horizontal line that no name may cross, or None.
        size: Of the letters, in points.
        colours: The colour of each name; None writes all in black.
    """
    ax.figure.figure.draw_without_rendering()  # settles limits and layout
    unit = ax.figure.figure.dpi / 72
    marks = ax.transData.transform(np.column_stack([x, y]))
    taken = [_box(mark - _MARK * unit, 2 * _MARK * unit, 2 * _MARK * unit) for mark in marks]
    if line is not None:
        height = float(ax.transData.transform((x[0], line))[1])
        taken.append(_box(np.array([ax.bbox.x0, height - unit]), ax.bbox.width, 2 * unit))
    distance = np.linalg.norm(marks[:, None] - marks[None], axis=2)
    for i in np.argsort(np.sort(distance, axis=1)[:, 1 : 1 + 4].sum(axis=1), kind="stable"):
        text = ax.annotate(
            names[i], (x[i], y[i]), xytext=(0, 0), textcoords="offset points", fontsize=size,
            color=BLACK if colours is None else colours[i], zorder=5,
        )  # fmt: skip
        text.set_in_layout(False)
        extent = text.get_window_extent()
        offsets = list(_places(extent.width / unit, extent.height / unit))
        boxes = [_box(marks[i] + np.multiply(offset, unit), extent.width, extent.height) for offset in offsets]
        place = next((k for k, box in enumerate(boxes) if _is_free(box, ax.bbox, taken)), 0)
        taken.append(boxes[place])
        text.set_position(offsets[place])
        _lead(ax, marks[i], boxes[place], unit)


def _box(corner: np.ndarray, width: float, height: float) -> Bbox:
    from matplotlib.transforms import Bbox

    return Bbox.from_bounds(float(corner[0]), float(corner[1]), width, height)


def _places(width: float, height: float) -> Iterator[tuple[float, float]]:
    """Yield places for the lower left corner of a text, in points from its mark, the nearest first."""
    for ring in _RINGS:
        for angle in _DIRECTIONS:
            across, up = np.cos(angle), np.sin(angle)
            # the text begins where its side, or its middle, is ``ring`` away in that direction
            yield ring * across + width * (across - 1) / 2, ring * up + height * (up - 1) / 2


def _is_free(box: Bbox, frame: Bbox, taken: Sequence[Bbox]) -> bool:
    inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
    return inside and not any(box.overlaps(other) for other in taken)


def _lead(ax: Axes, mark: np.ndarray, box: Bbox, unit: float) -> None:
    """Draw a thin line from a mark to the nearest point of a name that is not beside it."""
    near = np.clip(mark, (box.x0, box.y0), (box.x1, box.y1))
    if np.linalg.norm(near - mark) > 1.5 * _NEAR * unit:
        ends = ax.transData.inverted().transform([mark, near])
        ax.plot(*ends.T, color=GREY, linewidth=0.5, zorder=1, scalex=False, scaley=False)
