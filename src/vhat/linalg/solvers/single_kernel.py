"""The kernel of :mod:`vhat.linalg.solvers.kernel` in half the memory: factorised in float32, refined in float64.

In the notation of that module, ``M = (1 + shift) I + s'FF's`` is formed and factorised in single precision, in place.
``B = I + s'FF's`` is never stored: a product with B recomputes its blocks in double precision from the compressed
rows F, once for all right-hand sides (:mod:`vhat.linalg.solvers.refinement`). M is only the preconditioner. Solutions
have the accuracy of double precision whatever the accuracy of M; a less accurate M takes more products with B.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import scipy.linalg

from vhat.errors import MemoryBudgetError, NotPositiveDefinite
from vhat.linalg.memory import in_words, most_allowed
from vhat.linalg.solvers import block_cholesky
from vhat.linalg.solvers.curvature_root import Root
from vhat.linalg.solvers.jacobian_factors import Features, Structure, read_features
from vhat.linalg.solvers.kernel import Kernel, KernelSolution
from vhat.linalg.solvers.kernel_terms import GRAM_ROWS
from vhat.linalg.solvers.refinement import Refined, refine
from vhat.models.problem import Array, Problem
from vhat.progress import bar

__all__ = [
    "DataSpaceSolution",
    "SingleKernel",
    "TooFewDigits",
    "fitting_rows_single",
    "make_single_kernel",
    "point_bytes",
    "points_refined",
    "single_bytes",
]

_EPS = float(np.finfo(np.float32).eps)
_SHIFTS = (1 / 64, 1.0, 64.0)
"""Values of ``shift`` to try in turn, in units of ``eps tr(s'FF's)``, the rounding error of the factorisation. A larger
one is needed if the matrix is not positive definite to rounding."""
_LARGEST_SHIFT = 1e4
"""Largest useful shift: with a larger one conjugate gradients would take hundreds of products with B."""
_LEAST_CORRELATION_EIGENVALUE = 1e-8
"""Smallest eigenvalue of the correlation matrix of the parameters without decay at which single precision still
separates them."""
_TIGHT = 1e-9
"""Relative error to reach for solutions of length p; the callers verify them to 1e-8."""
_MOST_PRODUCTS = 200
"""Largest number of products with B for one set of right-hand sides."""
_COLUMNS = 256
"""Right-hand sides per application of the factor."""
_POINT_VECTORS = 12
"""Arrays of N numbers per right-hand side: those of conjugate gradients, its image, and copies."""
_MOST_POINTS = 2048
"""Largest number of points refined together."""


class TooFewDigits(Exception):  # noqa: N818  (a finding, caught by the solver)
    """The kernel cannot be represented in single precision; the text is the reason."""


@dataclass(frozen=True)
class DataSpaceSolution:
    """``u = s'J P^-1 g`` for several right-hand sides, refined.

    Attributes:
        u: (N, k).
        free: ``P^-1 g`` on the parameters without decay, (k, free).
        gain: ``(s'c)' u``, (k,); its relative error is about the square of ``error``.
        error: A bound on the relative error of each column of u, (k,).
        products: Number of products with B.
    """

    u: np.ndarray = field(repr=False)
    free: np.ndarray = field(repr=False)
    gain: np.ndarray
    error: np.ndarray
    products: int


@dataclass(frozen=True)
class SingleKernel(Kernel):
    """The kernel factorised in single precision; the notation is that of the module.

    ``factor`` holds L with ``LL' = M`` in its lower triangle; the upper one is unused. ``border`` is ``B^-1 s'J_b``.

    Attributes:
        shift: Number added to the diagonal of B before it is factorised.
        columns: ``s'J_b``, (N, free).
    """

    shift: float = field(kw_only=True)
    columns: np.ndarray = field(kw_only=True, repr=False)

    def solve_implicit(
        self, r: np.ndarray, gradients: Array | None = None, cross: np.ndarray | None = None
    ) -> KernelSolution:
        """Solve ``P z = r`` for each row of r, (k, p); see :meth:`vhat.linalg.solvers.kernel.Kernel.solve_implicit`."""
        scaled = r * self.inverse_root
        c = self.cross_of(scaled, gradients) if cross is None else cross
        total = np.einsum("kp,kp->k", scaled, scaled)
        g_free = r[:, self.structure.free]
        return self.implicit_solution(scaled, c, g_free, total, self.solve_data_space(c, g_free, _TIGHT))

    def implicit_solution(
        self, scaled: np.ndarray, cross: np.ndarray, g_free: np.ndarray, total: np.ndarray, found: DataSpaceSolution
    ) -> KernelSolution:
        """Return ``P^-1 r`` in the form of the kernel.

        Args:
            scaled: ``Lam^-1/2 r``, (k, p), or (k, 0) if no row is lifted to the space of parameters.
            cross: ``F Lam^-1/2 r``, (k, N).
            g_free: r on the parameters without decay, (k, free).
            total: ``r'Lam^-1 r`` over the parameters with decay, (k,).
            found: The result of :meth:`solve_data_space`.
        """
        u = found.u.T.reshape(len(cross), self.problem.n, self.problem.outputs)
        energy = total - found.gain + np.einsum("kf,kf->k", g_free, found.free)
        cancellation = np.divide(total, np.abs(energy), out=np.ones_like(total), where=energy != 0)
        coefficients = self.root.times(u).reshape(len(cross), -1)
        return KernelSolution(scaled, cross, coefficients, found.free, self.root.divide(u), energy, cancellation)

    def solve_data_space(self, cross: np.ndarray, g_free: np.ndarray, rtol: float) -> DataSpaceSolution:
        """Solve for ``u = s'J P^-1 g``.

        Args:
            cross: ``c = F Lam^-1/2 g``, (k, N).
            g_free: g on the parameters without decay, (k, free).
            rtol: Relative error to reach.
        """
        shape = (len(cross), self.problem.n, self.problem.outputs)
        weighted = np.ascontiguousarray(self.root.times(cross.reshape(shape)).reshape(len(cross), -1).T)
        if not self.border.size:
            found = self._refined(weighted, rtol)
            own = found.u
            free = np.zeros((len(cross), 0))
        else:
            # First the parameters without decay, from the Schur complement of the bordered system.
            rest = g_free.T - self.border.T @ weighted
            free = scipy.linalg.cho_solve((self.corner, True), rest, check_finite=False).T
            found = self._refined(weighted + self.columns @ free.T, rtol)
            own = found.u - self.border @ free.T
        # The error of u is B^-1 r with r its residual. It changes (s'c)'u by (B^-1 s'c)'r to first order: add that.
        gain = np.einsum("ik,ik->k", weighted, found.u) + np.einsum("ik,ik->k", own, found.residual)
        return DataSpaceSolution(found.u, free, gain, found.error, found.products)

    def _refined(self, w: np.ndarray, rtol: float) -> Refined:
        return refine(self._times, partial(_precondition, self.factor), w, rtol, _MOST_PRODUCTS)

    def _times(self, v: np.ndarray) -> np.ndarray:
        """Return ``B v`` for columns v, (N, k)."""
        return _times(self.problem, self.root, self.features, v)

    def under(self, problem: Problem, *, overwrite: bool = False) -> None:
        """Return None: the unfactorised kernel is not stored, and cannot be rescaled."""


def _times(problem: Problem, root: Root, features: Features, v: np.ndarray) -> np.ndarray:
    """Return ``(I + s'FF's) v`` for columns v, (N, k).

    For many columns the blocks of ``FF'`` are computed and multiplied. For few columns ``F (F' v)`` is cheaper. Both
    have the accuracy of double precision.
    """
    N, k = v.shape
    shape = (k, problem.n, problem.outputs)
    weighted = root.times(v.T.reshape(shape)).reshape(k, N)
    # Flops per row of F: N (numbers + 2 k) by blocks, against 4 p k through the space of parameters.
    by_blocks = float(N) * (features.structure.numbers + 2 * k)
    if by_blocks < 4.0 * problem.p * k:
        image = features.gram_times(np.ascontiguousarray(weighted.T)).T
    else:
        image = features.times(features.transposed(weighted))
    out: np.ndarray = v + root.times(np.ascontiguousarray(image).reshape(shape)).reshape(k, N).T
    return out


def _precondition(factor: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return ``M^-1 v`` for columns v, (N, k).

    Each column is scaled to a largest entry of one first, because the range of float32 is narrow.
    """
    out = np.empty_like(v)
    for start in range(0, v.shape[1], _COLUMNS):
        part = v[:, start : start + _COLUMNS]
        size = np.maximum(np.abs(part).max(axis=0), np.finfo(float).tiny)
        narrow = block_cholesky.solve(factor, (part / size).astype(np.float32))
        np.multiply(narrow, size, out=out[:, start : start + _COLUMNS])
    return out


def single_bytes(problem: Problem, structure: Structure) -> int:
    """Return the bytes of the features, the kernel in single precision and the blocks that fill it."""
    return _bytes_of(problem.n * problem.outputs, structure)


def _bytes_of(N: int, structure: Structure) -> int:
    return 4 * N * N + 8 * N * (structure.numbers + 3 * min(N, GRAM_ROWS))


def point_bytes(problem: Problem) -> int:
    """Return the bytes of one right-hand side while it is refined."""
    return 8 * _POINT_VECTORS * problem.n * problem.outputs


def points_refined(problem: Problem, structure: Structure) -> int:
    """Return how many points are refined together within the memory budget."""
    remaining = problem.memory - single_bytes(problem, structure)
    fits = int(remaining // (point_bytes(problem) * problem.outputs))
    return max(1, min(_MOST_POINTS, fits))


def fitting_rows_single(problem: Problem, structure: Structure) -> int:
    """Return how many training rows the memory budget allows."""
    return most_allowed(problem.n, lambda n: _bytes_of(n * problem.outputs, structure) <= problem.memory)


def make_single_kernel(problem: Problem) -> SingleKernel:
    """Form the kernel in single precision and factorise it.

    Raises:
        MemoryBudgetError: When the n x n matrix and the features do not fit.
        NotPositiveDefinite: When the data do not determine the parameters without decay.
        TooFewDigits: When the kernel cannot be represented in single precision.
    """
    features = read_features(problem, partial(_require_memory, problem))
    root = Root.of(problem.loss_derivatives, problem.n)
    diagonal = _diagonal(problem, root, features)
    factor, shift = _factorised(problem, root, features, float(np.sum(diagonal)))
    columns, border, corner = _border(problem, root, features, factor)
    return SingleKernel(problem, root, features, factor, diagonal, border, corner, shift=shift, columns=columns)


def _diagonal(problem: Problem, root: Root, features: Features) -> np.ndarray:
    """Return the diagonal of ``s'FF's``, (N,); an upper bound of its sum if the curvature weights are matrices.

    Its sum, the trace of the kernel, sets the scale of the rounding error.
    """
    squares = features.squares()
    if root.values.ndim == 2:
        return squares * root.values.ravel() ** 2
    largest = np.linalg.eigvalsh(root.values)[:, -1]
    return squares * np.repeat(largest**2, problem.outputs)


def _factorised(problem: Problem, root: Root, features: Features, trace: float) -> tuple[np.ndarray, float]:
    """Return the lower factor of M, and its shift.

    Raises:
        TooFewDigits: When the required shift is too large for a useful preconditioner.
    """
    matrix: np.ndarray | None = None
    for multiple in _SHIFTS:
        shift = multiple * _EPS * trace
        if not shift <= _LARGEST_SHIFT:
            break
        # A failed factorisation leaves the matrix overwritten: it is filled again, in the same memory.
        matrix = _kernel_matrix(problem, root, features, matrix)
        matrix.flat[:: len(matrix) + 1] += np.float32(1.0 + shift)
        if block_cholesky.factorise(matrix):
            return matrix, shift
    raise TooFewDigits(
        f"the eigenvalues of the kernel add up to {trace:.2g} times the decay, of which single precision leaves no "
        "digits"
    )


def _kernel_matrix(problem: Problem, root: Root, features: Features, out: np.ndarray | None) -> np.ndarray:
    """Return ``s'FF's`` in single precision, (N, N), its lower triangle filled block by block.

    Args:
        problem: The training problem.
        root: ``s``.
        features: ``F``.
        out: Matrix to write to; None for a new one.
    """
    N = len(features)
    if out is None:
        out = np.empty((N, N), dtype=np.float32)
    out.flat[:: N + 1] = 0.0
    # Blocks end between training rows, so that the roots of several outputs apply to whole rows.
    step = max(1, GRAM_ROWS // problem.outputs) * problem.outputs
    starts = range(0, N, step)
    with bar("kernel in single precision", len(starts)) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the factorisation finds overflows
        for start in starts:
            stop = min(start + step, N)
            block = np.zeros((stop - start, stop), dtype=np.float32)
            for term in features.terms:
                block += term.product(start, stop, single=True)
            out[start:stop, :stop] = _sandwich(root, block, start // problem.outputs, problem.outputs)
            advance("")
    return out


def _sandwich(root: Root, block: np.ndarray, first: int, outputs: int) -> np.ndarray:
    """Return ``s K s`` in float32 for a block of K that begins at training row ``first``, up to the diagonal."""
    count = len(block) // outputs
    stop = block.shape[1] // outputs
    s = root.values.astype(np.float32)
    if s.ndim == 2:
        block *= s[first : first + count].reshape(-1, 1)
        block *= s[:stop].ravel()
        return block
    cube = block.reshape(count, outputs, stop, outputs)
    left = np.einsum("iab,ibjc->iajc", s[first : first + count], cube)
    found: np.ndarray = np.einsum("iajb,jbc->iajc", left, s[:stop]).reshape(block.shape)
    return found


def _border(
    problem: Problem, root: Root, features: Features, factor: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``s'J_b``, ``B^-1 s'J_b`` and the Cholesky factor of ``J_b's B^-1 s'J_b``."""
    free = features.free.shape[1]
    if not free:
        return np.zeros((len(features), 0)), np.zeros((len(features), 0)), np.zeros((0, 0))
    shape = (free, problem.n, problem.outputs)
    columns = np.ascontiguousarray(root.times(features.free.T.reshape(shape)).reshape(free, -1).T)
    product = partial(_times, problem, root, features)
    found = refine(product, partial(_precondition, factor), columns, _TIGHT, _MOST_PRODUCTS)
    if np.any(found.error > np.sqrt(_TIGHT)):
        raise TooFewDigits("the parameters without decay could not be separated from the others in single precision")
    schur = columns.T @ found.u
    schur = (schur + schur.T) / 2
    unit = np.sqrt(np.diagonal(schur))
    if not np.all(unit > 0):
        raise NotPositiveDefinite(
            f"the data do not determine the {free} parameters that have no weight decay. Give them some."
        )
    if float(np.linalg.eigvalsh(schur / np.outer(unit, unit))[0]) < _LEAST_CORRELATION_EIGENVALUE:
        raise TooFewDigits(f"single precision hardly separates the {free} parameters without decay")
    return columns, found.u, scipy.linalg.cholesky(schur, lower=True)


def _require_memory(problem: Problem, structure: Structure) -> None:
    need = single_bytes(problem, structure)
    if need > problem.memory:
        N = problem.n * problem.outputs
        raise MemoryBudgetError(
            f"vhat.Dual(precision='single') needs {in_words(need)} for a {N:,} x {N:,} kernel; the budget is "
            f"{in_words(problem.memory)}, enough for about {fitting_rows_single(problem, structure):,} rows. Use "
            "solver='auto', which takes what fits, or raise memory=."
        )
