"""Whether a fit interpolates its training responses."""

from __future__ import annotations

import numpy as np

from vhat.models.problem import Problem

__all__ = ["INTERPOLATES", "residual_share"]

INTERPOLATES = 1e-3
"""Root mean square residual, relative to the spread of the responses, up to which a fit interpolates. The residual part
R of the Hessian is then a thousandth of its value for a fit that explains nothing."""


def residual_share(problem: Problem) -> float:
    """Return the root mean square residual relative to the spread of the responses, the largest over the outputs.

    Rows of weight zero do not count. If the responses do not vary, their size replaces their spread.
    """
    counted = problem.numpy(problem.weights) > 0
    y = problem.targets[counted]
    residual = np.sqrt(np.mean((problem.fitted_values[counted] - y) ** 2, axis=0))
    spread = np.std(y, axis=0)
    size = np.where(spread > 0, spread, np.sqrt(np.mean(y**2, axis=0)))
    share = np.divide(residual, size, out=np.where(residual > 0, np.inf, 0.0), where=size > 0)
    return float(np.max(share))
