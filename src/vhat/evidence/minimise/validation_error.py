"""Whether a minimum predicts rows that training did not fit worse than the model that it replaces."""

from __future__ import annotations

import warnings

import numpy as np

from vhat.errors import EarlyStoppingWarning, outside
from vhat.models.problem import Problem
from vhat.variance.validation import Validation

__all__ = ["WORSE", "warn_of_worse"]

WORSE = 1.01
"""Factor on the root mean square of validation errors from which a model is called worse."""


def warn_of_worse(before: Problem, after: Problem, rows: Validation) -> None:
    """Warn where the validation error of any output has risen.

    Args:
        before: The model that was given.
        after: The minimum that takes its place.
        rows: Rows that training did not fit.

    Warns:
        EarlyStoppingWarning: With both errors, naming the call that takes the model as it is.
    """
    sizes = [np.sqrt(np.mean(rows.errors(problem) ** 2, axis=0)) for problem in (before, after)]
    if np.all(sizes[1] <= WORSE * sizes[0]):
        return
    told = [f"{float(size[0]):.3g}" if size.size == 1 else np.array2string(size, precision=3) for size in sizes]
    warnings.warn(
        f"polish makes this model worse: the root mean square of {rows.rows:,} validation errors is {told[0]} before "
        f"and {told[1]} at the minimum that it has reached. Training was stopped before that minimum for a reason. The "
        "model that was polished is unchanged: keep it, and take it as it is by its linearised(), which uses these "
        "validation rows.",
        EarlyStoppingWarning,
        stacklevel=outside(),
    )
