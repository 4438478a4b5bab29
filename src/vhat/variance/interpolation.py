"""Whether a fit interpolates its training responses."""

from __future__ import annotations

import numpy as np

from vhat.models.problem import Problem

__all__ = ["INTERPOLATES", "residual_share"]

INTERPOLATES = 1e-3
"""Residuals of this share of the responses' spread, root mean square, count as zero: R is then a thousandth of what it
would be for a fit that explains nothing."""


def residual_share(problem: Problem) -> float:
    """Return the root mean square of the residuals over the spread of the responses, the largest of all outputs.

    Rows of weight zero, which the loss does not see, do not count. Where the responses do not vary, their size takes
    the place of their spread.
    """
    seen = problem.numpy(problem.weights) > 0
    y = problem.targets[seen]
    residual = np.sqrt(np.mean((problem.fitted_values[seen] - y) ** 2, axis=0))
    spread = np.std(y, axis=0)
    size = np.where(spread > 0, spread, np.sqrt(np.mean(y**2, axis=0)))
    share = np.divide(residual, size, out=np.where(residual > 0, np.inf, 0.0), where=size > 0)
    return float(np.max(share))
