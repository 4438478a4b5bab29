"""The audit's line on residual curvature: how much the exact Hessian differs from Gauss-Newton."""

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
"""Number of redraws of the noise along which both matrices are compared."""
NAN = float("nan")


def residual_curvature_line(work: Workspace, curvature: Curvature, seed: int) -> Line:
    """Return ``|R d| / |A d|`` in the metric of ``A^-1``, for moves ``d`` of the parameters that the noise makes.

    R is the exact Hessian less its Gauss-Newton part. V changes by about twice this share. Random directions would not
    show it: where H is nearly singular, a small R changes V much, and there the noise moves the parameters furthest.
    """
    if curvature == "ggn" and work.kinks.verdict == "kinked":
        remedy = f"Not measured: the model has {work.kinks.told}, of which the exact Hessian knows nothing."
        return Line("residual curvature", NAN, NAN, "noted", remedy, "")
    problem = work.problem
    prepared = work.own_solver(curvature)
    moves, _ = noise_moves(problem, prepared, work.shape, seed, _DIRECTIONS)
    exact = problem.product(moves, "hessian")
    gauss_newton = problem.product(moves, "ggn")
    Rd = exact - gauss_newton
    Ad = (exact if curvature == "hessian" else gauss_newton) + problem.decay * moves
    solved = prepared.solve(Rd)
    # Squared norms in the metric of A^-1, added up over the moves.
    size_R = float(np.sum(problem.numpy(Rd * solved.h)))
    size_A = float(np.sum(problem.numpy(moves * Ad)))
    known = bool(np.all(solved.status == Status.CONVERGED)) and size_A > 0
    value = float(np.sqrt(max(size_R, 0.0) / size_A)) if known else NAN
    remedy = "Gauss-Newton would do." if value < 0.01 else 'Intervals by curvature="ggn" differ from the exact ones.'
    meaning = "size of R against H + lam along the moves that the noise makes"
    return Line("residual curvature", value, NAN, "noted", remedy, meaning)
