"""Is ``A = H + lam`` positive definite? The smallest eigenvalue, and how certain its sign is."""

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
"""Up to this p the matrix is formed and all its eigenvalues are computed."""
_FORMED = 10_000
"""Up to this p the matrix may be formed and factorised where Lanczos leaves the sign open."""
_CONFIRMED = 1e-3
"""Relative distance of an eigenvalue from the quotient of its vector, beyond rounding, that is still agreement."""
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Definiteness:
    """The smallest eigenvalue of ``A x = mu M x``, without unit, and what can be said of its sign.

    Attributes:
        value: The smallest eigenvalue found. Where the verdict is "indefinite" it may be an upper bound of the
            smallest: one direction of negative curvature decides.
        error: How far off ``value`` may be: rounding, accuracy of the products and, from Lanczos, the residual.
            Infinite where Lanczos stopped before the smallest value settled.
        verdict: "positive" when ``value > error``, "indefinite" when ``value < -error``, else "undecided".
        steps: Hessian products used.
        method: "eigh", "lanczos", "cholesky" or "decay".
        vector: The eigenvector, p-space (p,), ``x'Mx = 1``.
        assured: Whether an eigenvalue below half of a positive ``value`` is out of the question; from Lanczos, but for
            a chance of 1 in 1000 over the random start.
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
        """Whether the smallest eigenvalue is known and is zero within its error."""
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

    By Sylvester's law the sign is that of ``A`` itself; the value does not depend on the unit of any parameter.

    - The Gauss-Newton matrix with decay on every parameter and no negative curvature weight is positive by its form:
      said so beyond 1,500 parameters, and of linear models of any size whose matrix is not at hand.
    - Up to 1,500 parameters, or where ``matrix`` is given, the matrix is formed and the answer is certain up to the
      rounding in ``error``.
    - Beyond, Lanczos from a random start. "indefinite" is then a certificate (a vector with ``v'Av < 0``).
      "positive" is no proof: it says that the smallest Ritz value settled above its residual, and, if ``assured``,
      after so many steps that a start which hides an eigenvalue below half of it is drawn once in a thousand times.
    - Where that stays open, and up to 10,000 parameters within the memory budget, a Cholesky factorisation of the
      formed matrix decides.

    Args:
        problem: The training problem.
        curvature: ``"hessian"`` or ``"ggn"``.
        scale: ``s``, if it is known already; :func:`vhat.linalg.curvature.scale` by default.
        metric: Another ``M`` in the place of ``diag(s^2)``: same sign, other value. Only Lanczos uses it; a function
            that makes one is called then.
        matrix: ``A`` already assembled, (p, p).
        max_steps: The most Lanczos steps; fewer if that many vectors would not fit into the memory budget.
        seed: Seed of the random start.

    Returns:
        The value, its error, the verdict and the eigenvector.

    Raises:
        NotPositiveDefinite: When a parameter has no influence on any training prediction and no decay.
    """
    with problem.scope():
        s = natural_scale(problem) if scale is None else scale
        by_form = curvature == "ggn" and matrix is None and (problem.linear or problem.p > _DENSE)
        if by_form and _semidefinite(problem):
            return _by_decay(problem, s)
        if matrix is not None or problem.p <= _DENSE:
            return _formed(problem, curvature, s, matrix)
        measure = metric() if callable(metric) else metric or Jacobi(s)
        found = _by_lanczos(problem, curvature, s, measure, seed, max_steps)
        if found.verdict == "undecided" and problem.p <= _FORMED and 24 * problem.p**2 <= problem.memory:
            formed = _formed(problem, curvature, s, None)
            return replace(formed, steps=found.steps + formed.steps)
        return found


def _semidefinite(problem: Problem) -> bool:
    """Whether ``J'CJ`` is positive semidefinite by its form and every parameter has decay."""
    C = problem.loss_derivatives.curvature
    weights = C if C.ndim == 2 else np.linalg.eigvalsh(C)
    return bool(np.all(weights >= 0) and np.all(problem.numpy(problem.decay) > 0))


def _by_decay(problem: Problem, scale: Array) -> Definiteness:
    """``J'CJ/n + lam >= lam``: the smallest decay, in the unit of its parameter, is a lower bound."""
    share = problem.numpy(problem.decay / scale**2)
    vector = np.zeros(problem.p)
    vector[np.argmin(share)] = 1.0
    return Definiteness(float(share.min()), 0.0, "positive", 0, "decay", problem.native(vector) / scale)


def _accuracy(problem: Problem, curvature: Curvature) -> float:
    """The relative accuracy of products with ``A``; Gauss-Newton's are made of first derivatives."""
    facts = problem.facts()
    return facts.accuracy if curvature == "hessian" else facts.first_accuracy


def _verdict(value: float, error: float) -> Verdict:
    return "positive" if value > error else "indefinite" if value < -error else "undecided"


def _formed(problem: Problem, curvature: Curvature, scale: Array, matrix: np.ndarray | None) -> Definiteness:
    """Decide from the matrix itself."""
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
        value, vector, norm = float(values[0]), vectors[:, 0], float(np.max(np.abs(values)))
    else:
        value, vector = _by_cholesky(B)
        norm = float(np.linalg.norm(B))
    # p entries of size m right to eps: p m eps in norm; the decomposition's backward error is a few eps of the norm
    error = _EPS * (problem.p * float(np.max(np.abs(B))) + 8 * norm) + _accuracy(problem, curvature) * norm
    steps = problem.p if matrix is None else 0
    return Definiteness(value, error, _verdict(value, error), steps, method, problem.native(vector / s))


def _by_cholesky(B: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the smallest eigenvalue and its vector by Lanczos on ``(B + shift)^-1``.

    The shift is zero where ``B`` has a Cholesky factor, else the first of a ladder at which ``B + shift`` has one.
    """
    shifted, shift = B.copy(), 0.0
    factor, minor = lapack.dpotrf(shifted, lower=1)
    while minor > 0:
        shift = max(30.0 * shift, 1e-9 * float(np.linalg.norm(B)))
        np.fill_diagonal(shifted, np.diagonal(B) + shift)
        factor, minor = lapack.dpotrf(shifted, lower=1)
    inverse = LinearOperator(B.shape, matvec=partial(cho_solve, (factor, True)), dtype=B.dtype)
    v = np.random.default_rng(0).standard_normal(len(B))
    try:
        v = eigsh(inverse, k=1, which="LA", v0=v, tol=1e-6)[1][:, 0]
    except ArpackNoConvergence:  # a tight cluster: inverse iteration finds some vector of it
        for _ in range(30):
            v = inverse.matvec(v)
            v /= np.linalg.norm(v)
    return float(v @ B @ v), v


def _by_lanczos(
    problem: Problem, curvature: Curvature, scale: Array, metric: Metric, seed: int, max_steps: int
) -> Definiteness:
    """Decide from products alone.

    The basis of Lanczos is orthogonal in the metric only up to rounding, which the condition of the metric magnifies;
    its value counts if the vector's own quotient confirms it.
    """
    operator, accuracy = Operator(problem, curvature), _accuracy(problem, curvature)

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
    # an entry of A is of the size s_i s_j: what rounding may move x'Ax by, of which x'Mx = 1 may be a small difference
    spread = float(np.sum((problem.numpy(scale) * x) ** 2))
    rounding = max(ritz.rounding, (accuracy + _EPS) * spread)
    confirmed = abs(value - ritz.value) <= rounding + _CONFIRMED * abs(value)
    error = rounding if value < -rounding else ritz.residual + rounding if ritz.settled and confirmed else np.inf
    return Definiteness(
        value, error, _verdict(value, error), ritz.steps + 1, "lanczos", problem.native(x), ritz.assured
    )
