"""The noise of each training row relative to its root mean square."""

from __future__ import annotations

import numpy as np

from vhat.models.problem import Problem

__all__ = ["relative_noise"]

_ROUNDING = 1e-12
"""Difference from 1 at which a root mean square counts as 1: the shape then keeps its last bits through polish and
load."""


def relative_noise(problem: Problem, shape: np.ndarray | None) -> np.ndarray:
    """Return the noise of each training row, (n, K), scaled to a root mean square of 1.

    Args:
        problem: The training problem.
        shape: The noise up to a factor, (n, K). None takes that of the model's variance head, or equal noise where
            there is none.
    """
    if shape is None:
        with problem.scope():
            shape = problem.own_noise(problem.X)
    if shape is None:
        return np.ones((problem.n, problem.outputs))
    level = float(np.sqrt(np.mean(shape**2)))
    if abs(level - 1.0) < _ROUNDING:
        return shape
    scaled: np.ndarray = shape / level
    return scaled
