"""Gauss-Newton solutions through the kernel; a response forms no vector of length p beside the right-hand side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from vhat.linalg.solvers.direct_gauss_newton import DirectGaussNewton
from vhat.linalg.solvers.kernel import Kernel, KernelSolution
from vhat.models.problem import Array

__all__ = ["MAX_CANCELLATION", "GaussNewton"]

MAX_CANCELLATION = 1e8
"""Factor by which rounding may be magnified in ``g'h`` as a difference; above it, a sum of squares is used."""


@dataclass(frozen=True)
class GaussNewton(DirectGaussNewton):
    """``P^-1`` through the kernel.

    Attributes:
        factor: The kernel, factorised.
    """

    factor: Kernel = field(repr=False)
    name: str = "dual"

    def _solve_implicit(self, rows: np.ndarray, gradients: Array | None) -> KernelSolution:
        return self._with_stable_energy(self.factor.solve_implicit(rows, gradients))

    def _with_stable_energy(self, z: KernelSolution) -> KernelSolution:
        """Return z with ``g'h = |s'J h|^2 + h'Lam h`` in the rows where the difference for it has lost digits."""
        kernel = self.factor
        energy = z.energy.copy()
        for rows in self._blocks(np.flatnonzero(z.cancellation > MAX_CANCELLATION)):
            part = z.take(rows)
            of_data = kernel.root.times(part.image)
            of_penalty = kernel.root_decay * kernel.lift(part)
            energy[rows] = np.sum(of_data**2, axis=(1, 2)) + np.sum(of_penalty**2, axis=1)
        return replace(z, energy=energy)

    def _errors(self, g: np.ndarray, z: KernelSolution) -> np.ndarray:
        """Return the error of ``s'J h`` in each row, (k,), by the framework's derivatives.

        ``u = s'J P^-1 g`` is right if ``h = Lam^-1 (g - J's u)`` has the image ``u``. If ``u + d`` is right, then
        ``s'J h - u = B d``, and a solve with B gives the error d. The residual of h in the space of parameters would
        say less: a small decay magnifies rounding in directions of h that move no training prediction, and V does not
        depend on these directions.
        """
        problem = self.problem
        kernel = self.factor
        free = kernel.structure.free
        rest = g - problem.numpy(problem.vjp(z.coefficients.reshape(z.image.shape)))
        h = rest * kernel.inverse_root**2
        # Parameters without decay have no such equation: take their values, and their residual g_b - J_b's u.
        h[:, free] = z.free
        r = np.zeros_like(rest)
        r[:, free] = rest[:, free]
        discrepancy = problem.jvp(problem.native(h)) - z.image
        # B d = s'(J h - image) is the system of the kernel with the discrepancy as its cross product.
        d = kernel.solve_implicit(r, cross=discrepancy.reshape(len(g), -1)).image
        return kernel.lengths(d)
