"""Tables of real data with ten splits each, and what a method's intervals for a new response are worth on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vhat

SPLITS = 10
DELTA = 0.1
COLUMNS = ("coverage", "width", "winkler", "seconds")


@dataclass(frozen=True)
class Split:
    """One split of a table.

    Attributes:
        X: Training rows.
        y: Their responses.
        X_test: Rows that are kept apart.
        y_test: Their responses.
    """

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


@dataclass(frozen=True)
class Table:
    """A table and its splits.

    Attributes:
        X: All rows.
        y: All responses.
        held_out: Which rows are kept apart, (rows, splits).
    """

    X: np.ndarray
    y: np.ndarray
    held_out: np.ndarray

    def splits(self, count: int = SPLITS) -> Iterator[Split]:
        """The first splits, responses in standard deviations of the training responses."""
        for test in self.held_out.T[:count]:
            y = self.y / np.std(self.y[~test])
            yield Split(self.X[~test], y[~test], self.X[test], y[test])


def diabetes() -> Table:
    """scikit-learn's diabetes data (442 rows, 10 columns), a tenth of the rows drawn to be kept apart ten times."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True, scaled=False)
    held_out = np.zeros((len(y), SPLITS), dtype=bool)
    for split in range(SPLITS):
        held_out[np.random.default_rng(split).permutation(len(y))[: len(y) // 10], split] = True
    return Table(X, y, held_out)


def uci(folder: Path) -> Table:
    """A UCI table: ``data.csv.gz``, the target last, and ``test_mask.csv.gz``, one split a column."""
    data = np.loadtxt(folder / "data.csv.gz", delimiter=",")
    mask = np.loadtxt(folder / "test_mask.csv.gz", delimiter=",")
    return Table(data[:, :-1], data[:, -1], mask.astype(bool))


def worth(lower: Any, upper: Any, y: np.ndarray) -> dict[str, float]:
    """Coverage in per cent, mean width and mean Winkler score."""
    return {
        "coverage": 100 * vhat.metrics.coverage(lower, upper, y),
        "width": vhat.metrics.width(lower, upper).mean,
        "winkler": vhat.metrics.winkler(lower, upper, y, DELTA),
    }


def summary(found: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Means over the splits of what each method was worth, and the standard deviation of its coverage."""
    return {
        method: {name: float(np.mean([split[method][name] for split in found])) for name in COLUMNS}
        | {"coverage sd": float(np.std([split[method]["coverage"] for split in found]))}
        for method in found[0]
    }


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    """All tables that were measured, one line a method; empty where there are none."""
    measured = {name: row["details"]["methods"] for name, row in rows.items() if "methods" in row["details"]}
    if not measured:
        return ""
    lines = [
        f"Intervals for a new response, nominal {100 * (1 - DELTA):g}%: means over ten splits. Width and Winkler score",
        "(smaller is better) are in standard deviations of the training target; seconds are for training, choosing the",
        "weight decay and the intervals of one split. How each was measured is in results.md.",
        "",
        "| table | method | coverage % (sd over splits) | width | Winkler | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name, methods in measured.items():
        for method, found in methods.items():
            lines.append(
                f"| {name.removeprefix('uci-')} | {method} | {found['coverage']:.1f} ({found['coverage sd']:.1f}) | "
                f"{found['width']:.3g} | {found['winkler']:.3g} | {found['seconds']:.2g} |"
            )
    return "\n".join(lines) + "\n"
