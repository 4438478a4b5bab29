"""Permutation importance: the increase of the error when the values of one column are shuffled among the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.report.numbers import plain
from vhat.report.points import thin

__all__ = ["Importance", "importance"]

REPEATS = 5
"""Shuffles of each column. Their standard deviation measures the random error of the importance."""
MAX_WORK = 2e10
"""Limit of predicted rows times parameters, over all shuffles: about ten CPU seconds."""
MAX_ROWS = 200_000
"""Limit of predicted rows, over all shuffles, also for small models."""
MIN_ROWS = 20
"""Least number of rows among which a column is shuffled."""
_BATCH = 20_000
"""Rows that are predicted at once."""


@dataclass(frozen=True, eq=False)
class Importance:
    """Importance of each column of the table, for every output.

    Attributes:
        names: The names of the c columns.
        columns: The columns of the model for each of them, as c arrays of indices: several if it was encoded.
        increase: Increase of the root mean square error, mean over the shuffles, (c, outputs), in the unit of the
            response.
        spread: Its standard deviation over the shuffles, (c, outputs).
        rms: Root mean square error without shuffling, on the same rows, (outputs,).
        rows: The number of rows that were shuffled.
        repeats: The number of shuffles of each column.
    """

    names: tuple[str, ...]
    columns: tuple[np.ndarray, ...]
    increase: np.ndarray
    spread: np.ndarray
    rms: np.ndarray
    rows: int
    repeats: int

    def order(self, k: int) -> np.ndarray:
        """Return the indices of the columns of the model, the most important for output k first."""
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
    """Measure the increase of the error when one column at a time is shuffled.

    If the cost would be too high, there are fewer shuffles, and then fewer rows, chosen at random.

    Args:
        predict: Function from rows of the table to predictions, (m, outputs).
        values: The rows, (m, columns).
        observed: Their responses, (m, outputs).
        columns: Indices of the columns to shuffle, by name. Columns under one name are shuffled together.
        parameters: The number of parameters of the model, for the cost of a prediction.
        seed: Seed of the shuffles.

    Returns:
        The importances; None if there are too few rows, or too many columns for the cost.
    """
    allowed_rows = int(min(MAX_ROWS, MAX_WORK / max(parameters, 1)))
    if len(columns) == 0 or len(values) < MIN_ROWS:
        return None
    repeats = int(np.clip(allowed_rows // (len(columns) * MIN_ROWS), 0, REPEATS))
    if repeats == 0:
        return None
    kept = thin(len(values), seed, max(MIN_ROWS, allowed_rows // (len(columns) * repeats)))
    values = values[kept]
    observed = observed[kept]
    rng = np.random.default_rng(seed)
    rms = _errors(predict(values), observed[None])[0]
    shuffles = [(block, rng.permutation(len(values))) for block in columns.values() for _ in range(repeats)]
    errors = []
    per_batch = max(1, _BATCH // len(values))
    for start in range(0, len(shuffles), per_batch):
        batch = shuffles[start : start + per_batch]
        copies = np.repeat(values[None], len(batch), axis=0)  # one copy of all rows per shuffle
        for copy, (block, order) in zip(copies, batch, strict=True):
            copy[:, block] = values[order[:, None], block]
        errors.append(_errors(predict(copies.reshape(-1, values.shape[1])), observed[None]))
    increase = (np.concatenate(errors) - rms).reshape(len(columns), repeats, -1)
    return Importance(
        names=tuple(columns),
        columns=tuple(columns.values()),
        increase=increase.mean(axis=1),
        spread=increase.std(axis=1, ddof=min(1, repeats - 1)),
        rms=rms,
        rows=len(values),
        repeats=repeats,
    )


def _errors(predicted: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Return the root mean square error of each copy of the rows, (copies, outputs)."""
    rows, outputs = observed.shape[1:]
    residual = predicted.reshape(-1, rows, outputs) - observed
    errors: np.ndarray = np.sqrt(np.mean(residual**2, axis=1))
    return errors
