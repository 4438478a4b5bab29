"""The kernel of :mod:`vhat.linalg.solvers.kernel` in half of its memory: factorised in float32, refined in float64.

In the notation of that module, ``M = (1 + shift) I + s'FF's`` is formed and factorised in single precision, in place.
``B = I + s'FF's`` itself is never kept: a product with it recomputes its blocks in double precision from the compressed
rows F, once for all right-hand sides (:mod:`vhat.linalg.solvers.refinement`). M preconditions, so that answers are
those of double precision however few digits M has; they only take more products with B.
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
from vhat.linalg.solvers.jacobian_factors import GRAM_ROWS, Features, Structure, read_features
from vhat.linalg.solvers.kernel import Kernel, Root, Seen
from vhat.linalg.solvers.refinement import Refined, refine
from vhat.models.problem import Array, Problem
from vhat.progress import bar

__all__ = [
    "Inner",
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
"""Multiples of ``eps tr(s'FF's)``, the rounding of the factorisation, that are tried for ``shift``, one after the
other: a matrix that is not positive definite to rounding needs the larger ones."""
_LARGEST_SHIFT = 1e4
"""Beyond, the factor says too little: conjugate gradients would take hundreds of products with B."""
_SEPARATED = 1e-8
"""Smallest eigenvalue of the correlations between parameters without decay, at which they are still told apart."""
_TIGHT = 1e-9
"""Relative error of a solution in the space of parameters, which the callers verify to 1e-8."""
_MOST_PRODUCTS = 200
"""Products with B for one set of right-hand sides."""
_COLUMNS = 256
"""Right-hand sides that the factor is applied to together."""
_POINT_VECTORS = 12
"""Arrays of n numbers an output that a right-hand side takes: those of conjugate gradients, its image, and copies."""
_MOST_POINTS = 2048
"""Points that are refined together, however many fit."""


class TooFewDigits(Exception):  # noqa: N818  (a finding, caught by the solver)
    """Single precision cannot hold the kernel; its text says why."""


@dataclass(frozen=True)
class Inner:
    """``u = s'J P^-1 g`` for some right-hand sides, refined.

    Attributes:
        u: (N, k).
        free: ``P^-1 g`` on the parameters without decay, (k, free).
        gain: ``(s'c)' u``, (k,), right to the square of ``error``.
        error: A bound on the relative error of each column of u, (k,).
        products: How many products with B were taken.
    """

    u: np.ndarray = field(repr=False)
    free: np.ndarray = field(repr=False)
    gain: np.ndarray
    error: np.ndarray
    products: int


@dataclass(frozen=True)
class SingleKernel(Kernel):
    """The factorisation in single precision: see the module.

    ``factor`` holds L with ``LL' = M`` in its lower triangle and nothing of use above; ``border`` is ``B^-1 s'J_b``.

    Attributes:
        shift: What is added to the diagonal of B before it is factorised.
        columns: ``s'J_b``, (N, free).
    """

    shift: float = field(kw_only=True)
    columns: np.ndarray = field(kw_only=True, repr=False)

    def look(self, r: np.ndarray, gradients: Array | None = None, cross: np.ndarray | None = None) -> Seen:
        """Solve ``P z = r`` for each row of r, (k, p); see :meth:`vhat.linalg.solvers.kernel.Kernel.look`."""
        scaled = r * self.inverse_root
        c = self.cross_of(scaled, gradients) if cross is None else cross
        total = np.einsum("kp,kp->k", scaled, scaled)
        g_free = r[:, self.structure.free]
        return self.seen(scaled, c, g_free, total, self.inner(c, g_free, _TIGHT))

    def seen(self, scaled: np.ndarray, cross: np.ndarray, g_free: np.ndarray, total: np.ndarray, found: Inner) -> Seen:
        """Put together what is known of right-hand sides.

        Args:
            scaled: ``Lam^-1/2 r``, (k, p), or (k, 0) where no row is lifted to the space of parameters.
            cross: ``F Lam^-1/2 r``, (k, N).
            g_free: r on the parameters without decay, (k, free).
            total: ``r'Lam^-1 r`` over the parameters with decay, (k,).
            found: What :meth:`inner` found for them.
        """
        u = found.u.T.reshape(len(cross), self.problem.n, self.problem.outputs)
        energy = total - found.gain + np.einsum("kf,kf->k", g_free, found.free)
        lost = np.divide(total, np.abs(energy), out=np.ones_like(total), where=energy != 0)
        pushed = self.root.times(u).reshape(len(cross), -1)
        return Seen(scaled, cross, pushed, found.free, self.root.divide(u), energy, lost)

    def inner(self, cross: np.ndarray, g_free: np.ndarray, rtol: float) -> Inner:
        """Solve for ``s'J P^-1 g``.

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
            rest = g_free.T - self.border.T @ weighted
            free = scipy.linalg.cho_solve((self.corner, True), rest, check_finite=False).T
            found = self._refined(weighted + self.columns @ free.T, rtol)
            own = found.u - self.border @ free.T
        # u is off by B^-1 r, which in (s'c)'u is (B^-1 s'c)'r to first order
        gain = np.einsum("ik,ik->k", weighted, found.u) + np.einsum("ik,ik->k", own, found.residual)
        return Inner(found.u, free, gain, found.error, found.products)

    def _refined(self, w: np.ndarray, rtol: float) -> Refined:
        return refine(self._times, partial(_solved, self.factor), w, rtol, _MOST_PRODUCTS)

    def _times(self, v: np.ndarray) -> np.ndarray:
        """Return ``B v`` for columns v, (N, k), the cheaper way."""
        return _times(self.problem, self.root, self.features, v)

    def under(self, problem: Problem, *, overwrite: bool = False) -> None:
        """Return None: the kernel itself is not kept beside its factor."""


def _times(problem: Problem, root: Root, features: Features, v: np.ndarray) -> np.ndarray:
    """Return ``(I + s'FF's) v`` for columns v, (N, k).

    For many columns the blocks of ``FF'`` are computed and multiplied; for a few it is cheaper to go through the space
    of parameters. Both are right to double precision.
    """
    N, k = v.shape
    shape = (k, problem.n, problem.outputs)
    weighted = root.times(v.T.reshape(shape)).reshape(k, N)
    by_blocks = float(N) * (features.structure.numbers + 2 * k)
    if by_blocks < 4.0 * problem.p * k:
        image = features.gram_times(np.ascontiguousarray(weighted.T)).T
    else:
        image = features.times(features.transposed(weighted))
    out: np.ndarray = v + root.times(np.ascontiguousarray(image).reshape(shape)).reshape(k, N).T
    return out


def _solved(factor: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return ``M^-1 v`` for columns v, (N, k), each brought to size one first: float32 has a narrow range."""
    out = np.empty_like(v)
    for start in range(0, v.shape[1], _COLUMNS):
        part = v[:, start : start + _COLUMNS]
        size = np.maximum(np.abs(part).max(axis=0), np.finfo(float).tiny)
        narrow = block_cholesky.solve(factor, (part / size).astype(np.float32))
        np.multiply(narrow, size, out=out[:, start : start + _COLUMNS])
    return out


def single_bytes(problem: Problem, structure: Structure) -> int:
    """What the features, the kernel in single precision and the blocks that fill it take."""
    return _bytes_of(problem.n * problem.outputs, structure)


def _bytes_of(N: int, structure: Structure) -> int:
    return 4 * N * N + 8 * N * (structure.numbers + 3 * min(N, GRAM_ROWS))


def point_bytes(problem: Problem) -> int:
    """What a right-hand side takes while it is refined."""
    return 8 * _POINT_VECTORS * problem.n * problem.outputs


def points_refined(problem: Problem, structure: Structure) -> int:
    """How many points are refined together beside the kernel."""
    left = problem.memory - single_bytes(problem, structure)
    fits = int(left // (point_bytes(problem) * problem.outputs))
    return max(1, min(_MOST_POINTS, fits))


def fitting_rows_single(problem: Problem, structure: Structure) -> int:
    """How many training rows the budget has room for."""
    return most_allowed(problem.n, lambda n: _bytes_of(n * problem.outputs, structure) <= problem.memory)


def make_single_kernel(problem: Problem) -> SingleKernel:
    """Form and factorise.

    Raises:
        MemoryBudgetError: When the n x n matrix and the features do not fit.
        NotPositiveDefinite: When the parameters without decay are not determined by the data.
        TooFewDigits: When single precision cannot hold the kernel.
    """
    features = read_features(problem, partial(_require_memory, problem))
    root = Root.of(problem.loss_derivatives, problem.n)
    diagonal = _diagonal(problem, root, features)
    factor, shift = _factorised(problem, root, features, float(np.sum(diagonal)))
    columns, border, corner = _border(problem, root, features, factor)
    return SingleKernel(problem, root, features, factor, diagonal, border, corner, "dual", shift=shift, columns=columns)


def _diagonal(problem: Problem, root: Root, features: Features) -> np.ndarray:
    """Return the diagonal of ``s'FF's``, (N,); for curvature weights that are matrices, one with the same sum or more.

    It is the size of the kernel, which decides how much rounding there is.
    """
    squares = features.squares()
    if root.values.ndim == 2:
        return squares * root.values.ravel() ** 2
    largest = np.linalg.eigvalsh(root.values)[:, -1]
    return squares * np.repeat(largest**2, problem.outputs)


def _factorised(problem: Problem, root: Root, features: Features, trace: float) -> tuple[np.ndarray, float]:
    """Return the lower factor of M and the shift in it.

    Raises:
        TooFewDigits: When the shift that it takes is too large to be of use.
    """
    room: np.ndarray | None = None
    for multiple in _SHIFTS:
        shift = multiple * _EPS * trace
        if not shift <= _LARGEST_SHIFT:
            break
        room = _filled(problem, root, features, room)
        room.flat[:: len(room) + 1] += np.float32(1.0 + shift)
        if block_cholesky.factorise(room):
            return room, shift
    raise TooFewDigits(
        f"the eigenvalues of the kernel add up to {trace:.2g} times the decay, of which single precision leaves no "
        "digits"
    )


def _filled(problem: Problem, root: Root, features: Features, room: np.ndarray | None) -> np.ndarray:
    """Return ``s'FF's`` in single precision, (N, N), its lower triangle filled block by block."""
    N = len(features)
    out = np.empty((N, N), dtype=np.float32) if room is None else room
    out.flat[:: N + 1] = 0.0
    step = max(1, GRAM_ROWS // problem.outputs) * problem.outputs
    starts = range(0, N, step)
    with bar("kernel in single precision", len(starts)) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what overflows is found by the factorisation
        for start in starts:
            stop = min(start + step, N)
            block = np.zeros((stop - start, stop), dtype=np.float32)
            for term in features.terms:
                block += term.product(start, stop, single=True)
            out[start:stop, :stop] = _around(root, block, start // problem.outputs, problem.outputs)
            advance("")
    return out


def _around(root: Root, block: np.ndarray, first: int, outputs: int) -> np.ndarray:
    """Return ``s K s`` in float32 for a block of K from training row ``first`` on, up to the diagonal."""
    count, stop = len(block) // outputs, block.shape[1] // outputs
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
    found = refine(product, partial(_solved, factor), columns, _TIGHT, _MOST_PRODUCTS)
    if np.any(found.error > np.sqrt(_TIGHT)):
        raise TooFewDigits("the parameters without decay could not be separated from the others in single precision")
    square = columns.T @ found.u
    square = (square + square.T) / 2
    unit = np.sqrt(np.diagonal(square))
    if not np.all(unit > 0):
        raise NotPositiveDefinite(
            f"the data do not determine the {free} parameters that have no weight decay. Give them some."
        )
    if float(np.linalg.eigvalsh(square / np.outer(unit, unit))[0]) < _SEPARATED:
        raise TooFewDigits(f"single precision hardly tells the {free} parameters without decay apart")
    return columns, found.u, scipy.linalg.cholesky(square, lower=True)


def _require_memory(problem: Problem, structure: Structure) -> None:
    need = single_bytes(problem, structure)
    if need > problem.memory:
        N = problem.n * problem.outputs
        raise MemoryBudgetError(
            f"vhat.Dual(precision='single') needs {in_words(need)} for a {N:,} x {N:,} kernel; the budget is "
            f"{in_words(problem.memory)}, enough for about {fitting_rows_single(problem, structure):,} rows. Use "
            "solver='auto', which takes what fits, or raise memory=."
        )
