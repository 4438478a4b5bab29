"""What a solver takes: work in two kinds of flops, and bytes.

A flop inside a matrix product is far cheaper than one inside a gradient of the model, which waits for memory, for
activation functions and for the framework. Work is therefore counted in both kinds, and compared with fixed constants:
which solver is chosen depends on the sizes of the problem and on its memory budget alone, never on the speed of a
machine or on how many points are asked about. Seconds are printed, and decide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from vhat.models.problem import Problem

__all__ = ["COMPILED", "FLOPS_PER_WEIGHT", "IMAGES", "Cost", "Work", "gradient_flops", "points_together"]

FLOPS_PER_WEIGHT = 6.0
"""Of one gradient of the loss, per training row, output and parameter: two forwards, four backwards."""
_CHEAPER = 10.0
"""How many flops of a matrix product take the time of one flop of a gradient. In double precision a core of a server
does 12 to 40 Gflop/s in products, and 1 to 5 in gradients of networks of 100 to 1000 units."""
COMPILED = 2**27
"""Bytes that a framework's compiled programs and their workspaces take."""
IMAGES = 4
"""Of a solution, ``J h``, that exist at once."""
_VECTORS_HELD = 40
"""Vectors of length p that a point may take, whichever solver answers it."""
_MOST_POINTS = 256
"""Points that are worked on at once, however small the model is."""


@dataclass(frozen=True)
class Work:
    """An amount of work.

    Attributes:
        gradients: Gradients of the loss over all training rows.
        products: Flops inside matrix products.
    """

    gradients: float = 0.0
    products: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.gradients + other.gradients, self.products + other.products)

    def times(self, number: float) -> Work:
        """Return that many times the work."""
        return Work(number * self.gradients, number * self.products)

    def in_gradients(self, problem: Problem) -> float:
        """Return the whole in gradients of the loss."""
        return self.gradients + self.products / (_CHEAPER * gradient_flops(problem))


@dataclass(frozen=True)
class Cost:
    """What a solver takes for one problem.

    Attributes:
        setup: Work before the first point.
        each: Work for each right-hand side.
        fixed: Bytes that are taken however many points there are.
        held: Bytes for each right-hand side that is held, of at most :func:`points_together` points.
        iterated: Bytes for each right-hand side that is worked on, of at most ``block``.
        block: How many right-hand sides are worked on together.
        remedy: What to do where it does not fit.
        points: How many points are held at most; None for :func:`points_together`.
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
        """Return the peak in bytes for a number of right-hand sides; None for as many as are ever held."""
        points = points_together(problem) if self.points is None else self.points
        most = points * problem.outputs
        held = most if sides is None else min(sides, most)
        return int(self.fixed + held * self.held + min(held, self.block) * self.iterated + COMPILED)


def gradient_flops(problem: Problem) -> float:
    """Return the flops of one gradient of the loss."""
    return FLOPS_PER_WEIGHT * problem.n * problem.outputs * problem.p


def points_together(problem: Problem) -> int:
    """How many test points the budget has room for: forty vectors of length p and twice the images of each output."""
    each = 8 * (_VECTORS_HELD * problem.p + 2 * IMAGES * problem.n * problem.outputs)
    return max(1, min(_MOST_POINTS, int(problem.memory // (each * problem.outputs))))
