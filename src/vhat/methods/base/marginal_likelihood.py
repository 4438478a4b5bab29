"""The evidence of the linearised model, and the weight decay that maximises it.

To first order about the fit the responses ``y - f + J theta`` are linear in the parameters. With the prior that a decay
``c lam`` expresses, theta_j of variance ``sigma^2 / (n c lam_j)``, they are Gaussian with covariance
``sigma^2 (I + J diag(1/lam) J' / (n c))``. All of it in the unit in which the loss of a row is half its square: rows of
J and responses are multiplied by the root of the second derivative of the loss, weights included. Where outputs differ
in noise, each has its responses and its prior in units of its own.
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

_REACH = 18.0
"""The factor is sought within e^-18 to e^18 (about 1e-8 to 1e8)."""


def spectrum(fitted: FittedModel, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues of ``J diag(1/lam) J' / n`` and the linearised responses along their eigenvectors, over noise.

    Args:
        fitted: The fitted model.
        noise: The noise level of each output in the loss's own unit, (K,).

    Raises:
        InputError: When a parameter has no decay, and so no prior.
        MemoryBudgetError: When the Jacobian does not fit.
    """
    problem = fitted.problem
    rows = problem.n * problem.outputs
    p = problem.p
    if 3 * 8 * rows * p > problem.memory:
        raise MemoryBudgetError(
            f"the evidence needs the {rows} x {p} Jacobian and its singular values, {3 * 8 * rows * p / 1e9:.1f} GB of "
            f"a budget of {problem.memory / 1e9:.1f} GB. Choose weight_decay by vhat.fit.choose_weight_decay instead."
        )
    with problem.scope():
        decay = problem.numpy(problem.decay)
        theta = problem.numpy(problem.theta)
        J = np.concatenate([problem.numpy(block) for block in gradient_blocks(problem, problem.X)])
        root = np.sqrt(problem.loss_derivatives.curvature).ravel()
    if not np.all(decay > 0):
        raise InputError("evidence=True needs weight decay on every parameter: without it there is no prior to tune.")
    linear = root * (residuals(fitted).ravel() + J @ theta) / np.tile(noise, problem.n)
    U, s, _ = np.linalg.svd(root[:, None] * J / np.sqrt(decay), full_matrices=False)
    return s**2 / problem.n, U.T @ linear


def log_evidence(factor: float, values: np.ndarray, along: np.ndarray) -> float:
    """Return the log evidence of ``factor`` times the decay, up to what does not depend on it."""
    spread = 1 + values / factor
    return float(-0.5 * np.sum(np.log(spread) + along**2 / spread))


def best_factor(fitted: FittedModel, noise: np.ndarray) -> float:
    """Return the factor on the decay that maximises the evidence.

    Args:
        fitted: The fitted model.
        noise: The noise level of each output in the loss's own unit, (K,).

    Raises:
        InputError: When the evidence has no maximum in the range of the search: the data do not determine the decay.
    """
    values, along = spectrum(fitted, noise)
    # The evidence may have several maxima: a grid finds the highest, a bounded search refines it.
    grid = np.linspace(-_REACH, _REACH, 73)
    heights = [log_evidence(np.exp(each), values, along) for each in grid]
    best = int(np.argmax(heights))
    if best in (0, len(grid) - 1):
        way = "largest" if best else "smallest"
        raise InputError(
            f"the evidence is highest at the {way} weight decay that was tried: the data do not determine it at this "
            "noise level. Set evidence=False, or give noise=."
        )
    found = minimize_scalar(
        lambda each: -log_evidence(np.exp(each), values, along),
        bounds=(grid[best - 1], grid[best + 1]),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(np.exp(found.x))
