"""Intervals of a stored cell by another bound or at another delta, from the weighted norms in its result.

Nothing is trained or solved again: V and the predictions are those of the cell, and only the half widths differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat import bounds
from vhat.intervals.tail import MODERATE
from vhat.study.cell import Cell
from vhat.study.measure import score
from vhat.study.protocol import NOISE, draw, level
from vhat.study.results import Results

__all__ = ["ISOPERIMETRIC", "comparison", "has_isoperimetric", "isoperimetric_band", "read_isoperimetric", "with_half"]

ISOPERIMETRIC = "proposed, isoperimetric"
"""Name of the proposed method with the isoperimetric bound in tables. It has no cells: its intervals are made from the
cells of ``proposed``, which contain those of ``tight``."""


def with_half(test: dict[str, Any], half: np.ndarray) -> dict[str, np.ndarray]:
    """Return intervals of half width ``half`` about the stored predictions; NaN where no interval is stored."""
    center = np.asarray(test["center"], dtype=float)
    lower = np.asarray(test["lower"], dtype=float)
    upper = np.asarray(test["upper"], dtype=float)
    half = np.where(np.isfinite(lower) & np.isfinite(upper), half, np.nan)
    return {"center": center, "lower": center - half, "upper": center + half}


def isoperimetric_band(test: dict[str, Any], n: int, delta: float) -> dict[str, np.ndarray]:
    """Return the intervals of the isoperimetric bound with its default tail.

    Args:
        test: The intervals at the test points in a result of the proposed method.
        n: Number of training rows.
        delta: Probability of a miss at each point.
    """
    norm = np.asarray(test["weighted norm"], dtype=float)
    v, c = MODERATE.pair(norm)
    return with_half(test, bounds.isoperimetric(norm, n, NOISE, delta, v=v, c=c))


def has_isoperimetric(cell: Cell) -> bool:
    """Return whether tables also show the isoperimetric bound for a cell: of ``proposed`` at a minimum."""
    return cell.version == "met" and cell.method == "proposed"


def read_isoperimetric(cell: Cell, results: Results) -> dict[str, Any] | None:
    """Return the result of a cell with the isoperimetric bound, at the level of the cell.

    Returns:
        A result with the status, the metrics and the limits at the test points. A failed result is returned unchanged,
        None for a missing one.
    """
    result = results.read(cell)
    if result is None or result["status"] != "done":
        return result
    data = draw(cell)
    band = isoperimetric_band(result["test"], len(data.train.X), level(cell))
    return {"status": "done", "metrics": score(band, data.test, data.train), "test": band}


def comparison(cell: Cell) -> str:
    """Return a note on the isoperimetric bound and ``tight``: their assumptions, and the ratio of their half widths."""
    delta = level(cell)
    unit = {"norm": 1.0, "n": 1, "noise": 1.0, "delta": delta}
    tight = float(bounds.tight(**unit))
    moderate = float(bounds.isoperimetric_multiplier(delta, v=MODERATE.v, c=MODERATE.c))
    constant = float(bounds.isoperimetric_multiplier(delta))
    return (
        f"`{ISOPERIMETRIC}` is the library's default bound, from the V that the cells of `proposed` hold. It allows V "
        f"to vary with the noise (v = V/2, c = V/4), `tight` does not (v = c = 0): at delta = {delta:.2g} for each "
        f"point its half width is {moderate:.2f} standard errors, {moderate / tight:.2f} times that of `tight`, "
        f"{tight:.2f}. With V constant, as `tight` has it, it would be {constant:.2f}."
    )
