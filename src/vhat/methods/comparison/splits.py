"""Splits of a comparison: training rows, test points, and the values that judge the intervals there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from vhat.checks import as_numbers, check_count, check_finite
from vhat.errors import InputError
from vhat.fit.splits import Table, check_table

__all__ = ["Split", "make_splits"]

_HELD_OUT_SHARE = 0.2
"""Share of the rows that a random split holds out."""


class Split(NamedTuple):
    """One split.

    Attributes:
        X_train: Rows to train on.
        y_train: Their responses.
        X_test: Test points.
        judge: The values that intervals at the test points should contain: the truth or responses.
    """

    X_train: Any
    y_train: np.ndarray
    X_test: Any
    judge: np.ndarray

    def copied(self) -> Split:
        """Return a copy, so that a method that changes its rows in place does not affect the others."""
        return Split(*(np.array(part) for part in self))

    def same_data(self, other: Split) -> bool:
        """Return whether both splits have equal training rows and test points, so that only their seeds differ."""
        return all(np.array_equal(mine, its) for mine, its in zip(self, other, strict=True))


def make_splits(X: Any, y: Any, truth: Any, test: Any, splits: Any, seed: int) -> Iterator[Split]:
    """Yield the splits of a comparison.

    Args:
        X: Rows.
        y: Responses.
        truth: The regression function that judges the intervals; None for responses.
        test: Points, or points and responses, in place of held-out rows; None holds rows out.
        splits: As in :func:`vhat.compare`.
        seed: Seed of random splits.

    Raises:
        InputError: When the data or the splits cannot be used.
    """
    table = check_table(X, y)
    if test is not None:
        check_count("splits", splits, least=1)
        points, judge = _points(test, truth, table)
        yield from [Split(table.X, table.y, points, judge)] * int(splits)
        return
    for train, held in _pairs(table, splits, seed, overlap=truth is not None):
        judge = table.y[held]
        if truth is not None:
            judge = _means(truth, table.X[held], table)
        yield Split(table.X[train], table.y[train], table.X[held], judge)


def _points(test: Any, truth: Any, table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Return given test points and the values that judge the intervals there.

    Raises:
        InputError: When responses are needed and missing, or the shapes do not match the training rows.
    """
    is_pair = isinstance(test, tuple) and len(test) == 2
    if truth is None and not is_pair:
        raise InputError("test= without truth= must be a pair (X_test, y_test): intervals are judged by responses.")
    points = as_numbers("test", test[0] if isinstance(test, tuple) else test)
    check_finite("test", points)
    if points.shape[1:] != table.X.shape[1:]:
        raise InputError(f"test has points of shape {points.shape[1:]}; the rows of X have {table.X.shape[1:]}.")
    if truth is not None:
        return points, _means(truth, points, table)
    return points, _judge("test[1]", test[1], len(points), table)


def _means(truth: Any, points: np.ndarray, table: Table) -> np.ndarray:
    """Return the checked values of the regression function at points."""
    return _judge("truth(x)", truth(points), len(points), table)


def _judge(name: str, values: Any, points: int, table: Table) -> np.ndarray:
    """Return finite values, one per point and output.

    Raises:
        InputError: When the values have another shape, or are not finite.
    """
    judge = as_numbers(name, values)
    outputs = table.y.size // len(table)
    if judge.shape not in ((points,), (points, outputs)) or judge.size != points * outputs:
        shape = f"({points}, {outputs},)" if outputs > 1 else f"({points},)"
        raise InputError(
            f"{name} has shape {judge.shape} for {points} points; y has {outputs} output(s), so give {shape}."
        )
    check_finite(name, judge)
    return judge


def _pairs(table: Table, splits: Any, seed: int, *, overlap: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the numbers of the training rows and of the held-out rows of each split.

    Args:
        table: The rows.
        splits: As in :func:`vhat.compare`.
        seed: Seed of random splits.
        overlap: Whether a row may be in both parts.

    Raises:
        InputError: When a split is not a pair of row numbers, or overlaps without permission.
    """
    n = len(table)
    if hasattr(splits, "split"):
        given = splits.split(table.X, table.y)
    elif isinstance(splits, int | np.integer):
        yield from _random_pairs(n, splits, seed)
        return
    else:
        given = splits
    for number, pair in enumerate(given):
        train, held = (_rows(f"split {number}", rows, n) for rows in pair)
        if not overlap and np.intersect1d(train, held).size:
            raise InputError(
                f"split {number} has test rows that are also training rows: intervals can be judged only by responses "
                "that were held out. Give truth=, or other rows."
            )
        yield train, held


def _rows(name: str, rows: Any, n: int) -> np.ndarray:
    """Return row numbers between 0 and n, from row numbers or a mask.

    Raises:
        InputError: When they are neither.
    """
    array = np.asarray(rows)
    if array.dtype == bool and array.shape == (n,):
        array = np.flatnonzero(array)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu" or array.min() < -n or array.max() >= n:
        raise InputError(f"{name} is not a pair of training and test rows, numbers below {n} or masks of {n} rows.")
    return array % n


def _random_pairs(n: int, splits: Any, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield random splits that hold out a fifth of the rows.

    Raises:
        InputError: When there are too few rows.
    """
    check_count("splits", splits, least=1)
    held_out = round(_HELD_OUT_SHARE * n)
    if held_out < 1 or n - held_out < 2:
        raise InputError(f"{n} rows are too few to hold a fifth of them out. Give test=, or more rows.")
    for i in range(int(splits)):
        order = np.random.default_rng([seed, i]).permutation(n)
        yield np.sort(order[held_out:]), np.sort(order[:held_out])
