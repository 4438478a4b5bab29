"""First-order standard errors from one fit, by the solvers of the library's own intervals."""

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

__all__ = ["LocalError", "left_out_predictions", "propagated_error", "stationarity_caveat"]


class LocalError(NamedTuple):
    """A standard error at every point.

    Attributes:
        value: The standard error, (points,) or (points, outputs); NaN where a solve failed.
        curvature: ``"hessian"`` or ``"ggn"``.
        solver: Name of the solver.
    """

    value: np.ndarray
    curvature: str
    solver: str


def propagated_error(fitted: FittedModel, x: Any, sigma: np.ndarray, *, curvature: str = "auto") -> LocalError:
    """Return the first-order standard error of each prediction for independent errors of the training responses.

    ::

        sqrt( sum_ib sigma_ib^2 (d f(x) / d y_ib)^2 )

    Args:
        fitted: The fitted model.
        x: Test inputs.
        sigma: Standard deviation of every response, (n, K). Residuals in its place give the sandwich error.
        curvature: As in :meth:`vhat.FittedModel.interval`.
    """
    problem = fitted.problem
    work = fitted.workspace
    with problem.scope():
        inputs = problem.inputs(x)
        chosen = work.choose_curvature(curvature, quiet=True)
        prepared = work.own_solver(chosen.curvature)
        measured = measure(problem, prepared, gradient_blocks(problem, inputs), sigma)
    error = np.sqrt(measured.variance / problem.n).reshape(-1, problem.outputs)
    if problem.squeeze:
        error = error[:, 0]
    return LocalError(error, chosen.curvature, prepared.name)


def left_out_predictions(fitted: FittedModel, x: Any) -> np.ndarray:
    """Return predictions without each training row in turn, to first order, (n, points[, outputs]).

    ``f_-i(x) = f(x) - d f(x)/d y_i (y_i - f_-i(x_i))``, which is exact for models linear in their parameters.

    Args:
        fitted: The fitted model.
        x: Test inputs.

    Raises:
        InputError: When the loss is not a function of ``f - y``.
    """
    require_residuals(fitted, "leaving rows out to first order")
    residual = cast(np.ndarray, fitted.leave_one_out().residual)
    sensitivity = fitted.sensitivity(x)
    predicted = fitted.predict(x)[..., None]
    if fitted.problem.squeeze:
        return np.moveaxis(predicted - sensitivity * residual, -1, 0)
    # (points, outputs, n): the sum over the outputs b of the row that is left out.
    change = np.einsum("pkib,ib->pki", sensitivity, residual)
    return np.moveaxis(predicted - change, -1, 0)


def stationarity_caveat(fitted: FittedModel, noise: Noise | None, curvature: str, seed: int = 0) -> tuple[str, ...]:
    """Return the caveat for parameters that are not a minimum, as clauses of a guarantee; empty at a minimum.

    Args:
        fitted: The fitted model.
        noise: The noise; None estimates it.
        curvature: ``"hessian"`` or ``"ggn"``.
        seed: Seed of random probes.
    """
    with fitted.problem.scope():
        line = stationarity_line(fitted.workspace, cast(Curvature, curvature), noise, seed)
    if line.verdict == "holds":
        return ()
    return (assumed_minimum(line.verdict),)
