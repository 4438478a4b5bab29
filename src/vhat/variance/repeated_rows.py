"""Rows that two tables share, input and response alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vhat.models.problem import Problem

__all__ = ["repeated_rows"]


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
    """Return an array of inputs as (rows, columns): numbers as float64, without a negative zero."""
    try:
        return problem.numpy(leaf).reshape(len(leaf), -1) + 0.0
    except (TypeError, ValueError):  # names or dates, which a NumPy model may take
        return np.asarray(leaf, dtype=object).reshape(len(leaf), -1)


def _key(row: np.ndarray) -> Any:
    return tuple(row) if row.dtype == object else row.tobytes()
