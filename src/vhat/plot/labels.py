"""Write names beside marks so that no name covers another name or a mark."""

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
"""Size of the letters, in points."""
_MARK = 3.5
"""Half the side of the square that a mark covers, in points."""
_NEAR = 7.0
"""Distance of a name that stands directly beside its mark, in points."""
_RINGS = (_NEAR, 13.0, 20.0, 28.0, 38.0, 50.0, 64.0)
"""Distances from a mark that are tried in this order, in points. From the second on, a thin line connects the two."""
_NEIGHBOURS = 4
"""Number of nearest marks by whose distance crowded marks are found."""
_DIRECTIONS = np.deg2rad([0, 180, 90, -90, 45, -45, 135, -135, 22, -22, 158, -158, 67, -67, 113, -113])
"""Directions from a mark that are tried in this order, in radians; 0 is to the right."""


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

    Crowded marks are labelled first, because they have the fewest free places. If no place is free, a name takes the
    first place.

    Args:
        ax: The axis, with its final scales and limits.
        names: The names.
        x: Horizontal coordinates of the marks, (names,).
        y: Vertical coordinates of the marks, (names,).
        line: The height of a horizontal line that no name may cross, or None.
        size: The size of the letters, in points.
        colours: The colour of each name; None writes all in black.
    """
    ax.figure.figure.draw_without_rendering()  # computes limits and layout
    unit = ax.figure.figure.dpi / 72  # pixels per point
    marks = ax.transData.transform(np.column_stack([x, y]))
    taken = [_box(mark - _MARK * unit, 2 * _MARK * unit, 2 * _MARK * unit) for mark in marks]
    if line is not None:
        height = float(ax.transData.transform((x[0], line))[1])
        taken.append(_box(np.array([ax.bbox.x0, height - unit]), ax.bbox.width, 2 * unit))
    distance = np.linalg.norm(marks[:, None] - marks[None], axis=2)
    crowding = np.sort(distance, axis=1)[:, 1 : 1 + _NEIGHBOURS].sum(axis=1)  # column 0 is the mark itself
    for i in np.argsort(crowding, kind="stable"):
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
        _connect(ax, marks[i], boxes[place], unit)


def _box(corner: np.ndarray, width: float, height: float) -> Bbox:
    """Return a rectangle by its lower left corner and its size, in pixels."""
    from matplotlib.transforms import Bbox

    return Bbox.from_bounds(float(corner[0]), float(corner[1]), width, height)


def _places(width: float, height: float) -> Iterator[tuple[float, float]]:
    """Yield offsets of the lower left corner of a text from its mark, in points, the nearest first."""
    for ring in _RINGS:
        for angle in _DIRECTIONS:
            across = np.cos(angle)
            up = np.sin(angle)
            # The nearest edge of the text, or its middle, is at distance ``ring`` from the mark.
            yield ring * across + width * (across - 1) / 2, ring * up + height * (up - 1) / 2


def _is_free(box: Bbox, frame: Bbox, taken: Sequence[Bbox]) -> bool:
    """Return whether a rectangle lies inside the frame and overlaps no other."""
    inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
    return inside and not any(box.overlaps(other) for other in taken)


def _connect(ax: Axes, mark: np.ndarray, box: Bbox, unit: float) -> None:
    """Draw a thin line from a mark to its name, unless the name is directly beside it."""
    near = np.clip(mark, (box.x0, box.y0), (box.x1, box.y1))
    if np.linalg.norm(near - mark) > 1.5 * _NEAR * unit:
        ends = ax.transData.inverted().transform([mark, near])
        ax.plot(*ends.T, color=GREY, linewidth=0.5, zorder=1, scalex=False, scaley=False)
