"""Traces of the smoother of a network from a p x p matrix, for training rows with equal weights.

With ``A = LL'`` and ``G = J'CJ/n``, the matrix ``M = L^-1 G L^-T`` has the traces of the smoother ``S = J A^-1 J'C/n``:
``tr S = tr M`` and ``|S|_F^2 = tr M^2``, if all rows have the same curvature C of the loss and the same noise. G is
cached, so that no further pass over the rows is needed.
"""

from __future__ import annotations

import numpy as np

from vhat.linalg.solvers import Prepared
from vhat.models.problem import Problem
from vhat.variance.noise import Freedom

__all__ = ["freedom_of", "smoother_matrix"]


def smoother_matrix(problem: Problem, prepared: Prepared, curvature_matrix: np.ndarray) -> np.ndarray | None:
    """Return M, (p, p), symmetric; None if the solver has no factor.

    Args:
        problem: The training problem.
        prepared: A solver for ``A``.
        curvature_matrix: The Gauss-Newton matrix plus weight decay.
    """
    if prepared.half is None:
        return None
    data = curvature_matrix - np.diag(problem.numpy(problem.decay))
    # half maps rows g to L^-1 g: applied to the rows, then to the columns.
    found: np.ndarray = prepared.half(prepared.half(data).T)
    return (found + found.T) / 2


def freedom_of(matrix: np.ndarray, rows: int) -> Freedom:
    """Return the traces of the smoother, computed from M."""
    effective = np.array([float(np.trace(matrix))])
    size = np.array([[float(np.sum(matrix**2))]])  # |S|_F^2
    # |I - S|_F^2 = n - 2 tr S + |S|_F^2
    return Freedom(effective, size + rows - 2 * effective, float(size.sum()), rows, "exact")
