"""Which rows a fit is trained on and which it is scored on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_count, check_finite, check_weights
from vhat.errors import InputError

__all__ = ["Part", "Table", "all_rows", "check_table", "fresh_rows", "held_out_share", "in_folds"]

_FEWEST = 5
"""Fewer rows than this are not trained on, nor is a mean score made from them."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with responses.

    Attributes:
        X: Inputs, one row a point.
        y: Responses, (n,) or (n, outputs).
        weight: One weight a row, or None.
    """

    X: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    weight: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, which: np.ndarray) -> Table:
        """Return some of the rows."""
        return Table(self.X[which], self.y[which], None if self.weight is None else self.weight[which])


@dataclass(frozen=True, eq=False)
class Part:
    """One training set along the whole grid, and what its fits are scored on.

    Attributes:
        train: Rows of the fits.
        test: Rows that the fits do not see; None where the training rows are left out one by one.
        share: The share of all rows that is trained on. The fit on ``m`` of ``n`` rows is the minimum of
            ``1/n sum_m l + lam/2 |theta|^2``: what is left out leaves the sum, ``1/n`` and lam stay. A recipe that
            divides by m is therefore given ``lam / share``.
    """

    train: Table
    test: Table | None
    share: float


def check_table(X: Any, y: Any, sample_weight: Any = None, *, names: tuple[str, str] = ("X", "y")) -> Table:
    """Check rows and responses: numbers, finite, as many of one as of the other.

    Raises:
        InputError: Naming the array and the rows.
    """
    inputs, responses = as_numbers(names[0], X), as_numbers(names[1], y)
    if not inputs.ndim or responses.ndim not in (1, 2) or len(inputs) != len(responses):
        raise InputError(
            f"{names[0]} has shape {inputs.shape} and {names[1]} has shape {responses.shape}; give one row a point, "
            "with responses (n,) or (n, outputs)."
        )
    check_finite(names[0], inputs)
    check_finite(names[1], responses)
    return Table(inputs, responses, None if sample_weight is None else check_weights(sample_weight, len(responses)))


def all_rows(table: Table) -> list[Part]:
    """Train on all rows, and leave them out one by one.

    Raises:
        InputError: When there are too few.
    """
    if len(table) < _FEWEST:
        raise InputError(f"X has {len(table)} rows, too few to choose weight_decay by. Give at least {_FEWEST}.")
    return [Part(table, None, 1.0)]


def fresh_rows(table: Table, validation: Any) -> list[Part]:
    """Train on all rows, and score on the rows ``(X_val, y_val)``.

    Raises:
        InputError: When these are too few, of other shapes, or the training rows.
    """
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise InputError(f"validation={validation!r} is not known. Give a share such as 0.2, or (X_val, y_val).")
    names = ("X_val", "y_val")
    test = check_table(*validation, names=names)
    for name, came, wanted in zip(names, (test.X, test.y), (table.X, table.y), strict=True):
        if came.shape[1:] != wanted.shape[1:]:
            raise InputError(f"{name} has rows of shape {came.shape[1:]}; the training rows have {wanted.shape[1:]}.")
    _refuse_few(len(table), len(test), "validation=(X_val, y_val)")
    if np.array_equal(test.X, table.X) and np.array_equal(test.y, table.y):
        raise InputError(
            "the validation rows are the training rows: they say nothing about new ones. Give rows of their own, a "
            "share such as validation=0.2, or by='leave_one_out'."
        )
    return [Part(table, test, 1.0)]


def held_out_share(table: Table, share: float, seed: int) -> list[Part]:
    """Hold out a share of the rows, drawn by ``seed``.

    Raises:
        InputError: For a share outside (0, 1), or too few rows on either side.
    """
    if isinstance(share, bool) or not 0.0 < share < 1.0:
        raise InputError(f"validation={share!r} is not a share between 0 and 1, such as 0.2.")
    held = round(share * len(table))
    _refuse_few(len(table) - held, held, f"validation={share!r} of {len(table)} rows")
    order = np.random.default_rng(seed).permutation(len(table))
    return [_without(table, np.sort(order[:held]))]


def in_folds(table: Table, folds: Any, seed: int) -> list[Part]:
    """Hold out each row once, in ``folds`` groups drawn by ``seed`` whose sizes differ by one at the most.

    Raises:
        InputError: For fewer than two folds, or more than rows.
    """
    check_count("folds", folds, least=2)
    n = len(table)
    if n < max(folds, _FEWEST):
        raise InputError(
            f"X has {n} rows, too few for folds={folds}. Give fewer folds, at least {_FEWEST} rows, or use "
            "by='leave_one_out', which fits all rows at once."
        )
    order = np.random.default_rng(seed).permutation(n)
    return [_without(table, np.sort(held)) for held in np.array_split(order, folds)]


def _without(table: Table, held: np.ndarray) -> Part:
    kept = np.setdiff1d(np.arange(len(table)), held)
    if table.weight is not None and not (table.weight[kept].any() and table.weight[held].any()):
        raise InputError("sample_weight is zero in every row of one side of a split. Leave out rows of weight 0.")
    return Part(table.rows(kept), table.rows(held), len(kept) / len(table))


def _refuse_few(train: int, held: int, what: str) -> None:
    if min(train, held) < _FEWEST:
        raise InputError(
            f"{what} leaves {train} rows to train on and {held} to score; at least {_FEWEST} of each are needed. Give "
            "more rows, another share, or use by='leave_one_out', which needs no split."
        )
