"""Gauss-Newton solutions through a factorised ``P``, verified by the framework's derivatives.

The factor was made from gradients of the training rows. A product of the framework with P, or with the Jacobian, was
not used for it, and therefore detects rounding in the factor, and a model that has changed since.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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
from vhat.linalg.solvers.factorised import ACCEPTED_ERROR, DIRECT_RTOL, MAX_REFINEMENTS, Factorised
from vhat.linalg.solvers.interface import Norms, Response, Solution, Status, Stopped, metric_norm
from vhat.linalg.solvers.preconditioned_cg import Preconditioned, replace_solutions, status_and_residual
from vhat.models.problem import Array, Problem

__all__ = ["DirectGaussNewton"]


@dataclass(frozen=True)
class DirectGaussNewton(ABC):
    """``P^-1`` through its factorisation; rows in which that is not accurate enough go to another solver.

    Attributes:
        problem: The training problem.
        factor: ``P``, factorised.
        scale: The unit of each parameter.
        fallback: Solver for rows in which the factorisation is not accurate enough; None without one.
        block: Rows per product when rows are verified one by one.
        name: The solver's name in results.
    """

    problem: Problem
    factor: Factorised = field(repr=False)
    scale: Array = field(repr=False)
    fallback: Preconditioned | None = field(repr=False)
    block: int
    name: str

    def solve(self, g: Array) -> Solution:
        """Solve ``P h = g`` for each row, with iterative refinement by products of the framework."""
        problem = self.problem
        rows, finite = finite_rows(problem, g)
        if not finite.all():
            g = problem.native(rows)
        product = Operator(problem, "ggn")
        z = self.factor.solve_implicit(rows)
        h = self.factor.lift(z)
        size = np.sqrt(np.abs(z.energy))
        steps = np.ones(len(rows), dtype=int)
        for step in range(1 + MAX_REFINEMENTS):
            r = g - product(problem.native(h))
            correction = self.factor.solve_implicit(problem.numpy(r))
            last = step == MAX_REFINEMENTS
            # After the last step a larger error is accepted, if it is small enough for V.
            tolerance = ACCEPTED_ERROR if last else DIRECT_RTOL
            good = correction.size <= tolerance * size
            if last or good.all():
                break
            rest = np.flatnonzero(~good)
            h[rest] += self.factor.lift(correction.take(rest))
            steps[rest] += 1
        in_scale, residual = status_and_residual(problem, r, metric_norm(problem, g, self.scale), self.scale)
        # A factor that has lost digits also misjudges the size of a correction. If it fails in one row, or has no
        # fallback because it is known to have lost them, every row needs a small true residual.
        if self.fallback is None or not good.all():
            good &= in_scale == Status.CONVERGED
        status = np.where(good, Status.CONVERGED.value, Status.NOT_CONVERGED.value)
        status = np.where(finite & np.isfinite(residual), status, Status.NOT_FINITE.value)
        found = Solution(problem.native(h), status, residual, steps)
        rest = np.flatnonzero(finite & ~good)
        if self.fallback is None or not rest.size:
            return found
        try:
            return replace_solutions(problem, found, rest, self.fallback.solve(g[rest]))
        except Stopped as stop:
            raise Stopped(rest[stop.rows], stop.partial) from None

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return the scalars that intervals need."""
        found, good = self._solve_and_verify(g)
        with np.errstate(invalid="ignore", over="ignore"):  # rows that are not good
            norms = self.factor.norms(found, sigma)
        fallback = None if self.fallback is None else partial(self.fallback.norms, sigma=sigma)
        return with_fallback(norms, good, g, fallback)

    def respond(self, g: Array) -> Response:
        """Return the images of the solutions over the training rows."""
        found, good = self._solve_and_verify(g)
        fallback = None if self.fallback is None else self.fallback.respond
        return with_fallback(self.factor.response(found), good, g, fallback)

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """None: the factorisation has no form of length p."""
        return None

    def _solve_and_verify(self, g: Array) -> tuple[Response, np.ndarray]:
        """Solve, and verify one random combination of the rows; each row if that fails.

        Returns:
            The response, with images in the form of the factorisation, and which of its rows are good, (k,) of bool.
        """
        rows, finite = finite_rows(self.problem, g)
        # Only a block without rows that are not finite is given as gradients.
        z = self._solve_implicit(rows, g if finite.all() else None)
        answer = Correction.direct(self.factor, z)
        weights = error_weights(self.factor, answer)
        signs = random_combination(weights, answer.image)
        error = self._errors((signs @ rows)[None], z.combined(signs))
        if error[0] <= ACCEPTED_ERROR:
            return verified_response(answer, finite, error), np.ones(len(rows), dtype=bool)
        error = self._errors_one_by_one(rows, z, weights)
        return verified_response(answer, finite, error), error <= ACCEPTED_ERROR

    def _solve_implicit(self, rows: np.ndarray, gradients: Array | None) -> Any:
        """Return ``P^-1 g`` for each row in the form of the factorisation."""
        return self.factor.solve_implicit(rows, gradients)

    @abstractmethod
    def _errors(self, g: np.ndarray, z: Any) -> np.ndarray:
        """Return the error of ``s'J h`` in each row, (k,), by the framework's derivatives."""

    def _errors_one_by_one(self, rows: np.ndarray, z: Any, weights: np.ndarray) -> np.ndarray:
        """Return the relative error of ``s'J h`` in each row, (k,)."""
        errors = []
        for at in self._blocks(np.arange(len(rows))):
            errors.append(self._errors(weights[at, None] * rows[at], z.take(at).times(weights[at])))
        return np.concatenate(errors)

    def _blocks(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Split rows into blocks that are lifted to the space of parameters together."""
        return (rows[start : start + self.block] for start in range(0, len(rows), self.block))
