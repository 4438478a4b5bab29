"""The p x p Gauss-Newton matrix ``P = J'CJ/n + Lam``, summed over blocks of training rows and factorised once.

The two triangles of one matrix are stored, in units in which P has diagonal one: the Cholesky factor of P below, and
``G = J'CJ/n`` above. The memory does not depend on the number of rows. A solve costs ``4 p^2`` flops per right-hand
side, and so does the variance of a prediction: ``h'Gh`` is its part from the training data, and no image ``J h`` over
the training rows is formed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg.blas import dsymm, dsyrk
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs

from vhat.errors import MemoryBudgetError, NotPositiveDefinite
from vhat.linalg.memory import in_words
from vhat.linalg.solvers.cluster import sum_of_squares
from vhat.linalg.solvers.curvature_root import Root
from vhat.linalg.solvers.factorised import ImplicitSolution
from vhat.linalg.solvers.interface import Norms, Response, replace_rows, take_rows
from vhat.linalg.solvers.jacobian_factors import jacobian_rows
from vhat.linalg.solvers.row_weights import CurvatureWeights, NoiseWeights, RowWeights
from vhat.models.problem import Array, LossDerivatives, Problem
from vhat.progress import bar

__all__ = ["Gram", "GramSolution", "gram_bytes", "gram_flops", "make_gram", "variance_ratio"]

_EPS = float(np.finfo(np.float64).eps)
_BLOCK_ROWS = 4096
"""Rows of the Jacobian per block, one per training row and output: enough for matrix products at full speed."""
_LEAST_ROWS = 256
"""Smallest number of rows per block, however small the memory budget."""
_BLOCK_SHARE = 8
"""Inverse share of the memory budget for a block of rows: at most 1/8, unless the block has the smallest size."""
_PROPORTIONAL = 1e-12
"""Relative spread of a ratio of weights up to which the weights are proportional: rounding."""
_IMAGES_TOGETHER = 16
"""Predictions whose images over the training rows are in memory together, if a variance is computed from them."""
_ROUNDING_RTOL = 1e-6
"""Estimated relative rounding error of a variance above which it is computed from the training rows instead."""


@dataclass(frozen=True)
class GramSolution(ImplicitSolution):
    """``z = P^-1 r`` for a block of rows; the primal solver has z itself.

    Attributes:
        cross: Empty, (k, 0): no other form of a right-hand side is used.
        image: z, (k, 1, p), with ``|s'J z|^2 = z'Gz``.
        energy: ``r'z``, (k,).
        cancellation: One, (k,): ``r'z`` is not a difference of large numbers.
    """

    cross: np.ndarray
    image: np.ndarray
    energy: np.ndarray
    cancellation: np.ndarray

    def times(self, weights: np.ndarray) -> GramSolution:
        """Return each row multiplied by its weight."""
        c = weights[:, None, None]
        return GramSolution(self.cross, c * self.image, weights**2 * self.energy, self.cancellation)

    def combined(self, weights: np.ndarray) -> GramSolution:
        """Return the single row ``sum_i weights_i z_i``, without its energy (NaN)."""
        unknown = np.full(1, np.nan)
        return GramSolution(self.cross[:1], np.tensordot(weights[None], self.image, axes=1), unknown, unknown)


@dataclass
class _NoiseMatrix:
    """``1/n sum_ib sigma_ib^2 u_ib u_ib'`` with ``u_ib = sum_a J_ia d2l/df_a dy_b``, cached for the last noise used.

    Attributes:
        shape: The noise, (n, K), divided by its root mean square.
        matrix: Upper triangle in unit-free terms, (p, p); None if it is a multiple of G, or does not fit.
        ratio: The factor if it is a multiple of G, else None.
    """

    shape: np.ndarray
    matrix: np.ndarray | None
    ratio: float | None


@dataclass
class Gram:
    """The factorised p x p matrix; implements :class:`vhat.linalg.solvers.factorised.Factorised`.

    Attributes:
        problem: The training problem.
        root: ``s`` with ``s s' = C/n``; negative curvature weights are replaced by zero.
        unit: ``sqrt(diag P)``, (p,): the inverse unit of each parameter.
        matrix: Fortran-ordered (p, p), in these units: the Cholesky factor of P on and below the diagonal, G above.
        diagonal: Diagonal of G in these units, (p,).
    """

    problem: Problem
    root: Root
    unit: np.ndarray = field(repr=False)
    matrix: np.ndarray = field(repr=False)
    diagonal: np.ndarray = field(repr=False)
    _noise: _NoiseMatrix | None = field(default=None, repr=False)

    @property
    def exact(self) -> bool:
        """Whether P is the Gauss-Newton matrix itself: no negative curvature weight was replaced by zero."""
        return self.root.exact

    @cached_property
    def penalty_gradient(self) -> np.ndarray:
        """The gradient b of the penalty, (p,)."""
        return self.problem.numpy(self.problem.penalty_gradient())

    @cached_property
    def _decay(self) -> np.ndarray:
        """Lam in unit-free terms, (p,)."""
        return self.problem.numpy(self.problem.decay) / self.unit**2

    @cached_property
    def _loss_gradient(self) -> np.ndarray:
        """``grad L``, (p,)."""
        return self.problem.numpy(self.problem.gradient())

    # -- solving -------------------------------------------------------------------------------
    def solve_implicit(
        self,
        r: np.ndarray,
        gradients: Array | None = None,  # noqa: ARG002  (nothing to compress)
        cross: np.ndarray | None = None,  # noqa: ARG002  (always empty here)
    ) -> GramSolution:
        """Solve ``P z = r`` for each row of r, (k, p), with one step of iterative refinement."""
        y = r / self.unit
        z = self._solve(y)
        # Refinement: the residual y - P z, with P = G + Lam in unit-free terms.
        z += self._solve(y - self._times_gram(z) - self._decay * z)
        energy = np.einsum("kp,kp->k", y, z)
        z /= self.unit
        return GramSolution(np.zeros((len(r), 0)), z[:, None, :], energy, np.ones(len(r)))

    def lift(self, z: GramSolution) -> np.ndarray:
        """Return z as vectors, (k, p)."""
        return z.image[:, 0]

    def pull(self, z: GramSolution) -> np.ndarray:
        """Return ``z' b`` with b the gradient of the penalty, (k,)."""
        return z.image[:, 0] @ self.penalty_gradient

    def cross(self, r: np.ndarray, *, single: bool = False) -> np.ndarray:  # noqa: ARG002
        """Return an empty array, (k, 0)."""
        return np.zeros((len(r), 0))

    def solve(self, r: Array) -> Array:
        """Return ``P^-1 r`` for p-space rows (k, p)."""
        return self.problem.native(self.lift(self.solve_implicit(self.problem.numpy(r))))

    def apply(self, v: np.ndarray) -> np.ndarray:
        """Return ``P v`` for each row of v, (k, p)."""
        y = v * self.unit
        return (self._times_gram(y) + self._decay * y) * self.unit

    def probe(self, seed: int) -> np.ndarray:
        """Return ``J'z`` for random signs z, (1, p): a random right-hand side in the span of the training gradients."""
        shape = (1, self.problem.n, self.problem.outputs)
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=shape)
        return self.problem.numpy(self.problem.vjp(signs))

    def draw(self, seed: int) -> np.ndarray:
        """Return ``D^-1 L^-T z`` for standard normal z, with D the units, (1, p): its covariance is ``P^-1``."""
        z = np.random.default_rng(seed).standard_normal((self.problem.p, 1))
        x, _ = dtrtrs(self.matrix, z, lower=1, trans=1)
        return x.T / self.unit

    def half(self, g: np.ndarray) -> np.ndarray:
        """Return ``L^-1 D^-1 g``, (k, p), so that ``g_a' P^-1 g_b`` is a plain inner product."""
        x, _ = dtrtrs(self.matrix, np.asfortranarray((g / self.unit).T), lower=1)
        return np.ascontiguousarray(x.T)

    def _solve(self, y: np.ndarray) -> np.ndarray:
        """Return ``P^-1 y`` in unit-free terms for each row of y."""
        x, _ = dpotrs(self.matrix, np.array(y.T, order="F"), lower=1, overwrite_b=1)
        return x.T

    def _times_gram(self, y: np.ndarray) -> np.ndarray:
        """Return ``G y`` in unit-free terms for each row of y."""
        found = dsymm(1.0, self.matrix, np.asfortranarray(y.T), side=0, lower=0).T
        # dsymm uses the diagonal of the matrix, which belongs to the Cholesky factor: correct for it.
        found += y * (self.diagonal - np.diagonal(self.matrix))
        return found

    # -- norms ---------------------------------------------------------------------------------
    def lengths(self, image: np.ndarray) -> np.ndarray:
        """Return ``|s'J z| = sqrt(z'Gz)`` of images z, (k, 1, p): the square root of V for the squared loss, (k,).

        Where rounding in G would show, the lengths are computed from the training rows.
        """
        z = image[:, 0]
        y = z * self.unit
        square = np.einsum("kp,kp->k", y, self._times_gram(y))
        inaccurate = self._inaccurate_rows(y, square)
        for start in range(0, len(inaccurate), _IMAGES_TOGETHER):
            rows = inaccurate[start : start + _IMAGES_TOGETHER]
            weighted = self.root.times(self.problem.jvp(self.problem.native(z[rows])))
            square[rows] = np.sum(weighted**2, axis=(1, 2))
        return np.sqrt(np.maximum(square, 0.0))

    def _inaccurate_rows(self, y: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Return the rows in which rounding may have changed ``square = y'Gy`` (unit-free terms) noticeably."""
        rounding = _EPS * np.sqrt(self.problem.p) * (y**2 @ self.diagonal)
        return np.flatnonzero(~(rounding <= _ROUNDING_RTOL * square))

    def image_discrepancy(self, h: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return the length ``|s'J e|`` of the difference e between h and images, (k,); here the image of h is h."""
        return self.lengths(h[:, None] - image)

    def norms(self, found: Response, sigma: np.ndarray) -> Norms:
        """Return the norms of responses whose images are h, (k, 1, p), by p x p algebra.

        Where rounding in G would show, the norms are computed from the training rows.
        """
        h = found.image[:, 0]
        y = h * self.unit
        with np.errstate(invalid="ignore", over="ignore"):
            supported = np.einsum("kp,kp->k", y, self._times_gram(y))
            # A matrix that is not exact lacks the rows of negative curvature.
            variance = self._variance(y, supported, sigma) if self.exact else None
            if variance is None:
                variance = np.full(len(h), np.nan)
                from_rows = np.arange(len(h))
            else:
                from_rows = self._inaccurate_rows(y, supported)
            norms = Norms(
                variance=variance,
                supported=supported,
                energy=found.energy,
                pull=found.pull,
                slope=h @ self._loss_gradient,
                status=found.status,
                residual=found.residual,
                steps=found.steps,
            )
        for start in range(0, len(from_rows), _IMAGES_TOGETHER):
            rows = from_rows[start : start + _IMAGES_TOGETHER]
            norms = replace_rows(norms, rows, Norms.of(self.problem, self.response(take_rows(found, rows)), sigma))
        return norms

    def response(self, found: Response) -> Response:
        """Return responses with the images ``J h`` over the training rows."""
        image = self.problem.jvp(self.problem.native(found.image[:, 0]))
        return Response(image, found.energy, found.pull, found.status, found.residual, found.steps)

    def _variance(self, y: np.ndarray, supported: np.ndarray, sigma: np.ndarray) -> np.ndarray | None:
        """Return ``1/n sum_ib sigma_ib^2 u_ib^2`` of each row, (k,); None if its matrix does not fit."""
        level = float(np.sqrt(np.mean(sigma**2)))
        shape = sigma / level
        noise = self._noise
        if noise is None or not np.allclose(noise.shape, shape, rtol=_PROPORTIONAL, atol=0.0):
            # Release the old matrix first: the memory plan has room for one.
            noise = None
            self._noise = None
            noise = self._noise_matrix(shape)
            self._noise = noise
        if noise.ratio is not None:
            return level**2 * noise.ratio * supported
        if noise.matrix is None:
            return None
        product = dsymm(1.0, noise.matrix, np.asfortranarray(y.T), side=0, lower=0).T
        return level**2 * np.einsum("kp,kp->k", y, product)

    def _noise_matrix(self, shape: np.ndarray) -> _NoiseMatrix:
        """Return the matrix of the variance for noise of this shape: a multiple of G, or summed over the rows."""
        problem = self.problem
        ratio = variance_ratio(problem.loss_derivatives, shape)
        if ratio is not None:
            return _NoiseMatrix(shape, None, ratio)
        if 8 * problem.p * (2 * problem.p + 3 * _rows_together(problem)) > problem.memory:
            return _NoiseMatrix(shape, None, None)
        weights = NoiseWeights(problem.loss_derivatives.cross, shape / np.sqrt(problem.n))
        return _NoiseMatrix(shape, _sum_over_rows(problem, weights, self.unit), None)


def variance_ratio(loss: LossDerivatives, shape: np.ndarray) -> float | None:
    """Return the ratio of the variance to ``h'Gh`` if it is the same for every h, else None.

    It is the same if the noise variance of every row is proportional to its curvature weight, for example for the
    squared loss with equal noise.

    Args:
        loss: The derivatives of the loss on the training rows.
        shape: The noise of each training response, (n, K).
    """
    if loss.cross.ndim != 2 or loss.curvature.ndim != 2:
        return None
    weight = (shape * loss.cross) ** 2
    counted = loss.curvature > 0
    ratio = weight[counted] / loss.curvature[counted]
    if not ratio.size or np.any(weight[~counted]) or np.ptp(ratio) > _PROPORTIONAL * ratio.max():
        return None
    return float(ratio.mean())


def gram_bytes(problem: Problem) -> int:
    """Return the bytes of the matrix and of the block of rows that fills it.

    With several outputs a second matrix and more blocks are counted. The second matrix is that of a variance which is
    not a multiple of G, because outputs or rows have different noise. With one output it is formed only if it fits;
    otherwise such variances are computed from the training rows.
    """
    if problem.outputs == 1:
        matrices, blocks = 1, 1
    else:
        matrices, blocks = 2, 3
    return 8 * problem.p * (matrices * problem.p + blocks * _rows_together(problem))


def gram_flops(problem: Problem) -> float:
    """Return the flops of summing up and factorising the matrix."""
    p = float(problem.p)
    return problem.n * problem.outputs * p**2 + p**3 / 3


def make_gram(problem: Problem, scale: Array, engine: Any = None) -> Gram:
    """Sum the matrix over the training rows and factorise it.

    Args:
        problem: The training problem.
        scale: The unit of each parameter, from :func:`vhat.linalg.curvature.scale`.
        engine: Client of the Dask cluster that sums over the training rows; None to sum in this process.

    Raises:
        MemoryBudgetError: When the matrix does not fit.
        NotPositiveDefinite: When the data and the decay do not determine every parameter.
    """
    need = gram_bytes(problem)
    if need > problem.memory:
        raise MemoryBudgetError(
            f"vhat.Primal() needs {in_words(need)} for matrices of p = {problem.p:,} parameters; the budget is "
            f"{in_words(problem.memory)}. Use solver='auto', which takes what fits, or raise memory=."
        )
    root = Root.of(problem.loss_derivatives, problem.n)
    unit = problem.numpy(scale)
    matrix = _sum_over_rows(problem, CurvatureWeights(root), unit, engine)
    diagonal = np.diagonal(matrix).copy()
    # Copy G to the lower triangle, where LAPACK overwrites it by the factor; the upper triangle keeps G.
    for column in range(problem.p - 1):
        matrix[column + 1 :, column] = matrix[column, column + 1 :]
    matrix.flat[:: problem.p + 1] += problem.numpy(problem.decay) / unit**2
    factor, info = dpotrf(matrix, lower=1, overwrite_a=1, clean=0)
    if info != 0:
        raise NotPositiveDefinite(
            "the Gauss-Newton matrix plus weight decay could not be factorised: the data do not determine every "
            "parameter, or the weight decay is below the rounding of the curvature. Raise weight_decay."
        )
    return Gram(problem, root, unit, factor, diagonal)


def _sum_over_rows(problem: Problem, weights: RowWeights, unit: np.ndarray, engine: Any = None) -> np.ndarray:
    """Return ``sum_i w_i w_i'`` over the weighted rows of the Jacobian, in unit-free terms: the upper triangle, (p, p).

    Args:
        problem: The training problem.
        weights: The weights of the rows.
        unit: The inverse unit of each parameter.
        engine: The client of a Dask cluster, or None.
    """
    step = max(1, _rows_together(problem) // problem.outputs)
    if engine is not None:
        return sum_of_squares(engine, problem, weights, unit, step)
    total = np.zeros((problem.p, problem.p), order="F")
    buffer = np.empty((min(step, problem.n) * problem.outputs, problem.p))
    starts = range(0, problem.n, step)
    with bar("Gauss-Newton matrix", len(starts)) as advance:
        for start in starts:
            stop = min(start + step, problem.n)
            J = jacobian_rows(problem, start, stop, buffer[: (stop - start) * problem.outputs])
            rows = weights.take(start, stop).rows(J)
            rows /= unit
            # BLAS needs Fortran order: the transpose of the C-ordered block has it without a copy.
            total = dsyrk(1.0, rows.T, beta=1.0, c=total, trans=0, lower=0, overwrite_c=1)
            advance("")
    return total


def _rows_together(problem: Problem) -> int:
    """Return how many rows of the Jacobian, one per training row and output, are in a block."""
    fits = problem.memory // (_BLOCK_SHARE * 8 * problem.p)
    return int(max(_LEAST_ROWS, min(_BLOCK_ROWS, fits, problem.n * problem.outputs)))
