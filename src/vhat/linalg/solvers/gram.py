"""The Gauss-Newton matrix ``P = J'CJ/n + Lam`` itself, (p, p), summed over blocks of training rows and factorised once.

Whatever the number of rows, two triangles of one matrix are kept, in units in which P has diagonal one: the Cholesky
factor of P below, ``G = J'CJ/n`` above. With them a solve costs ``4 p^2`` flops a right-hand side, and so does the
variance of a prediction: ``h'Gh`` is what the training rows hold of it, and no image ``J h`` over them is formed.
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
from vhat.linalg.solvers.factorised import SeenRows
from vhat.linalg.solvers.interface import Norms, Response, put, taken
from vhat.linalg.solvers.jacobian_factors import jacobian_rows
from vhat.linalg.solvers.kernel import Root
from vhat.linalg.solvers.row_weights import CurvatureWeights, NoiseWeights, RowWeights
from vhat.models.problem import Array, LossDerivatives, Problem
from vhat.progress import bar

__all__ = ["Gram", "Solved", "gram_bytes", "gram_flops", "make_gram", "variance_ratio"]

_EPS = float(np.finfo(np.float64).eps)
_BLOCK_ROWS = 4096
"""Rows of the Jacobian, one an output, that are multiplied together: enough for a matrix product at full speed."""
_LEAST_ROWS = 256
"""The same where memory is short."""
_BLOCK_SHARE = 8
"""The block of rows takes at most this fraction, 1/8, of the memory budget, unless it has fewer than the least rows."""
_PROPORTIONAL = 1e-12
"""Relative spread of the ratio of two sets of weights that are the same but for rounding."""
_ROWS_READ_OFF = 16
"""Predictions whose images over the training rows exist at once, where a variance is read off these."""
_LOST = 1e-6
"""Relative error of a variance, by an estimate of rounding, above which it is read off the training rows instead."""


@dataclass(frozen=True)
class Solved(SeenRows):
    """``z = P^-1 r`` for a block of rows: the p x p side has z itself.

    Attributes:
        cross: Nothing, (k, 0): a right-hand side needs no other form.
        image: z, (k, 1, p): its length as the data see it is ``z'Gz``.
        energy: ``r'z``, (k,).
        lost: One, (k,): ``r'z`` is no difference of large numbers.
    """

    cross: np.ndarray
    image: np.ndarray
    energy: np.ndarray
    lost: np.ndarray

    def times(self, weights: np.ndarray) -> Solved:
        """Multiply each row by a number."""
        c = weights[:, None, None]
        return Solved(self.cross, c * self.image, weights**2 * self.energy, self.lost)

    def combined(self, weights: np.ndarray) -> Solved:
        """Return the one row ``sum_i weights_i z_i``; its energy is not known."""
        unknown = np.full(1, np.nan)
        return Solved(self.cross[:1], np.tensordot(weights[None], self.image, axes=1), unknown, unknown)


@dataclass
class _NoiseMatrix:
    """``1/n sum_ib sigma_ib^2 u_ib u_ib'`` with ``u_ib = sum_a J_ia d2l/df_a dy_b``, for the noise asked about last.

    Attributes:
        shape: The noise, (n, K), divided by its root mean square.
        matrix: Its upper triangle in unit-free terms, (p, p); None where it is a multiple of G, or does not fit.
        ratio: The number that multiplies G; None where it is no multiple.
    """

    shape: np.ndarray
    matrix: np.ndarray | None
    ratio: float | None


@dataclass
class Gram:
    """The factorisation: see the module, and :class:`vhat.linalg.solvers.factorised.Factorised`.

    Attributes:
        problem: The training problem.
        root: ``s`` with ``s s' = C/n``; negative curvature weights count as zero.
        unit: ``sqrt(diag P)``, (p,): the inverse unit of each parameter.
        matrix: Fortran-ordered (p, p), in these units: the Cholesky factor of P on and below the diagonal, G above.
        diagonal: Of G in these units, (p,).
    """

    problem: Problem
    root: Root
    unit: np.ndarray = field(repr=False)
    matrix: np.ndarray = field(repr=False)
    diagonal: np.ndarray = field(repr=False)
    _noise: _NoiseMatrix | None = field(default=None, repr=False)

    @property
    def exact(self) -> bool:
        """Whether P is the Gauss-Newton matrix itself: no negative curvature weight was taken for zero."""
        return self.root.exact

    @cached_property
    def penalty_slope(self) -> np.ndarray:
        """The gradient of the penalty, (p,)."""
        return self.problem.numpy(self.problem.penalty_gradient())

    @cached_property
    def _decay(self) -> np.ndarray:
        """Lam in unit-free terms, (p,)."""
        return self.problem.numpy(self.problem.decay) / self.unit**2

    @cached_property
    def _slope(self) -> np.ndarray:
        """``grad L``, (p,)."""
        return self.problem.numpy(self.problem.gradient())

    # -- solving -------------------------------------------------------------------------------
    def look(self, r: np.ndarray, gradients: Array | None = None, cross: np.ndarray | None = None) -> Solved:  # noqa: ARG002
        """Solve ``P z = r`` for each row of r, (k, p), with one step of iterative refinement."""
        y = r / self.unit
        z = self._solve(y)
        z += self._solve(y - self._held(z) - self._decay * z)
        energy = np.einsum("kp,kp->k", y, z)
        z /= self.unit
        return Solved(np.zeros((len(r), 0)), z[:, None, :], energy, np.ones(len(r)))

    def lift(self, seen: Solved) -> np.ndarray:
        """Return z itself, (k, p)."""
        return seen.image[:, 0]

    def pull(self, seen: Solved) -> np.ndarray:
        """Return ``z' b`` with the gradient b of the penalty, (k,)."""
        return seen.image[:, 0] @ self.penalty_slope

    def cross(self, r: np.ndarray, *, single: bool = False) -> np.ndarray:  # noqa: ARG002
        """Return nothing, (k, 0)."""
        return np.zeros((len(r), 0))

    def solve(self, r: Array) -> Array:
        """Return ``P^-1 r`` for p-space rows (k, p)."""
        return self.problem.native(self.lift(self.look(self.problem.numpy(r))))

    def apply(self, v: np.ndarray) -> np.ndarray:
        """Return ``P v`` for each row of v, (k, p)."""
        y = v * self.unit
        return (self._held(y) + self._decay * y) * self.unit

    def probe(self, seed: int) -> np.ndarray:
        """Return ``J'z`` for random signs z, (1, p): a right-hand side that the data see."""
        shape = (1, self.problem.n, self.problem.outputs)
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=shape)
        return self.problem.numpy(self.problem.vjp(signs))

    def draw(self, seed: int) -> np.ndarray:
        """Return ``D^-1 L^-T z`` for standard normal z, (1, p): its covariance is ``P^-1``."""
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

    def _held(self, y: np.ndarray) -> np.ndarray:
        """Return ``G y`` in unit-free terms for each row of y."""
        found = dsymm(1.0, self.matrix, np.asfortranarray(y.T), side=0, lower=0).T
        # On the diagonal stands that of the Cholesky factor.
        found += y * (self.diagonal - np.diagonal(self.matrix))
        return found

    # -- norms ---------------------------------------------------------------------------------
    def lengths(self, image: np.ndarray) -> np.ndarray:
        """Return ``|s'J z| = sqrt(z'Gz)`` of images z, (k, 1, p): the root of V for the square loss, (k,).

        Rows of which the data see so little that rounding in G would show are looked at through the training rows.
        """
        z = image[:, 0]
        y = z * self.unit
        square = np.einsum("kp,kp->k", y, self._held(y))
        lost = self._lost(y, square)
        for start in range(0, len(lost), _ROWS_READ_OFF):
            rows = lost[start : start + _ROWS_READ_OFF]
            seen = self.root.times(self.problem.jvp(self.problem.native(z[rows])))
            square[rows] = np.sum(seen**2, axis=(1, 2))
        return np.sqrt(np.maximum(square, 0.0))

    def _lost(self, y: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Return the rows whose ``square``, ``y'Gy`` in unit-free terms, rounding may have moved visibly."""
        rounding = _EPS * np.sqrt(self.problem.p) * (y**2 @ self.diagonal)
        return np.flatnonzero(~(rounding <= _LOST * square))

    def apart(self, h: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return by how much images differ from h, as lengths, (k,): from the p x p side they are h."""
        return self.lengths(h[:, None] - image)

    def norms(self, found: Response, sigma: np.ndarray) -> Norms:
        """Read norms off answers whose images are h, (k, 1, p), by p x p algebra alone.

        Rows of which the data hold so little that rounding in G would show are looked at through the training rows.
        """
        h = found.image[:, 0]
        y = h * self.unit
        by_rows = not self.exact  # G then lacks the rows of negative curvature
        with np.errstate(invalid="ignore", over="ignore"):
            supported = np.einsum("kp,kp->k", y, self._held(y))
            variance = None if by_rows else self._variance(y, supported, sigma)
            norms = Norms(
                variance=np.full(len(h), np.nan) if variance is None else variance,
                supported=supported,
                energy=found.energy,
                pull=found.pull,
                slope=h @ self._slope,
                status=found.status,
                residual=found.residual,
                steps=found.steps,
            )
            lost = np.arange(len(h)) if variance is None else self._lost(y, supported)
        for start in range(0, len(lost), _ROWS_READ_OFF):
            rows = lost[start : start + _ROWS_READ_OFF]
            norms = put(norms, rows, Norms.of(self.problem, self.response(taken(found, rows)), sigma))
        return norms

    def response(self, found: Response) -> Response:
        """Return answers with the images ``J h`` over the training rows."""
        image = self.problem.jvp(self.problem.native(found.image[:, 0]))
        return Response(image, found.energy, found.pull, found.status, found.residual, found.steps)

    def _variance(self, y: np.ndarray, supported: np.ndarray, sigma: np.ndarray) -> np.ndarray | None:
        """Return ``1/n sum_ib sigma_ib^2 u_ib^2`` of each row, (k,); None where its matrix does not fit."""
        level = float(np.sqrt(np.mean(sigma**2)))
        shape = sigma / level
        noise = self._noise
        if noise is None or not np.allclose(noise.shape, shape, rtol=_PROPORTIONAL, atol=0.0):
            noise = self._noise = None  # two of them would not fit what was planned
            noise = self._noise = self._weigh(shape)
        if noise.ratio is not None:
            return level**2 * noise.ratio * supported
        if noise.matrix is None:
            return None
        product = dsymm(1.0, noise.matrix, np.asfortranarray(y.T), side=0, lower=0).T
        return level**2 * np.einsum("kp,kp->k", y, product)

    def _weigh(self, shape: np.ndarray) -> _NoiseMatrix:
        """Sum up the matrix of the variance under a shape of the noise, unless it is a multiple of G."""
        loss, n = self.problem.loss_derivatives, self.problem.n
        ratio = variance_ratio(loss, shape)
        if ratio is not None:
            return _NoiseMatrix(shape, None, ratio)

        if 8 * self.problem.p * (2 * self.problem.p + 3 * _rows_together(self.problem)) > self.problem.memory:
            return _NoiseMatrix(shape, None, None)
        weights = NoiseWeights(loss.cross, shape / np.sqrt(n))
        return _NoiseMatrix(shape, _summed(self.problem, weights, self.unit), None)


def variance_ratio(loss: LossDerivatives, shape: np.ndarray) -> float | None:
    """Return by how much the variance of any value exceeds what the training rows hold of it, where that is one number.

    So it is where the noise variance of every row is proportional to its curvature weight, as for the square loss and
    equal noise.

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
    """What the matrix and the block of rows that fills it take; with several outputs, a second matrix and more blocks.

    The second matrix is that of a variance which is no multiple of G: outputs of different noise, noise of unequal
    shape. With one output it is made where it fits, and such variances are read off the training rows where not.
    """
    matrices, blocks = (1, 1) if problem.outputs == 1 else (2, 3)
    return 8 * problem.p * (matrices * problem.p + blocks * _rows_together(problem))


def gram_flops(problem: Problem) -> float:
    """Return the flops of summing up and factorising the matrix."""
    p = float(problem.p)
    return problem.n * problem.outputs * p**2 + p**3 / 3


def make_gram(problem: Problem, scale: Array, engine: Any = None) -> Gram:
    """Sum up and factorise.

    Args:
        problem: The training problem.
        scale: The unit of each parameter, from :func:`vhat.linalg.curvature.scale`.
        engine: The client of the Dask cluster that sums over the training rows; None where this process does.

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
    matrix = _summed(problem, CurvatureWeights(root), unit, engine)
    diagonal = np.diagonal(matrix).copy()
    for column in range(problem.p - 1):  # the factor takes the lower triangle, G stays in the upper one
        matrix[column + 1 :, column] = matrix[column, column + 1 :]
    matrix.flat[:: problem.p + 1] += problem.numpy(problem.decay) / unit**2
    factor, info = dpotrf(matrix, lower=1, overwrite_a=1, clean=0)
    if info != 0:
        raise NotPositiveDefinite(
            "the Gauss-Newton matrix plus weight decay could not be factorised: the data do not determine every "
            "parameter, or the weight decay is below the rounding of the curvature. Raise weight_decay."
        )
    return Gram(problem, root, unit, factor, diagonal)


def _summed(problem: Problem, weights: RowWeights, unit: np.ndarray, engine: Any = None) -> np.ndarray:
    """Return ``sum_i w_i w_i'`` over the weighted rows of the Jacobian, in unit-free terms: the upper triangle, (p, p).

    Args:
        problem: The training problem.
        weights: How the rows weigh.
        unit: The inverse unit of each parameter.
        engine: The client of a Dask cluster, or None.
    """
    step = max(1, _rows_together(problem) // problem.outputs)
    if engine is not None:
        return sum_of_squares(engine, problem, weights, unit, step)
    total = np.zeros((problem.p, problem.p), order="F")
    room = np.empty((min(step, problem.n) * problem.outputs, problem.p))
    starts = range(0, problem.n, step)
    with bar("Gauss-Newton matrix", len(starts)) as advance:
        for start in starts:
            stop = min(start + step, problem.n)
            J = jacobian_rows(problem, start, stop, room[: (stop - start) * problem.outputs])
            rows = weights.take(start, stop).rows(J)
            rows /= unit
            # The transpose of a C-ordered block is Fortran-ordered: nothing is copied.
            total = dsyrk(1.0, rows.T, beta=1.0, c=total, trans=0, lower=0, overwrite_c=1)
            advance("")
    return total


def _rows_together(problem: Problem) -> int:
    """How many rows of the Jacobian, one an output, are in a block."""
    fits = problem.memory // (_BLOCK_SHARE * 8 * problem.p)
    return int(max(_LEAST_ROWS, min(_BLOCK_ROWS, fits, problem.n * problem.outputs)))
