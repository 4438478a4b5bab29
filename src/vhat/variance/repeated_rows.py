"""Find rows that two tables share, input and response alike, and refuse training rows as held-out rows.

In a table of rounded numbers rows repeat by chance: a new row may equal a training row in input and response. A
permutation test decides: if all rows of both tables were dealt to the two tables at random again, how probable are as
many repeated held-out rows? Below a probability of 1% the held-out rows are refused. Otherwise the copies are counted,
with a warning. If no training row has a copy among the training rows, held-out rows that are all training rows are
refused whatever their number.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy.stats import binom

from vhat.errors import CalibrationWarning, InputError, name_rows, outside
from vhat.models.problem import Problem

__all__ = ["is_more_than_chance", "refuse_training_rows", "repeated_rows", "row_digests"]

_BY_CHANCE = 0.01
"""Significance level of the test: at most one in a hundred tables of rounded numbers without training rows is
refused."""
_MOST_EXACT = 5000
"""Number of rows with copies up to which the probability is exact; for more a normal approximation is used."""


def repeated_rows(
    problem: Problem, inputs: Any, targets: np.ndarray, among: tuple[Any, np.ndarray] | None = None
) -> list[int]:
    """Return the rows that also occur in another table, with the same input and response.

    Args:
        problem: The training problem, whose checked inputs these are.
        inputs: Checked inputs.
        targets: Their responses, (m, K).
        among: Inputs and responses of the other table; the training rows by default.

    Returns:
        Row numbers; none if the inputs are in a container of the user's own, whose arrays cannot be compared.
    """
    other = (problem.X, problem.targets) if among is None else among
    _, _, same = _compared(problem, (inputs, targets), other)
    return same


def refuse_training_rows(problem: Problem, inputs: Any, targets: np.ndarray, *, kind: str, remedy: str) -> int:
    """Return the number of held-out rows that are training rows too; warn about some, refuse many.

    Args:
        problem: The training problem.
        inputs: Checked inputs of the held-out rows.
        targets: Their responses, (m, K).
        kind: Purpose of the rows in messages, such as "calibration".
        remedy: Advice at the end of an error, a sentence.

    Raises:
        InputError: If every row is a training row, or more of them are than chance explains.

    Warns:
        CalibrationWarning: If some rows are.
    """
    rows, known, same = _compared(problem, (inputs, targets), (problem.X, problem.targets))
    count = len(targets)
    if not same:
        return 0
    explained = _explained(rows, known)
    if len(same) == count and not explained:
        raise InputError(
            f"every {kind} row is also a training row, input and response alike: its error says nothing about a new "
            f"response. {remedy}"
        )
    found = f"{len(same)} of {count} {kind} rows are also training rows, input and response alike ({name_rows(same)})"
    if not explained:
        copies = sum(times for times in Counter(known).values() if times > 1)
        raise InputError(
            f"{found}, which is more than chance explains: {copies} of the {problem.n} training rows have a copy among "
            f"themselves. {remedy}"
        )
    warnings.warn(
        f"{found}. If training saw them, leave them out: the level does not hold with them.",
        CalibrationWarning,
        stacklevel=outside(),
    )
    return len(same)


def row_digests(problem: Problem, inputs: Any, targets: np.ndarray) -> np.ndarray | None:
    """Return a hash of eight bytes for each row, (m,); None if the rows cannot be compared."""
    try:
        keys = _row_keys(problem, inputs, targets)
    except TypeError:  # a container of the user's own
        return None
    found = [hashlib.blake2b(repr(key).encode(), digest_size=8).digest() for key in keys]
    return np.frombuffer(b"".join(found), dtype=np.uint64).copy()


def is_more_than_chance(rows: np.ndarray, known: np.ndarray) -> bool:
    """Return whether rows are copies of known rows, and either all of them or more than chance explains.

    Args:
        rows: The :func:`row_digests` of the rows.
        known: The :func:`row_digests` of the known rows.
    """
    return bool(np.any(np.isin(rows, known))) and not _explained(rows.tolist(), known.tolist())


def _explained(rows: list[Any], known: list[Any]) -> bool:
    """Return whether chance explains how many rows are known rows.

    It does not explain that all of them are if no known row has a copy among the known rows.
    """
    among = set(known)
    # Without copies among the known rows, rows of this table do not repeat by chance.
    if len(among) == len(known) and all(row in among for row in rows):
        return False
    return _chance(rows, known) >= _BY_CHANCE


def _chance(rows: list[Any], known: list[Any]) -> float:
    """Return the probability that a random deal of all rows gives at least as many repeated held-out rows.

    Each row goes to the held-out table with probability p = m/(m + n). If c rows are equal, the number h of held-out
    ones is binomially distributed, and all h occur among the known rows unless h = c.
    """
    among = set(known)
    repeated = sum(row in among for row in rows)
    # Only values that occur more than once in both tables together can give repeated rows.
    share = len(rows) / (len(rows) + len(known))
    sizes = [times for times in Counter([*rows, *known]).values() if times > 1]
    if sum(sizes) > _MOST_EXACT:
        return _normal_tail(repeated, sizes, share)
    # The distribution of a sum of independent counts: probabilities of 0, 1, ... repeated - 1.
    below = np.zeros(repeated)
    below[0] = 1.0
    for size in sizes:
        below = np.convolve(below, _repeated_probabilities(size, share))[:repeated]
    return float(1.0 - below.sum())


def _repeated_probabilities(size: int, share: float) -> np.ndarray:
    """Return the probabilities that ``size`` equal rows give 0, 1, ... repeated held-out rows."""
    found: np.ndarray = binom.pmf(np.arange(size), size, share)
    found[0] += share**size  # all are held out, and none is repeated
    return found


def _normal_tail(repeated: int, sizes: list[int], share: float) -> float:
    """Return the probability of :func:`_chance` by a normal distribution with the same mean and variance."""
    each = np.array(sizes, dtype=np.float64)
    all_held_out = share**each
    mean = each * share - each * all_held_out
    square = each * share * (1 - share) + (each * share) ** 2 - each**2 * all_held_out
    spread = math.sqrt(float(np.sum(square - mean**2)))
    return 0.5 * math.erfc((repeated - 0.5 - float(mean.sum())) / (math.sqrt(2) * spread))


def _compared(
    problem: Problem, table: tuple[Any, np.ndarray], other: tuple[Any, np.ndarray]
) -> tuple[list[Any], list[Any], list[int]]:
    """Return the keys of the rows of two tables, and the numbers of the rows of the first that the other has too.

    All three are empty if the inputs are in a container of the user's own, whose arrays cannot be compared.
    """
    try:
        rows = _row_keys(problem, *table)
        known = _row_keys(problem, *other)
        among = set(known)
        return rows, known, [number for number, row in enumerate(rows) if row in among]
    except TypeError:
        return [], [], []


def _row_keys(problem: Problem, inputs: Any, targets: np.ndarray) -> list[Any]:
    """Return a hashable key for each row of checked inputs and their responses."""
    tables = [_table(problem, leaf) for leaf in (*_leaves(inputs), targets)]
    return list(zip(*(map(_key, table) for table in tables), strict=True))


def _leaves(inputs: Any) -> Iterator[Any]:
    """Yield the arrays of checked inputs, from nested mappings, tuples and lists."""
    parts = inputs.values() if isinstance(inputs, Mapping) else inputs
    if isinstance(inputs, Mapping | tuple | list):
        for part in parts:
            yield from _leaves(part)
    else:
        yield inputs


def _table(problem: Problem, leaf: Any) -> np.ndarray:
    """Return an array of inputs as (rows, columns), numbers in single precision and without negative zeros.

    A table read from a file or converted by a framework may have lost its last digits; its rows still count as equal.
    """
    try:
        with np.errstate(over="ignore"):
            return (problem.numpy(leaf).reshape(len(leaf), -1) + 0.0).astype(np.float32)
    except (TypeError, ValueError):  # names or dates, which a NumPy model may take
        return np.asarray(leaf, dtype=object).reshape(len(leaf), -1)


def _key(row: np.ndarray) -> Any:
    return tuple(row) if row.dtype == object else row.tobytes()
