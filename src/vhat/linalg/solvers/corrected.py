"""Solve with the exact Hessian, preconditioned by a factorised Gauss-Newton matrix, and verify the result.

The iteration (:mod:`vhat.linalg.solvers.correction_loop`) takes a few steps, here called corrections, per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from vhat.checks import check_count, check_tolerance
from vhat.linalg.curvature import Operator
from vhat.linalg.solvers.cg import CG
from vhat.linalg.solvers.correction_loop import Correction, Spectrum, correct, find_spectrum
from vhat.linalg.solvers.factorised import Factorised, ImplicitSolution
from vhat.linalg.solvers.interface import (
    SUPPORT_FLOOR,
    Norms,
    Record,
    Response,
    Solution,
    Status,
    Stopped,
    concatenate,
    replace_rows,
    take_rows,
)
from vhat.linalg.solvers.preconditioned_cg import ACCEPTED, Preconditioned
from vhat.linalg.solvers.softest_direction import Preconditioner, SoftDirection
from vhat.models.problem import Array, Curvature, Problem
from vhat.progress import bar

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = [
    "GRADIENTS_PER_POINT",
    "Corrected",
    "CorrectedSolver",
    "ResidualProduct",
    "error_weights",
    "finite_rows",
    "random_combination",
    "verified_response",
    "with_fallback",
]

GRADIENTS_PER_POINT = 4.0
"""Planned cost per point under the exact Hessian, in gradients of the loss; a nearly singular Hessian takes more."""
_SOFTEST_RTOL = 1e-4
"""Largest relative error of the square root of V that an undetected residual along the softest direction may cause."""
_DRAWS = 8
"""Number of random-sign combinations from which the one used to verify a block is chosen."""
_MAX_CORRECTIONS = 200
"""Corrections after which a row is passed to the fallback solver; an accurate factor needs fewer."""


@dataclass(frozen=True)
class CorrectedSolver:
    """Options that :class:`vhat.Primal` and :class:`vhat.Dual` share: tolerance, steps and block size."""

    rtol: float = 2e-6
    max_steps: int = 500
    block: int = 64

    def __post_init__(self) -> None:
        check_tolerance("rtol", self.rtol)
        check_count("max_steps", self.max_steps, least=1)
        check_count("block", self.block, least=1)

    @property
    def name(self) -> str:
        """The solver's name in results."""
        return type(self).__name__.lower()

    @property
    def forms_matrix(self) -> bool:
        """Whether ``A`` itself is formed: no, only its Gauss-Newton part is factorised."""
        return False

    def fallback(
        self, work: SolverWorkspace, curvature: Curvature, metric: Preconditioner, soft: SoftDirection | None
    ) -> Preconditioned:
        """Return the solver for rows in which the corrections fail."""
        options = CG(rtol=min(self.rtol, 1e-7), max_steps=self.max_steps, block=self.block)
        return Preconditioned(options, work.problem, curvature, metric, work.scale(), self.name, soft)


@dataclass(frozen=True)
class Corrected:
    """Conjugate gradients on ``A``, preconditioned by a factorised ``P`` and started at the Gauss-Newton solution.

    Attributes:
        problem: The training problem.
        curvature: The matrix ``A``.
        factor: ``P``, factorised.
        fallback: Solver for rows in which the corrections fail.
        product: ``A q - P q``, in single precision if that is accurate enough.
        spectrum: Estimated bounds of the spectrum of ``P^-1 A``.
        rtol: Estimated relative error of ``sqrt(V)`` at which a row stops.
        max_steps: Corrections after which a row is passed to ``fallback``.
        block: Rows corrected together.
        name: The solver's name in results.
    """

    problem: Problem
    curvature: Curvature
    factor: Factorised = field(repr=False)
    fallback: Preconditioned = field(repr=False)
    product: ResidualProduct = field(repr=False)
    spectrum: Spectrum
    rtol: float
    max_steps: int
    block: int
    name: str

    @staticmethod
    def make(
        factor: Factorised, fallback: Preconditioned, soft: SoftDirection | None, options: CorrectedSolver
    ) -> Corrected:
        """Return the solver, after measuring the error of single-precision products and the spectrum of ``P^-1 A``."""
        problem = fallback.problem
        curvature = fallback.curvature
        product = ResidualProduct.make(problem, curvature, factor)
        spectrum = find_spectrum(factor, product)
        if soft is not None:
            spectrum = spectrum.with_direction(factor, product, problem.numpy(soft.vector))
        return Corrected(
            problem=problem,
            curvature=curvature,
            factor=factor,
            fallback=fallback,
            product=product,
            spectrum=spectrum,
            rtol=options.rtol,
            max_steps=min(options.max_steps, _MAX_CORRECTIONS),
            block=options.block,
            name=options.name,
        )

    def solve(self, g: Array) -> Solution:
        """Solve for each row of g."""
        return self.fallback.solve(g)

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return the scalars that intervals need."""
        return self._in_blocks(g, partial(self.factor.norms, sigma=sigma), partial(self.fallback.norms, sigma=sigma))

    def respond(self, g: Array) -> Response:
        """Return the images of the solutions over the training rows."""
        return self._in_blocks(g, self.factor.response, self.fallback.respond)

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """None: A is not factorised."""
        return None

    def _in_blocks(self, g: Array, read: Callable[[Response], Record], fallback: Callable[[Array], Record]) -> Record:
        """Solve block by block and return the record of all rows.

        Args:
            g: Right-hand sides, p-space (k, p).
            read: Converts a response, whose images are in the factorisation's own form, to the record.
            fallback: Returns the record of right-hand sides in which the corrections failed.

        Raises:
            Stopped: On Ctrl-C, with the record of the rows that are finished.
        """
        parts: list[Record] = []
        product = self.product
        starts = range(0, len(g), self.block)
        with bar("corrections", len(starts)) as advance:
            for start in starts:
                rows = g[start : start + self.block]
                try:
                    answer, good, product = self._solve_block(rows, product)
                    parts.append(with_fallback(read(answer), good, rows, fallback))
                except Stopped as stop:  # raised by the fallback solver
                    done = np.append(np.arange(start), start + stop.rows)
                    raise Stopped(done, concatenate([*parts, stop.partial])) from None
                except KeyboardInterrupt:
                    if not parts:
                        raise
                    raise Stopped(np.arange(start), concatenate(parts)) from None
                advance("")
        return concatenate(parts)

    def _solve_block(self, g: Array, product: ResidualProduct) -> tuple[Response, np.ndarray, ResidualProduct]:
        """Solve for some rows and verify them.

        All rows are verified together by one random combination. If that fails, and products were in single precision,
        the block is solved again in double precision. If it fails again, each row is verified by itself.

        Returns:
            The response, which of its rows are good, (k,) of bool, and the product for the next rows: in double
            precision if single precision was not accurate enough.
        """
        rows, finite = finite_rows(self.problem, g)
        gradients = g if finite.all() else None
        answer = correct(self.factor, rows, product, self.spectrum, self.rtol, self.max_steps, gradients)
        single = math.isfinite(product.single_error)
        weights = error_weights(self.factor, answer)
        # In single precision a direction of very little curvature may seem to have negative curvature.
        doubtful = (answer.status == Status.INDEFINITE) & single
        ended = (answer.status != Status.NOT_CONVERGED) & ~doubtful
        # The weights are zero for rows that did not converge, which therefore do not enter the combination.
        signs = random_combination(weights, answer.image)
        x = np.zeros_like(rows) if answer.x is None else answer.x
        image = np.tensordot(signs[None], answer.image, axes=1)
        error = self._errors((signs @ rows)[None], (signs @ x)[None], answer.last.combined(signs), image)
        if ended.all() and error[0] <= ACCEPTED:
            return verified_response(answer, finite, error), np.ones(len(rows), dtype=bool), product
        if single and (ended | doubtful).all():
            return self._solve_block(g, replace(product, single_error=math.inf))
        c = weights[:, None]
        error = self._errors(c * rows, c * x, answer.last.times(weights), c[:, :, None] * answer.image)
        return verified_response(answer, finite, error), ended & (error <= ACCEPTED), product

    def _errors(self, g: np.ndarray, x: np.ndarray, z: ImplicitSolution, image: np.ndarray) -> np.ndarray:
        """Return the error of ``s'J h`` in each row, (k,), by the framework's derivatives; infinite if it is too large.

        For ``h = x + z``, ``m = g - A x - P z`` is zero up to rounding. The rest of the equation, ``R z``, is already
        in the error estimate of the iteration. The vector m changes the image ``s'J h``, whose length is the square
        root of V, by about ``sqrt(m' P^-1 m)``, and along the softest direction by that divided by the smallest
        eigenvalue of ``P^-1 A``. The check takes two products with the framework's derivatives, which were not used
        for the factor; they verify one row, or a whole block through a combination of its rows.
        """
        problem = self.problem
        factor = self.factor
        h = factor.lift(z)
        # If the factor replaced negative curvature by zero, no product of the framework gives its P.
        metric: Curvature = "ggn" if factor.exact else self.curvature
        m = problem.native(g) - Operator(problem, metric)(problem.native(h))
        m = m - Operator(problem, self.curvature)(problem.native(x))
        error = factor.solve_implicit(problem.numpy(m)).size
        discrepancy = factor.image_discrepancy(h + x, image)
        return np.where(error > _SOFTEST_RTOL * self.spectrum.smallest, np.inf, np.maximum(error, discrepancy))


def finite_rows(problem: Problem, g: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows as a NumPy array with non-finite rows set to zero, and which rows were finite, (k,) of bool."""
    rows = problem.numpy(g)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        rows = np.where(finite[:, None], rows, 0.0)
    return rows, finite


def error_weights(factor: Factorised, answer: Correction) -> np.ndarray:
    """Return ``1 / |s'J h|`` of the converged rows, (k,), which makes errors relative; zero for the other rows."""
    good = answer.status == Status.CONVERGED
    # The floor keeps the relative error of predictions with almost no support finite.
    size = np.maximum(factor.lengths(answer.image), SUPPORT_FLOOR * np.sqrt(np.maximum(answer.energy, 0.0)))
    return np.divide(1.0, size, out=np.zeros_like(size), where=good & (size > 0))


def random_combination(weights: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Return coefficients of a combination of rows whose error is on average the root mean square error, (k,).

    With random signs ``e``, ``E |sum_i e_i w_i m_i|^2 = sum_i |w_i m_i|^2`` for errors ``m_i``. In a bad draw, rows
    that are alike or opposite cancel, and their errors with them. Of several draws, the one whose combined image (in
    the form of the factorisation) is longest is therefore used.
    """
    converged = max(int(np.count_nonzero(weights)), 1)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_DRAWS, len(weights)))
    draws = signs * weights / math.sqrt(converged)
    lengths = np.linalg.norm(draws @ np.nan_to_num(image).reshape(len(weights), -1), axis=1)
    best: np.ndarray = draws[np.argmax(lengths)]
    return best


def with_fallback(record: Record, good: np.ndarray, g: Array, fallback: Callable[[Array], Record] | None) -> Record:
    """Return the record with the rows that are not good replaced by those of the fallback solver.

    Args:
        record: The result of the first solver.
        good: Which of its rows are good, (k,) of bool.
        g: The right-hand sides.
        fallback: Solves for right-hand sides; None without one: rows that are not good are then not converged.

    Raises:
        Stopped: On Ctrl-C, with the record of the rows that are finished.
    """
    kept = np.flatnonzero(good)
    rest = np.flatnonzero(~good)
    if not rest.size:  # similar errors may add up in a combination and yet be small in every row
        return record
    if fallback is None:
        unverified = ~good & (record.status == Status.CONVERGED)
        return replace(record, status=np.where(unverified, Status.NOT_CONVERGED.value, record.status))
    try:
        return replace_rows(record, rest, fallback(g[rest]))
    except Stopped as stop:
        raise Stopped(np.append(kept, rest[stop.rows]), concatenate([take_rows(record, kept), stop.partial])) from None
    except KeyboardInterrupt:
        if not kept.size:
            raise
        raise Stopped(kept, take_rows(record, kept)) from None


def verified_response(answer: Correction, finite: np.ndarray, error: np.ndarray) -> Response:
    """Return the response of a verified solution; its residual is at least ``error``, (k,) or (1,)."""
    return Response(
        image=answer.image,
        energy=answer.energy,
        pull=answer.pull,
        status=np.where(finite, answer.status, Status.NOT_FINITE.value),
        residual=np.maximum(answer.error, error),
        steps=answer.steps,
    )


@dataclass(frozen=True)
class ResidualProduct:
    """``R q = A q - P q`` for directions with known ``P q``, in single precision if that is accurate enough.

    Attributes:
        problem: The training problem.
        curvature: The matrix ``A``.
        single_error: Relative error of a product in single precision, in the metric of P; infinite if there is none.
    """

    problem: Problem
    curvature: Curvature
    single_error: float

    def __call__(self, q: np.ndarray, Pq: np.ndarray, tolerance: float) -> tuple[np.ndarray, bool]:
        """Return ``R q`` for each row, and whether it was computed in single precision.

        The error is at most ``tolerance |q|`` in the metric of P.
        """
        if self.single_error <= tolerance:
            found = self.problem.residual_product(q)
            if found is not None:
                return found, True
        return self.problem.numpy(Operator(self.problem, self.curvature)(self.problem.native(q))) - Pq, False

    @staticmethod
    def make(problem: Problem, curvature: Curvature, factor: Factorised) -> ResidualProduct:
        """Return the product, after measuring the error of single precision on one random direction."""
        double = ResidualProduct(problem, curvature, np.inf)
        if not (curvature == "hessian" and factor.exact):
            return double
        r = factor.probe(seed=0)
        z = factor.solve_implicit(r)
        q = factor.lift(z)
        in_single = problem.residual_product(q)
        if in_single is None or not z.energy[0] > 0:
            return double
        exact = factor.solve_implicit(double(q, r, 0.0)[0])
        # The iteration also computes the cross products of R q in single precision: include their error.
        approximate = factor.solve_implicit(in_single, cross=factor.cross(in_single, single=True))
        difference = factor.lift(approximate) - factor.lift(exact)
        error = np.sqrt(np.einsum("kp,kp->k", difference, factor.apply(difference)) / z.energy)[0]
        return replace(double, single_error=float(error) if np.isfinite(error) else np.inf)
