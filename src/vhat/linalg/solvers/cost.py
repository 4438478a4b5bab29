"""Cost of a solver: work in two kinds of flops, and memory in bytes.

A flop in a matrix product takes far less time than a flop in a gradient of the model, where memory access, activation
functions and the framework dominate. Work is therefore counted in both kinds, and compared with fixed constants. The
choice of a solver depends only on the sizes of the problem and its memory budget, never on the speed of the machine or
on the number of points. Seconds are printed only.
"""

from __future__ import annotations

from dataclasses import dataclass

from vhat.models.problem import Problem

__all__ = ["COMPILED", "FLOPS_PER_WEIGHT", "IMAGES", "Cost", "Work", "gradient_flops", "points_together"]

FLOPS_PER_WEIGHT = 6.0
"""Flops of one gradient of the loss per training row, output and parameter: two forward, four backward."""
_PRODUCT_SPEEDUP = 10.0
"""Flops of matrix products in the time of one flop of a gradient. In double precision a core of a server does 12 to 40
Gflop/s in products, and 1 to 5 in gradients of networks of 100 to 1000 units."""
COMPILED = 2**27
"""Bytes of a framework's compiled programs and their workspaces."""
IMAGES = 4
"""Images ``J h`` of a solution that are in memory together."""
_VECTORS_HELD = 40
"""Largest number of vectors of length p per point, with any solver."""
_MOST_POINTS = 256
"""Largest number of points in work together."""


@dataclass(frozen=True)
class Work:
    """An amount of work.

    Attributes:
        gradients: Gradients of the loss over all training rows.
        products: Flops in matrix products.
    """

    gradients: float = 0.0
    products: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.gradients + other.gradients, self.products + other.products)

    def times(self, number: float) -> Work:
        """Return ``number`` times the work."""
        return Work(number * self.gradients, number * self.products)

    def in_gradients(self, problem: Problem) -> float:
        """Return the work of both kinds as a number of gradients of the loss."""
        return self.gradients + self.products / (_PRODUCT_SPEEDUP * gradient_flops(problem))


@dataclass(frozen=True)
class Cost:
    """Work and memory of a solver for one problem.

    Attributes:
        setup: Work before the first point.
        each: Work per right-hand side.
        fixed: Bytes independent of the number of points.
        held: Bytes per right-hand side in memory.
        iterated: Bytes per right-hand side in the block that is iterated, in addition.
        block: Right-hand sides per block.
        remedy: Advice if the memory does not suffice.
        points: Largest number of points in memory; None for :func:`points_together`.
    """

    setup: Work
    each: Work
    fixed: int
    held: int = 0
    iterated: int = 0
    block: int = 1
    remedy: str = "Use solver='auto', which takes what fits, or raise memory=."
    points: int | None = None

    def work(self, sides: int) -> Work:
        """Return the work for a number of right-hand sides."""
        return self.setup + self.each.times(sides)

    def memory(self, problem: Problem, sides: int | None = None) -> int:
        """Return the peak memory in bytes for a number of right-hand sides; None for the largest number in memory."""
        points = points_together(problem) if self.points is None else self.points
        most = points * problem.outputs
        held = most if sides is None else min(sides, most)
        return int(self.fixed + held * self.held + min(held, self.block) * self.iterated + COMPILED)


def gradient_flops(problem: Problem) -> float:
    """Return the flops of one gradient of the loss."""
    return FLOPS_PER_WEIGHT * problem.n * problem.outputs * problem.p


def points_together(problem: Problem) -> int:
    """Return how many test points fit into memory together.

    Each output of a point is counted with forty vectors of length p and twice its images.
    """
    each = 8 * (_VECTORS_HELD * problem.p + 2 * IMAGES * problem.n * problem.outputs)
    return max(1, min(_MOST_POINTS, int(problem.memory // (each * problem.outputs))))
