"""Messages of the estimator: refusals and warnings that name the estimator's own options as the remedy."""

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

__all__ = ["refuse_kinks", "refuse_size", "warn_of_support", "warnings_reworded"]

_SMOOTH = 'activation="tanh", "softplus", "gelu" or "silu"'
_VECTORS = 4
"""Vectors of length p that training holds at least: parameters, gradient, step direction and the previous gradient."""


def refuse_size(widths: tuple[int, ...]) -> None:
    """Refuse a network whose parameters alone would exceed the memory, before any of it is allocated.

    Args:
        widths: Units of each layer, from the inputs to the outputs.

    Raises:
        MemoryBudgetError: With the number of parameters.
    """
    most = 10**99  # more than any memory, and still within float64
    parameters = min(most, sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths)))
    shape = "-".join(f"{min(each, most):.6g}" for each in widths)
    needed = 8 * _VECTORS * parameters
    budget = check_memory(None)
    if needed > budget:
        raise MemoryBudgetError(
            f"a network of {shape} units has {parameters:.3g} parameters, and training it takes "
            f"{needed / 1e9:,.3g} GB of {budget / 1e9:,.3g} GB that may be used. Give smaller hidden_layer_sizes."
        )


def refuse_kinks(recipe: str, activation: str) -> None:
    """Refuse to certify a smooth minimum of a network with kinks.

    Raises:
        InputError: With the options that work.
    """
    if recipe == "minimum" and activation == "relu":
        raise InputError(
            f'activation="relu" has kinks, and recipe="minimum" certifies a smooth minimum. Use {_SMOOTH}. '
            '(recipe="adam" trains "relu", but its intervals then rest on no minimum, and say so.)'
        )


@contextmanager
def warnings_reworded(recipe: Any, activation: str) -> Iterator[None]:
    """Reword warnings of a fit that is no minimum, so that they name the options of the estimator as the remedy."""
    from vhat.fit.decay_path import collect_warnings

    with collect_warnings() as recorded:
        yield
    for warning in recorded:
        warnings.warn(_reworded(warning, recipe, activation), stacklevel=outside())


def _reworded(warning: VhatWarning, recipe: Any, activation: str) -> VhatWarning:
    """Return a warning with a remedy among the options of the estimator; any other warning unchanged."""
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


def _where_bias_is(band: Interval) -> str:
    """Return whether the width of an interval includes bias, to end the sentence "the error is bias, which is ..."."""
    calibrated = band.bound in ("loo", "cv", "split")
    return "in the width only as its average over all rows" if calibrated else "not in the width"


def warn_of_support(band: Interval, *, first: Callable[[str], bool]) -> None:
    """Warn of a fit that weight decay determines, and of rows for which the training data say little.

    Args:
        band: The interval.
        first: Returns whether an event, named by its argument, is the first of its kind for this model: what is true
            of the whole fit is said once.

    Warns:
        SupportWarning: Once for the fit, or for the rows of this call; the error there is bias.
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
            f"unsupported above {MOSTLY}): the error there is bias, which is {_where_bias_is(band)}. "
            f"band.abstain(max_unsupported={MOSTLY}) marks them."
        )
    warnings.warn(text, SupportWarning, stacklevel=outside())
