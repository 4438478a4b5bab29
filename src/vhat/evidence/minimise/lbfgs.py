"""A first descent by L-BFGS, in variables without unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from vhat.evidence.minimise.stationarity import Point, Units, evaluate, relative_gradient

__all__ = ["lbfgs"]

_MEMORY = 20


def lbfgs(
    start: Point,
    measured: Units,
    *,
    gtol: float,
    max_steps: int,
    observe: Callable[[Point, float], Any] | None = None,
) -> tuple[Point, int]:
    """Lower the penalised objective by at most ``max_steps`` steps of L-BFGS.

    The variables are ``z = s theta / u``, s being the stride, and the objective is divided by ``u^2``, with
    ``u = |grad/s|`` at the start: no unit is left, and the first trial step (which L-BFGS takes of length one) is
    the scaled gradient step.

    Args:
        start: Where to begin.
        measured: The scales at ``start``.
        gtol: Relative gradient at which to stop.
        max_steps: The most steps.
        observe: Called after each step with the best point so far and (about) its relative gradient.

    Returns:
        The point of the lowest finite objective that was evaluated, and the steps taken.
    """
    problem = start.problem
    s, theta = problem.numpy(measured.stride), problem.numpy(problem.theta)
    u = float(np.linalg.norm(problem.numpy(start.gradient) / s))
    best, steps = start, 0

    def value_and_slope(z: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        trial = evaluate(problem.at(problem.native(theta + z * u / s)))
        slope = problem.numpy(trial.gradient) / s / u
        if not (np.isfinite(trial.objective) and np.all(np.isfinite(slope))):
            return np.inf, np.zeros_like(z)
        if trial.objective < best.objective:
            best = trial
        return trial.objective / u**2, slope

    def report(_: np.ndarray) -> None:
        nonlocal steps
        steps += 1
        if observe is not None:
            observe(best, relative_gradient(best, measured))

    options: Any = {"maxiter": max_steps, "maxfun": 3 * max_steps, "maxcor": _MEMORY, "ftol": 0.0}
    options["gtol"] = gtol * measured.root / u / len(s) ** 0.5
    run: Any = minimize
    run(value_and_slope, 0.0 * theta, jac=True, method="L-BFGS-B", callback=report, options=options)
    return best, steps
