"""The evidence (marginal likelihood) of the linearised model, and the weight decay that maximises it.

To first order about the fit, the responses ``y - f + J theta`` are linear in the parameters. The decay ``c lam``
corresponds to the prior variance ``sigma^2 / (n c lam_j)`` of theta_j. Under this prior the responses are Gaussian with
covariance ``sigma^2 (I + J diag(1/lam) J' / (n c))``. Rows of J and responses are scaled to the unit in which the loss
of a row is half its square: they are multiplied by the root of the second derivative of the loss, weights included. If
the outputs differ in noise, the responses and the prior of each output are in units of its own noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize_scalar

from vhat.errors import InputError, MemoryBudgetError
from vhat.methods.base.method import residuals
from vhat.variance.weighted_norm import gradient_blocks

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["best_factor", "log_evidence", "spectrum"]

_LOG_RANGE = 18.0
"""Largest absolute logarithm of the factor in the search: the factor lies within about 1e-8 to 1e8."""
_GRID_POINTS = 73
"""Points of the first search, two for each unit of the logarithm and one for the middle."""
_JACOBIAN_COPIES = 3
"""Arrays of the size of the Jacobian held at once: the Jacobian, its scaled copy, and the singular vectors."""


def spectrum(fitted: FittedModel, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues of ``J diag(1/lam) J' / n``, and the linearised responses over noise in their eigenvectors.

    Args:
        fitted: The fitted model.
        noise: The noise level of each output in the unit of the loss, (K,).

    Raises:
        InputError: When a parameter has no decay, and so no prior.
        MemoryBudgetError: When the Jacobian does not fit into the memory budget.
    """
    problem = fitted.problem
    rows = problem.n * problem.outputs
    p = problem.p
    needed = _JACOBIAN_COPIES * 8 * rows * p  # bytes
    if needed > problem.memory:
        raise MemoryBudgetError(
            f"the evidence needs the {rows} x {p} Jacobian and its singular values, {needed / 1e9:.1f} GB of "
            f"a budget of {problem.memory / 1e9:.1f} GB. Choose weight_decay by vhat.fit.choose_weight_decay instead."
        )
    with problem.scope():
        decay = problem.numpy(problem.decay)
        theta = problem.numpy(problem.theta)
        J = np.concatenate([problem.numpy(block) for block in gradient_blocks(problem, problem.X)])
        root = np.sqrt(problem.loss_derivatives.curvature).ravel()
    if not np.all(decay > 0):
        raise InputError("evidence=True needs weight decay on every parameter: without it there is no prior to tune.")
    # Rows of J are ordered by training row, then output: the noise repeats with period K.
    responses = root * (residuals(fitted).ravel() + J @ theta) / np.tile(noise, problem.n)
    U, s, _ = np.linalg.svd(root[:, None] * J / np.sqrt(decay), full_matrices=False)
    return s**2 / problem.n, U.T @ responses


def log_evidence(factor: float, values: np.ndarray, along: np.ndarray) -> float:
    """Return the log evidence of ``factor`` times the decay, up to a constant.

    Args:
        factor: The factor c on the decay.
        values: Eigenvalues, see :func:`spectrum`.
        along: The responses in the basis of the eigenvectors.
    """
    variances = 1 + values / factor
    return float(-0.5 * np.sum(np.log(variances) + along**2 / variances))


def best_factor(fitted: FittedModel, noise: np.ndarray) -> float:
    """Return the factor on the decay that maximises the evidence.

    Args:
        fitted: The fitted model.
        noise: The noise level of each output in the unit of the loss, (K,).

    Raises:
        InputError: When the maximum is at an end of the search range: the data do not determine the decay.
    """
    values, along = spectrum(fitted, noise)
    # The evidence may have several maxima: a grid finds the highest, a bounded search refines it.
    grid = np.linspace(-_LOG_RANGE, _LOG_RANGE, _GRID_POINTS)
    evidences = [log_evidence(np.exp(log_factor), values, along) for log_factor in grid]
    best = int(np.argmax(evidences))
    if best in (0, len(grid) - 1):
        end = "largest" if best else "smallest"
        raise InputError(
            f"the evidence is highest at the {end} weight decay that was tried: the data do not determine it at this "
            "noise level. Set evidence=False, or give noise=."
        )
    refined = minimize_scalar(
        lambda log_factor: -log_evidence(np.exp(log_factor), values, along),
        bounds=(grid[best - 1], grid[best + 1]),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(np.exp(refined.x))
