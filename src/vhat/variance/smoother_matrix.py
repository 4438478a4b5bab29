"""The smoother of a network in p x p numbers, for training rows that all count alike.

With ``A = LL'`` and ``G = J'CJ/n``, the matrix ``M = L^-1 G L^-T`` has the traces of the smoother ``S = J A^-1 J'C/n``:
``tr S = tr M`` and ``|S|_F^2 = tr M^2`` where the loss of all rows has one curvature C and their noise one level. G is
summed up once for the steps that need it, so that no further pass over the rows is made.
"""

from __future__ import annotations

import numpy as np

from vhat.linalg.solvers import Prepared
from vhat.models.problem import Problem
from vhat.variance.noise import Freedom

__all__ = ["freedom_of", "smoother_matrix"]


def smoother_matrix(problem: Problem, prepared: Prepared, curvature_matrix: np.ndarray) -> np.ndarray | None:
    """Return M, (p, p), symmetric; None where the solver has no factor.

    Args:
        problem: The training problem.
        prepared: A solver for ``A``.
        curvature_matrix: The Gauss-Newton matrix plus weight decay.
    """
    if prepared.half is None:
        return None
    data = curvature_matrix - np.diag(problem.numpy(problem.decay))
    found: np.ndarray = prepared.half(prepared.half(data).T)
    return (found + found.T) / 2


def freedom_of(matrix: np.ndarray, rows: int) -> Freedom:
    """Return the traces of the smoother from M."""
    effective = np.array([float(np.trace(matrix))])
    size = np.array([[float(np.sum(matrix**2))]])
    return Freedom(effective, size + rows - 2 * effective, float(size.sum()), rows, "exact")
