"""V of predictions, and their sensitivities to the training responses, without an interval around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat.intervals.prepare import measured, nothing_yet, ready, warn_of_failed
from vhat.linalg.solvers import Prepared, Solver, Status
from vhat.variance.weighted_norm import Recorder, WeightedNorm, gradient_blocks, row_curvature
from vhat.variance.workspace import Workspace

__all__ = ["find_sensitivity", "find_weighted_norm", "squared_levels"]


def find_weighted_norm(
    work: Workspace, x: Any, solver: Solver | str, curvature: str, *, shortcut: bool = False
) -> WeightedNorm:
    """Compute V at every point: see :meth:`vhat.FittedModel.weighted_norm`."""
    problem = work.problem
    inputs = problem.inputs(x)
    prepared, recorder = _prepare(work, inputs, solver, curvature, shortcut)
    found = measured(work, prepared, gradient_blocks(problem, inputs), work.shape, recorder)
    warn_of_failed(problem, found)
    return recorder.record(found)


def find_sensitivity(work: Workspace, x: Any, solver: Solver | str, curvature: str) -> np.ndarray:
    """Compute ``d f(x) / d y`` at every point: see :meth:`vhat.FittedModel.sensitivity`."""
    problem = work.problem
    inputs = problem.inputs(x)
    prepared, recorder = _prepare(work, inputs, solver, curvature, shortcut=False)
    found = measured(work, prepared, gradient_blocks(problem, inputs), work.shape, recorder, rows=True)
    warn_of_failed(problem, found)
    assert found.sensitivity is not None  # kept because of rows=True
    found.sensitivity[found.status != Status.CONVERGED] = np.nan
    if problem.squeeze:
        return found.sensitivity[:, :, 0]
    K = problem.outputs
    return found.sensitivity.reshape(-1, K, problem.n, K)


def squared_levels(work: Workspace) -> np.ndarray:
    """Return the mean square of the relative noise of each output, (K,), in whose unit V is expressed."""
    levels: np.ndarray = np.mean(work.shape**2, axis=0)
    return levels


def _prepare(
    work: Workspace, inputs: Any, solver: Solver | str, curvature: str, shortcut: bool
) -> tuple[Prepared, Recorder]:
    """Prepare the solver for some points, and the record that their V will have."""
    problem = work.problem
    count = problem.count(inputs)
    shape = (count,) if problem.squeeze else (count, problem.outputs)
    # Ctrl-C before the first solve raises Interrupted with an empty record.
    with nothing_yet(shape, solver, curvature).keeping():
        chosen, prepared = ready(work, solver, curvature, count * problem.outputs)
    unit = row_curvature(problem) if shortcut else None
    return prepared, Recorder(np.sqrt(squared_levels(work)), shape, chosen.curvature, prepared.name, unit)
