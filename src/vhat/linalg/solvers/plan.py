"""Which solver, what it will take, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vhat.errors import InputError
from vhat.linalg.memory import in_words
from vhat.linalg.solvers.cg import CG
from vhat.linalg.solvers.dense import Dense, dense_bytes
from vhat.linalg.solvers.dual import Dual
from vhat.linalg.solvers.interface import IMAGES, Solver, points_together
from vhat.linalg.solvers.jacobian_factors import find_structure
from vhat.linalg.solvers.kernel import kernel_bytes
from vhat.linalg.solvers.nystrom import NYSTROM_VECTORS, Nystrom, nystrom_block
from vhat.linalg.solvers.nystrom_sample import FLOPS_PER_WEIGHT, affordable_rows, sample_bytes, sample_gradients
from vhat.models.problem import Problem

__all__ = ["Plan", "choose"]

_DENSE_MOST = 3000
_CG_STEPS = 200
_CG_VECTORS = 28
"""Of length p for each row: those of the iteration, old and new, and those within a product."""
_DUAL_GRADIENTS = 4.0
"""Of the loss, for one point under the exact Hessian; a nearly singular Hessian takes more."""
_DUAL_GRADIENTS_GGN = 0.3
"""The same under Gauss-Newton."""
_DUAL_VECTORS = 12
_DUAL_IMAGES = 8
_COMPILED = 2**27
"""What a framework's compiled programs and their workspaces take."""
_DUAL_MOST = 20_000
"""Gradients of the loss that a kernel may cost before iterating from scratch is the better bargain."""
_NYSTROM_LEAST = 64
"""Rows of a sample, times outputs, below which it is not worth the trouble."""
_NYSTROM_GRADIENTS = 60.0
"""Of the loss, for one point: some forty steps."""


@dataclass(frozen=True)
class Plan:
    """The way a set of points will be solved.

    Attributes:
        solver: The solver's options.
        memory: Peak bytes of the solve, over the data themselves.
        gradients: Estimated cost in gradients of the loss.
        reason: Why this solver.
        budget: The bytes that arrays may take; compiled programs come on top.
    """

    solver: Solver
    memory: int
    gradients: float
    reason: str
    budget: float = float("inf")

    @property
    def fits(self) -> bool:
        """Whether the budget has room for it."""
        return self.memory <= self.budget + _COMPILED

    def __str__(self) -> str:
        return (
            f"solver    {self.solver!r}\n"
            f"memory    {in_words(self.memory)}, {in_words(_COMPILED)} of it for compiled programs{self._room()}\n"
            f"cost      about {self.gradients:,.0f} gradients of the loss\n"
            f"reason    {self.reason}"
        )

    def _room(self) -> str:
        if self.fits:
            return ""
        return f"; TOO MUCH for a budget of {in_words(self.budget)}: raise memory=, or ask for less"


def choose(problem: Problem, points: int, solver: Solver | str = "auto", curvature: str = "auto") -> Plan:
    """Choose a solver for ``points`` right-hand sides, or describe the one that was asked for.

    Args:
        problem: The training problem.
        points: How many right-hand sides.
        solver: ``"auto"`` or the options of a solver.
        curvature: ``"ggn"``, or the cost is that of the exact Hessian; the choice does not depend on it.

    Raises:
        InputError: For a solver that is neither ``"auto"`` nor a solver's options.
    """
    if solver != "auto" and (isinstance(solver, type) or not hasattr(solver, "prepare")):
        raise InputError(
            f"solver={solver!r} is not known. Use 'auto', vhat.CG(...), vhat.Dense(), vhat.Dual() or vhat.Nystrom()."
        )
    plan = _auto(problem, points, curvature) if isinstance(solver, str) else _named(problem, points, solver, curvature)
    return replace(plan, budget=problem.memory)


def _auto(problem: Problem, points: int, curvature: str) -> Plan:
    """Choose the best of the solvers that fit."""
    # The choice must not depend on how many points are asked about: a row alone is solved as in company.
    most = points_together(problem) * problem.outputs
    budget = problem.memory + _COMPILED  # which is for arrays, not for programs
    if problem.p <= _DENSE_MOST and _dense(problem).memory <= budget:
        return _dense(problem)
    if _dual(problem, most).memory <= budget and _setup(problem) <= _DUAL_MOST:
        return _dual(problem, points, curvature)
    sampled = _nystrom(problem, most, Nystrom())
    if sampled.memory <= budget and _sampled_rows(problem, None) * problem.outputs >= _NYSTROM_LEAST:
        return _nystrom(problem, points, Nystrom())
    return _cg(problem, points)


def _named(problem: Problem, points: int, solver: Solver, curvature: str) -> Plan:
    """Describe the solver that was asked for."""
    if isinstance(solver, Dense):
        plan = _dense(problem)
    elif isinstance(solver, Dual):
        plan = _dual(problem, points, curvature)
    elif isinstance(solver, Nystrom):
        plan = _nystrom(problem, points, solver)
    elif isinstance(solver, CG):
        plan = _cg(problem, points)
    else:
        plan = Plan(solver, 0, float("nan"), "")
    return replace(plan, solver=solver, reason="asked for by name")


def _dense(problem: Problem) -> Plan:
    reason = f"p = {problem.p:,} is small: one factorisation of H + lam serves every point"
    return Plan(Dense(), dense_bytes(problem.p) + _COMPILED, 2.0 * problem.p, reason)


def _dual(problem: Problem, points: int, curvature: str = "auto") -> Plan:
    N, options = problem.n * problem.outputs, Dual()
    reason = f"{_many(problem)} and the {N:,} x {N:,} kernel fits: one factorisation serves every point"
    held = min(points, points_together(problem) * problem.outputs)
    gradients = 3 * 8 * problem.p * held
    rows = 8 * min(held, options.block) * (_DUAL_VECTORS * problem.p + _DUAL_IMAGES * N)
    memory = kernel_bytes(problem, find_structure(problem)) + gradients + rows + _COMPILED
    each = _DUAL_GRADIENTS_GGN if curvature == "ggn" else _DUAL_GRADIENTS
    return Plan(options, memory, _setup(problem) + each * points, reason)


def _many(problem: Problem) -> str:
    return f"p = {problem.p:,} is " + ("large" if problem.p > _DENSE_MOST else "too much for a matrix")


def _setup(problem: Problem) -> float:
    """What forming and factorising the kernel costs, in gradients of the loss."""
    N = problem.n * problem.outputs
    flops = float(N) ** 2 * find_structure(problem).numbers + float(N) ** 3 / 3
    return flops / (FLOPS_PER_WEIGHT * N * problem.p)


def _nystrom(problem: Problem, points: int, options: Nystrom) -> Plan:
    rows, numbers = _sampled_rows(problem, options.rows), find_structure(problem).numbers
    reason = f"{_no_kernel(problem)}: the kernel of {rows:,} random rows preconditions conjugate gradients on all"
    held = min(points, points_together(problem) * problem.outputs)
    vectors = 3 * held + NYSTROM_VECTORS * min(held, nystrom_block(problem, options.block))
    memory = sample_bytes(problem, rows, numbers) + 8 * problem.p * vectors + _images(problem, held) + _COMPILED
    gradients = sample_gradients(problem, rows, numbers) + _NYSTROM_GRADIENTS * points
    return Plan(options, memory, gradients, reason)


def _sampled_rows(problem: Problem, asked: int | None) -> int:
    numbers = find_structure(problem).numbers
    return affordable_rows(problem, numbers) if asked is None else min(asked, problem.n)


def _images(problem: Problem, held: int) -> int:
    """What ``J h`` of the rows held takes."""
    return 8 * IMAGES * held * problem.n * problem.outputs


def _no_kernel(problem: Problem) -> str:
    N = problem.n * problem.outputs
    most = points_together(problem) * problem.outputs
    fits = _dual(problem, most).memory <= problem.memory + _COMPILED
    fault = f"costs {_setup(problem):,.0f} gradients" if fits else f"does not fit {in_words(problem.memory)}"
    return f"{_many(problem)} and a {N:,} x {N:,} kernel {fault}"


def _cg(problem: Problem, points: int) -> Plan:
    reason = f"{_no_kernel(problem)}, nor does one of a few rows: matrix-free"
    held = min(points, points_together(problem) * problem.outputs)
    vectors = 3 * held + _CG_VECTORS * min(held, CG().block)
    memory = 8 * problem.p * vectors + _images(problem, held) + _COMPILED
    return Plan(CG(), memory, 2.0 * min(_CG_STEPS, problem.p) * points, reason)
