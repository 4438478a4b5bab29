"""Gauss-Newton solutions through the kernel, verified by derivatives that the kernel was not made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from vhat.linalg.curvature import Operator
from vhat.linalg.solvers.corrected import (
    error_weights,
    finite_rows,
    random_combination,
    verified_response,
    with_fallback,
)
from vhat.linalg.solvers.correction_loop import Correction
from vhat.linalg.solvers.factorised import ACCEPTED_ERROR, DIRECT_RTOL, MAX_REFINEMENTS
from vhat.linalg.solvers.interface import FromImages, Response, Solution, Status, metric_norm
from vhat.linalg.solvers.kernel import Kernel, KernelSolution
from vhat.linalg.solvers.preconditioned_cg import Preconditioned, status_and_residual
from vhat.models.problem import Array, Problem

__all__ = ["MAX_CANCELLATION", "GaussNewton"]

MAX_CANCELLATION = 1e8
"""Factor by which rounding may be magnified in ``g'h`` as a difference; above it, a sum of squares is used."""


@dataclass(frozen=True)
class GaussNewton(FromImages):
    """``P^-1`` through the kernel; a response forms no vector of length p beside the right-hand side.

    Attributes:
        problem: The training problem.
        kernel: The factorisation.
        scale: The unit of each parameter.
        fallback: Solver for rows in which the kernel is not accurate enough; None without one.
        block: Rows lifted to the space of parameters together.
        name: The solver's name in results.
    """

    problem: Problem
    kernel: Kernel = field(repr=False)
    scale: Array = field(repr=False)
    fallback: Preconditioned | None = field(repr=False)
    block: int
    name: str = "dual"

    def solve(self, g: Array) -> Solution:
        """Solve ``P h = g`` for each row, with iterative refinement by products of the framework."""
        rows, finite = finite_rows(self.problem, g)
        if self.fallback is not None and not finite.all():
            return self.fallback.solve(g)
        operator = Operator(self.problem, "ggn")
        z = self.kernel.solve_implicit(rows)
        h = self.kernel.lift(z)
        size = np.sqrt(np.abs(z.energy))
        for step in range(1 + MAX_REFINEMENTS):
            # P comes from the framework's derivatives here, not from the features of the kernel.
            r = g - operator(self.problem.native(h))
            correction = self.kernel.solve_implicit(self.problem.numpy(r))
            # After the last step a larger error is accepted, if it is small enough for V.
            tolerance = DIRECT_RTOL if step < MAX_REFINEMENTS else ACCEPTED_ERROR
            if np.all(correction.size <= tolerance * size):
                residual = status_and_residual(self.problem, r, metric_norm(self.problem, g, self.scale), self.scale)[1]
                status = np.full(len(h), Status.CONVERGED.value)
                return Solution(self.problem.native(h), status, residual, np.full(len(h), 1 + step))
            h = h + self.kernel.lift(correction)
        if self.fallback is not None:
            return self.fallback.solve(g)
        status = np.where(finite, Status.NOT_CONVERGED.value, Status.NOT_FINITE.value)
        residual = np.divide(correction.size, size, out=np.zeros_like(size), where=size > 0)
        return Solution(self.problem.native(h), status, residual, np.full(len(h), 1 + MAX_REFINEMENTS))

    def respond(self, g: Array) -> Response:
        """Solve in the space of the data, and verify one random combination of the rows; each row if that fails."""
        rows, finite = finite_rows(self.problem, g)
        # g still has rows that are not finite: only a block without any is compressed.
        z = self._with_stable_energy(self.kernel.solve_implicit(rows, g if finite.all() else None))
        answer = Correction.direct(self.kernel, z)
        weights = error_weights(self.kernel, answer)
        signs = random_combination(weights, answer.image)
        error = self._errors((signs @ rows)[None], z.combined(signs))
        if error[0] <= ACCEPTED_ERROR:
            return verified_response(answer, finite, error)
        error = self._errors_one_by_one(rows, z, weights)
        fallback = None if self.fallback is None else self.fallback.respond
        return with_fallback(verified_response(answer, finite, error), error <= ACCEPTED_ERROR, g, fallback)

    def _errors_one_by_one(self, rows: np.ndarray, z: KernelSolution, weights: np.ndarray) -> np.ndarray:
        """Return the relative error of ``s'J h`` in each row, (k,)."""
        errors = []
        for at in self._blocks(np.arange(len(rows))):
            errors.append(self._errors(weights[at, None] * rows[at], z.take(at).times(weights[at])))
        return np.concatenate(errors)

    def _blocks(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Split rows into blocks that are lifted to the space of parameters together."""
        return (rows[start : start + self.block] for start in range(0, len(rows), self.block))

    def _with_stable_energy(self, z: KernelSolution) -> KernelSolution:
        """Return z with ``g'h = |s'J h|^2 + h'Lam h`` in the rows where the difference for it has lost digits."""
        kernel = self.kernel
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
        kernel = self.kernel
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
