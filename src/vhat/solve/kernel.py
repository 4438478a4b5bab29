"""The Gauss-Newton matrix ``P = J'CJ/n + lam`` solved in the space of the data, through an n x n factorisation.

With ``s s' = C/n`` and ``Lam`` the decay, ``B = I + s' (J Lam^-1 J') s`` is factorised once, in place. Then for any g

    u = B^-1 s' J Lam^-1 g,     P^-1 g = Lam^-1 (g - J's u).

Parameters without decay (columns b of J) border the system: ``h_b = Q^-1 (g_b - W'L^-1 s'c)`` with ``L L' = B``,
``W = L^-1 s'J_b`` and ``Q = W'W``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf

from vhat.curvature import Operator
from vhat.curvature.metric import Metric, jacobi
from vhat.errors import MemoryBudgetError, NotPositiveDefinite
from vhat.problem import Array, LossDerivatives, Problem
from vhat.solve.features import Features, Structure, find_structure, gram, read_features

__all__ = ["Kernel", "KernelMetric", "Root", "kernel_bytes", "make_kernel", "newton_metric"]

_FEW_PARAMETERS = 64
_MANY_ROWS = 5000


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

    def around(self, K: np.ndarray) -> None:
        """Replace the kernel (N, N) by ``s K s``, in place."""
        if self.values.ndim == 2:
            flat = self.values.ravel()
            K *= flat
            K *= flat[:, None]
            return
        n, k = self.values.shape[:2]
        blocks = K.reshape(n, k, n * k)
        blocks[:] = np.einsum("iab,ibm->iam", self.values, blocks)
        columns = K.reshape(n * k, n, k)
        columns[:] = np.einsum("mib,iba->mia", columns, self.values)


@dataclass(frozen=True)
class Response:
    """``P^-1 g`` seen from the data.

    Attributes:
        pushed: ``s u``, n-space (k, n, K): ``P^-1 g = Lam^-1 (g - J' pushed)`` on the parameters with decay.
        free: ``P^-1 g`` on those without, (k, free).
    """

    pushed: np.ndarray
    free: np.ndarray


@dataclass(frozen=True)
class Kernel:
    """The factorisation: see the module."""

    problem: Problem
    root: Root
    structure: Structure
    features: Features = field(repr=False)
    factor: np.ndarray = field(repr=False)
    border: np.ndarray = field(repr=False)
    corner: np.ndarray = field(repr=False)

    def respond(self, c: np.ndarray, g_free: np.ndarray) -> Response:
        """Solve, given ``c = J Lam^-1 g`` over the parameters with decay, (k, n, K), and g on those without."""
        shape = c.shape
        half = scipy.linalg.solve_triangular(
            self.factor, self.root.times(c).reshape(shape[0], -1).T, lower=True, check_finite=False
        )
        free = np.zeros((shape[0], 0))
        if self.border.size:
            rest = g_free.T - self.border.T @ half
            free = scipy.linalg.cho_solve((self.corner, True), rest, check_finite=False).T
            half = half + self.border @ free.T
        u = scipy.linalg.solve_triangular(
            self.factor, half, lower=True, trans="T", overwrite_b=True, check_finite=False
        ).T.reshape(shape)
        return Response(self.root.times(u), free)

    def lift(self, r: Array, pushed: np.ndarray, free: np.ndarray) -> Array:
        """Return ``P^-1 r`` from its response, p-space (k, p)."""
        problem = self.problem
        z = (r - problem.vjp(pushed)) * problem.native(self.inverse_decay)
        if not len(self.structure.free):
            return z
        spread = np.zeros((len(free), problem.p))
        spread[:, self.structure.free] = free
        return z + problem.native(spread)

    def solve(self, r: Array) -> Array:
        """Return ``P^-1 r`` for p-space rows (k, p)."""
        problem, free = self.problem, self.structure.free
        response = self.respond(problem.jvp(r * problem.native(self.inverse_decay)), problem.numpy(r)[:, free])
        return self.lift(r, response.pushed, response.free)

    @property
    def name(self) -> str:
        """The name that results carry."""
        return "dual"

    @cached_property
    def inverse_decay(self) -> np.ndarray:
        """``1/lam``, zero for parameters without decay, (p,)."""
        decay = self.problem.numpy(self.problem.decay)
        return np.divide(1.0, decay, out=np.zeros_like(decay), where=decay > 0)


@dataclass(frozen=True)
class KernelMetric:
    """``M = J'CJ/n + lam`` as the inner product of p-space: see :class:`vhat.curvature.metric.Metric`."""

    kernel: Kernel

    def apply(self, v: Array) -> Array:
        """Return ``P v``."""
        return Operator(self.kernel.problem, "ggn")(v[None, :])[0, :]

    def solve(self, v: Array) -> Array:
        """Return ``P^-1 v``."""
        return self.kernel.solve(v[None, :])[0, :]


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
        return KernelMetric(make_kernel(problem))
    except (NotPositiveDefinite, MemoryBudgetError):
        return jacobi(problem)


def kernel_bytes(problem: Problem, structure: Structure) -> int:
    """What the kernel, its features and the blocks in between take."""
    N = problem.n * problem.outputs
    return 8 * (N * N + N * structure.numbers + 2 * 512 * N) + 3 * 2**26


def make_kernel(problem: Problem) -> Kernel:
    """Form and factorise.

    Raises:
        MemoryBudgetError: When the n x n matrix and the features do not fit.
        NotPositiveDefinite: When the parameters without decay are not determined by the data.
    """
    structure = find_structure(problem)
    _require_memory(problem, structure)
    features, structure = read_features(problem, structure)
    root = Root.of(problem.loss_derivatives, problem.n)
    N = len(features)
    matrix = gram(features, features, np.empty((N, N), order="C"))
    root.around(matrix)
    matrix.flat[:: N + 1] += 1.0
    # a C-ordered symmetric matrix is its own Fortran-ordered transpose: LAPACK works in place
    factor, info = dpotrf(matrix.T, lower=1, overwrite_a=1, clean=1)
    if info != 0:
        raise NotPositiveDefinite("the kernel of the Gauss-Newton matrix could not be factorised (overflow?).")
    border, corner = _border(features, root, factor, problem)
    return Kernel(problem, root, structure, features, factor, border, corner)


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
        fits = int(np.sqrt(problem.memory / 8))
        raise MemoryBudgetError(
            f"vhat.Dual() needs {need / 1e9:.1f} GB for a {N:,} x {N:,} kernel; the budget is "
            f"{problem.memory / 1e9:.1f} GB, enough for about {fits:,} rows. Use solver=vhat.CG(), or raise memory=."
        )
