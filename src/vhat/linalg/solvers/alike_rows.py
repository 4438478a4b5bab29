"""Norms of many right-hand sides by one product of matrices, for networks whose training rows all count alike.

In the scaled basis let ``A = LL'`` and ``L^-1 G L^-T = U diag(m) U'``, G the Gauss-Newton matrix of the data. With
``z = U'L^-1 g`` ::

    g'A^-1 g = sum_k z_k^2,      h'G h = sum_k m_k z_k^2,      h = A^-1 g,

and where all rows have one weight and one noise, V is a multiple of the second. No right-hand side is solved for by
itself: how well ``W = L^-T U`` inverts ``A`` is measured once, by ``|I - A W W'|_F``, which bounds the relative
residual of every right-hand side in the unit-free scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.linalg

from vhat.linalg.solvers.interface import Norms, Status
from vhat.models.dense_network.autodiff import NetworkAutodiff
from vhat.models.problem import Problem

__all__ = ["Basis", "make_basis", "rows_alike"]


def rows_alike(problem: Problem, shape: np.ndarray) -> bool:
    """Return whether a network in NumPy has one output, and its rows one curvature of the loss and one noise.

    Args:
        problem: The training problem.
        shape: Noise of each response, in any unit, (n, K).
    """
    if problem.outputs > 1 or not isinstance(problem.autodiff, NetworkAutodiff):
        return False
    loss = problem.loss_derivatives
    weight = loss.curvature[0]
    same = np.all(loss.curvature == weight) and np.all(loss.cross == -weight) and np.all(shape == shape[0])
    return bool(same) and float(weight[0]) > 0


@dataclass(frozen=True)
class Basis:
    """The basis in which ``A`` is the identity and G is diagonal.

    Attributes:
        change: ``diag(1/s) W``, (p, p): ``z = g @ change``.
        held: ``m``, (p,).
        solved: ``A^-1`` times the gradients of penalty and loss, (p, 2).
        residual: Bound on the relative residual of every right-hand side.
    """

    change: np.ndarray = field(repr=False)
    held: np.ndarray = field(repr=False)
    solved: np.ndarray = field(repr=False)
    residual: float

    def norms(self, problem: Problem, g: np.ndarray, sigma: np.ndarray) -> Norms | None:
        """Return the norms of right-hand sides, (k, p); None where one of them is not finite.

        Args:
            problem: The training problem.
            g: The right-hand sides.
            sigma: Noise of each training response, (n, 1), all alike.
        """
        squares = g @ self.change
        np.square(squares, out=squares)
        energy = squares.sum(axis=1)
        if not np.all(np.isfinite(energy)):
            return None
        supported = squares @ self.held
        pull, slope = (g @ self.solved).T
        weight = float(problem.loss_derivatives.curvature[0, 0])
        count = len(g)
        return Norms(
            variance=weight * float(sigma[0, 0]) ** 2 * supported,
            supported=supported,
            energy=energy,
            pull=pull,
            slope=slope,
            status=np.full(count, Status.CONVERGED.value),
            residual=np.full(count, self.residual),
            steps=np.ones(count, dtype=int),
        )


def make_basis(problem: Problem, matrix: np.ndarray, factor: np.ndarray, unit: np.ndarray, data: np.ndarray) -> Basis:
    """Diagonalise.

    Args:
        problem: The training problem.
        matrix: ``A``, (p, p).
        factor: Its Cholesky factor L in the scaled basis.
        unit: The scale s, (p,).
        data: G, (p, p).
    """
    scales = np.outer(unit, unit)
    half = scipy.linalg.solve_triangular(factor, data / scales, lower=True)
    middle = scipy.linalg.solve_triangular(factor, half.T, lower=True)
    held, vectors = scipy.linalg.eigh((middle + middle.T) / 2)
    inverse_root = scipy.linalg.solve_triangular(factor, vectors, lower=True, trans=1)
    left = -(matrix / scales) @ inverse_root @ inverse_root.T
    left[np.diag_indices_from(left)] += 1.0
    change = inverse_root / unit[:, None]
    loss = problem.loss_derivatives
    slopes = np.stack([problem.penalty_gradient(), problem.vjp((loss.first / problem.n)[None])[0]], axis=1)
    return Basis(change, np.maximum(held, 0.0), change @ (change.T @ slopes), float(np.linalg.norm(left)))
