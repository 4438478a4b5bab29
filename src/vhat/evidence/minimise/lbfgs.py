"""SciPy's L-BFGS on the penalised objective, in dimensionless variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from vhat.evidence.minimise.stationarity import Point, Units, evaluate, relative_gradient

__all__ = ["lbfgs"]

_MEMORY = 20
"""Pairs of steps and gradient changes that L-BFGS keeps."""


def lbfgs(
    start: Point,
    measured: Units,
    *,
    gtol: float,
    max_steps: int,
    observe: Callable[[Point, float], Any] | None = None,
) -> tuple[Point, int]:
    """Lower the penalised objective by at most ``max_steps`` steps of L-BFGS.

    The variables are ``z = s (theta - start) / u`` with the stride s, and the objective is divided by ``u^2``, with
    ``u = |grad/s|`` at the start. Both are then dimensionless, and the first trial step, which L-BFGS takes of length
    one, is the scaled gradient step.

    Args:
        start: Where to begin.
        measured: The scales at ``start``.
        gtol: Relative gradient at which to stop.
        max_steps: Largest number of steps.
        observe: Called after each step with the best point so far and (about) its relative gradient.

    Returns:
        The evaluated point of lowest finite objective, and the number of steps taken.
    """
    problem = start.problem
    s = problem.numpy(measured.stride)
    theta = problem.numpy(problem.theta)
    u = float(np.linalg.norm(problem.numpy(start.gradient) / s))
    best = start
    steps = 0

    def value_and_slope(z: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        trial = evaluate(problem.at(problem.native(theta + z * u / s)))
        slope = problem.numpy(trial.gradient) / s / u
        if not (np.isfinite(trial.objective) and np.all(np.isfinite(slope))):
            return np.inf, np.zeros_like(z)  # the line search then shortens its step
        if trial.objective < best.objective:
            best = trial
        return trial.objective / u**2, slope

    def report(_: np.ndarray) -> None:
        nonlocal steps
        steps += 1
        if observe is not None:
            observe(best, relative_gradient(best, measured))

    options: Any = {"maxiter": max_steps, "maxfun": 3 * max_steps, "maxcor": _MEMORY, "ftol": 0.0}
    # SciPy compares the largest component of the scaled gradient, the relative gradient is a Euclidean norm.
    options["gtol"] = gtol * measured.root / u / len(s) ** 0.5
    run: Any = minimize
    run(value_and_slope, 0.0 * theta, jac=True, method="L-BFGS-B", callback=report, options=options)
    return best, steps
