"""The numbers under figure 1: widths and coverage over the data, in the gap and beyond the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.study.cell import Cell
from vhat.study.protocol import GAP, draw
from vhat.study.results import Results
from vhat.study.stored_norms import ISOPERIMETRIC, comparison, has_isoperimetric, read_isoperimetric

__all__ = ["REGIONS", "Region", "find_regions", "to_markdown"]

REGIONS = ("over the data", "in the gap", "beyond the data")
_EDGE = 1e-9
"""The grid meets the edges of the gap but for rounding; they belong to the data."""


@dataclass(frozen=True)
class Region:
    """The intervals of one cell in one part of the line.

    Attributes:
        points: Test points in it.
        median_width: Of their intervals; None where there is no point, or an interval is missing.
        coverage: Share of the points whose interval holds the truth; None where there is no point.
    """

    points: int
    median_width: float | None
    coverage: float | None

    def times(self, other: Region) -> float | None:
        """By how much wider intervals are here than there; None where either is not known."""
        known = self.median_width is not None and other.median_width is not None and other.median_width > 0
        return self.median_width / other.median_width if known else None  # type: ignore[operator]


def find_regions(cell: Cell, result: dict[str, Any]) -> dict[str, Region]:
    """Judge the intervals of a cell of figure 1 in each of :data:`REGIONS`.

    Over the data is between the outermost training inputs and not in the gap, beyond the data is outside of them.
    """
    data = draw(cell)
    x, inputs = data.test.X[:, 0], data.train.X[:, 0]
    lower, upper = (np.asarray(result["test"][name], dtype=float) for name in ("lower", "upper"))
    gap = np.abs(x) < GAP - _EDGE
    beyond = (x < inputs.min()) | (x > inputs.max())
    parts = dict(zip(REGIONS, (~gap & ~beyond, gap, beyond), strict=True))
    return {name: _region(lower[at], upper[at], data.test.truth[at]) for name, at in parts.items()}


def _region(lower: np.ndarray, upper: np.ndarray, truth: np.ndarray) -> Region:
    if not len(truth):
        return Region(0, None, None)
    width = float(np.median(upper - lower))  # NaN where one interval is missing
    covered = float(np.mean((lower <= truth) & (truth <= upper)))
    return Region(len(truth), width if np.isfinite(width) else None, covered)


def to_markdown(cells: Sequence[Cell], results: Results) -> str:
    """Return one line for each cell that is there: widths, how many times those over the data, and coverage.

    With every assumption met, the isoperimetric bound has lines of its own, from the same cells, and a word below.
    """
    heads = ["version", "method", "n", *(f"width {name}" for name in REGIONS), "gap / data", "beyond / data"]
    heads += [f"% covered {name}" for name in REGIONS]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    compared = ""
    for name, cell, result in _shown(cells, results):
        over, gap, beyond = (regions := find_regions(cell, result)).values()
        values = [_text(region.median_width) for region in regions.values()]
        values += [_text(region.times(over)) for region in (gap, beyond)]
        values += ["" if r.coverage is None else f"{100 * r.coverage:.0f}" for r in regions.values()]
        lines.append(f"| {cell.version} | {name} | {cell.n} | {' | '.join(values)} |")
        if name == ISOPERIMETRIC:
            compared = f"\n\n{comparison(cell)}"
    return "\n".join(lines) + compared


def _shown(cells: Sequence[Cell], results: Results) -> Iterator[tuple[str, Cell, dict[str, Any]]]:
    """What is there, with the name of its method: versions apart, the proposed method first."""
    lines = [(cell.method, cell, results.read(cell)) for cell in cells]
    lines += [(ISOPERIMETRIC, cell, read_isoperimetric(cell, results)) for cell in cells if has_isoperimetric(cell)]
    ranks = {"proposed": 0, ISOPERIMETRIC: 1}
    lines.sort(key=lambda line: (line[1].version != "published", ranks.get(line[0], 2), line[0]))
    for name, cell, result in lines:
        if result is not None and result["status"] == "done":
            yield name, cell, result


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
