"""The table below figure 1: widths and coverage over the data, in the gap and beyond the data."""

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
_EDGE_ROUNDING = 1e-9
"""Tolerance for grid points on the edges of the gap, which count as over the data."""


@dataclass(frozen=True)
class Region:
    """The intervals of one cell in one part of the line.

    Attributes:
        points: Number of test points in it.
        median_width: Median width of their intervals; None if there is no point, or an interval is missing.
        coverage: Share of the points whose interval contains the truth; None if there is no point.
    """

    points: int
    median_width: float | None
    coverage: float | None

    def times(self, other: Region) -> float | None:
        """Return the ratio of the median widths of this region and another; None if either is not known."""
        if self.median_width is None or other.median_width is None or not other.median_width > 0:
            return None
        return self.median_width / other.median_width


def find_regions(cell: Cell, result: dict[str, Any]) -> dict[str, Region]:
    """Return the widths and coverage of a cell of figure 1 in each of :data:`REGIONS`.

    "Over the data" is between the smallest and largest training input, without the gap; "beyond the data" is outside of
    these.
    """
    data = draw(cell)
    x = data.test.X[:, 0]
    inputs = data.train.X[:, 0]
    lower, upper = (np.asarray(result["test"][name], dtype=float) for name in ("lower", "upper"))
    gap = np.abs(x) < GAP - _EDGE_ROUNDING
    beyond = (x < inputs.min()) | (x > inputs.max())
    parts = dict(zip(REGIONS, (~gap & ~beyond, gap, beyond), strict=True))
    return {name: _region(lower[at], upper[at], data.test.truth[at]) for name, at in parts.items()}


def _region(lower: np.ndarray, upper: np.ndarray, truth: np.ndarray) -> Region:
    """Return the region with the given intervals and values of the truth."""
    if not len(truth):
        return Region(0, None, None)
    width = float(np.median(upper - lower))  # NaN where one interval is missing
    covered = float(np.mean((lower <= truth) & (truth <= upper)))
    return Region(len(truth), width if np.isfinite(width) else None, covered)


def to_markdown(cells: Sequence[Cell], results: Results) -> str:
    """Return a table with one line per stored cell: widths, ratios to those over the data, and coverage.

    At a minimum, the isoperimetric bound has its own lines, from the same cells, and a note below.
    """
    heads = ["version", "method", "n", *(f"width {name}" for name in REGIONS), "gap / data", "beyond / data"]
    heads += [f"% covered {name}" for name in REGIONS]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    compared = ""
    for name, cell, result in _shown(cells, results):
        over, gap, beyond = find_regions(cell, result).values()
        values = [_text(region.median_width) for region in (over, gap, beyond)]
        values += [_text(region.times(over)) for region in (gap, beyond)]
        values += ["" if r.coverage is None else f"{100 * r.coverage:.0f}" for r in (over, gap, beyond)]
        lines.append(f"| {cell.version} | {name} | {cell.n} | {' | '.join(values)} |")
        if name == ISOPERIMETRIC:
            compared = f"\n\n{comparison(cell)}"
    return "\n".join(lines) + compared


def _shown(cells: Sequence[Cell], results: Results) -> Iterator[tuple[str, Cell, dict[str, Any]]]:
    """Yield the stored results with the names of their methods: by version, the proposed method first."""
    lines = [(cell.method, cell, results.read(cell)) for cell in cells]
    lines += [(ISOPERIMETRIC, cell, read_isoperimetric(cell, results)) for cell in cells if has_isoperimetric(cell)]
    ranks = {"proposed": 0, ISOPERIMETRIC: 1}
    lines.sort(key=lambda line: (line[1].version != "published", ranks.get(line[0], 2), line[0]))
    for name, cell, result in lines:
        if result is not None and result["status"] == "done":
            yield name, cell, result


def _text(value: float | None) -> str:
    """Return a number with three digits as text; empty for None."""
    return "" if value is None else f"{value:.3g}"
