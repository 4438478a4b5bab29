"""Gauss-Newton solutions from a kernel in single precision, refined in double precision for many points together.

A product with the kernel recomputes its blocks, at a cost that hardly depends on the number of right-hand sides. As
many points as possible are therefore solved together. Gradients of length p would fill the memory with a few dozen
points. Instead, points are solved from their inputs: their gradients are compressed like those of the training rows,
and each point then takes N numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vhat.linalg.curvature import Operator
from vhat.linalg.solvers.corrected import error_weights, finite_rows, random_combination, verified_response
from vhat.linalg.solvers.correction_loop import Correction
from vhat.linalg.solvers.cost import points_together
from vhat.linalg.solvers.dual_gauss_newton import MAX_CANCELLATION, GaussNewton
from vhat.linalg.solvers.factorised import ACCEPTED_ERROR
from vhat.linalg.solvers.interface import STATUS_DTYPE, Response, Solution, Status, concatenate, replace_rows
from vhat.linalg.solvers.jacobian_factors import Features, NotRankOne, features_at
from vhat.linalg.solvers.kernel import KernelSolution
from vhat.linalg.solvers.single_kernel import SingleKernel, points_refined
from vhat.models.problem import Array

__all__ = ["RefinedGaussNewton"]


@dataclass(frozen=True)
class _RightHandSides:
    """Right-hand sides g in the space of the data.

    Attributes:
        scaled: ``Lam^-1/2 g``, (k, p); (k, 0) if no row of length p is formed.
        cross: ``F Lam^-1/2 g``, (k, N).
        free: g on the parameters without decay, (k, free).
        total: ``g'Lam^-1 g`` over the parameters with decay, (k,).
        slope: ``g'Lam^-1 b`` over the parameters with decay, b the gradient of the penalty, (k,).
        combined: Function from weights (k,) to ``sum_i weights_i g_i``, (1, p).
    """

    scaled: np.ndarray
    cross: np.ndarray
    free: np.ndarray
    total: np.ndarray
    slope: np.ndarray
    combined: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class RefinedGaussNewton(GaussNewton):
    """``P^-1`` through a kernel in single precision.

    Attributes:
        factor: The kernel in single precision, factorised.
        rtol: Bound on the relative error of ``sqrt(V)`` to which solutions are refined.
    """

    factor: SingleKernel = field(repr=False)
    rtol: float = 2e-6

    @property
    def inputs_together(self) -> int:
        """Number of points solved together from their inputs."""
        return points_refined(self.problem, self.factor.structure)

    def respond_at(self, inputs: Any) -> Response:
        """Return the response of the predictions at checked inputs, the outputs of one input in consecutive rows.

        No row of length p is formed, except for points that fail the check.
        """
        try:
            features = features_at(self.problem, inputs, self.factor.structure)
        except NotRankOne:  # unlike every training row, some gradient is not an outer product
            return self._respond_by_gradients(inputs, np.arange(self.problem.count(inputs)))
        sides = self._sides_of_features(features)
        finite = np.isfinite(sides.total) & np.isfinite(sides.cross).all(axis=1)
        if not finite.all():
            return self._respond_by_gradients(inputs, np.arange(self.problem.count(inputs)))
        answer, z = self._solve_data_space(sides)
        error = self._combined_error(answer, z, sides)
        good = (answer.error <= ACCEPTED_ERROR) & (z.cancellation <= MAX_CANCELLATION) & (error <= ACCEPTED_ERROR)
        found = verified_response(answer, finite, np.full(1, error))
        points = np.unique(np.flatnonzero(~good) // self.problem.outputs)
        if not points.size:
            return found
        rows = (points[:, None] * self.problem.outputs + np.arange(self.problem.outputs)).ravel()
        return replace_rows(found, rows, self._respond_by_gradients(inputs, points))

    def solve_together(self, g: Array) -> Solution:
        """Solve for many rows, verified together by one random combination; one by one if that fails."""
        problem = self.problem
        kernel = self.factor
        rows, finite = finite_rows(problem, g)
        if not finite.all():
            return self.solve(g)
        z = kernel.solve_implicit(rows)
        h = kernel.lift(z)
        size = np.sqrt(np.abs(z.energy))
        weights = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
        signs = random_combination(weights, z.image)
        residual = signs @ rows - problem.numpy(Operator(problem, "ggn")(problem.native((signs @ h)[None])))[0]
        error = float(kernel.solve_implicit(residual[None]).size[0])
        if not error <= ACCEPTED_ERROR:
            return self.solve(g)
        k = len(rows)
        status = np.full(k, Status.CONVERGED.value)
        return Solution(problem.native(h), status, np.full(k, error), np.ones(k, dtype=int))

    # -- inside ----------------------------------------------------------------------------------
    def _solve_and_verify(self, g: Array) -> tuple[Response, np.ndarray]:
        rows, finite = finite_rows(self.problem, g)
        sides = self._sides_of_rows(rows, g if finite.all() else None)
        answer, z = self._solve_data_space(sides)
        error = self._combined_error(answer, z, sides)
        within = answer.error <= ACCEPTED_ERROR
        if error <= ACCEPTED_ERROR and within.all():
            return verified_response(answer, finite, np.full(1, error)), within
        errors = self._errors_one_by_one(rows, z, error_weights(self.factor, answer))
        good = (errors <= ACCEPTED_ERROR) & within
        return verified_response(answer, finite, errors), good

    def _respond_by_gradients(self, inputs: Any, points: np.ndarray) -> Response:
        """Return the response of some points from their gradients as vectors, a few at a time."""
        problem = self.problem
        step = points_together(problem)
        parts = []
        for start in range(0, len(points), step):
            chosen = points[start : start + step]
            rows = [problem.gradients(problem.take(inputs, int(at), int(at) + 1)) for at in chosen]
            stacked = problem.native(np.concatenate([problem.numpy(row) for row in rows]))
            parts.append(self.respond(stacked))
        return concatenate(parts)

    def _sides_of_rows(self, rows: np.ndarray, gradients: Array | None) -> _RightHandSides:
        kernel = self.factor
        scaled = rows * kernel.inverse_root
        return _RightHandSides(
            scaled=scaled,
            cross=kernel.cross_of(scaled, gradients),
            free=rows[:, kernel.structure.free],
            total=np.einsum("kp,kp->k", scaled, scaled),
            slope=scaled @ kernel.scaled_penalty,
            combined=lambda weights: (weights @ rows)[None],
        )

    def _sides_of_features(self, features: Features) -> _RightHandSides:
        kernel = self.factor

        def combined(weights: np.ndarray) -> np.ndarray:
            row = features.transposed(weights[None]) * kernel.root_decay
            row[:, kernel.structure.free] = weights[None] @ features.free
            return row

        return _RightHandSides(
            scaled=np.zeros((len(features), 0)),
            cross=np.ascontiguousarray(kernel.features.cross(features).T),
            free=features.free,
            total=features.squares(),
            slope=features.times(kernel.scaled_penalty[None])[0],
            combined=combined,
        )

    def _solve_data_space(self, sides: _RightHandSides) -> tuple[Correction, KernelSolution]:
        """Solve in the space of the data."""
        kernel = self.factor
        found = kernel.solve_data_space(sides.cross, sides.free, self.rtol)
        z = kernel.implicit_solution(sides.scaled, sides.cross, sides.free, sides.total, found)
        if sides.scaled.size:
            z = self._with_stable_energy(z)
        pull = sides.slope - z.coefficients @ kernel.penalty_image
        pull = pull + z.free @ kernel.penalty_gradient[kernel.structure.free]
        known = np.isfinite(z.energy)
        status = np.where(known, Status.CONVERGED.value, Status.NOT_FINITE.value).astype(STATUS_DTYPE)
        steps = np.full(len(known), found.products)
        return Correction(None, z, z.image, z.energy, pull, status, found.error, steps), z

    def _combined_error(self, answer: Correction, z: KernelSolution, sides: _RightHandSides) -> float:
        """Return the error of one random combination of the rows, by the framework's derivatives."""
        signs = random_combination(error_weights(self.factor, answer), answer.image)
        return float(self._errors(sides.combined(signs), z.combined(signs))[0])
