"""The option ``weight_decay`` of an estimator: a number, a grid to choose from, or ``"auto"``."""

from __future__ import annotations

import numbers
import reprlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import LARGEST
from vhat.errors import InputError, TableWarning, outside

if TYPE_CHECKING:
    from vhat.fit import Selection
    from vhat.fit.recipe import NetworkRecipe

__all__ = ["Decay"]

_ENOUGH = 10
"""Rows, copies counted once, below which leave-one-out cannot choose a weight decay."""
_SAFE = 0.1
"""Weight decay for such a small table, in units of the standardised target: it leaves the fit little flexibility."""


@dataclass(frozen=True, eq=False)
class Decay:
    """The option ``weight_decay``, checked.

    Attributes:
        given: The number, or None if it has to be chosen.
        grid: The numbers to choose from; None for the estimator's own grid.
    """

    given: float | None = None
    grid: np.ndarray | None = None

    @classmethod
    def of(cls, option: Any) -> Decay:
        """Read the option.

        Raises:
            InputError: For anything but a number, a grid or ``"auto"``.
        """
        if isinstance(option, str) and option == "auto":
            return cls()
        real = isinstance(option, numbers.Real) and not isinstance(option, bool)
        if real and 0 <= option <= LARGEST:
            return cls(given=float(option))
        if isinstance(option, list | tuple | np.ndarray) and np.ndim(option) == 1:
            from vhat.fit.decay_path import check_grid

            return cls(grid=check_grid(option, "weight_decay"))
        raise InputError(
            f'weight_decay={reprlib.repr(option)} is neither a finite number of at least 0, nor "auto", nor a list of '
            "two or more numbers above 0 to choose from."
        )

    def number(self, different: int) -> float | None:
        """Return the number as given; a safe one if there are too few rows to choose by; None if it has to be chosen.

        Args:
            different: The number of rows, copies counted once.

        Warns:
            TableWarning: Of too few rows.
        """
        if self.given is not None or different >= _ENOUGH:
            return self.given
        if self.grid is None:
            safe = _SAFE
            option = 'weight_decay="auto"'
        else:
            safe = float(self.grid[-1])
            option = "a grid of weight_decay"
        warnings.warn(
            f"{option} holds rows out to choose one, and {different} different rows are too few for that (it takes "
            f"{_ENOUGH}): {safe:g} is taken. Give more rows, or the number that you want.",
            TableWarning,
            stacklevel=outside(),
        )
        return safe

    def choose(
        self, recipe: NetworkRecipe, X: np.ndarray, y: np.ndarray, *, sample_weight: np.ndarray, seed: int
    ) -> Selection:
        """Choose lam by leave-one-out: from the given grid, or by few fits along the estimator's own grid."""
        from vhat.fit.quick_selection import choose_from, choose_quickly

        if self.grid is None:
            return choose_quickly(recipe, X, y, sample_weight=sample_weight, seed=seed)
        return choose_from(recipe, X, y, grid=self.grid, sample_weight=sample_weight, seed=seed)
