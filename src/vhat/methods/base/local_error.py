"""Standard errors that one fit gives by its derivatives, through the solvers of the library's own intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from vhat.evidence.audit import stationarity_line
from vhat.intervals.guarantee import assumed_minimum
from vhat.methods.base.requirements import require_residuals
from vhat.models.problem import Curvature
from vhat.variance.weighted_norm import gradient_blocks, measure

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["LocalError", "left_out_predictions", "propagated_error", "shortfall"]


class LocalError(NamedTuple):
    """A standard error at every point; NaN where a solve failed."""

    value: np.ndarray
    curvature: str
    solver: str


def propagated_error(fitted: FittedModel, x: Any, sigma: np.ndarray, *, curvature: str = "auto") -> LocalError:
    """Return the first-order effect of independent errors of the training responses on each prediction.

    ::

        sqrt( sum_ib sigma_ib^2 (d f(x) / d y_ib)^2 )

    Args:
        fitted: The fitted model.
        x: Test inputs.
        sigma: The standard deviation of every response, (n, K); residuals in their place give the sandwich.
        curvature: As in :meth:`vhat.FittedModel.interval`.
    """
    problem = fitted.problem
    work = fitted.workspace
    with problem.scope():
        inputs = problem.inputs(x)
        chosen = work.choose_curvature(curvature, quiet=True)
        prepared = work.own_solver(chosen.curvature)
        found = measure(problem, prepared, gradient_blocks(problem, inputs), sigma)
    error = np.sqrt(found.variance / problem.n).reshape(-1, problem.outputs)
    if problem.squeeze:
        error = error[:, 0]
    return LocalError(error, chosen.curvature, prepared.name)


def left_out_predictions(fitted: FittedModel, x: Any) -> np.ndarray:
    """Return predictions without each training row in turn, to first order, (n, points[, outputs]).

    ``f_-i(x) = f(x) - d f(x)/d y_i (y_i - f_-i(x_i))``: exact for models linear in their parameters.

    Raises:
        InputError: For a loss that has no residual.
    """
    require_residuals(fitted, "leaving rows out to first order")
    residual = cast(np.ndarray, fitted.leave_one_out().residual)
    slope = fitted.sensitivity(x)
    # (points, n), or (points, outputs, n) with the residuals of all outputs summed.
    moved = slope * residual if fitted.problem.squeeze else np.einsum("pkib,ib->pki", slope, residual)
    return np.moveaxis(fitted.predict(x)[..., None] - moved, -1, 0)


def shortfall(fitted: FittedModel, noise: Noise | None, curvature: str, seed: int = 0) -> tuple[str, ...]:
    """Return the caveat for parameters that are not a minimum, as clauses of a guarantee; empty at a minimum."""
    with fitted.problem.scope():
        line = stationarity_line(fitted.workspace, cast(Curvature, curvature), noise, seed)
    if line.verdict == "holds":
        return ()
    return (assumed_minimum(line.verdict),)
