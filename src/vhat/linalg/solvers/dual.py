"""Every test point through one n x n factorisation: Gauss-Newton directly, the exact Hessian in a few corrections."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from vhat.checks import check_count, check_tolerance
from vhat.linalg.curvature import Operator
from vhat.linalg.solvers.cg import CG
from vhat.linalg.solvers.data_space_cg import Correction, Spectrum, correct, find_spectrum
from vhat.linalg.solvers.interface import DARK, Prepared, Response, Solution, Status, Stopped, joined, metric_norm
from vhat.linalg.solvers.jacobian_svd import Orthogonal
from vhat.linalg.solvers.kernel import Kernel, Seen, make_kernel
from vhat.linalg.solvers.preconditioned_cg import ACCEPTED, Preconditioned, judged
from vhat.linalg.solvers.softest_direction import Soft
from vhat.models.problem import Array, Curvature, Problem

__all__ = ["Corrected", "Dual", "GaussNewton"]

_EPS = float(np.finfo(float).eps)
_DIRECT = 1e-8
"""Relative error of a direct solution, in the metric of P, to which it is refined."""
_REFINEMENTS = 2
"""Of a direct solution: each costs one product, and takes off what rounding in the kernel has left."""
_ROUNDED = 1e-5
"""Relative error of a Gauss-Newton answer above which conjugate gradients take over. A decay 1e-10 times the largest
curvature leaves an error of 1e-6 to any solver in double precision, for the derivatives themselves are rounded."""
_SQUARED = 1e-3
"""Rounding in the kernel beside the 1 that is added to it, above which neither it nor a solver that multiplies with P
can be relied on: both square the Jacobian."""
_LOST = 1e8
"""By how much rounding may be magnified in ``g'h`` before it is summed up from what is positive."""
_TRUSTED = 1e-4
"""Relative error of the root of V that may be left along the softest direction."""
_DRAWS = 8
"""Of random signs for the rows that are verified together."""
_QUICK_STEPS = 200
"""Corrections after which a row is left to the careful solver: a kernel with all its digits needs fewer."""


@dataclass(frozen=True)
class Dual:
    """Factorise the n x n kernel ``J lam^-1 J'`` once; it answers Gauss-Newton, and preconditions the exact Hessian.

    Attributes:
        rtol: A row of the exact Hessian stops when the estimated relative error of ``sqrt(V)`` is below this.
        max_steps: Corrections after which a row is given up.
        block: How many right-hand sides are corrected together.
    """

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
        return "dual"

    def prepare(
        self,
        problem: Problem,
        curvature: Curvature,
        scale: Array,
        kernel: Kernel | None = None,
        soft: Soft | None = None,
    ) -> Prepared:
        """Factorise, or take the factorisation that is at hand.

        Args:
            problem: The training problem.
            curvature: Which matrix.
            scale: The unit of each parameter.
            kernel: The factorisation, if it is at hand.
            soft: The direction of least curvature, if it is known: rows that hardly meet it go on until what
                they may miss of it is small.

        Raises:
            MemoryBudgetError: When the kernel does not fit.
            NotPositiveDefinite: When parameters without decay are not determined by the data.
        """
        kernel = make_kernel(problem) if kernel is None else kernel
        options = CG(rtol=min(self.rtol, 1e-7), max_steps=self.max_steps, block=self.block)
        careful = Preconditioned(options, problem, curvature, kernel, scale, self.name, soft)
        if kernel.root.hides(problem.loss_derivatives.cross):
            return careful
        if curvature == "ggn" and kernel.root.exact:
            hopeless = not kernel.structure.free.size and _EPS * float(np.sum(kernel.diagonal)) > _SQUARED
            if hopeless and Orthogonal.fits(kernel):
                return Orthogonal(kernel)
            return GaussNewton(problem, kernel, scale, None if hopeless else careful, self.block)
        product = Product.make(problem, curvature, kernel)
        spectrum = find_spectrum(kernel, product)
        if soft is not None:
            spectrum = spectrum.with_direction(kernel, product, problem.numpy(soft.vector))
        return Corrected(self, problem, curvature, kernel, scale, careful, product, spectrum)


@dataclass(frozen=True)
class GaussNewton:
    """``P^-1`` through the kernel; a response needs no vector of length p but the right-hand side.

    Attributes:
        problem: The training problem.
        kernel: The factorisation.
        scale: The unit of each parameter.
        careful: What answers rows that the kernel has lost; None where nothing would.
        block: How many rows are lifted to the space of parameters together.
        name: Of the solver that made it.
    """

    problem: Problem
    kernel: Kernel = field(repr=False)
    scale: Array = field(repr=False)
    careful: Preconditioned | None = field(repr=False)
    block: int
    name: str = "dual"

    def solve(self, g: Array) -> Solution:
        """Solve ``P h = g`` for each row; where the kernel has lost digits it is a preconditioner and no more."""
        rows, finite = _finite(self.problem, g)
        if self.careful is not None and not finite.all():
            return self.careful.solve(g)
        operator, seen = Operator(self.problem, "ggn"), self.kernel.look(rows)
        h, size = self.kernel.lift(seen), np.sqrt(np.abs(seen.energy))
        for step in range(1 + _REFINEMENTS):
            r = g - operator(self.problem.native(h))
            left = self.kernel.look(self.problem.numpy(r))
            enough = _DIRECT if step < _REFINEMENTS else _ROUNDED
            if np.all(left.size <= enough * size):
                residual = judged(self.problem, r, metric_norm(self.problem, g, self.scale), self.scale)[1]
                status = np.full(len(h), Status.CONVERGED.value)
                return Solution(self.problem.native(h), status, residual, np.full(len(h), 1 + step))
            h = h + self.kernel.lift(left)
        if self.careful is not None:
            return self.careful.solve(g)
        status = np.where(finite, Status.NOT_CONVERGED.value, Status.NOT_FINITE.value)
        residual = np.divide(left.size, size, out=np.zeros_like(size), where=size > 0)
        return Solution(self.problem.native(h), status, residual, np.full(len(h), 1 + _REFINEMENTS))

    def respond(self, g: Array) -> Response:
        """Answer from the data's side; one random combination of the rows is verified by the front end."""
        rows, finite = _finite(self.problem, g)
        seen = self._settled(self.kernel.look(rows, g if finite.all() else None))
        answer = Correction.none(self.kernel, seen)
        weights = _weights(self.kernel, answer)
        together = _together(weights, answer.image)
        error = self._errors((together @ rows)[None], answer.last.combined(together))
        if error[0] <= _ROUNDED:
            return _response(answer, finite, error)
        parts = self._parts(np.arange(len(rows)))
        alone = [self._errors(weights[at, None] * rows[at], seen.take(at).times(weights[at])) for at in parts]
        error = np.concatenate(alone)
        return _finished(self.careful, g, _response(answer, finite, error), error <= _ROUNDED)

    def _parts(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Cut rows into as many as are lifted to the space of parameters together."""
        return (rows[start : start + self.block] for start in range(0, len(rows), self.block))

    def _settled(self, seen: Seen) -> Seen:
        """Return the same with ``g'h = |s'J h|^2 + h'Lam h`` where as a difference it has lost digits."""
        energy, kernel = seen.energy.copy(), self.kernel
        for rows in self._parts(np.flatnonzero(seen.lost > _LOST)):
            part = seen.take(rows)
            held, pulled = kernel.root.times(part.image), kernel.root_decay * kernel.lift(part)
            energy[rows] = np.sum(held**2, axis=(1, 2)) + np.sum(pulled**2, axis=1)
        return replace(seen, energy=energy)

    def _errors(self, g: np.ndarray, seen: Seen) -> np.ndarray:
        """Return how far ``s'J h`` of each row is off, (k,), by derivatives of the front end that the kernel never saw.

        ``u = s'J P^-1 g`` is right if ``h = Lam^-1 (g - J's u)`` has ``u`` for its image, and ``s'J h - u = B d`` for
        ``u + d`` that is. The residual of h in the space of parameters would tell less: a small decay magnifies what
        rounding leaves of h in directions that no row sees, and V does not see them either.
        """
        problem, kernel, free = self.problem, self.kernel, self.kernel.structure.free
        rest = g - problem.numpy(problem.vjp(seen.pushed.reshape(seen.image.shape)))
        h = rest * kernel.inverse_root**2
        h[:, free] = seen.free
        r = np.zeros_like(rest)
        r[:, free] = rest[:, free]
        apart = problem.jvp(problem.native(h)) - seen.image
        d = kernel.look(r, cross=apart.reshape(len(g), -1)).image
        return kernel.lengths(d)


@dataclass(frozen=True)
class Corrected:
    """The exact Hessian: conjugate gradients from the Gauss-Newton solution, seen from the data."""

    options: Dual
    problem: Problem
    curvature: Curvature
    kernel: Kernel = field(repr=False)
    scale: Array = field(repr=False)
    careful: Preconditioned = field(repr=False)
    product: Product = field(repr=False)
    spectrum: Spectrum
    name: str = "dual"

    def solve(self, g: Array) -> Solution:
        """Solve for each row of g."""
        return self.careful.solve(g)

    def respond(self, g: Array) -> Response:
        """Answer from the data's side; one random combination of the rows is verified in the space of parameters."""
        parts: list[Response] = []
        product = self.product
        for start in range(0, len(g), self.options.block):
            try:
                found, product = self._block(g[start : start + self.options.block], product)
                parts.append(found)
            except Stopped as stop:  # in the careful solver's hands
                raise Stopped(np.append(np.arange(start), start + stop.rows), joined([*parts, stop.partial])) from None
            except KeyboardInterrupt:
                if not parts:
                    raise
                raise Stopped(np.arange(start), joined(parts)) from None
        return joined(parts)

    def _block(self, g: Array, product: Product) -> tuple[Response, Product]:
        """Answer some rows; return also the product for the next ones, in double if single was not good enough."""
        rows, finite = _finite(self.problem, g)
        most, gradients = min(self.options.max_steps, _QUICK_STEPS), g if finite.all() else None
        answer = correct(self.kernel, rows, product, self.spectrum, self.options.rtol, most, gradients)
        single, weights = math.isfinite(product.slip), _weights(self.kernel, answer)
        # what single precision calls negative curvature may be a soft direction
        doubtful = (answer.status == Status.INDEFINITE) & single
        arrived = (answer.status != Status.NOT_CONVERGED) & ~doubtful
        together = _together(weights, answer.image)
        x = np.zeros_like(rows) if answer.x is None else answer.x
        image = np.tensordot(together[None], answer.image, axes=1)
        error = self._errors((together @ rows)[None], (together @ x)[None], answer.last.combined(together), image)
        if arrived.all() and error[0] <= ACCEPTED:
            return _response(answer, finite, error), product
        if single and (arrived | doubtful).all():
            return self._block(g, replace(product, slip=math.inf))
        c = weights[:, None]
        error = self._errors(c * rows, c * x, answer.last.times(weights), c[:, :, None] * answer.image)
        return _finished(self.careful, g, _response(answer, finite, error), arrived & (error <= ACCEPTED)), product

    def _errors(self, g: np.ndarray, x: np.ndarray, seen: Seen, image: np.ndarray) -> np.ndarray:
        """Return how far ``s'J h`` of each row is off, (k,), infinite where that is too far.

        For ``h = x + z``, ``m = g - A x - P z`` is zero but for rounding: what is left of the equation, ``R z``, is the
        iteration's to judge. It moves the image ``s'J h``, whose length is the root of V, by some ``sqrt(m' P^-1 m)``,
        and along the softest direction by that over the smallest eigenvalue of ``P^-1 A``. Two products with the front
        end's derivatives, which the kernel never saw, vouch for a row, or by a combination for a whole block.
        """
        problem, kernel = self.problem, self.kernel
        h = kernel.lift(seen)
        # a kernel that clipped negative curvature has a P that no product of the front end gives
        metric: Curvature = "ggn" if kernel.root.exact else self.curvature
        r = problem.native(g) - Operator(problem, metric)(problem.native(h))
        r = r - Operator(problem, self.curvature)(problem.native(x))
        error = kernel.look(problem.numpy(r)).size
        apart = kernel.lengths(problem.jvp(problem.native(h + x)) - image)
        return np.where(error > _TRUSTED * self.spectrum.smallest, np.inf, np.maximum(error, apart))


def _finite(problem: Problem, g: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in NumPy, those that are not finite made zero, and which were."""
    rows = problem.numpy(g)
    finite = np.isfinite(rows).all(axis=1)
    return (rows if finite.all() else np.where(finite[:, None], rows, 0.0)), finite


def _weights(kernel: Kernel, answer: Correction) -> np.ndarray:
    """Return ``1 / |s'J h|`` of the rows that arrived, (k,), by which errors are made relative; zero for the others."""
    good = answer.status == Status.CONVERGED
    size = np.maximum(kernel.lengths(answer.image), DARK * np.sqrt(np.maximum(answer.energy, 0.0)))
    return np.divide(1.0, size, out=np.zeros_like(size), where=good & (size > 0))


def _together(weights: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Return weights such that what a combination of rows is off by is what they are off by on average, (k,).

    With random signs ``e``, the sum of ``e_i w_i m_i`` over errors ``m_i`` has the sum of the squares of ``w_i m_i``
    for its mean square. Rows that are alike or opposite could cancel, their errors with them: of a few draws, the one
    that leaves the most of the images, (k, n, K), is taken.
    """
    known = max(int(np.count_nonzero(weights)), 1)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_DRAWS, len(weights)))
    draws = signs * weights / math.sqrt(known)
    shown = np.linalg.norm(draws @ np.nan_to_num(image).reshape(len(weights), -1), axis=1)
    best: np.ndarray = draws[np.argmax(shown)]
    return best


def _finished(careful: Preconditioned | None, g: Array, found: Response, good: np.ndarray) -> Response:
    """Have the rows that are not good answered by the careful solver; their neighbours stay as they are."""
    kept, rest = np.flatnonzero(good), np.flatnonzero(~good)
    if not rest.size:  # errors that are alike may add up in a combination, and be small in every row
        return found
    if careful is None:
        return replace(found, status=np.where(good, found.status, Status.NOT_CONVERGED.value))
    try:
        found.put(rest, careful.respond(g[rest]))
    except Stopped as stop:
        raise Stopped(np.append(kept, rest[stop.rows]), joined([found.take(kept), stop.partial])) from None
    except KeyboardInterrupt:
        if not kept.size:
            raise
        raise Stopped(kept, found.take(kept)) from None
    return found


def _response(answer: Correction, finite: np.ndarray, error: np.ndarray) -> Response:
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
        slip: Relative error of the single-precision way in the metric of the kernel; infinite where there is none.
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
    def make(problem: Problem, curvature: Curvature, kernel: Kernel) -> Product:
        """Measure the single-precision way on one direction that the data see."""
        double = Product(problem, curvature, np.inf)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(1, len(kernel.features)))
        r = kernel.features.transposed(signs) * kernel.root_decay
        seen = kernel.look(r)
        q = kernel.lift(seen)
        narrow = problem.residual_product(q) if curvature == "hessian" and kernel.root.exact else None
        if narrow is None or not seen.energy[0] > 0:
            return double
        wide = kernel.look(double(q, r, 0.0)[0])
        # what the rest of the iteration takes the image of R q for is off as well
        off = kernel.look(narrow, cross=kernel.cross(narrow, single=True))
        gap = kernel.lift(off) - kernel.lift(wide)
        slip = np.sqrt(np.einsum("kp,kp->k", gap, kernel.apply(gap)) / seen.energy)[0]
        return replace(double, slip=float(slip) if np.isfinite(slip) else np.inf)
