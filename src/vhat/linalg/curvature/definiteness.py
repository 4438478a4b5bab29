"""Decide whether ``A = H + lam`` is positive definite, from its smallest eigenvalue and the error of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
from scipy.linalg import cho_solve, eigh, lapack
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from vhat.errors import NotPositiveDefinite
from vhat.linalg.curvature.inner_product import Jacobi, Metric
from vhat.linalg.curvature.lanczos import lanczos
from vhat.linalg.curvature.operator import Operator, assemble
from vhat.linalg.curvature.operator import scale as natural_scale
from vhat.models.problem import Array, Curvature, Problem
from vhat.progress import bar

__all__ = ["Definiteness", "smallest_eigenvalue"]

Verdict = Literal["positive", "indefinite", "undecided"]
Method = Literal["eigh", "lanczos", "cholesky", "decay"]

_DENSE = 1500
"""Largest p for which the matrix is formed and all its eigenvalues are computed."""
_FORMED = 10_000
"""Largest p for which the matrix is formed and factorised if Lanczos leaves the sign undecided."""
_QUOTIENT_RTOL = 1e-3
"""Relative tolerance, beyond rounding, between a Ritz value and the Rayleigh quotient of its vector."""
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Definiteness:
    """The smallest eigenvalue of ``A x = mu M x``, without unit, and its sign.

    Attributes:
        value: The smallest eigenvalue found. For the verdict "indefinite" it may be only an upper bound of the
            smallest, because one direction of negative curvature suffices.
        error: Bound on the error of ``value``: rounding, accuracy of the products and, from Lanczos, the residual.
            Infinite if Lanczos stopped before the smallest value converged.
        verdict: "positive" if ``value > error``, "indefinite" if ``value < -error``, else "undecided".
        steps: Hessian products used.
        method: "eigh", "lanczos", "cholesky" or "decay".
        vector: The eigenvector, p-space (p,), ``x'Mx = 1``.
        assured: Whether an eigenvalue below half of a positive ``value`` is excluded; from Lanczos, with a probability
            of 1 in 1000, over the random start, that there is one.
    """

    value: float
    error: float
    verdict: Verdict
    steps: int
    method: Method
    vector: Array = field(repr=False, compare=False)
    assured: bool = True

    @property
    def singular(self) -> bool:
        """Whether the smallest eigenvalue has a finite error and is zero within it."""
        return self.verdict == "undecided" and bool(np.isfinite(self.error))


def smallest_eigenvalue(
    problem: Problem,
    curvature: Curvature = "hessian",
    *,
    scale: Array | None = None,
    metric: Metric | Callable[[], Metric] | None = None,
    matrix: np.ndarray | None = None,
    max_steps: int = 300,
    seed: int = 0,
) -> Definiteness:
    """Find the smallest eigenvalue of ``diag(1/s) A diag(1/s)`` and decide the sign of ``A``.

    By Sylvester's law of inertia the sign is that of ``A`` itself. The value does not depend on the unit of any
    parameter.

    - The Gauss-Newton matrix with decay on every parameter and no negative curvature weight is positive definite by
      construction. This is used above 1,500 parameters, and for linear models of any size whose matrix is not given.
    - Up to 1,500 parameters, or if ``matrix`` is given, all eigenvalues of the matrix are computed, and the sign is
      certain up to the rounding in ``error``.
    - Above 1,500 parameters, Lanczos' method is run from a random start. The verdict "indefinite" is then a certificate
      (a vector with ``v'Av < 0``). "positive" is not a proof: the smallest Ritz value has converged to a value above
      its residual and, if ``assured``, a smaller eigenvalue was missed with a probability of at most 1 in 1000.
    - If the sign is still undecided, and up to 10,000 parameters within the memory budget, a Cholesky factorisation of
      the formed matrix decides.

    Args:
        problem: The training problem.
        curvature: ``"hessian"`` or ``"ggn"``.
        scale: ``s``, if already known; :func:`vhat.linalg.curvature.scale` by default.
        metric: ``M``, or a function that returns it, in place of ``diag(s^2)``: the sign is the same, the value
            differs. Only Lanczos' method uses it.
        matrix: ``A``, (p, p), if already formed.
        max_steps: Largest number of Lanczos steps; fewer if their vectors do not fit into the memory budget.
        seed: Seed of the random start.

    Returns:
        The value, its error, the verdict and the eigenvector.

    Raises:
        NotPositiveDefinite: When a parameter has no influence on any training prediction and no decay.
    """
    with problem.scope():
        s = natural_scale(problem) if scale is None else scale
        without_matrix = curvature == "ggn" and matrix is None and (problem.linear or problem.p > _DENSE)
        if without_matrix and _positive_by_construction(problem):
            return _by_decay(problem, s)
        if matrix is not None or problem.p <= _DENSE:
            return _by_matrix(problem, curvature, s, matrix)
        M = metric() if callable(metric) else metric or Jacobi(s)
        found = _by_lanczos(problem, curvature, s, M, seed, max_steps)
        # Memory for three p x p matrices.
        if found.verdict == "undecided" and problem.p <= _FORMED and 24 * problem.p**2 <= problem.memory:
            formed = _by_matrix(problem, curvature, s, None)
            return replace(formed, steps=found.steps + formed.steps)
        return found


def _positive_by_construction(problem: Problem) -> bool:
    """Return whether ``J'CJ`` is positive semidefinite by construction and every parameter has decay."""
    C = problem.loss_derivatives.curvature
    weights = C if C.ndim == 2 else np.linalg.eigvalsh(C)
    return bool(np.all(weights >= 0) and np.all(problem.numpy(problem.decay) > 0))


def _by_decay(problem: Problem, scale: Array) -> Definiteness:
    """Return the smallest unit-free decay, a lower bound of the smallest eigenvalue: ``J'CJ/n + lam >= lam``."""
    unit_free_decay = problem.numpy(problem.decay / scale**2)
    vector = np.zeros(problem.p)
    vector[np.argmin(unit_free_decay)] = 1.0
    value = float(unit_free_decay.min())
    return Definiteness(value, 0.0, "positive", 0, "decay", problem.native(vector) / scale)


def _accuracy(problem: Problem, curvature: Curvature) -> float:
    """Return the relative accuracy of products with ``A``; Gauss-Newton products need first derivatives only."""
    facts = problem.facts()
    return facts.accuracy if curvature == "hessian" else facts.first_accuracy


def _verdict(value: float, error: float) -> Verdict:
    if value > error:
        return "positive"
    if value < -error:
        return "indefinite"
    return "undecided"


def _by_matrix(problem: Problem, curvature: Curvature, scale: Array, matrix: np.ndarray | None) -> Definiteness:
    """Decide from the formed matrix: by all its eigenvalues, or for larger p by a Cholesky factorisation."""
    s = problem.numpy(scale)
    B = (assemble(problem, curvature) if matrix is None else matrix) / s / s[:, None]
    if not np.all(np.isfinite(B)):
        raise NotPositiveDefinite(
            "H + lam has entries that are not numbers: data, weights or parameters are so large that their products "
            "overflow. Give them in other units."
        )
    method: Method = "eigh" if problem.p <= _DENSE else "cholesky"
    if method == "eigh":
        values, vectors = eigh(B)
        value = float(values[0])
        vector = vectors[:, 0]
        norm = float(np.max(np.abs(values)))
    else:
        value, vector = _smallest_by_cholesky(B)
        norm = float(np.linalg.norm(B))
    # Entries of size at most m with relative error eps have an error of at most p m eps in norm. The backward error of
    # the decomposition is a few eps of the norm.
    error = _EPS * (problem.p * float(np.max(np.abs(B))) + 8 * norm) + _accuracy(problem, curvature) * norm
    steps = problem.p if matrix is None else 0
    return Definiteness(value, error, _verdict(value, error), steps, method, problem.native(vector / s))


def _smallest_by_cholesky(B: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the smallest eigenvalue and its vector, by Lanczos' method on ``(B + shift)^-1``.

    The shift is zero if ``B`` has a Cholesky factor, else the first of a geometric sequence for which ``B + shift`` has
    one.
    """
    shifted = B.copy()
    shift = 0.0
    factor, minor = lapack.dpotrf(shifted, lower=1)
    while minor > 0:
        shift = max(30.0 * shift, 1e-9 * float(np.linalg.norm(B)))
        np.fill_diagonal(shifted, np.diagonal(B) + shift)
        factor, minor = lapack.dpotrf(shifted, lower=1)
    inverse = LinearOperator(B.shape, matvec=partial(cho_solve, (factor, True)), dtype=B.dtype)
    v = np.random.default_rng(0).standard_normal(len(B))
    try:
        v = eigsh(inverse, k=1, which="LA", v0=v, tol=1e-6)[1][:, 0]
    except ArpackNoConvergence:  # a tight cluster of eigenvalues: inverse iteration finds some vector in its span
        for _ in range(30):
            v = inverse.matvec(v)
            v /= np.linalg.norm(v)
    return float(v @ B @ v), v


def _by_lanczos(
    problem: Problem, curvature: Curvature, scale: Array, metric: Metric, seed: int, max_steps: int
) -> Definiteness:
    """Decide from products with ``A`` alone.

    The Lanczos basis is orthogonal in the metric only up to rounding, which an ill-conditioned metric magnifies. The
    Ritz value is therefore accepted only if the Rayleigh quotient of its vector agrees with it.
    """
    operator = Operator(problem, curvature)
    accuracy = _accuracy(problem, curvature)

    def product(v: np.ndarray) -> np.ndarray:
        found = problem.numpy(operator(problem.native(v)[None, :]))[0]
        advance("")
        return found

    def apply(v: np.ndarray) -> np.ndarray:
        return problem.numpy(metric.apply(problem.native(v)))

    most = max(2, min(max_steps, problem.memory // (64 * problem.p)))
    with bar("smallest eigenvalue", most) as advance:
        ritz = lanczos(
            product,
            apply,
            lambda v: problem.numpy(metric.solve(problem.native(v))),
            problem.numpy(metric.draw(problem, seed)),
            max_steps=most,
            accuracy=accuracy,
        )
    x = ritz.vector / max(float(ritz.vector @ apply(ritz.vector)), np.finfo(float).tiny) ** 0.5
    value = float(x @ problem.numpy(operator(problem.native(x)[None, :]))[0])
    # The entries of A are of size s_i s_j, so that x'Ax has a rounding error of eps |s x|^2, which may be much larger
    # than x'Mx = 1.
    square = float(np.sum((problem.numpy(scale) * x) ** 2))
    rounding = max(ritz.rounding, (accuracy + _EPS) * square)
    confirmed = abs(value - ritz.value) <= rounding + _QUOTIENT_RTOL * abs(value)
    if value < -rounding:
        error = rounding
    elif ritz.settled and confirmed:
        error = ritz.residual + rounding
    else:
        error = np.inf
    return Definiteness(
        value=value,
        error=error,
        verdict=_verdict(value, error),
        steps=ritz.steps + 1,
        method="lanczos",
        vector=problem.native(x),
        assured=ritz.assured,
    )
