"""The operator ``A = H + lam``, with the exact Hessian or the Gauss-Newton matrix for H, and its unit-free scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vhat.errors import NotPositiveDefinite, name_rows
from vhat.models.problem import Array, Curvature, Problem
from vhat.progress import bar

__all__ = ["Operator", "assemble", "scale"]


@dataclass(frozen=True)
class Operator:
    """``A = H + diag(lam)``, applied to blocks of rows.

    Attributes:
        problem: The training problem.
        curvature: ``"hessian"`` for the exact Hessian, ``"ggn"`` for its Gauss-Newton part ``J'CJ/n``.
    """

    problem: Problem
    curvature: Curvature

    def __call__(self, v: Array) -> Array:
        """Return ``A v`` for each row of ``v``, (k, p)."""
        return self.problem.product(v, self.curvature) + self.problem.decay * v


def scale(problem: Problem) -> Array:
    """Return ``s_j = sqrt(diag(J'CJ/n)_j + lam_j)``, (p,): the inverse unit of each parameter.

    ``diag(1/s) A diag(1/s)`` has no unit, whatever the units of the parameters. All tolerances of the library refer to
    it. ``1/s^2`` is also the Jacobi preconditioner.

    Raises:
        NotPositiveDefinite: When a parameter has no influence on any training prediction and no decay.
    """
    diagonal = problem.numpy(problem.diagonal() + problem.decay)
    dead = np.flatnonzero(~(diagonal > 0))
    if dead.size:
        positions = name_rows(dead, noun="position")
        raise NotPositiveDefinite(
            f"{dead.size} of {problem.p} parameters neither influence any training prediction nor have weight decay "
            f"({positions} of the flat vector). A network as it is: fitted.linearised(validation=(X, y)). "
            "Otherwise give them a weight_decay above 0 or leave them out; a fit that interpolates without decay: "
            "solver=vhat.MinimumNorm()."
        )
    return problem.native(np.sqrt(diagonal))


def assemble(problem: Problem, curvature: Curvature, block: int = 128) -> np.ndarray:
    """Form ``A`` as a symmetric NumPy matrix (p, p), ``block`` columns at a time."""
    operator = Operator(problem, curvature)
    block = min(block, problem.p)
    matrix = np.empty((problem.p, problem.p))
    starts = range(0, problem.p, block)
    with bar("Hessian" if curvature == "hessian" else "Gauss-Newton matrix", len(starts)) as advance:
        for start in starts:
            stop = min(start + block, problem.p)
            basis = np.zeros((block, problem.p))  # the same width for all blocks, so that the product compiles once
            basis[np.arange(stop - start), np.arange(start, stop)] = 1.0
            matrix[start:stop] = problem.numpy(operator(problem.native(basis)))[: stop - start]
            advance("")
    return (matrix + matrix.T) / 2
