"""Default shape of a ridge penalty: the penalty of each parameter relative to the others.

A single number for all parameters is not free of units, because parameters have units. Consider a network whose last
layer is a thousand times smaller, for responses in thousands. It is the same function, but a single number penalises
the last layer a million times less than before, relative to the first. Each array of parameters therefore has its own
number, the mean of ``diag(J'CJ/n)`` over its entries. The penalty then has the units of the curvature. Two networks
that represent the same function, in another unit of y or with a factor moved from one layer to the next, have the same
refit. Of several outputs the unit must be common: the loss sums their squares, and so does ``J'CJ``.

The entries of an array are assumed to share one unit. A model whose only array is a vector is a list of named
quantities, like the parameters of a curve; there each entry has its own number.

Measured by ``python -m benchmarks.penalty_shape`` on networks in the parametrisation in which they were trained, the
best case for a single number: the standard errors with this shape differ from those with a single number by a few
percent, and agree as well with retraining. With a number for every entry the agreement is worse.
"""

from __future__ import annotations

import numpy as np

from vhat.models.leaves import leaf_slices
from vhat.models.problem import Problem

__all__ = ["penalty_shape"]


def penalty_shape(problem: Problem) -> np.ndarray:
    """Return the penalty of each parameter up to a common factor, (p,).

    It is the model's weight decay if every parameter has one, else the mean of ``diag(J'CJ/n)`` over each array.

    Args:
        problem: The training problem. Call this within its scope.
    """
    decay = problem.numpy(problem.decay)
    if np.all(decay > 0):
        return decay / decay.mean()
    squares = problem.numpy(problem.diagonal())
    if _is_vector(problem.leaves):
        return _fill_zeros(squares)
    shape = np.empty(problem.p)
    for where in leaf_slices(problem.leaves):
        if where.stop > where.start:  # an empty array of parameters has no mean
            shape[where] = np.mean(squares[where])
    return _fill_zeros(shape)


def _is_vector(leaves: tuple[tuple[int, ...], ...]) -> bool:
    """Return whether the only array of parameters is a vector."""
    return len(leaves) == 1 and len(leaves[0]) == 1


def _fill_zeros(shape: np.ndarray) -> np.ndarray:
    """Return the shape with zeros replaced by the mean of the positive entries.

    Zeros belong to parameters that no training prediction depends on. V does not depend on their penalty, because their
    columns of J are zero; the penalty only has to be positive.
    """
    positive = shape > 0
    if not positive.any():
        return np.ones_like(shape)
    return np.where(positive, shape, np.mean(shape[positive]))
