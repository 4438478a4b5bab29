"""Every test point through one n x n factorisation: Gauss-Newton directly, the exact Hessian in a few corrections."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from vhat.checks import check_count, check_tolerance
from vhat.curvature import Operator
from vhat.problem import Array, Curvature, Problem
from vhat.solve.cg import CG
from vhat.solve.contract import Prepared, Response, Solution, Status, Stopped, joined, metric_norm
from vhat.solve.correction import Correction, correct, find_contraction
from vhat.solve.kernel import Kernel, make_kernel
from vhat.solve.preconditioned import ACCEPTED, Preconditioned, judged

__all__ = ["Corrected", "Dual", "GaussNewton"]

_DIRECT = 1e-8
"""A relative residual above this sends a direct solution on to conjugate gradients."""
_QUICK_STEPS = 50
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

    def prepare(self, problem: Problem, curvature: Curvature, scale: Array, kernel: Kernel | None = None) -> Prepared:
        """Factorise, or take the factorisation that is at hand.

        Raises:
            MemoryBudgetError: When the kernel does not fit.
            NotPositiveDefinite: When parameters without decay are not determined by the data.
        """
        kernel = make_kernel(problem) if kernel is None else kernel
        options = CG(rtol=min(self.rtol, 1e-7), max_steps=self.max_steps, block=self.block)
        careful = Preconditioned(options, problem, curvature, kernel, scale, self.name)
        if kernel.root.hides(problem.loss_derivatives.cross):
            return careful
        if curvature == "ggn" and kernel.root.exact:
            return GaussNewton(problem, kernel, scale, careful)
        product = Product.make(problem, curvature, kernel)
        contraction = find_contraction(kernel, product)
        return Corrected(self, problem, curvature, kernel, scale, careful, product, contraction)


@dataclass(frozen=True)
class GaussNewton:
    """``P^-1`` through the kernel; a response needs no vector of length p but the right-hand side."""

    problem: Problem
    kernel: Kernel = field(repr=False)
    scale: Array = field(repr=False)
    careful: Preconditioned = field(repr=False)
    name: str = "dual"

    def solve(self, g: Array) -> Solution:
        """Solve ``P h = g`` for each row; where the kernel has lost digits it is a preconditioner and no more."""
        size = metric_norm(self.problem, g, self.scale)
        h = self.kernel.solve(g)
        status, residual = judged(self.problem, g - Operator(self.problem, "ggn")(h), size, self.scale)
        if np.any(residual > _DIRECT):
            return self.careful.solve(g)
        return Solution(h, status, residual, np.ones(len(size), dtype=int))

    def respond(self, g: Array) -> Response:
        """Answer from the data's side; one random combination of the rows is verified in the space of parameters."""
        rows, finite = _finite(self.problem, g)
        seen = self.kernel.look(rows, g if finite.all() else None)
        answer = Correction.none(self.kernel, rows, seen)
        found = _verified(self, "ggn", rows, finite, answer, _DIRECT)
        return self.careful.respond(g) if found is None else found


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
    contraction: float
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
        answer = correct(self.kernel, rows, product, self.contraction, self.options.rtol, most, gradients)
        found = _verified(self, self.curvature, rows, finite, answer, ACCEPTED)
        if found is not None:
            return found, product
        if math.isfinite(product.slip) and not np.any(answer.status == Status.NOT_CONVERGED):
            return self._block(g, replace(product, slip=math.inf))
        return self.careful.respond(g), product


def _finite(problem: Problem, g: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in NumPy, those that are not finite made zero, and which were."""
    rows = problem.numpy(g)
    finite = np.isfinite(rows).all(axis=1)
    return (rows if finite.all() else np.where(finite[:, None], rows, 0.0)), finite


def _verified(
    solver: GaussNewton | Corrected,
    curvature: Curvature,
    rows: np.ndarray,
    finite: np.ndarray,
    answer: Correction,
    accepted: float,
) -> Response | None:
    """Return the answer if all rows arrived and a random combination of them is what the iteration says, else None.

    With random signs, ``sum_i e_i m_i / |g_i|`` has the sum of ``|m_i|^2 / |g_i|^2`` for its mean square. For
    ``h = x + z``, ``m = g - A x - P z`` is zero but for rounding: what is left of the equation, ``R z``, is the
    iteration's to judge. Two products with the front end's derivatives, which the kernel never saw, then vouch for the
    whole block.
    """
    problem, kernel = solver.problem, solver.kernel
    good = answer.status == Status.CONVERGED
    size = metric_norm(problem, problem.native(rows), solver.scale)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=len(rows))
    weights = np.divide(signs * good, size, out=np.zeros_like(size), where=size > 0)
    x, z = (weights @ answer.x)[None], kernel.lift(answer.last.combined(weights))
    # a kernel that clipped negative curvature has a P that no product of the front end gives
    metric: Curvature = "ggn" if kernel.root.exact else curvature
    r = problem.native((weights @ rows)[None]) - Operator(problem, metric)(problem.native(z))
    if x.any():
        r = r - Operator(problem, curvature)(problem.native(x))
    native = problem.native(x + z)
    share = np.sqrt(max(int(np.count_nonzero(weights)), 1))
    residual = float(metric_norm(problem, r, solver.scale)[0]) / share
    image = np.tensordot(weights, answer.image, axes=1)
    apart = solver.kernel.root.times((problem.jvp(native)[0] - image)[None])
    shown = np.sqrt(np.sum(kernel.root.times(answer.image) ** 2, axis=(1, 2)) @ weights**2)
    alike = residual <= accepted and np.linalg.norm(apart) <= accepted * max(shown, np.finfo(float).tiny)
    if not alike or np.any(answer.status == Status.NOT_CONVERGED):
        return None
    status = np.where(finite, answer.status, Status.NOT_FINITE.value)
    return Response(
        image=answer.image,
        energy=answer.energy,
        pull=answer.pull,
        status=status,
        residual=np.maximum(answer.error, residual),
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
