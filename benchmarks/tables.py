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


def standard_error(found: dict[str, float], splits: int) -> float:
    """The standard error of a mean coverage, from its standard deviation, which divides by the number of splits.

    It takes the splits as independent, though they share most of their training rows.
    """
    return found["coverage sd"] / np.sqrt(splits - 1) if splits > 1 else float("nan")


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
    return "\n".join([*lines, *_default_beside_asymptotic(rows)]) + "\n"


def _default_beside_asymptotic(rows: dict[str, dict[str, Any]]) -> list[str]:
    """A table of the default bound alone; empty where no row has it."""
    name = "default bound"
    compared = {table: row["details"][name] for table, row in rows.items() if name in row["details"]}
    if not compared:
        return []
    lines = [
        "",
        "The bound of fitted.interval, isoperimetric: its mean coverage with the standard error over the splits (taken",
        "as independent, though they share most of their training rows), and its Winkler score over that of the",
        "asymptotic bound.",
        "",
        "| table | coverage % | standard error | Winkler, isoperimetric / asymptotic |",
        "|---|---|---|---|",
    ]
    for table, found in compared.items():
        lines.append(
            f"| {table.removeprefix('uci-')} | {found['coverage']:.1f} | {found['standard error of coverage']:.1f} | "
            f"{found['winkler over asymptotic']:.3f} |"
        )
    return lines
