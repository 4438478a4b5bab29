"""The exact Hessian from a factorised Gauss-Newton matrix: a few corrections a row, and a check of what comes out."""

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
from vhat.linalg.solvers.factorised import Factorised, SeenRows
from vhat.linalg.solvers.interface import (
    DARK,
    Norms,
    Record,
    Response,
    Solution,
    Status,
    Stopped,
    joined,
    put,
    taken,
)
from vhat.linalg.solvers.preconditioned_cg import ACCEPTED, Preconditioned
from vhat.linalg.solvers.softest_direction import Measure, Soft
from vhat.models.problem import Array, Curvature, Problem
from vhat.progress import bar

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = [
    "Corrected",
    "CorrectedSolver",
    "Product",
    "combination",
    "finished",
    "rows_and_finite",
    "verified",
    "weights_of",
]

_TRUSTED = 1e-4
"""Relative error of the root of V that may be left along the softest direction."""
_DRAWS = 8
"""Of random signs for the rows that are verified together."""
_QUICK_STEPS = 200
"""Corrections after which a row is left to the careful solver: a factor with all its digits needs fewer."""


@dataclass(frozen=True)
class CorrectedSolver:
    """The options that :class:`vhat.Primal` and :class:`vhat.Dual` share: how far rows are corrected."""

    rtol: float = 2e-6
    max_steps: int = 500
    block: int = 64

    def __post_init__(self) -> None:
        check_tolerance("rtol", self.rtol)
        check_count("max_steps", self.max_steps, least=1)
        check_count("block", self.block, least=1)

    @property
    def name(self) -> str:
        """The name that results carry."""
        return type(self).__name__.lower()

    @property
    def forms_matrix(self) -> bool:
        """Whether ``A`` itself is formed: no, its Gauss-Newton part is factorised."""
        return False

    def careful(
        self, work: SolverWorkspace, curvature: Curvature, metric: Measure, soft: Soft | None
    ) -> Preconditioned:
        """Return what answers rows that the corrections do not finish."""
        options = CG(rtol=min(self.rtol, 1e-7), max_steps=self.max_steps, block=self.block)
        return Preconditioned(options, work.problem, curvature, metric, work.scale(), self.name, soft)


@dataclass(frozen=True)
class Corrected:
    """Conjugate gradients on ``A`` from the Gauss-Newton solution, in the metric of a factorised ``P``.

    Attributes:
        problem: The training problem.
        curvature: Which ``A``.
        factor: ``P``, factorised.
        careful: What answers rows that the corrections do not finish.
        product: ``A q - P q``, in single precision where that is enough.
        spectrum: What is known of ``P^-1 A`` beforehand.
        rtol: Relative error of ``sqrt(V)`` at which a row stops, by its estimate.
        max_steps: Corrections after which a row is left to ``careful``.
        block: How many rows are corrected together.
        name: Of the solver that made it.
    """

    problem: Problem
    curvature: Curvature
    factor: Factorised = field(repr=False)
    careful: Preconditioned = field(repr=False)
    product: Product = field(repr=False)
    spectrum: Spectrum
    rtol: float
    max_steps: int
    block: int
    name: str

    @staticmethod
    def make(factor: Factorised, careful: Preconditioned, soft: Soft | None, options: CorrectedSolver) -> Corrected:
        """Measure the single-precision product and the spectrum, which every row then relies on."""
        problem, curvature = careful.problem, careful.curvature
        product = Product.make(problem, curvature, factor)
        spectrum = find_spectrum(factor, product)
        if soft is not None:
            spectrum = spectrum.with_direction(factor, product, problem.numpy(soft.vector))
        steps = min(options.max_steps, _QUICK_STEPS)
        return Corrected(
            problem, curvature, factor, careful, product, spectrum, options.rtol, steps, options.block, options.name
        )

    def solve(self, g: Array) -> Solution:
        """Solve for each row of g."""
        return self.careful.solve(g)

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return what intervals need of the solutions."""
        return self._answer(g, partial(self.factor.norms, sigma=sigma), partial(self.careful.norms, sigma=sigma))

    def respond(self, g: Array) -> Response:
        """Return what the training rows see of the solutions."""
        return self._answer(g, self.factor.response, self.careful.respond)

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """None: A is not factorised."""
        return None

    def _answer(self, g: Array, read: Callable[[Response], Record], careful: Callable[[Array], Record]) -> Record:
        """Answer block by block.

        Args:
            g: Right-hand sides, p-space (k, p).
            read: From an answer whose images are in the factorisation's own form to the record that is wanted.
            careful: From right-hand sides that were not finished to the same record.

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
                    answer, good, product = self._block(rows, product)
                    parts.append(finished(read(answer), good, rows, careful))
                except Stopped as stop:  # in the careful solver's hands
                    done = np.append(np.arange(start), start + stop.rows)
                    raise Stopped(done, joined([*parts, stop.partial])) from None
                except KeyboardInterrupt:
                    if not parts:
                        raise
                    raise Stopped(np.arange(start), joined(parts)) from None
                advance("")
        return joined(parts)

    def _block(self, g: Array, product: Product) -> tuple[Response, np.ndarray, Product]:
        """Answer some rows.

        Returns:
            The answer, which of its rows are good, (k,) of bool, and the product for the next rows: in double precision
            if single was not good enough.
        """
        rows, finite = rows_and_finite(self.problem, g)
        gradients = g if finite.all() else None
        answer = correct(self.factor, rows, product, self.spectrum, self.rtol, self.max_steps, gradients)
        single = math.isfinite(product.slip)
        weights = weights_of(self.factor, answer)
        # what single precision calls negative curvature may be a soft direction
        doubtful = (answer.status == Status.INDEFINITE) & single
        arrived = (answer.status != Status.NOT_CONVERGED) & ~doubtful
        together = combination(weights, answer.image)
        x = np.zeros_like(rows) if answer.x is None else answer.x
        image = np.tensordot(together[None], answer.image, axes=1)
        error = self._errors((together @ rows)[None], (together @ x)[None], answer.last.combined(together), image)
        if arrived.all() and error[0] <= ACCEPTED:
            return verified(answer, finite, error), np.ones(len(rows), dtype=bool), product
        if single and (arrived | doubtful).all():
            return self._block(g, replace(product, slip=math.inf))
        c = weights[:, None]
        error = self._errors(c * rows, c * x, answer.last.times(weights), c[:, :, None] * answer.image)
        return verified(answer, finite, error), arrived & (error <= ACCEPTED), product

    def _errors(self, g: np.ndarray, x: np.ndarray, seen: SeenRows, image: np.ndarray) -> np.ndarray:
        """Return how far ``s'J h`` of each row is off, (k,), infinite where that is too far.

        For ``h = x + z``, ``m = g - A x - P z`` is zero but for rounding: what is left of the equation, ``R z``, is the
        iteration's to judge. It moves the image ``s'J h``, whose length is the root of V, by some ``sqrt(m' P^-1 m)``,
        and along the softest direction by that over the smallest eigenvalue of ``P^-1 A``. Two products with the front
        end's derivatives, which the factor never saw, vouch for a row, or by a combination for a whole block.
        """
        problem, factor = self.problem, self.factor
        h = factor.lift(seen)
        # a factor that clipped negative curvature has a P that no product of the front end gives
        metric: Curvature = "ggn" if factor.exact else self.curvature
        r = problem.native(g) - Operator(problem, metric)(problem.native(h))
        r = r - Operator(problem, self.curvature)(problem.native(x))
        error = factor.look(problem.numpy(r)).size
        apart = factor.apart(h + x, image)
        return np.where(error > _TRUSTED * self.spectrum.smallest, np.inf, np.maximum(error, apart))


def rows_and_finite(problem: Problem, g: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in NumPy, those that are not finite made zero, and which were."""
    rows = problem.numpy(g)
    finite = np.isfinite(rows).all(axis=1)
    return (rows if finite.all() else np.where(finite[:, None], rows, 0.0)), finite


def weights_of(factor: Factorised, answer: Correction) -> np.ndarray:
    """Return ``1 / |s'J h|`` of the rows that arrived, (k,), by which errors are made relative; zero for the others."""
    good = answer.status == Status.CONVERGED
    size = np.maximum(factor.lengths(answer.image), DARK * np.sqrt(np.maximum(answer.energy, 0.0)))
    return np.divide(1.0, size, out=np.zeros_like(size), where=good & (size > 0))


def combination(weights: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Return weights such that what a combination of rows is off by is what they are off by on average, (k,).

    With random signs ``e``, the sum of ``e_i w_i m_i`` over errors ``m_i`` has the sum of the squares of ``w_i m_i``
    for its mean square. Rows that are alike or opposite could cancel, their errors with them: of a few draws, the one
    that leaves the most of the images, in the form of the factorisation, is taken.
    """
    known = max(int(np.count_nonzero(weights)), 1)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_DRAWS, len(weights)))
    draws = signs * weights / math.sqrt(known)
    shown = np.linalg.norm(draws @ np.nan_to_num(image).reshape(len(weights), -1), axis=1)
    best: np.ndarray = draws[np.argmax(shown)]
    return best


def finished(record: Record, good: np.ndarray, g: Array, careful: Callable[[Array], Record] | None) -> Record:
    """Have the rows that are not good answered by the careful solver; their neighbours stay as they are.

    Args:
        record: What was found.
        good: Which rows of it are good, (k,) of bool.
        g: The right-hand sides.
        careful: Answers right-hand sides; None where nothing would, and such rows are not converged.
    """
    kept, rest = np.flatnonzero(good), np.flatnonzero(~good)
    if not rest.size:  # errors that are alike may add up in a combination, and be small in every row
        return record
    if careful is None:
        return replace(record, status=np.where(good, record.status, Status.NOT_CONVERGED.value))
    try:
        return put(record, rest, careful(g[rest]))
    except Stopped as stop:
        raise Stopped(np.append(kept, rest[stop.rows]), joined([taken(record, kept), stop.partial])) from None
    except KeyboardInterrupt:
        if not kept.size:
            raise
        raise Stopped(kept, taken(record, kept)) from None


def verified(answer: Correction, finite: np.ndarray, error: np.ndarray) -> Response:
    """Return a verified answer, its rows off by ``error``, (k,) or (1,), at least."""
    return Response(
        image=answer.image,
        energy=answer.energy,
        pull=answer.pull,
        status=np.where(finite, answer.status, Status.NOT_FINITE.value),
        residual=np.maximum(answer.error, error),
        steps=answer.steps,
    )


@dataclass(frozen=True)
class Product:
    """``R q = A q - P q`` for directions whose ``P q`` is known; where that is enough, in single precision.

    Attributes:
        problem: The training problem.
        curvature: Which ``A``.
        slip: Relative error of the single-precision way in the metric of P; infinite where there is none.
    """

    problem: Problem
    curvature: Curvature
    slip: float

    def __call__(self, q: np.ndarray, Pq: np.ndarray, tolerance: float) -> tuple[np.ndarray, bool]:
        """Return ``R q`` for each row, right to ``tolerance |q|`` in the metric of P, and whether in single."""
        found = self.problem.residual_product(q) if self.slip <= tolerance else None
        if found is not None:
            return found, True
        return self.problem.numpy(Operator(self.problem, self.curvature)(self.problem.native(q))) - Pq, False

    @staticmethod
    def make(problem: Problem, curvature: Curvature, factor: Factorised) -> Product:
        """Measure the single-precision way on one direction that the data see."""
        double = Product(problem, curvature, np.inf)
        r = factor.probe(seed=0)
        seen = factor.look(r)
        q = factor.lift(seen)
        narrow = problem.residual_product(q) if curvature == "hessian" and factor.exact else None
        if narrow is None or not seen.energy[0] > 0:
            return double
        wide = factor.look(double(q, r, 0.0)[0])
        # what the rest of the iteration takes the image of R q for is off as well
        off = factor.look(narrow, cross=factor.cross(narrow, single=True))
        gap = factor.lift(off) - factor.lift(wide)
        slip = np.sqrt(np.einsum("kp,kp->k", gap, factor.apply(gap)) / seen.energy)[0]
        return replace(double, slip=float(slip) if np.isfinite(slip) else np.inf)
