"""Solve with the Gauss-Newton matrix ``P = J'CJ/n + Lam`` through an n x n factorisation (Woodbury's identity).

Here C holds the curvature weights of the loss, ``s s' = C/n``, ``Lam`` is the diagonal of the weight decay, and
``F = J Lam^-1/2``. The kernel matrix ``B = I + s'FF's`` is factorised once, in place. Then

    u = B^-1 s' F Lam^-1/2 g,     P^-1 g = Lam^-1/2 (Lam^-1/2 g - F's u),     s' J P^-1 g = u,

so that ``u`` is the weighted image of the solution over the training rows, and V needs no solution of length p.

Parameters without decay (columns b of J) border the system: ``h_b = Q^-1 (g_b - W'L^-1 s'c)`` with ``L L' = B``,
``c = F Lam^-1/2 g``, ``W = L^-1 s'J_b`` and ``Q = W'W``.

N denotes n times the number of outputs K: one row of J per training row and output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf

from vhat.errors import MemoryBudgetError, NotPositiveDefinite
from vhat.linalg.curvature.inner_product import Metric, jacobi
from vhat.linalg.memory import in_words, most_allowed
from vhat.linalg.solvers.curvature_root import Root
from vhat.linalg.solvers.factorised import FactorMetric, ImplicitSolution
from vhat.linalg.solvers.interface import Norms, Response
from vhat.linalg.solvers.jacobian_factors import Features, NotRankOne, Structure, compress, read_features
from vhat.linalg.solvers.kernel_terms import GRAM_ROWS
from vhat.models.problem import Array, Problem

__all__ = ["Kernel", "KernelSolution", "fitting_rows", "kernel_bytes", "make_kernel", "newton_metric"]

_FEW_PARAMETERS = 64
"""Parameters up to which Newton's method computes all eigenvalues of the matrix, at p^3 flops a step."""
_MANY_ROWS = 5000
"""Rows N above which a kernel, recomputed at every step of Newton's method, costs more than it saves."""


@dataclass(frozen=True)
class KernelSolution(ImplicitSolution):
    """``z = P^-1 r`` for a block of rows, in the space of the data.

    Attributes:
        scaled: ``Lam^-1/2 r``, (k, p).
        cross: ``F Lam^-1/2 r``, (k, N).
        coefficients: ``s u``, (k, N): ``z = Lam^-1/2 (scaled - F' coefficients)`` on the parameters with decay.
        free: z on the parameters without decay, (k, free).
        image: ``J z``, n-space (k, n, K); zero where the loss has no curvature.
        energy: ``r'z``, (k,).
        cancellation: ``r'Lam^-1 r / r'z``, the factor by which rounding in ``energy`` is magnified, (k,).
    """

    scaled: np.ndarray
    cross: np.ndarray
    coefficients: np.ndarray
    free: np.ndarray
    image: np.ndarray
    energy: np.ndarray
    cancellation: np.ndarray

    def times(self, weights: np.ndarray) -> KernelSolution:
        """Return each row multiplied by its weight."""
        c = weights[:, None]
        return KernelSolution(
            scaled=c * self.scaled,
            cross=c * self.cross,
            coefficients=c * self.coefficients,
            free=c * self.free,
            image=c[:, :, None] * self.image,
            energy=weights**2 * self.energy,
            cancellation=self.cancellation,
        )

    def combined(self, weights: np.ndarray) -> KernelSolution:
        """Return the single row ``sum_i weights_i z_i``, without its energy (NaN)."""
        c = weights[None]
        unknown = np.full(1, np.nan)
        return KernelSolution(
            scaled=c @ self.scaled,
            cross=c @ self.cross,
            coefficients=c @ self.coefficients,
            free=c @ self.free,
            image=np.tensordot(c, self.image, axes=1),
            energy=unknown,
            cancellation=unknown,
        )


@dataclass(frozen=True)
class Kernel:
    """The factorised kernel; the notation is that of the module.

    Attributes:
        problem: The training problem.
        root: ``s``.
        features: ``F``.
        factor: ``L`` in the lower triangle, (N, N); the upper one keeps ``s'FF's`` for another decay.
        diagonal: The diagonal of ``s'FF's``, (N,).
        border: ``W``, (N, free).
        corner: The Cholesky factor of ``Q``, (free, free).
    """

    problem: Problem
    root: Root
    features: Features = field(repr=False)
    factor: np.ndarray = field(repr=False)
    diagonal: np.ndarray = field(repr=False)
    border: np.ndarray = field(repr=False)
    corner: np.ndarray = field(repr=False)

    @property
    def structure(self) -> Structure:
        """Leaves of the parameters."""
        return self.features.structure

    def solve_implicit(
        self, r: np.ndarray, gradients: Array | None = None, cross: np.ndarray | None = None
    ) -> KernelSolution:
        """Solve ``P z = r`` for each row of r, (k, p), without forming z.

        Args:
            r: Right-hand sides.
            gradients: The right-hand sides as an array of the framework, if they are gradients of predictions and may
                therefore be compressed.
            cross: ``F Lam^-1/2 r``, (k, N), if already known.
        """
        scaled = r * self.inverse_root
        c = self.cross_of(scaled, gradients) if cross is None else cross
        shape = (len(r), self.problem.n, self.problem.outputs)
        weighted = self.root.times(c.reshape(shape)).reshape(len(r), -1).T
        half = scipy.linalg.solve_triangular(self.factor, weighted, lower=True, check_finite=False)
        g_free = r[:, self.structure.free]
        free = np.zeros((len(r), 0))
        if self.border.size:
            # The parameters without decay first: h_b = Q^-1 (g_b - W' L^-1 s'c).
            rest = g_free.T - self.border.T @ half
            free = scipy.linalg.cho_solve((self.corner, True), rest, check_finite=False).T
            half = half + self.border @ free.T
        u = scipy.linalg.solve_triangular(
            self.factor, half, lower=True, trans="T", overwrite_b=True, check_finite=False
        ).T.reshape(shape)
        coefficients = self.root.times(u).reshape(len(r), -1)
        # r'z = r'Lam^-1 r - c's u + g_b'h_b. The first two terms cancel if the data determine z almost completely.
        total = np.einsum("kp,kp->k", scaled, scaled)
        energy = total - np.einsum("ki,ki->k", c, coefficients) + np.einsum("kf,kf->k", g_free, free)
        cancellation = np.divide(total, np.abs(energy), out=np.ones_like(total), where=energy != 0)
        return KernelSolution(scaled, c, coefficients, free, self.root.divide(u), energy, cancellation)

    def cross(self, r: np.ndarray, *, single: bool = False) -> np.ndarray:
        """Return ``F Lam^-1/2 r``, (k, N), optionally by products in single precision."""
        scaled = r * self.inverse_root
        if single:
            return _in_single(self.features.single.times, scaled)
        return self.features.times(scaled)

    def cross_of(self, scaled: np.ndarray, gradients: Array | None) -> np.ndarray:
        """Return ``F scaled'``, (k, N), from compressed gradients if they are given and can be compressed."""
        if gradients is not None:
            try:
                return np.ascontiguousarray(self.features.cross(compress(self.problem, gradients, self.structure)).T)
            except NotRankOne:  # unlike every training row, this gradient is not an outer product
                pass
        return self.features.times(scaled)

    def lift(self, z: KernelSolution) -> np.ndarray:
        """Return ``z`` as vectors, (k, p).

        They are a small difference of large numbers, and therefore always computed in double precision.
        """
        vectors = (z.scaled - self.features.transposed(z.coefficients)) * self.inverse_root
        vectors[:, self.structure.free] = z.free
        return vectors

    def pull(self, z: KernelSolution) -> np.ndarray:
        """Return ``z' b`` with b the gradient of the penalty, (k,)."""
        with_decay = z.scaled @ self.scaled_penalty - z.coefficients @ self.penalty_image
        return with_decay + z.free @ self.penalty_gradient[self.structure.free]

    @cached_property
    def penalty_gradient(self) -> np.ndarray:
        """The gradient b of the penalty, (p,)."""
        return self.problem.numpy(self.problem.penalty_gradient())

    @cached_property
    def scaled_penalty(self) -> np.ndarray:
        """``Lam^-1/2 b``, (p,); zero for parameters without decay."""
        return self.inverse_root * self.penalty_gradient

    @cached_property
    def penalty_image(self) -> np.ndarray:
        """``F Lam^-1/2 b``, (N,)."""
        return self.features.times(self.scaled_penalty[None])[0]

    def solve(self, r: Array) -> Array:
        """Return ``P^-1 r`` for p-space rows (k, p)."""
        return self.problem.native(self.lift(self.solve_implicit(self.problem.numpy(r))))

    @property
    def exact(self) -> bool:
        """Whether P is the Gauss-Newton matrix itself: no negative curvature weight was replaced by zero."""
        return self.root.exact

    def norms(self, found: Response, sigma: np.ndarray) -> Norms:
        """Return the norms of responses whose images are ``J h``."""
        return Norms.of(self.problem, found, sigma)

    def response(self, found: Response) -> Response:
        """Return the responses unchanged: their images are ``J h`` already."""
        return found

    def image_discrepancy(self, h: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return ``|s'(J h - image)|`` with J from the framework's derivatives, (k,)."""
        return self.lengths(self.problem.jvp(self.problem.native(h)) - image)

    def probe(self, seed: int) -> np.ndarray:
        """Return ``J'z`` for random signs z, (1, p): a random right-hand side in the span of the training gradients."""
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(1, len(self.features)))
        return self.features.transposed(signs) * self.root_decay

    def draw(self, seed: int) -> np.ndarray:
        """Return ``P^-1 (J's z + Lam^1/2 z')`` for standard normal z and z', (1, p): its covariance is ``P^-1``."""
        rng = np.random.default_rng(seed)
        z = rng.standard_normal((1, self.problem.n, self.problem.outputs))
        weighted = self.root.times(z).reshape(1, -1)
        r = self.root_decay * (self.features.transposed(weighted) + rng.standard_normal((1, self.problem.p)))
        r[:, self.structure.free] = weighted @ self.features.free
        return self.lift(self.solve_implicit(r))

    def lengths(self, image: np.ndarray) -> np.ndarray:
        """Return ``|s'J h|`` of images ``J h``, (k, n, K): the square root of V for the squared loss, (k,)."""
        found: np.ndarray = np.sqrt(np.sum(self.root.times(image) ** 2, axis=(1, 2)))
        return found

    def apply(self, v: np.ndarray) -> np.ndarray:
        """Return ``P v = J'CJ v / n + Lam v`` for each row of v, (k, p)."""
        free = self.structure.free
        image = self.features.times(v * self.root_decay) + v[:, free] @ self.features.free.T
        shape = (len(v), self.problem.n, self.problem.outputs)
        weighted = self.root.times(self.root.times(image.reshape(shape))).reshape(len(v), -1)
        out = self.features.transposed(weighted) * self.root_decay + self.root_decay**2 * v
        out[:, free] = weighted @ self.features.free
        return out

    def under(self, problem: Problem, *, overwrite: bool = False) -> Kernel | None:
        """Return the kernel of the same model and data under a multiple of this decay; None for any other decay.

        Args:
            problem: The model and data under the other decay.
            overwrite: Whether the new kernel reuses the memory of this one, which becomes invalid.
        """
        old = self.problem.numpy(self.problem.decay)
        new = problem.numpy(problem.decay)
        ratio = np.divide(old, new, out=np.zeros_like(old), where=new > 0)[old > 0]
        if not ratio.size or not ratio[0]:
            return None
        if np.ptp(ratio) > 1e-14 * ratio[0] or np.any((old > 0) != (new > 0)):
            return None
        # s'FF's scales with 1/decay. LAPACK left it above the factor, which is the lower triangle of the transpose.
        matrix = np.multiply(self.factor.T, ratio[0], out=self.factor.T if overwrite else None)
        for i in range(len(matrix)):
            matrix[i, i:] = matrix[i:, i]
        np.fill_diagonal(matrix, ratio[0] * self.diagonal)
        features = self.features.rescaled(float(np.sqrt(ratio[0])))
        return _factorised(problem, self.root, features, matrix)

    @cached_property
    def root_decay(self) -> np.ndarray:
        """``Lam^1/2``, (p,)."""
        return np.sqrt(self.problem.numpy(self.problem.decay))

    @cached_property
    def inverse_root(self) -> np.ndarray:
        """``Lam^-1/2``, (p,); zero for parameters without decay."""
        root = self.root_decay
        return np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)


def _in_single(product: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Return a linear map of rows, computed in single precision.

    Each row is scaled to a largest entry of one first, because the range of float32 is narrow.
    """
    size = np.maximum(np.abs(rows).max(axis=1, keepdims=True), np.finfo(float).tiny)
    return product((rows / size).astype(np.float32)) * size


def newton_metric(problem: Problem) -> Callable[[Problem], Metric] | None:
    """Return a function for the metric of Newton's trust region: the kernel's if it is cheap, None for the default.

    With few parameters, all eigenvalues of the matrix itself are better. With many rows, the kernel is expensive.
    """
    rows = problem.n * problem.outputs
    if problem.p <= _FEW_PARAMETERS or rows > min(_MANY_ROWS, 20 * problem.p):
        return None
    return _kernel_or_jacobi


def _kernel_or_jacobi(problem: Problem) -> Metric:
    try:
        return FactorMetric(make_kernel(problem))
    except (NotPositiveDefinite, MemoryBudgetError):
        return jacobi(problem)


def kernel_bytes(problem: Problem, structure: Structure) -> int:
    """Return the bytes of the features, the kernel and the blocks that fill it."""
    return _bytes_of(problem.n * problem.outputs, structure)


def _bytes_of(N: int, structure: Structure) -> int:
    return 8 * N * (structure.numbers + N + 3 * min(N, GRAM_ROWS))


def make_kernel(problem: Problem) -> Kernel:
    """Form the kernel and factorise it.

    Raises:
        MemoryBudgetError: When the n x n matrix and the features do not fit.
        NotPositiveDefinite: When the data do not determine the parameters without decay.
    """
    features = read_features(problem, partial(_require_memory, problem))
    root = Root.of(problem.loss_derivatives, problem.n)
    matrix = features.gram()
    root.sandwich(matrix)
    return _factorised(problem, root, features, matrix)


def _factorised(problem: Problem, root: Root, features: Features, matrix: np.ndarray) -> Kernel:
    """Factorise ``B = I + matrix`` in place and return the kernel."""
    diagonal = np.diagonal(matrix).copy()
    matrix.flat[:: len(matrix) + 1] += 1.0
    # The transpose of a C-ordered matrix is Fortran-ordered, as LAPACK needs it for working in place.
    factor, info = dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    if info != 0:
        raise NotPositiveDefinite(
            "the kernel of the Gauss-Newton matrix could not be factorised: the weight decay is below the rounding of "
            "the curvature, or a gradient overflows. Raise weight_decay, or use vhat.Dense() if it fits."
        )
    border, corner = _border(features, root, factor, problem)
    return Kernel(problem, root, features, factor, diagonal, border, corner)


def _border(features: Features, root: Root, factor: np.ndarray, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return ``W = L^-1 s'J_b`` and the Cholesky factor of ``Q = W'W`` for the parameters b without decay."""
    if not features.free.shape[1]:
        return np.zeros((len(features), 0)), np.zeros((0, 0))
    columns = features.free.T.reshape(-1, problem.n, problem.outputs)
    weighted = root.times(columns).reshape(len(columns), -1).T
    border = scipy.linalg.solve_triangular(factor, weighted, lower=True)
    try:
        corner = scipy.linalg.cholesky(border.T @ border, lower=True)
    except np.linalg.LinAlgError as error:
        raise NotPositiveDefinite(
            f"the data do not determine the {len(columns)} parameters that have no weight decay. Give them some."
        ) from error
    return border, corner


def _require_memory(problem: Problem, structure: Structure) -> None:
    need = kernel_bytes(problem, structure)
    if need > problem.memory:
        N = problem.n * problem.outputs
        fits = fitting_rows(problem, structure)
        raise MemoryBudgetError(
            f"vhat.Dual() needs {in_words(need)} for a {N:,} x {N:,} kernel; the budget is {in_words(problem.memory)}, "
            f"enough for about {fits:,} rows. Use solver='auto', which takes what fits, or raise memory=."
        )


def fitting_rows(problem: Problem, structure: Structure) -> int:
    """Return how many training rows the memory budget allows."""
    return most_allowed(problem.n, lambda n: _bytes_of(n * problem.outputs, structure) <= problem.memory)
