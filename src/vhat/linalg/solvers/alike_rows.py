"""Norms of many right-hand sides by one matrix product, for networks whose training rows have equal weights.

In the unit-free scale let ``A = LL'`` and ``L^-1 G L^-T = U diag(m) U'``, with G the Gauss-Newton matrix of the data.
With ``z = U'L^-1 g`` ::

    g'A^-1 g = sum_k z_k^2,      h'G h = sum_k m_k z_k^2,      h = A^-1 g.

If all rows have the same curvature weight and the same noise, V is a multiple of ``h'G h``. No single right-hand side
is solved for. Instead, the accuracy of ``W W'`` as an inverse of ``A``, ``W = L^-T U``, is measured once by
``|I - A W W'|_F``, which bounds the relative residual of every right-hand side in the unit-free scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.linalg

from vhat.linalg.solvers.interface import STATUS_DTYPE, Norms, Status
from vhat.models.dense_network.autodiff import NetworkAutodiff
from vhat.models.problem import Problem

__all__ = ["Basis", "make_basis", "rows_alike"]


def rows_alike(problem: Problem, shape: np.ndarray) -> bool:
    """Return whether the model is a network in NumPy with one output whose rows have equal curvature and equal noise.

    Args:
        problem: The training problem.
        shape: Noise of each response, in any unit, (n, K).
    """
    if problem.outputs > 1 or not isinstance(problem.autodiff, NetworkAutodiff):
        return False
    loss = problem.loss_derivatives
    weight = loss.curvature[0]
    equal = np.all(loss.curvature == weight) and np.all(loss.cross == -weight) and np.all(shape == shape[0])
    return bool(equal) and float(weight[0]) > 0


@dataclass(frozen=True)
class Basis:
    """Basis in which ``A`` is the identity and G is diagonal.

    Attributes:
        change: ``diag(1/s) W``, (p, p): ``z = g @ change``.
        eigenvalues: ``m``, (p,).
        solved: ``A^-1`` times the gradients of penalty and loss, (p, 2).
        residual: Bound on the relative residual of every right-hand side.
    """

    change: np.ndarray = field(repr=False)
    eigenvalues: np.ndarray = field(repr=False)
    solved: np.ndarray = field(repr=False)
    residual: float

    def norms(self, problem: Problem, g: np.ndarray, sigma: np.ndarray) -> Norms | None:
        """Return the norms of right-hand sides, (k, p); None if one of them is not finite.

        Args:
            problem: The training problem.
            g: The right-hand sides.
            sigma: Noise of each training response, (n, 1), all equal.
        """
        squares = g @ self.change
        with np.errstate(over="ignore"):  # the energy is then infinite
            np.square(squares, out=squares)
            energy = squares.sum(axis=1)
        if not np.all(np.isfinite(energy)):
            return None
        supported = squares @ self.eigenvalues
        return self.norms_of_forms(problem, np.stack([energy, supported]), (g @ self.solved).T, sigma)

    def norms_of_forms(self, problem: Problem, quadratic: np.ndarray, linear: np.ndarray, sigma: np.ndarray) -> Norms:
        """Return the norms of right-hand sides whose quadratic and linear forms are known.

        Args:
            problem: The training problem.
            quadratic: ``g'h`` and ``h'G h`` of each right-hand side, (2, k).
            linear: The products of h with the gradients of penalty and loss, (2, k).
            sigma: Noise of each training response, (n, 1), all equal.
        """
        energy, supported = quadratic
        pull, slope = linear
        weight = float(problem.loss_derivatives.curvature[0, 0])
        count = len(energy)
        return Norms(
            variance=weight * float(sigma[0, 0]) ** 2 * supported,
            supported=supported,
            energy=energy,
            pull=pull,
            slope=slope,
            status=np.full(count, Status.CONVERGED.value, dtype=STATUS_DTYPE),
            residual=np.full(count, self.residual),
            steps=np.ones(count, dtype=int),
        )


def make_basis(problem: Problem, matrix: np.ndarray, factor: np.ndarray, unit: np.ndarray, data: np.ndarray) -> Basis:
    """Return the basis that diagonalises ``A`` and G together.

    Args:
        problem: The training problem.
        matrix: ``A``, (p, p).
        factor: Its Cholesky factor L in the unit-free scale.
        unit: The scale s, (p,).
        data: G, (p, p).
    """
    scales = np.outer(unit, unit)
    half = scipy.linalg.solve_triangular(factor, data / scales, lower=True)
    whitened = scipy.linalg.solve_triangular(factor, half.T, lower=True)  # L^-1 G L^-T
    eigenvalues, vectors = scipy.linalg.eigh((whitened + whitened.T) / 2)
    W = scipy.linalg.solve_triangular(factor, vectors, lower=True, trans=1)
    residual = -(matrix / scales) @ W @ W.T
    residual[np.diag_indices_from(residual)] += 1.0
    change = W / unit[:, None]
    loss = problem.loss_derivatives
    gradients = np.stack([problem.penalty_gradient(), problem.vjp((loss.first / problem.n)[None])[0]], axis=1)
    return Basis(
        change=change,
        eigenvalues=np.maximum(eigenvalues, 0.0),
        solved=change @ (change.T @ gradients),
        residual=float(np.linalg.norm(residual)),
    )
