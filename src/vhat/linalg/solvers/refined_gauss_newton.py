"""Gauss-Newton answers from a kernel in single precision, refined in double for as many points as memory holds.

A product with the kernel recomputes its blocks, whatever the number of right-hand sides. So points are not answered in
blocks of gradients of length p, a few dozen of which fill the memory, but from their inputs: gradients are compressed
as those of the training rows are, and what is left of a point is n numbers an output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vhat.linalg.curvature import Operator
from vhat.linalg.solvers.corrected import combination, finished, rows_and_finite, verified, weights_of
from vhat.linalg.solvers.correction_loop import Correction
from vhat.linalg.solvers.cost import points_together
from vhat.linalg.solvers.dual import ROUNDED, GaussNewton
from vhat.linalg.solvers.interface import Response, Solution, Status, joined, put
from vhat.linalg.solvers.jacobian_factors import Features, NotRankOne, features_at
from vhat.linalg.solvers.kernel import Seen
from vhat.linalg.solvers.single_kernel import SingleKernel, points_refined
from vhat.models.problem import Array

__all__ = ["RefinedGaussNewton"]

_LOST = 1e8
"""By how much rounding may be magnified in ``g'h`` before a point is answered from its gradient in full."""


@dataclass(frozen=True)
class _Sides:
    """Right-hand sides as the data see them.

    Attributes:
        scaled: ``Lam^-1/2 g``, (k, p); (k, 0) where no row of length p is formed.
        cross: ``F Lam^-1/2 g``, (k, N).
        free: g on the parameters without decay, (k, free).
        total: ``g'Lam^-1 g`` over the parameters with decay, (k,).
        slope: ``g'Lam^-1 b`` over the same, b the gradient of the penalty, (k,).
        combined: From weights, (k,), to the one row that is their combination of all g, (1, p).
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
        kernel: The factorisation.
        rtol: Relative error of ``sqrt(V)`` to which answers are refined, by a bound.
    """

    kernel: SingleKernel = field(repr=False)
    rtol: float = 2e-6

    @property
    def inputs_together(self) -> int:
        """How many points are answered together from their inputs."""
        return points_refined(self.problem, self.kernel.structure)

    def respond(self, g: Array) -> Response:
        """Answer right-hand sides that are given in full."""
        rows, finite = rows_and_finite(self.problem, g)
        sides = self._from_rows(rows, g if finite.all() else None)
        answer, seen = self._answer(sides)
        error = self._errors_together(answer, seen, sides)
        within = answer.error <= ROUNDED
        if error <= ROUNDED and within.all():
            return verified(answer, finite, np.full(1, error))
        weights = weights_of(self.kernel, answer)
        parts = self._parts(np.arange(len(rows)))
        alone = [self._errors(weights[at, None] * rows[at], seen.take(at).times(weights[at])) for at in parts]
        each = np.concatenate(alone)
        careful = None if self.careful is None else self.careful.respond
        return finished(verified(answer, finite, each), (each <= ROUNDED) & within, g, careful)

    def respond_at(self, inputs: Any) -> Response:
        """Answer the predictions at checked inputs, outputs of one input together, without a row of length p."""
        try:
            features = features_at(self.problem, inputs, self.kernel.structure)
        except NotRankOne:  # a row unlike every training row
            return self._by_gradients(inputs, np.arange(self.problem.count(inputs)))
        sides = self._from_features(features)
        finite = np.isfinite(sides.total) & np.isfinite(sides.cross).all(axis=1)
        if not finite.all():
            return self._by_gradients(inputs, np.arange(self.problem.count(inputs)))
        answer, seen = self._answer(sides)
        error = self._errors_together(answer, seen, sides)
        good = (answer.error <= ROUNDED) & (seen.lost <= _LOST) & (error <= ROUNDED)
        found = verified(answer, finite, np.full(1, error))
        points = np.unique(np.flatnonzero(~good) // self.problem.outputs)
        if not points.size:
            return found
        rows = (points[:, None] * self.problem.outputs + np.arange(self.problem.outputs)).ravel()
        return put(found, rows, self._by_gradients(inputs, points))

    def solve_together(self, g: Array) -> Solution:
        """Solve for each row of many, verified by one random combination of them; one by one where that fails."""
        problem, kernel = self.problem, self.kernel
        rows, finite = rows_and_finite(problem, g)
        if not finite.all():
            return self.solve(g)
        seen = kernel.look(rows)
        h = kernel.lift(seen)
        size = np.sqrt(np.abs(seen.energy))
        weights = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
        together = combination(weights, seen.image)
        left = together @ rows - problem.numpy(Operator(problem, "ggn")(problem.native((together @ h)[None])))[0]
        error = float(kernel.look(left[None]).size[0])
        if not error <= ROUNDED:
            return self.solve(g)
        k = len(rows)
        status = np.full(k, Status.CONVERGED.value)
        return Solution(problem.native(h), status, np.full(k, error), np.ones(k, dtype=int))

    # -- inside ----------------------------------------------------------------------------------
    def _by_gradients(self, inputs: Any, points: np.ndarray) -> Response:
        """Answer some points from their gradients in full, a few at a time."""
        problem = self.problem
        step = points_together(problem)
        parts = []
        for start in range(0, len(points), step):
            chosen = points[start : start + step]
            rows = [problem.gradients(problem.take(inputs, int(at), int(at) + 1)) for at in chosen]
            stacked = problem.native(np.concatenate([problem.numpy(row) for row in rows]))
            parts.append(self.respond(stacked))
        return joined(parts)

    def _from_rows(self, rows: np.ndarray, gradients: Array | None) -> _Sides:
        kernel = self.kernel
        scaled = rows * kernel.inverse_root
        return _Sides(
            scaled=scaled,
            cross=kernel.cross_of(scaled, gradients),
            free=rows[:, kernel.structure.free],
            total=np.einsum("kp,kp->k", scaled, scaled),
            slope=scaled @ kernel.scaled_slope,
            combined=lambda weights: (weights @ rows)[None],
        )

    def _from_features(self, features: Features) -> _Sides:
        kernel = self.kernel

        def combined(weights: np.ndarray) -> np.ndarray:
            row = features.transposed(weights[None]) * kernel.root_decay
            row[:, kernel.structure.free] = weights[None] @ features.free
            return row

        return _Sides(
            scaled=np.zeros((len(features), 0)),
            cross=np.ascontiguousarray(kernel.features.cross(features).T),
            free=features.free,
            total=features.squares(),
            slope=features.times(kernel.scaled_slope[None])[0],
            combined=combined,
        )

    def _answer(self, sides: _Sides) -> tuple[Correction, Seen]:
        """Solve in the space of the data."""
        kernel = self.kernel
        found = kernel.inner(sides.cross, sides.free, self.rtol)
        seen = kernel.seen(sides.scaled, sides.cross, sides.free, sides.total, found)
        if sides.scaled.size:
            seen = self._settled(seen)
        pull = sides.slope - seen.pushed @ kernel.slope_image
        pull = pull + seen.free @ kernel.penalty_slope[kernel.structure.free]
        known = np.isfinite(seen.energy)
        status = np.where(known, Status.CONVERGED.value, Status.NOT_FINITE.value).astype("<U13")
        steps = np.full(len(known), found.products)
        return Correction(None, seen, seen.image, seen.energy, pull, status, found.error, steps), seen

    def _errors_together(self, answer: Correction, seen: Seen, sides: _Sides) -> float:
        """Return how far one random combination of the rows is off, by derivatives that the kernel never saw."""
        together = combination(weights_of(self.kernel, answer), answer.image)
        return float(self._errors(sides.combined(together), seen.combined(together))[0])
