"""Splits of a table along one of its inputs: its middle third, or its top, is left out of everything but the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.tables import Table, diabetes, uci

UCI = ("yacht", "energy", "concrete", "airfoil")
KINDS = ("gap", "end")
INSIDE = 0.15
"""Share of the remaining rows that are kept apart to test without shift."""
SHARES = {"train": 0.6, "validation": 0.2, "calibration": 0.2}
"""Of the rows that methods may use."""
LEAST, MOST = 0.05, 0.5
"""Bounds of the share of rows that may be left out; a column whose ties allow nothing between them is skipped."""


@dataclass(frozen=True)
class Shift:
    """One split, standardised by its training rows.

    Attributes:
        table: Name of the table.
        column: The input along which rows are left out.
        kind: "gap" or "end".
        rows: Inputs and responses of "train", "validation", "calibration", "inside" (not shifted) and "outside".
    """

    table: str
    column: int
    kind: str
    rows: dict[str, tuple[np.ndarray, np.ndarray]]

    @property
    def name(self) -> str:
        """Tell the split from all others."""
        return f"{self.table}/{self.column}/{self.kind}"

    def X(self, *parts: str) -> np.ndarray:
        """Return the inputs of some parts, one after the other."""
        return np.concatenate([self.rows[part][0] for part in parts])

    def y(self, *parts: str) -> np.ndarray:
        """Return the responses of some parts, one after the other."""
        return np.concatenate([self.rows[part][1] for part in parts])


def tables(folder: Path | None) -> dict[str, Table]:
    """Return scikit-learn's diabetes data, and the UCI tables where there is a folder."""
    found = {"diabetes": diabetes()}
    if folder is not None:
        found |= {name: uci(folder / name) for name in UCI}
    return found


def splits(name: str, table: Table) -> Iterator[Shift | tuple[str, str]]:
    """Yield gap and end along every input; a name and a reason where a column allows no split."""
    for column in range(table.X.shape[1]):
        for kind in KINDS:
            outside = left_out(table.X[:, column], kind)
            if outside is None:
                yield f"{name}/{column}/{kind}", "too few values"
            else:
                yield _split(name, table, column, kind, outside)


def left_out(values: np.ndarray, kind: str) -> np.ndarray | None:
    """Return which rows are left out, or None where ties do not allow it.

    Rows of one value stay together. Where a quantile falls on a value that many rows have, they are left out if the
    share is then still within bounds, else kept.
    """
    low, high = np.quantile(values, (1 / 3, 2 / 3)) if kind == "gap" else (np.quantile(values, 0.85), np.inf)
    if kind == "gap":
        choices = ((values > low) & (values < high), (values >= low) & (values <= high))
    else:
        choices = (values > low, values >= low)
    for outside in choices:
        kept = values[~outside]
        if not LEAST <= outside.mean() <= MOST or len(np.unique(kept)) < 2:
            continue
        inner = values[outside]
        if kind == "end" or (kept.min() < inner.min() and kept.max() > inner.max()):
            return outside
    return None


def _split(name: str, table: Table, column: int, kind: str, outside: np.ndarray) -> Shift:
    rng = np.random.default_rng([len(table.y), column, KINDS.index(kind)])
    pool = rng.permutation(np.flatnonzero(~outside))
    inside, pool = np.split(pool, [round(INSIDE * len(pool))])
    ends = np.cumsum([round(share * len(pool)) for share in SHARES.values()])[:-1]
    parts = dict(zip(SHARES, np.split(pool, ends), strict=True))
    parts |= {"inside": inside, "outside": np.flatnonzero(outside)}
    X = table.X[parts["train"]]
    y = table.y[parts["train"]]
    scale = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    rows = {
        part: ((table.X[index] - X.mean(axis=0)) / scale, (table.y[index] - y.mean()) / y.std())
        for part, index in parts.items()
    }
    return Shift(name, column, kind, rows)
