"""Fit the logarithm of a target, and map intervals back to its own units.

The network is fitted to log y; ``fitted_`` and everything in it is about log y. exp is increasing, so that an interval
of log y becomes an interval of y with the same level if its limits are mapped. These limits are never negative.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import InputError, name_rows
from vhat.intervals.guarantee import headline

if TYPE_CHECKING:
    from vhat.intervals.interval import Interval

__all__ = ["MEANING", "in_own_units", "log_of"]

MEANING = (
    "the model is of log y: center is exp of the predicted mean of log y, the median of y where the noise of log y is "
    "symmetric and not its mean, limits are exp of those of log y, noise and V are of log y"
)
"""The clause that says what the center and the limits of a mapped interval mean."""


def log_of(y: np.ndarray) -> np.ndarray:
    """Return the logarithms of responses.

    Raises:
        InputError: For responses that are not positive, naming the rows.
    """
    bad = ~(y > 0)
    if bad.any():
        rows = np.flatnonzero(bad.reshape(len(y), -1).any(axis=1))
        raise InputError(
            f"a target that is fitted as its logarithm must be above 0, and y is {float(y[bad][0]):g} in "
            f"{name_rows(rows)}. Fit without log_target (--log-target), or leave these rows out."
        )
    found: np.ndarray = np.log(y)
    return found


def in_own_units(band: Interval) -> Interval:
    """Map an interval of log y to one of y.

    The standard error is that of the center to first order, exp(f) times the standard error of f.
    """
    with np.errstate(over="ignore"):  # an upper limit beyond the largest float becomes infinite
        center = np.exp(band.center)
        lower = np.exp(band.lower)
        upper = np.exp(band.upper)
    return replace(
        band,
        center=center,
        lower=lower,
        upper=upper,
        half_width=(upper - lower) / 2,
        standard_error=center * band.standard_error,
        noise_source=f"{band.noise_source}, of log y",
        guarantee=_with_meaning(band.guarantee),
    )


def _with_meaning(guarantee: str) -> str:
    """Insert the meaning of the center after the first sentence, which is the part that printed intervals show."""
    claim = headline(guarantee).rstrip(".")
    return f"{claim}; {MEANING}{guarantee.removeprefix(claim)}"
