"""The first-order covariance of the parameters over the noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vhat.checks import check_count
from vhat.intervals.prepare import ready
from vhat.linalg.solvers import Dense
from vhat.variance.noise import Noise
from vhat.variance.weighted_norm import measure
from vhat.variance.workspace import Chosen, Workspace

__all__ = ["Covariance", "parameter_covariance"]


class Covariance(NamedTuple):
    """A covariance of the parameters and what it was made with.

    Attributes:
        matrix: The covariance, (p, p).
        noise: The noise of the training responses.
        chosen: The curvature in use.
    """

    matrix: np.ndarray
    noise: Noise
    chosen: Chosen


def parameter_covariance(work: Workspace, noise: Any, curvature: str, seed: int) -> Covariance:
    """Return ``1/n^2 sum_ib sigma_ib^2 (A^-1 j_ib)(A^-1 j_ib)'``.

    Args:
        work: The fitted model.
        noise: The noise as the user gave it; None to estimate it.
        curvature: As the user gave it.
        seed: Seed of random probes of the degrees of freedom.

    Raises:
        MemoryBudgetError: When p is too large for a dense matrix.
    """
    check_count("seed", seed)
    problem = work.problem
    chosen, prepared = ready(work, Dense(), curvature, problem.p)
    level = work.noise(noise, chosen.curvature, seed)
    identity = problem.native(np.eye(problem.p))
    found = measure(problem, prepared, [identity], level.values, rows=True)
    assert found.sensitivity is not None
    rows = (found.sensitivity * level.values).reshape(problem.p, -1)
    return Covariance(rows @ rows.T, level, chosen)
