"""What the estimator says: the findings of the library underneath, with what its own options can do about them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_memory
from vhat.errors import (
    CurvatureWarning,
    InputError,
    MemoryBudgetError,
    NotMinimumWarning,
    SupportWarning,
    VhatWarning,
    name_rows,
    outside,
)
from vhat.variance.weighted_norm import MOSTLY, hardly_supported

if TYPE_CHECKING:
    from vhat.intervals.interval import Interval

__all__ = ["refuse_kinks", "refuse_size", "spoken", "warn_of_support"]

_SMOOTH = 'activation="tanh", "softplus", "gelu" or "silu"'


_VECTORS = 4
"""Vectors of parameters that training holds at least: parameters, gradient, direction and one before."""


def refuse_size(widths: tuple[int, ...]) -> None:
    """Refuse a network whose parameters alone would fill the memory, before any of it is taken.

    Raises:
        MemoryBudgetError: With the number of parameters.
    """
    most = 10**99  # more than any memory, and still a float
    parameters = min(most, sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths)))
    shape = "-".join(f"{min(each, most):.6g}" for each in widths)
    needed, budget = 8 * _VECTORS * parameters, check_memory(None)
    if needed > budget:
        raise MemoryBudgetError(
            f"a network of {shape} units has {parameters:.3g} parameters, and training it takes "
            f"{needed / 1e9:,.3g} GB of {budget / 1e9:,.3g} GB that may be used. Give smaller hidden_layer_sizes."
        )


def refuse_kinks(recipe: str, activation: str) -> None:
    """Refuse a recipe that certifies a minimum for a network that has none in its sense.

    Raises:
        InputError: With the choices that there are.
    """
    if recipe == "minimum" and activation == "relu":
        raise InputError(
            f'activation="relu" has kinks, and recipe="minimum" certifies a smooth minimum. Use {_SMOOTH}. '
            '(recipe="adam" trains "relu", but its intervals then rest on no minimum, and say so.)'
        )


@contextmanager
def spoken(recipe: Any, activation: str) -> Iterator[None]:
    """Let warnings of a fit that is no minimum say what the options of the estimator can do about it."""
    from vhat.fit.decay_path import heard

    with heard() as said:
        yield
    for warning in said:
        warnings.warn(_in_own_words(warning, recipe, activation), stacklevel=outside())


def _in_own_words(warning: VhatWarning, recipe: Any, activation: str) -> VhatWarning:
    name = f"recipe={recipe!r}" if isinstance(recipe, str) else "this recipe"
    what = f'{_SMOOTH} with recipe="minimum"' if activation == "relu" else 'recipe="minimum"'
    remedy = f"{what} trains to a certified minimum. network.audit() has the numbers."
    if isinstance(warning, NotMinimumWarning):
        return NotMinimumWarning(
            f"{name} ended where the gradient does not vanish. Intervals are about a minimum, and may be off. {remedy}"
        )
    if isinstance(warning, CurvatureWarning) and activation == "relu":
        return CurvatureWarning(
            "the network has kinks (relu), so that intervals use the Gauss-Newton matrix in place of the Hessian, and "
            f"are rougher. {remedy}"
        )
    if isinstance(warning, CurvatureWarning):
        return CurvatureWarning(
            f"{name} ended where the curvature is not positive in every direction, so that these parameters are no "
            f"minimum; intervals use the Gauss-Newton matrix in place of the Hessian, and are rougher. {remedy}"
        )
    return warning


def _in_the_width(band: Interval) -> str:
    """Say whether the bias of single rows is in the width of an interval."""
    calibrated = band.bound in ("loo", "cv", "split")
    return "in a calibrated width as the mean over all rows has it" if calibrated else "not in the width"


def warn_of_support(band: Interval, *, first: Callable[[str], bool]) -> None:
    """Warn of a fit, or of rows, that the data do not decide.

    Args:
        band: The interval.
        first: Whether an event happens to this model for the first time: what is true of the fit is said once.

    Warns:
        SupportWarning: The error there is bias, which is not in the width.
    """
    if band.undetermined is not None and first("warned support"):
        text = (
            f"weight decay decides this fit: the data leave {100 * band.undetermined:.3g}% of its freedom open, and "
            "its predictions hardly follow them. Intervals are narrow because nothing is left to vary, not because "
            "the predictions are right. Lower weight_decay."
        )
    else:
        doubtful = np.flatnonzero(np.any(np.reshape(hardly_supported(band.unsupported), (len(band), -1)), axis=1))
        if not doubtful.size:
            return
        text = (
            f"the training data hardly speak for {doubtful.size} of {len(band)} rows ({name_rows(doubtful, 6)}: "
            f"unsupported above {MOSTLY}): the error there is bias, which is {_in_the_width(band)}. "
            f"band.abstain(max_unsupported={MOSTLY}) marks them."
        )
    warnings.warn(text, SupportWarning, stacklevel=outside())
