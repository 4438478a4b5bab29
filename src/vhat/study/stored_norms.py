"""Intervals of a stored cell by another bound, or at another delta, from the weighted norms that its result holds.

Nothing is trained or solved anew: V and the predictions are those of the cell, and only the half widths differ.
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
"""The name of the proposed method by the isoperimetric bound in tables. There are no cells of that name: its intervals
are made from the cells of ``proposed``, which hold those of ``tight``."""


def with_half(test: dict[str, Any], half: np.ndarray) -> dict[str, np.ndarray]:
    """Return the stored predictions give or take ``half``; where no interval is stored there is none here either."""
    center = np.asarray(test["center"], dtype=float)
    stored = [np.asarray(test[name], dtype=float) for name in ("lower", "upper")]
    width = np.where(np.isfinite(stored[0]) & np.isfinite(stored[1]), half, np.nan)
    return {"center": center, "lower": center - width, "upper": center + width}


def isoperimetric_band(test: dict[str, Any], n: int, delta: float) -> dict[str, np.ndarray]:
    """Return the intervals of the isoperimetric bound with its default tail.

    Args:
        test: What a result of the proposed method holds of its test points.
        n: Training rows.
        delta: Probability of a miss at each point.
    """
    norm = np.asarray(test["weighted norm"], dtype=float)
    v, c = MODERATE.pair(norm)
    return with_half(test, bounds.isoperimetric(norm, n, NOISE, delta, v=v, c=c))


def has_isoperimetric(cell: Cell) -> bool:
    """Tell whether the isoperimetric bound is shown beside a cell: the proposed method with every assumption met."""
    return cell.version == "met" and cell.method == "proposed"


def read_isoperimetric(cell: Cell, results: Results) -> dict[str, Any] | None:
    """Return what the result of a cell is by the isoperimetric bound: its limits and how they are judged.

    The level is the cell's own. A result of a cell that failed has no limits and is returned as it is.

    Returns:
        A result with the status, the metrics and the limits of the test points; None where the cell is missing.
    """
    result = results.read(cell)
    if result is None or result["status"] != "done":
        return result
    data = draw(cell)
    band = isoperimetric_band(result["test"], len(data.train.X), level(cell))
    return {"status": "done", "metrics": score(band, data.test, data.train), "test": band}


def comparison(cell: Cell) -> str:
    """Say what the isoperimetric bound assumes beside ``tight``, and how the half widths of both compare."""
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
