"""Which solver, what it will take, and why."""

from __future__ import annotations

from dataclasses import dataclass

from vhat.errors import InputError
from vhat.problem import Problem
from vhat.solve.cg import CG
from vhat.solve.contract import Solver
from vhat.solve.dense import Dense, dense_bytes

__all__ = ["Plan", "choose"]

_DENSE_MOST = 3000
_CG_STEPS = 200
_CG_VECTORS = 8


@dataclass(frozen=True)
class Plan:
    """The way a set of points will be solved.

    Attributes:
        solver: The solver's options.
        memory: Peak bytes of the solve, over the data themselves.
        gradients: Estimated cost in gradients of the loss.
        reason: Why this solver.
    """

    solver: Solver
    memory: int
    gradients: float
    reason: str

    def __str__(self) -> str:
        return (
            f"solver    {self.solver!r}\n"
            f"memory    {self.memory / 1e6:,.0f} MB\n"
            f"cost      about {self.gradients:,.0f} gradients of the loss\n"
            f"reason    {self.reason}"
        )


def choose(problem: Problem, points: int, solver: Solver | str = "auto") -> Plan:
    """Choose a solver for ``points`` right-hand sides, or describe the one that was asked for.

    Raises:
        InputError: For a solver that is neither ``"auto"`` nor a solver's options.
    """
    if solver != "auto" and (isinstance(solver, type) or not hasattr(solver, "prepare")):
        raise InputError(f"solver={solver!r} is not known. Use 'auto', vhat.CG(...) or vhat.Dense().")
    p = problem.p
    dense = Plan(Dense(), dense_bytes(p), 2.0 * p, "")
    block = CG().block
    steps = min(_CG_STEPS, p)
    cg = Plan(CG(), _CG_VECTORS * 8 * p * min(points, block), 2.0 * steps * points, "")
    if isinstance(solver, Dense):
        return Plan(solver, dense.memory, dense.gradients, "asked for by name")
    if isinstance(solver, CG):
        return Plan(solver, cg.memory, cg.gradients, "asked for by name")
    if not isinstance(solver, str):
        return Plan(solver, 0, float("nan"), "asked for by name")
    if p <= _DENSE_MOST and dense.memory <= problem.memory:
        return Plan(
            dense.solver,
            dense.memory,
            dense.gradients,
            f"p = {p} is small: one factorisation serves every point",
        )
    return Plan(
        cg.solver,
        cg.memory,
        cg.gradients,
        f"p = {p} is above {_DENSE_MOST} or its square does not fit {problem.memory / 1e9:.1f} GB: matrix-free",
    )
