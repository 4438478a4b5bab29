"""The paper's own solver: a fixed number of conjugate gradient iterations that ignore the sign of the curvature.

It is kept only for the reproduction. In figure 1, and with lam inside the loss, ``H + lam`` is indefinite: after 1000
iterations the iterate does not solve the system. The record counts iterations with negative curvature and gives the
final residual. All other code of this library uses :mod:`vhat.linalg.solvers`, which refuses such rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat import bounds
from vhat.checks import check_count, check_tolerance
from vhat.fit.many_fits import Recipe
from vhat.methods.base.guarantee import Claim, Target
from vhat.methods.base.limits import Limits, make_interval
from vhat.methods.base.method import check_question, fit_once
from vhat.models.problem import Problem
from vhat.study.protocol import NOISE

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.intervals.interval import Interval

__all__ = ["Descent", "FittedPaperCG", "PaperCG", "descend"]


@dataclass(frozen=True, eq=False)
class Descent:
    """The result of the paper's iteration, one entry per right-hand side.

    Attributes:
        value: ``V = |J h|^2 / n`` of the last iterate h.
        residual: ``|g - (H + lam) h| / |g|``, recomputed at the end.
        steps: Number of iterations.
        negative: Number of iterations with negative curvature, ``q'(H + lam)q < 0``.
    """

    value: np.ndarray
    residual: np.ndarray
    steps: np.ndarray
    negative: np.ndarray


def descend(problem: Problem, sides: Any, *, iterations: int = 1000, tolerance: float = 1e-12) -> Descent:
    """Run textbook conjugate gradients from 0 on ``(H + lam) h = g``, for each row g of ``sides``.

    Args:
        problem: The problem.
        sides: Right-hand sides in p-space, (k, p).
        iterations: Number of iterations.
        tolerance: A row stops when its residual has decreased by this factor, as in ``jax.scipy.sparse.linalg.cg``.
    """
    shift = problem.numpy(problem.decay)

    def multiply(rows: np.ndarray) -> np.ndarray:
        return problem.numpy(problem.product(problem.native(rows), "hessian")) + shift * rows

    # Iterates h, residuals r and search directions q, (k, p).
    g = problem.numpy(sides)
    h = np.zeros_like(g)
    r = g.copy()
    q = g.copy()
    square = np.sum(r * r, axis=1)
    target = tolerance**2 * square
    steps = np.zeros(len(g), dtype=int)
    negative = np.zeros(len(g), dtype=int)
    for _ in range(iterations):
        rows = np.flatnonzero(square > target)
        if not rows.size:
            break
        image = multiply(q[rows])
        curvature = np.sum(q[rows] * image, axis=1)
        negative[rows] += curvature < 0
        length = (square[rows] / curvature)[:, None]
        h[rows] += length * q[rows]
        r[rows] -= length * image
        new_square = np.sum(r[rows] ** 2, axis=1)
        q[rows] = r[rows] + (new_square / square[rows])[:, None] * q[rows]
        square[rows] = new_square
        steps[rows] += 1
    moved = problem.jvp(problem.native(h))  # J h
    residual = np.linalg.norm(g - multiply(h), axis=1) / np.linalg.norm(g, axis=1)
    return Descent(np.sum(moved**2, axis=(1, 2)) / problem.n, residual, steps, negative)


@dataclass(frozen=True)
class PaperCG:
    """The proposed interval as computed in the paper: ``theorem`` with v = c = 1, and V by :func:`descend`.

    Attributes:
        iterations: Number of iterations of conjugate gradients.
        tolerance: Relative residual at which they stop.
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
    """A fitted model with weighted norms by the paper's iteration.

    Attributes:
        options: The options.
        fitted: The fitted model.
    """

    options: PaperCG
    fitted: FittedModel = field(repr=False)

    def descent(self, x: Any) -> Descent:
        """Run the iteration at points."""
        problem = self.fitted.problem
        with problem.scope():
            return descend(
                problem,
                problem.gradients(problem.inputs(x)),
                iterations=self.options.iterations,
                tolerance=self.options.tolerance,
            )

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute the interval at every point from the last iterate, converged or not."""
        delta = check_question(
            "the paper's iteration", delta, target, only="mean", why="It is there for the reproduction."
        )
        return self.interval_of(self.descent(x), x, delta)

    def interval_of(self, descent: Descent, x: Any, delta: float) -> Interval:
        """Return the interval for a descent at the points ``x``."""
        center = self.fitted.predict(x)
        half = bounds.theorem(descent.value, self.fitted.problem.n, NOISE, delta, v=1.0, c=1.0)
        negative = int(np.sum(descent.negative > 0))
        claim = Claim(
            name="theorem, by the paper's iteration",
            covers="the mean of this prediction over fresh noise",
            by="the published bound",
            assumed=(
                f"that {self.options.iterations} iterations of conjugate gradients solve the system (negative "
                f"curvature was met at {negative} of {len(half)} points; residuals up to "
                f"{np.max(descent.residual):.1e})",
            ),
        )
        return make_interval(
            claim,
            center,
            Limits.symmetric(center, half),
            delta=delta,
            target="mean",
            x=x,
            curvature="hessian",
            solver="the paper's cg",
        )
