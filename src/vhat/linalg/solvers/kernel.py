"""The Gauss-Newton matrix ``P = J'CJ/n + Lam`` solved in the space of the data, through an n x n factorisation.

With ``s s' = C/n``, ``Lam`` the decay and ``F = J Lam^-1/2``, ``B = I + s'FF's`` is factorised once, in place. Then

    u = B^-1 s' F Lam^-1/2 g,     P^-1 g = Lam^-1/2 (Lam^-1/2 g - F's u),     s' J P^-1 g = u:

seen from the data, the answer is ``u`` itself. Parameters without decay (columns b of J) border the system:
``h_b = Q^-1 (g_b - W'L^-1 s'c)`` with ``L L' = B``, ``c = F Lam^-1/2 g``, ``W = L^-1 s'J_b`` and ``Q = W'W``.
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
from vhat.linalg.solvers.factorised import FactorMetric, SeenRows
from vhat.linalg.solvers.interface import Norms, Response
from vhat.linalg.solvers.jacobian_factors import GRAM_ROWS, Features, NotRankOne, Structure, compress, read_features
from vhat.models.problem import Array, LossDerivatives, Problem

__all__ = ["Kernel", "Root", "Seen", "fitting_rows", "kernel_bytes", "make_kernel", "newton_metric"]

_FEW_PARAMETERS = 64
"""Up to which Newton's method takes all eigenvalues of the matrix itself, at p^3 flops a step."""
_MANY_ROWS = 5000
"""Beyond which a kernel, made anew at every step of Newton's method, costs more than it saves."""


@dataclass(frozen=True)
class Root:
    """``s`` with ``s s' = C/n``, one number (n, K) or one block (n, K, K) a row; negative curvature counts as zero.

    Attributes:
        values: The roots.
        exact: Whether no curvature weight was negative.
    """

    values: np.ndarray
    exact: bool

    @staticmethod
    def of(loss: LossDerivatives, n: int) -> Root:
        """Take the root of the loss's curvature weights."""
        C = loss.curvature / n
        if C.ndim == 2:
            return Root(np.sqrt(np.maximum(C, 0.0)), bool((C >= 0).all()))
        values, vectors = np.linalg.eigh(C)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ vectors.transpose(0, 2, 1)
        tiny = 1e-14 * np.abs(values).max()
        return Root(root, bool((values >= -tiny).all()))

    def times(self, t: np.ndarray) -> np.ndarray:
        """Return ``s t`` for blocks (k, n, K)."""
        return t * self.values if self.values.ndim == 2 else np.einsum("iab,kib->kia", self.values, t)

    def divide(self, t: np.ndarray) -> np.ndarray:
        """Return ``s^-1 t`` for blocks (k, n, K), zero where s is zero."""
        if self.values.ndim == 2:
            return np.divide(t, self.values, out=np.zeros_like(t), where=self.values > 0)
        return np.einsum("iab,kib->kia", self._pseudoinverse, t)

    @cached_property
    def _pseudoinverse(self) -> np.ndarray:
        return np.linalg.pinv(self.values, hermitian=True)

    def rows(self, start: int, stop: int, t: np.ndarray) -> np.ndarray:
        """Return ``s t`` for training rows ``start`` to ``stop``, a column of n-space each: (rows, columns)."""
        s = self.values[start:stop]
        if s.ndim == 2:
            return t * s.reshape(-1, 1)
        return np.einsum("iab,ibm->iam", s, t.reshape(*s.shape[:2], -1)).reshape(t.shape)

    def hides(self, weight: np.ndarray) -> bool:
        """Whether s is zero somewhere where ``weight``, a loss derivative (n, K) or (n, K, K), is not."""
        if self.values.ndim == 2:
            unseen = self.values == 0
            return bool(np.any((weight if weight.ndim == 2 else np.abs(weight).sum(axis=2))[unseen]))
        left = weight if weight.ndim == 3 else weight[:, :, None] * np.eye(weight.shape[1])
        missed = left - self.values @ (self._pseudoinverse @ left)
        return bool(np.abs(missed).max() > 1e-9 * np.abs(left).max())

    def around(self, K: np.ndarray) -> None:
        """Replace the kernel (N, N) by ``s K s``, in place."""
        if self.values.ndim == 2:
            flat = self.values.ravel()
            K *= flat
            K *= flat[:, None]
            return
        n, k = self.values.shape[:2]
        blocks, columns = K.reshape(n, k, n * k), K.reshape(n * k, n, k)
        for start in range(0, n, GRAM_ROWS):  # not all at once, which would take a second matrix
            rows = slice(start, start + GRAM_ROWS)
            blocks[rows] = np.einsum("iab,ibm->iam", self.values[rows], blocks[rows])
        for start in range(0, n * k, GRAM_ROWS):
            rows = slice(start, start + GRAM_ROWS)
            columns[rows] = np.einsum("mib,iba->mia", columns[rows], self.values)


@dataclass(frozen=True)
class Seen(SeenRows):
    """``z = P^-1 r`` seen from the data, for a block of rows.

    Attributes:
        scaled: ``Lam^-1/2 r``, (k, p).
        cross: ``F Lam^-1/2 r``, (k, N).
        pushed: ``s u``, (k, N): ``z = Lam^-1/2 (scaled - F' pushed)`` on the parameters with decay.
        free: z on those without, (k, free).
        image: ``J z``, n-space (k, n, K), zero where the loss has no curvature.
        energy: ``r'z``, (k,).
        lost: ``r'Lam^-1 r / r'z``: by how much rounding in ``energy`` is magnified, (k,).
    """

    scaled: np.ndarray
    cross: np.ndarray
    pushed: np.ndarray
    free: np.ndarray
    image: np.ndarray
    energy: np.ndarray
    lost: np.ndarray

    def times(self, weights: np.ndarray) -> Seen:
        """Multiply each row by a number."""
        c = weights[:, None]
        vectors = (c * self.scaled, c * self.cross, c * self.pushed, c * self.free)
        return Seen(*vectors, c[:, :, None] * self.image, weights**2 * self.energy, self.lost)

    def combined(self, weights: np.ndarray) -> Seen:
        """Return the one row ``sum_i weights_i z_i``; its energy is not known."""
        c, unknown = weights[None], np.full(1, np.nan)
        vectors = (c @ self.scaled, c @ self.cross, c @ self.pushed, c @ self.free)
        return Seen(*vectors, np.tensordot(c, self.image, axes=1), unknown, unknown)


@dataclass(frozen=True)
class Kernel:
    """The factorisation: see the module.

    Attributes:
        problem: The training problem.
        root: ``s``.
        features: ``F``.
        factor: ``L`` in its lower half; above it still stands ``s'FF's``, for another decay.
        diagonal: The diagonal of ``s'FF's``.
        border: ``W``.
        corner: The Cholesky factor of ``Q``.
    """

    problem: Problem
    root: Root
    features: Features = field(repr=False)
    factor: np.ndarray = field(repr=False)
    diagonal: np.ndarray = field(repr=False)
    border: np.ndarray = field(repr=False)
    corner: np.ndarray = field(repr=False)
    name: str = "dual"

    @property
    def structure(self) -> Structure:
        """How the parameters fall into leaves."""
        return self.features.structure

    def look(self, r: np.ndarray, gradients: Array | None = None, cross: np.ndarray | None = None) -> Seen:
        """Solve ``P z = r`` for each row of r, (k, p), without a vector of length p.

        Args:
            r: Right-hand sides.
            gradients: The same as an array of the framework, where the rows are gradients of predictions and may be
                compressed.
            cross: ``F Lam^-1/2 r``, (k, N), where it is at hand.
        """
        scaled = r * self.inverse_root
        c = self.cross_of(scaled, gradients) if cross is None else cross
        shape = (len(r), self.problem.n, self.problem.outputs)
        weighted = self.root.times(c.reshape(shape)).reshape(len(r), -1).T
        half = scipy.linalg.solve_triangular(self.factor, weighted, lower=True, check_finite=False)
        g_free, free = r[:, self.structure.free], np.zeros((len(r), 0))
        if self.border.size:
            rest = g_free.T - self.border.T @ half
            free = scipy.linalg.cho_solve((self.corner, True), rest, check_finite=False).T
            half = half + self.border @ free.T
        u = scipy.linalg.solve_triangular(
            self.factor, half, lower=True, trans="T", overwrite_b=True, check_finite=False
        ).T.reshape(shape)
        pushed = self.root.times(u).reshape(len(r), -1)
        total = np.einsum("kp,kp->k", scaled, scaled)
        energy = total - np.einsum("ki,ki->k", c, pushed) + np.einsum("kf,kf->k", g_free, free)
        lost = np.divide(total, np.abs(energy), out=np.ones_like(total), where=energy != 0)
        return Seen(scaled, c, pushed, free, self.root.divide(u), energy, lost)

    def cross(self, r: np.ndarray, *, single: bool = False) -> np.ndarray:
        """Return ``F Lam^-1/2 r``, (k, N), from products in single precision if that is enough."""
        scaled = r * self.inverse_root
        return _in_single(self.features.single.times, scaled) if single else self.features.times(scaled)

    def cross_of(self, scaled: np.ndarray, gradients: Array | None) -> np.ndarray:
        """Return ``F scaled'``, (k, N), from compressed gradients where they are given and can be compressed."""
        if gradients is not None:
            try:
                return np.ascontiguousarray(self.features.cross(compress(self.problem, gradients, self.structure)).T)
            except NotRankOne:  # a row unlike every training row
                pass
        return self.features.times(scaled)

    def lift(self, seen: Seen) -> np.ndarray:
        """Return ``z`` itself, (k, p): a small difference of large numbers, never in single precision."""
        z = (seen.scaled - self.features.transposed(seen.pushed)) * self.inverse_root
        z[:, self.structure.free] = seen.free
        return z

    def pull(self, seen: Seen) -> np.ndarray:
        """Return ``z' b`` with the gradient b of the penalty, (k,)."""
        held = seen.scaled @ self.scaled_slope - seen.pushed @ self.slope_image
        return held + seen.free @ self.penalty_slope[self.structure.free]

    @cached_property
    def penalty_slope(self) -> np.ndarray:
        """The gradient b of the penalty, (p,)."""
        return self.problem.numpy(self.problem.penalty_gradient())

    @cached_property
    def scaled_slope(self) -> np.ndarray:
        """``Lam^-1/2 b``, zero for parameters without decay, (p,)."""
        return self.inverse_root * self.penalty_slope

    @cached_property
    def slope_image(self) -> np.ndarray:
        """``F Lam^-1/2 b``, (N,)."""
        return self.features.times(self.scaled_slope[None])[0]

    def solve(self, r: Array) -> Array:
        """Return ``P^-1 r`` for p-space rows (k, p)."""
        return self.problem.native(self.lift(self.look(self.problem.numpy(r))))

    @property
    def exact(self) -> bool:
        """Whether P is the Gauss-Newton matrix itself: no negative curvature weight was taken for zero."""
        return self.root.exact

    def norms(self, found: Response, sigma: np.ndarray) -> Norms:
        """Read norms off answers whose images are ``J h``."""
        return Norms.of(self.problem, found, sigma)

    def response(self, found: Response) -> Response:
        """Return answers as they are: their images are ``J h``."""
        return found

    def apart(self, h: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return by how much images differ from ``J h`` by the front end's derivatives, as lengths, (k,)."""
        return self.lengths(self.problem.jvp(self.problem.native(h)) - image)

    def probe(self, seed: int) -> np.ndarray:
        """Return ``J'z`` for random signs z, (1, p): a right-hand side that the data see."""
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(1, len(self.features)))
        return self.features.transposed(signs) * self.root_decay

    def draw(self, seed: int) -> np.ndarray:
        """Return ``P^-1 (J's z + Lam^1/2 z')`` for standard normal z and z', (1, p): its covariance is ``P^-1``."""
        rng = np.random.default_rng(seed)
        z = rng.standard_normal((1, self.problem.n, self.problem.outputs))
        pushed = self.root.times(z).reshape(1, -1)
        r = self.root_decay * (self.features.transposed(pushed) + rng.standard_normal((1, self.problem.p)))
        r[:, self.structure.free] = pushed @ self.features.free
        return self.lift(self.look(r))

    def lengths(self, image: np.ndarray) -> np.ndarray:
        """Return ``|s'J h|`` of images ``J h``, (k, n, K): the root of V for the square loss, (k,)."""
        found: np.ndarray = np.sqrt(np.sum(self.root.times(image) ** 2, axis=(1, 2)))
        return found

    def apply(self, v: np.ndarray) -> np.ndarray:
        """Return ``P v`` for each row of v, (k, p)."""
        free = self.structure.free
        image = self.features.times(v * self.root_decay) + v[:, free] @ self.features.free.T
        shape = (len(v), self.problem.n, self.problem.outputs)
        weighted = self.root.times(self.root.times(image.reshape(shape))).reshape(len(v), -1)
        out = self.features.transposed(weighted) * self.root_decay + self.root_decay**2 * v
        out[:, free] = weighted @ self.features.free
        return out

    def under(self, problem: Problem, *, overwrite: bool = False) -> Kernel | None:
        """Return the kernel of the same model and data under this decay times some number, None for any other decay.

        Args:
            problem: The model and data under the other decay.
            overwrite: Whether the new kernel takes the memory of this one, which then is none any more.
        """
        old, new = self.problem.numpy(self.problem.decay), problem.numpy(problem.decay)
        ratio = np.divide(old, new, out=np.zeros_like(old), where=new > 0)[old > 0]
        if not ratio.size or not ratio[0] or np.ptp(ratio) > 1e-14 * ratio[0] or np.any((old > 0) != (new > 0)):
            return None
        # C-ordered; its lower half is what LAPACK left standing above the factor
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
        """``Lam^-1/2``, zero for parameters without decay, (p,)."""
        root = self.root_decay
        return np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)


def _in_single(product: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Apply a linear map in single precision to rows whose largest number is made one."""
    size = np.maximum(np.abs(rows).max(axis=1, keepdims=True), np.finfo(float).tiny)
    return product((rows / size).astype(np.float32)) * size


def newton_metric(problem: Problem) -> Callable[[Problem], Metric] | None:
    """How Newton's trust region is best measured on this problem: by the kernel where it is cheap, else by default.

    A few parameters are better served by all eigenvalues of the matrix itself; many rows make the kernel dear.
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
    """What the features, the kernel and the blocks that fill it take."""
    return _bytes_of(problem.n * problem.outputs, structure)


def _bytes_of(N: int, structure: Structure) -> int:
    return 8 * N * (structure.numbers + N + 3 * min(N, GRAM_ROWS))


def make_kernel(problem: Problem) -> Kernel:
    """Form and factorise.

    Raises:
        MemoryBudgetError: When the n x n matrix and the features do not fit.
        NotPositiveDefinite: When the parameters without decay are not determined by the data.
    """
    features = read_features(problem, partial(_require_memory, problem))
    root = Root.of(problem.loss_derivatives, problem.n)
    matrix = features.gram()
    root.around(matrix)
    return _factorised(problem, root, features, matrix)


def _factorised(problem: Problem, root: Root, features: Features, matrix: np.ndarray) -> Kernel:
    """Factorise ``I + matrix`` in place: a C-ordered symmetric matrix is its own Fortran-ordered transpose."""
    diagonal = np.diagonal(matrix).copy()
    matrix.flat[:: len(matrix) + 1] += 1.0
    factor, info = dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    if info != 0:
        raise NotPositiveDefinite(
            "the kernel of the Gauss-Newton matrix could not be factorised: the weight decay is below the rounding of "
            "the curvature, or a gradient overflows. Raise weight_decay, or use vhat.Dense() if it fits."
        )
    border, corner = _border(features, root, factor, problem)
    return Kernel(problem, root, features, factor, diagonal, border, corner)


def _border(features: Features, root: Root, factor: np.ndarray, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
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
    """How many training rows the budget has room for."""
    return most_allowed(problem.n, lambda n: _bytes_of(n * problem.outputs, structure) <= problem.memory)
