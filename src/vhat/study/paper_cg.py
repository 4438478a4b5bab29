"""The paper's own solver: conjugate gradients for a fixed number of iterations that never look at the curvature's sign.

It is kept for the reproduction alone. In figure 1, and where lam is inside the loss, ``H + lam`` is indefinite, so that
what it returns after 1000 iterations is no solution of anything; the record says how often it met negative curvature
and how large the residual was in the end. Everything else in this library uses :mod:`vhat.linalg.solvers`, which
refuses such rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat import bounds
from vhat.checks import check_count, check_tolerance
from vhat.fit.many_fits import Recipe
from vhat.methods.base.method import Claim, Limits, Target, check_question, fit_once, make_interval
from vhat.models.problem import Problem
from vhat.study.protocol import NOISE

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.intervals.interval import Interval

__all__ = ["Descent", "FittedPaperCG", "PaperCG", "descend"]


@dataclass(frozen=True, eq=False)
class Descent:
    """Where the paper's iteration ended, one entry a right-hand side.

    Attributes:
        value: ``V = |J h|^2 / n`` of the last iterate.
        residual: ``|g - (H + lam) h| / |g|``, computed anew.
        steps: Iterations taken.
        negative: How many of them met negative curvature, ``q'(H + lam)q < 0``.
    """

    value: np.ndarray
    residual: np.ndarray
    steps: np.ndarray
    negative: np.ndarray


def descend(problem: Problem, sides: Any, *, iterations: int = 1000, tolerance: float = 1e-12) -> Descent:
    """Run textbook conjugate gradients from 0 on ``(H + lam) h = g`` for each row of ``sides``, p-space (k, p).

    A row stops when its residual has fallen by ``tolerance``, as in ``jax.scipy.sparse.linalg.cg``.
    """
    shift = problem.numpy(problem.decay)

    def multiply(rows: np.ndarray) -> np.ndarray:
        return problem.numpy(problem.product(problem.native(rows), "hessian")) + shift * rows

    g = problem.numpy(sides)
    h, r, q = np.zeros_like(g), g.copy(), g.copy()
    square = np.sum(r * r, axis=1)
    enough = tolerance**2 * square
    steps, negative = np.zeros(len(g), dtype=int), np.zeros(len(g), dtype=int)
    for _ in range(iterations):
        rows = np.flatnonzero(square > enough)
        if not rows.size:
            break
        image = multiply(q[rows])
        curvature = np.sum(q[rows] * image, axis=1)
        negative[rows] += curvature < 0
        length = (square[rows] / curvature)[:, None]
        h[rows] += length * q[rows]
        r[rows] -= length * image
        fresh = np.sum(r[rows] ** 2, axis=1)
        q[rows] = r[rows] + (fresh / square[rows])[:, None] * q[rows]
        square[rows], steps[rows] = fresh, steps[rows] + 1
    moved = problem.jvp(problem.native(h))
    left = np.linalg.norm(g - multiply(h), axis=1) / np.linalg.norm(g, axis=1)
    return Descent(np.sum(moved**2, axis=(1, 2)) / problem.n, left, steps, negative)


@dataclass(frozen=True)
class PaperCG:
    """The proposed interval as the paper computed it: ``theorem`` with v = c = 1, V by :func:`descend`.

    Attributes:
        iterations: Of conjugate gradients.
        tolerance: Of the residual.
    """

    iterations: int = 1000
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        check_count("iterations", self.iterations, least=1)
        check_tolerance("tolerance", self.tolerance)

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> FittedPaperCG:
        """Train once."""
        return FittedPaperCG(self, fit_once(recipe, X, y, seed))


@dataclass(frozen=True, eq=False)
class FittedPaperCG:
    """A fitted model whose weighted norms come from the paper's iteration.

    Attributes:
        options: The options.
        fitted: The fitted model.
    """

    options: PaperCG
    fitted: FittedModel = field(repr=False)

    def descent(self, x: Any) -> Descent:
        """Run the iteration at points, and say how it went."""
        problem = self.fitted.problem
        with problem.scope():
            return descend(
                problem,
                problem.gradients(problem.inputs(x)),
                iterations=self.options.iterations,
                tolerance=self.options.tolerance,
            )

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute the interval at every point from whatever the iteration returned."""
        delta = check_question(
            "the paper's iteration", delta, target, only="mean", why="It is there for the reproduction."
        )
        return self.interval_of(self.descent(x), x, delta)

    def interval_of(self, found: Descent, x: Any, delta: float) -> Interval:
        """Make the interval of a descent that is known."""
        center = self.fitted.predict(x)
        half = bounds.theorem(found.value, self.fitted.problem.n, NOISE, delta, v=1.0, c=1.0)
        met = int(np.sum(found.negative > 0))
        claim = Claim(
            name="theorem, by the paper's iteration",
            covers="the mean of this prediction over fresh noise",
            by="the published bound",
            assumed=(
                f"that {self.options.iterations} iterations of conjugate gradients solve the system (negative "
                f"curvature was met at {met} of {len(half)} points; residuals up to {np.max(found.residual):.1e})",
            ),
        )
        return make_interval(
            claim, center, Limits(center - half, center + half), delta=delta, target="mean", x=x, curvature="hessian",
            solver="the paper's cg",
        )  # fmt: skip
