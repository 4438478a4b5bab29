"""Rows that two tables share, input and response alike, and the refusal of training rows as held-out rows.

Rows of coarse tables repeat by chance: a fresh row may equal a training row, input and response alike. Held-out rows
are refused where more of them are training rows than chance explains: if all rows of both tables were dealt out to them
at random anew, as many would be training rows with a probability below :data:`BY_CHANCE`. Fewer copies are warned of
and counted. Where no training row has a copy of its own, held-out rows that are all training rows are refused however
few there are.
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

__all__ = ["BY_CHANCE", "is_more_than_chance", "refuse_training_rows", "repeated_rows", "row_digests"]

BY_CHANCE = 0.01
"""Probability below which copies of training rows are not called chance: of a hundred honest tables of coarse numbers,
one at most is refused."""
_MOST_EXACT = 5000
"""Rows with copies up to which the probability is exact; that of more is by a normal distribution."""


def repeated_rows(
    problem: Problem, inputs: Any, targets: np.ndarray, among: tuple[Any, np.ndarray] | None = None
) -> list[int]:
    """Return which rows, input and response, stand in another table too.

    Args:
        problem: The training problem, whose checked inputs these are.
        inputs: Checked inputs.
        targets: Their responses, (m, K).
        among: Inputs and responses of the other table; the training rows by default.

    Returns:
        Row numbers; none where the inputs are a container of the user's own, whose arrays cannot be compared.
    """
    other = (problem.X, problem.targets) if among is None else among
    try:
        known = set(_row_keys(problem, *other))
        return [row for row, key in enumerate(_row_keys(problem, inputs, targets)) if key in known]
    except TypeError:  # a container of the user's own
        return []


def refuse_training_rows(problem: Problem, inputs: Any, targets: np.ndarray, *, kind: str, remedy: str) -> int:
    """Return how many held-out rows, input and response, are training rows too: warn of some, refuse many.

    Args:
        problem: The training problem.
        inputs: Checked inputs of the held-out rows.
        targets: Their responses, (m, K).
        kind: What the rows are for, such as "calibration".
        remedy: What to give in their place: a sentence.

    Raises:
        InputError: When every row is a training row, or more of them are than copies among the training rows explain.

    Warns:
        CalibrationWarning: Of fewer.
    """
    same = repeated_rows(problem, inputs, targets)
    count = len(targets)
    if not same:
        return 0
    known = _row_keys(problem, problem.X, problem.targets)
    explained = _explained(_row_keys(problem, inputs, targets), known)
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
    """Return eight bytes a row, (m,), by which rows are recognised later; None where they cannot be compared."""
    try:
        keys = _row_keys(problem, inputs, targets)
    except TypeError:  # a container of the user's own
        return None
    found = [hashlib.blake2b(repr(key).encode(), digest_size=8).digest() for key in keys]
    return np.frombuffer(b"".join(found), dtype=np.uint64).copy()


def is_more_than_chance(rows: np.ndarray, known: np.ndarray) -> bool:
    """Whether rows are copies of known ones, all of them or more than chance explains.

    Args:
        rows: The :func:`row_digests` of the rows.
        known: Those of the others.
    """
    return bool(np.any(np.isin(rows, known))) and not _explained(rows.tolist(), known.tolist())


def _explained(rows: list[Any], known: list[Any]) -> bool:
    """Whether chance explains how many rows are known ones; never all of them where no known row has a copy."""
    among = set(known)
    if len(among) == len(known) and all(row in among for row in rows):
        return False
    return _chance(rows, known) >= BY_CHANCE


def _chance(rows: list[Any], known: list[Any]) -> float:
    """Return the probability that a random deal of all rows gives as many that stand among the known ones too.

    Each row goes to the held-out table with probability p = m/(m + n). Of a value that c rows have, h then are held
    out, binomially distributed, and all h of them stand among the known rows unless h = c.
    """
    among = set(known)
    repeated = sum(row in among for row in rows)
    share = len(rows) / (len(rows) + len(known))
    sizes = [times for times in Counter([*rows, *known]).values() if times > 1]
    if sum(sizes) > _MOST_EXACT:
        return _normal_tail(repeated, sizes, share)
    below = np.zeros(repeated)  # probabilities of 0, 1, ... repeated - 1
    below[0] = 1.0
    for size in sizes:
        below = np.convolve(below, _held_with_copies(size, share))[:repeated]
    return float(1.0 - below.sum())


def _held_with_copies(size: int, share: float) -> np.ndarray:
    """Return the probabilities that 0, 1, ... of ``size`` equal rows are held out while one at least is known."""
    found: np.ndarray = binom.pmf(np.arange(size), size, share)
    found[0] += share**size
    return found


def _normal_tail(repeated: int, sizes: list[int], share: float) -> float:
    """Return the same probability by a normal distribution of the same mean and variance."""
    each = np.array(sizes, dtype=np.float64)
    alone = share**each  # all of them are held out
    mean = each * share - each * alone
    square = each * share * (1 - share) + (each * share) ** 2 - each**2 * alone
    spread = math.sqrt(float(np.sum(square - mean**2)))
    return 0.5 * math.erfc((repeated - 0.5 - float(mean.sum())) / (math.sqrt(2) * spread))


def _row_keys(problem: Problem, inputs: Any, targets: np.ndarray) -> list[Any]:
    """Return one hashable key a row of checked inputs and their responses."""
    tables = [_table(problem, leaf) for leaf in (*_leaves(inputs), targets)]
    return list(zip(*(map(_key, table) for table in tables), strict=True))


def _leaves(inputs: Any) -> Iterator[Any]:
    """Yield the arrays of checked inputs, whatever holds them together."""
    parts = inputs.values() if isinstance(inputs, Mapping) else inputs
    if isinstance(inputs, Mapping | tuple | list):
        for part in parts:
            yield from _leaves(part)
    else:
        yield inputs


def _table(problem: Problem, leaf: Any) -> np.ndarray:
    """Return an array of inputs as (rows, columns): numbers in single precision, without a negative zero.

    A table that went through a file or a framework may have lost its last digits, and its rows are the same rows.
    """
    try:
        with np.errstate(over="ignore"):
            return (problem.numpy(leaf).reshape(len(leaf), -1) + 0.0).astype(np.float32)
    except (TypeError, ValueError):  # names or dates, which a NumPy model may take
        return np.asarray(leaf, dtype=object).reshape(len(leaf), -1)


def _key(row: np.ndarray) -> Any:
    return tuple(row) if row.dtype == object else row.tobytes()
