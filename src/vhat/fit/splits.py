"""Splits of the rows into those to train on and those to score."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_count, check_finite, check_weights
from vhat.errors import InputError

__all__ = ["Part", "Table", "all_rows", "check_table", "fresh_rows", "held_out_share", "in_folds"]

_FEWEST_ROWS = 5
"""Least number of rows to train on, and for a mean score."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with responses.

    Attributes:
        X: Inputs, (n, ...).
        y: Responses, (n,) or (n, outputs).
        weight: Row weights, (n,), or None.
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
    """A training set, and the rows on which its fits are scored.

    Attributes:
        train: Training rows.
        test: Held-out rows; None if the training rows are left out one by one.
        share: Share of all rows in the training set. The fit on ``m`` of ``n`` rows minimises
            ``1/n sum_m l + lam/2 |theta|^2``: held-out rows leave the sum, while ``1/n`` and lam stay. A recipe, which
            divides by m, is therefore given ``lam / share``.
    """

    train: Table
    test: Table | None
    share: float


def check_table(X: Any, y: Any, sample_weight: Any = None, *, names: tuple[str, str] = ("X", "y")) -> Table:
    """Return rows and responses as finite numbers, after checking that their numbers agree.

    Args:
        X: Rows.
        y: Responses.
        sample_weight: Row weights, or None.
        names: Names of the two arrays, for messages.

    Raises:
        InputError: Naming the array and the rows.
    """
    inputs = as_numbers(names[0], X)
    responses = as_numbers(names[1], y)
    if not inputs.ndim or responses.ndim not in (1, 2) or len(inputs) != len(responses):
        raise InputError(
            f"{names[0]} has shape {inputs.shape} and {names[1]} has shape {responses.shape}; give one row a point, "
            "with responses (n,) or (n, outputs)."
        )
    check_finite(names[0], inputs)
    check_finite(names[1], responses)
    weight = None
    if sample_weight is not None:
        weight = check_weights(sample_weight, len(responses))
    return Table(inputs, responses, weight)


def all_rows(table: Table) -> list[Part]:
    """Return the part that trains on all rows and leaves them out one by one.

    Raises:
        InputError: When there are too few rows.
    """
    if len(table) < _FEWEST_ROWS:
        raise InputError(f"X has {len(table)} rows, too few to choose weight_decay by. Give at least {_FEWEST_ROWS}.")
    return [Part(table, None, 1.0)]


def fresh_rows(table: Table, validation: Any) -> list[Part]:
    """Return the part that trains on all rows and scores on separate rows ``(X_val, y_val)``.

    Raises:
        InputError: When these are too few, have other shapes, or are the training rows.
    """
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise InputError(f"validation={validation!r} is not known. Give a share such as 0.2, or (X_val, y_val).")
    names = ("X_val", "y_val")
    test = check_table(*validation, names=names)
    for name, given, training in zip(names, (test.X, test.y), (table.X, table.y), strict=True):
        if given.shape[1:] != training.shape[1:]:
            raise InputError(
                f"{name} has rows of shape {given.shape[1:]}; the training rows have {training.shape[1:]}."
            )
    _refuse_few(len(table), len(test), "validation=(X_val, y_val)")
    if np.array_equal(test.X, table.X) and np.array_equal(test.y, table.y):
        raise InputError(
            "the validation rows are the training rows: they say nothing about new ones. Give rows of their own, a "
            "share such as validation=0.2, or by='leave_one_out'."
        )
    return [Part(table, test, 1.0)]


def held_out_share(table: Table, share: float, seed: int) -> list[Part]:
    """Return the part that holds out a random share of the rows.

    Raises:
        InputError: When the share is outside (0, 1), or either side has too few rows.
    """
    if isinstance(share, bool) or not 0.0 < share < 1.0:
        raise InputError(f"validation={share!r} is not a share between 0 and 1, such as 0.2.")
    held_out = round(share * len(table))
    _refuse_few(len(table) - held_out, held_out, f"validation={share!r} of {len(table)} rows")
    order = np.random.default_rng(seed).permutation(len(table))
    return [_without(table, np.sort(order[:held_out]))]


def in_folds(table: Table, folds: Any, seed: int) -> list[Part]:
    """Return the parts of cross-validation with random folds whose sizes differ by at most one.

    Raises:
        InputError: When there are fewer than two folds, or more than rows.
    """
    check_count("folds", folds, least=2)
    n = len(table)
    if n < max(folds, _FEWEST_ROWS):
        raise InputError(
            f"X has {n} rows, too few for folds={folds}. Give fewer folds, at least {_FEWEST_ROWS} rows, or use "
            "by='leave_one_out', which fits all rows at once."
        )
    order = np.random.default_rng(seed).permutation(n)
    return [_without(table, np.sort(held_out)) for held_out in np.array_split(order, folds)]


def _without(table: Table, held_out: np.ndarray) -> Part:
    """Return the part that holds out the rows of the given numbers.

    Raises:
        InputError: When all rows of one side have weight zero.
    """
    kept = np.setdiff1d(np.arange(len(table)), held_out)
    if table.weight is not None and not (table.weight[kept].any() and table.weight[held_out].any()):
        raise InputError("sample_weight is zero in every row of one side of a split. Leave out rows of weight 0.")
    return Part(table.rows(kept), table.rows(held_out), len(kept) / len(table))


def _refuse_few(train: int, held_out: int, what: str) -> None:
    """Refuse a split with too few rows on either side.

    Raises:
        InputError: Naming the split and the numbers of rows.
    """
    if min(train, held_out) < _FEWEST_ROWS:
        raise InputError(
            f"{what} leaves {train} rows to train on and {held_out} to score; at least {_FEWEST_ROWS} of each are "
            "needed. Give more rows, another share, or use by='leave_one_out', which needs no split."
        )
