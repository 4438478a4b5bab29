"""The shape of a ridge penalty that nobody gave: how strongly each parameter is held, relative to the others.

One number for all parameters has a unit, because parameters have units. Write a network with its last layer a thousand
times smaller, for responses in thousands: the function is the same, but one number then holds the last layer a million
times more loosely than before, compared with the first. So each array of parameters has its own number, the mean of
``diag(J'CJ/n)`` over its entries. The penalty then has the units of the curvature, and two networks that are the same
function, written in other units of y or with a factor moved from one layer to the next, have the same refit.

The entries of an array are taken to share one unit. A model whose only array is a vector is a list of named quantities,
like the parameters of a curve: there each entry has its own number.

Measured by ``python -m benchmarks.penalty_shape`` on networks in the parametrisation in which they were trained, where
one number for all parameters is at its best: the standard errors by this shape differ from those by one number by a few
percent, and are as near to retraining. A number for every entry follows retraining less well.
"""

from __future__ import annotations

import numpy as np

from vhat.models.leaves import leaf_slices
from vhat.models.problem import Problem

__all__ = ["penalty_shape"]


def penalty_shape(problem: Problem) -> np.ndarray:
    """Return the penalty of each parameter up to a common factor, (p,).

    The model's own weight decay, where every parameter has one; else the mean of ``diag(J'CJ/n)`` over each array.

    Args:
        problem: The training problem. Call this within its scope.
    """
    decay = problem.numpy(problem.decay)
    if np.all(decay > 0):
        return decay / decay.mean()
    squares = problem.numpy(problem.diagonal())
    if _is_vector(problem.leaves):
        return _filled(squares)
    shape = np.empty(problem.p)
    for where in leaf_slices(problem.leaves):
        if where.stop > where.start:
            shape[where] = np.mean(squares[where])
    return _filled(shape)


def _is_vector(leaves: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the only array of parameters is a vector."""
    return len(leaves) == 1 and len(leaves[0]) == 1


def _filled(shape: np.ndarray) -> np.ndarray:
    """Give parameters that no training prediction depends on the mean of the others.

    V does not depend on their penalty, because their columns of J are zero. It only has to be positive.
    """
    seen = shape > 0
    if not seen.any():
        return np.ones_like(shape)
    return np.where(seen, shape, np.mean(shape[seen]))
