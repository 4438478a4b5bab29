"""Permutation importance: how much the error grows when the values of one column are shuffled among the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.report.numbers import plain
from vhat.report.points import thin

__all__ = ["Importance", "importance"]

REPEATS = 5
"""Shuffles of every column; their spread is the error of the importance that is due to chance."""
MOST_WORK = 2e10
"""Predicted rows times parameters of all shuffles together: some ten CPU seconds."""
MOST_ROWS = 200_000
"""Predicted rows of all shuffles together, however small the model."""
LEAST_ROWS = 20
"""Rows to shuffle among; fewer say nothing."""
_BATCH = 20_000
"""Rows that are predicted at once."""


@dataclass(frozen=True, eq=False)
class Importance:
    """Importance of each column of the table, for every output.

    Attributes:
        names: What the columns are called, (c,).
        columns: The columns of the model that each of them is, (c,) of arrays: several where it was encoded.
        increase: By how much the root mean square error grows, mean over the shuffles, (c, K), in the unit of the
            response.
        spread: Its standard deviation over the shuffles, (c, K).
        rms: The error without shuffling, on the same rows, (K,).
        rows: How many rows were shuffled.
        repeats: How many shuffles each column had.
    """

    names: tuple[str, ...]
    columns: tuple[np.ndarray, ...]
    increase: np.ndarray
    spread: np.ndarray
    rms: np.ndarray
    rows: int
    repeats: int

    def order(self, k: int) -> np.ndarray:
        """Return the columns of the model, those of the most important column for output k first."""
        best = np.argsort(-self.increase[:, k], kind="stable")
        return np.concatenate([self.columns[each] for each in best])

    def to_plain(self, k: int, most: int) -> dict[str, Any]:
        """Return the most important columns of output k as plain data."""
        best = np.argsort(-self.increase[:, k], kind="stable")[:most]
        return {
            "name": [self.names[each] for each in best],
            "increase": plain(self.increase[best, k]),
            "spread": plain(self.spread[best, k]),
            "rms": plain(self.rms[k]),
            "rows": self.rows,
            "repeats": self.repeats,
            "others": len(self.columns) - len(best),
        }


def importance(
    predict: Callable[[np.ndarray], np.ndarray],
    values: np.ndarray,
    observed: np.ndarray,
    columns: dict[str, np.ndarray],
    *,
    parameters: int,
    seed: int,
) -> Importance | None:
    """Shuffle one column at a time and predict again.

    Rows are thinned at random, and then shuffles are saved, where all of them would take too long.

    Args:
        predict: From rows of the table to predictions, (m, K).
        values: The rows, (m, columns).
        observed: Their responses, (m, K).
        columns: The columns to shuffle, by name; those of one name are shuffled together.
        parameters: Parameters of the model, for the cost of a prediction.
        seed: Seed of the shuffles.

    Returns:
        The importances; None where there are too few rows, or too many columns for the cost.
    """
    allowed = int(min(MOST_ROWS, MOST_WORK / max(parameters, 1)))
    if not len(columns) or len(values) < LEAST_ROWS:
        return None
    repeats = int(np.clip(allowed // (len(columns) * LEAST_ROWS), 0, REPEATS))
    if repeats == 0:
        return None
    kept = thin(len(values), seed, max(LEAST_ROWS, allowed // (len(columns) * repeats)))
    values = values[kept]
    observed = observed[kept]
    rng = np.random.default_rng(seed)
    rms = _errors(predict(values), observed[None])[0]
    shuffled = [(block, rng.permutation(len(values))) for block in columns.values() for _ in range(repeats)]
    found = []
    together = max(1, _BATCH // len(values))
    for start in range(0, len(shuffled), together):
        part = shuffled[start : start + together]
        rows = np.repeat(values[None], len(part), axis=0)
        for copy, (block, order) in zip(rows, part, strict=True):
            copy[:, block] = values[order[:, None], block]
        found.append(_errors(predict(rows.reshape(-1, values.shape[1])), observed[None]))
    increase = (np.concatenate(found) - rms).reshape(len(columns), repeats, -1)
    names, blocks = tuple(columns), tuple(columns.values())
    return Importance(
        names, blocks, increase.mean(axis=1), increase.std(axis=1, ddof=min(1, repeats - 1)), rms, len(values), repeats
    )


def _errors(predicted: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Return the root mean square error of every copy of the rows, (copies, K)."""
    rows, outputs = observed.shape[1:]
    missed = predicted.reshape(-1, rows, outputs) - observed
    errors: np.ndarray = np.sqrt(np.mean(missed**2, axis=1))
    return errors
