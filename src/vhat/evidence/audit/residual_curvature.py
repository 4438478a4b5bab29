"""The audit's line on residual curvature: how much the exact Hessian differs from Gauss-Newton where it matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vhat.evidence.audit.noise_moves import noise_moves
from vhat.evidence.audit.result import Line
from vhat.linalg.solvers import Status

if TYPE_CHECKING:
    from vhat.models.problem import Curvature
    from vhat.variance.workspace import Workspace

__all__ = ["residual_curvature_line"]

_DIRECTIONS = 3
"""Redraws of the noise along which the two matrices are compared."""
NAN = float("nan")


def residual_curvature_line(work: Workspace, curvature: Curvature, seed: int) -> Line:
    """``|R d| / |A d|`` in the metric of ``A^-1``, for moves ``d`` that the noise makes.

    Where H is nearly singular a small R changes V much, and there the noise moves furthest: random directions would
    not see it. V changes by about twice this share.
    """
    if curvature == "ggn" and work.kinks.verdict == "kinked":
        remedy = f"Not measured: the model has {work.kinks.told}, of which the exact Hessian knows nothing."
        return Line("residual curvature", NAN, NAN, "noted", remedy, "")
    problem, prepared = work.problem, work.own_solver(curvature)
    moves, _ = noise_moves(problem, prepared, work.shape, seed, _DIRECTIONS)
    full, gauss = problem.product(moves, "hessian"), problem.product(moves, "ggn")
    bent = full - gauss
    pushed = (full if curvature == "hessian" else gauss) + problem.decay * moves
    back = prepared.solve(bent)
    sizes = [float(np.sum(problem.numpy(a * b))) for a, b in ((bent, back.h), (moves, pushed))]
    known = bool(np.all(back.status == Status.CONVERGED)) and sizes[1] > 0
    value = float(np.sqrt(max(sizes[0], 0.0) / sizes[1])) if known else NAN
    remedy = "Gauss-Newton would do." if value < 0.01 else 'Intervals by curvature="ggn" differ from the exact ones.'
    meaning = "size of R against H + lam along the moves that the noise makes"
    return Line("residual curvature", value, NAN, "noted", remedy, meaning)
