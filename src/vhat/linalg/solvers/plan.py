"""Choose a solver, and state its cost, its memory and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from vhat.errors import InputError, MemoryBudgetError
from vhat.linalg.machine_speed import cpu_seconds
from vhat.linalg.memory import in_words
from vhat.linalg.solvers.cg import CG
from vhat.linalg.solvers.cost import COMPILED, Cost, Work, gradient_flops
from vhat.linalg.solvers.dense import Dense
from vhat.linalg.solvers.dual import Dual
from vhat.linalg.solvers.interface import Solver
from vhat.linalg.solvers.nystrom import Nystrom
from vhat.linalg.solvers.primal import Primal
from vhat.models.problem import Problem

__all__ = ["Plan", "choose"]

_MAX_DENSE_PARAMETERS = 3000
"""Parameters up to which the exact Hessian is formed and factorised: no iteration is needed, and traces are exact."""
_MAX_DENSE_FLOPS = 3e11
"""Flops of gradients up to which the Hessian of a small model is always formed, one or two minutes on one core. Above,
the cheapest solver is chosen."""
_MAX_DENSE_FLOPS_LINEAR = 1e10
"""Flops of gradients, about a second, up to which the Hessian of a linear model is always formed. Its Hessian is the
Gauss-Newton matrix, which the primal solver forms from the Jacobian at a fraction of that. 13,000 rows of 951
parameters took 27 CPU seconds."""
_MANY_ROWS = 50_000
"""Training rows times outputs from which a linear model is solved without a pass over all rows for each point."""
_NOMINAL_SIDES = 1000
"""Right-hand sides for which costs are compared. With a constant, a point is solved by the same solver alone and among
others."""
_BUDGET_SLACK = 2**22
"""Bytes above the budget that are not refused: single vectors of small models."""
_LEAST_SAMPLE = 64
"""Rows of a sample, times outputs, below which Nystrom is not considered."""

_DENSE = Dense()
"""The full matrix."""
_SINGLE_DUAL = Dual(precision="single")
"""The kernel in half the memory, for problems whose kernel in double precision does not fit."""


@dataclass(frozen=True)
class Plan:
    """The solver for a set of points, with its cost.

    Attributes:
        solver: The solver's options.
        memory: Peak memory of the solve in bytes, without the data.
        work: Gradients of the loss and flops in matrix products.
        gradients: The work as a number of gradients of the loss.
        reason: The reason for this solver.
        budget: Memory budget for arrays in bytes, without compiled programs.
        framework: The framework that computes gradients: "jax", "torch" or "numpy".
        gradient_flops: Flops of one gradient of the loss.
        remedy: Advice if the memory does not suffice.
    """

    solver: Solver
    memory: int
    work: Work
    gradients: float
    reason: str
    budget: float
    framework: str
    gradient_flops: float
    remedy: str

    @property
    def fits(self) -> bool:
        """Whether the memory is within the budget."""
        return self.memory <= self.budget + COMPILED

    @cached_property
    def seconds(self) -> float:
        """Estimated CPU seconds on this machine, without compilation; right within a factor of about three."""
        return cpu_seconds(self.work, self.gradient_flops, self.framework)

    @property
    def duration(self) -> str:
        """The CPU time in words, rounded to its accuracy."""
        if self.seconds < 0.1:
            return "less than 0.1 s"
        if self.seconds < 90:
            return f"about {float(f'{self.seconds:.1g}'):g} s"
        if self.seconds < 90 * 60:
            return f"about {self.seconds / 60:.0f} min"
        return f"about {self.seconds / 3600:.0f} h"

    def require_memory(self) -> None:
        """Refuse a plan that does not fit, before any work.

        Raises:
            MemoryBudgetError: With the memory needed and the budget.
        """
        if self.memory > self.budget + COMPILED + _BUDGET_SLACK:
            raise MemoryBudgetError(
                f"{self.solver!r} needs {in_words(self.memory - COMPILED)} here; the budget is "
                f"{in_words(self.budget)}. {self.remedy}"
            )

    def __str__(self) -> str:
        return (
            f"solver    {self.solver!r}\n"
            f"memory    {in_words(self.memory)}, {in_words(COMPILED)} of it for compiled programs{self._warning()}\n"
            f"cost      {self.duration} of CPU time, as much as {self.gradients:,.0f} gradients of the "
            "loss\n"
            f"reason    {self.reason}"
        )

    def _warning(self) -> str:
        if self.fits:
            return ""
        return f"; TOO MUCH for a budget of {in_words(self.budget)}: it will be refused. Raise memory=, or ask for less"


def choose(problem: Problem, sides: int = 1, solver: Solver | str = "auto", curvature: str = "auto") -> Plan:
    """Return the plan with the best solver, or with the given one.

    Args:
        problem: The training problem.
        sides: Number of right-hand sides; the choice does not depend on it.
        solver: ``"auto"`` or the options of a solver.
        curvature: ``"ggn"`` for the cost of Gauss-Newton, any other value for that of the exact Hessian; the choice
            does not depend on it.

    Raises:
        InputError: For a solver that is neither ``"auto"`` nor a solver's options.
    """
    if isinstance(solver, str):
        if solver != "auto":
            raise _unknown(solver)
        best, reason = _auto(problem)
        return _make_plan(problem, sides, best, reason, curvature)
    if isinstance(solver, type) or not hasattr(solver, "prepare"):
        raise _unknown(solver)
    return _make_plan(problem, sides, solver, "asked for by name", curvature)


def _unknown(solver: object) -> InputError:
    return InputError(
        f"solver={solver!r} is not known. Use 'auto', vhat.CG(...), vhat.Dense(), vhat.Dual(), vhat.Primal(), "
        "vhat.Nystrom() or vhat.MinimumNorm()."
    )


def _make_plan(problem: Problem, sides: int, solver: Solver, reason: str, curvature: str) -> Plan:
    cost = solver.cost(problem, curvature)
    work = cost.work(sides)
    return Plan(
        solver=solver,
        memory=cost.memory(problem, sides),
        work=work,
        gradients=work.in_gradients(problem),
        reason=reason,
        budget=problem.memory,
        framework=problem.autodiff.framework,
        gradient_flops=gradient_flops(problem),
        remedy=cost.remedy,
    )


def _auto(problem: Problem) -> tuple[Solver, str]:
    """Return the cheapest of the solvers that fit, and the reason."""
    if _is_linear_with_many_rows(problem) and _fits(problem, Primal()):
        return Primal(), (
            f"p = {problem.p:,}: the model is linear, its Hessian is a {problem.p:,} x {problem.p:,} Gauss-Newton "
            f"matrix, and a point takes no pass over all {problem.n:,} rows"
        )
    if _is_formed(problem):
        return _DENSE, f"p = {problem.p:,} is small: one factorisation of H + lam serves every point"
    candidates = _candidates(problem)
    if not candidates:
        return CG(), f"{_no_factorisation(problem)}, nor does the kernel of a few rows: matrix-free"
    best = min(candidates, key=lambda solver: _nominal_cost(problem, solver))
    return best, _reason(problem, best)


def _is_linear_with_many_rows(problem: Problem) -> bool:
    """Return whether the model is linear and a pass over all rows for each point would dominate the cost."""
    return problem.linear and problem.p <= _MAX_DENSE_PARAMETERS and problem.n * problem.outputs >= _MANY_ROWS


def _is_formed(problem: Problem) -> bool:
    """Return whether the exact Hessian is formed without a comparison of costs."""
    cost = _DENSE.cost(problem, "hessian")
    flops = cost.setup.gradients * gradient_flops(problem)
    max_flops = _MAX_DENSE_FLOPS_LINEAR if problem.linear else _MAX_DENSE_FLOPS
    return problem.p <= _MAX_DENSE_PARAMETERS and flops <= max_flops and _is_within_budget(problem, cost)


def _candidates(problem: Problem) -> list[Solver]:
    """Return the solvers that fit, of which the cheapest is chosen."""
    considered: list[Solver] = [Primal(), Dual()]
    # For a linear model Dense is never the cheapest: it forms the matrix by products with the Hessian. After the
    # set-up, primal and dual cost almost nothing, so that their matrix products decide between them.
    if not problem.linear:
        considered.insert(0, _DENSE)
    candidates = [solver for solver in considered if _fits(problem, solver)]
    if not _fits(problem, Dual()) and _fits(problem, _SINGLE_DUAL):
        candidates.append(_SINGLE_DUAL)
    sampled = Nystrom()
    if sampled.sampled_rows(problem) * problem.outputs >= _LEAST_SAMPLE and _fits(problem, sampled):
        candidates.append(sampled)
    return candidates


def _fits(problem: Problem, solver: Solver) -> bool:
    return _is_within_budget(problem, solver.cost(problem, "hessian"))


def _is_within_budget(problem: Problem, cost: Cost) -> bool:
    # The budget is for arrays; compiled programs are not counted against it.
    return cost.memory(problem) <= problem.memory + COMPILED


def _nominal_cost(problem: Problem, solver: Solver) -> float:
    """Return the cost of a solver for a fixed number of right-hand sides, in gradients of the loss."""
    return solver.cost(problem, "hessian").work(_NOMINAL_SIDES).in_gradients(problem)


def _reason(problem: Problem, best: Solver) -> str:
    N = problem.n * problem.outputs
    serves = "one factorisation serves every point"
    kernel = f"a {N:,} x {N:,} kernel"
    matrix = f"a {problem.p:,} x {problem.p:,} Gauss-Newton matrix"
    if best == _DENSE:
        return f"p = {problem.p:,}: forming H + lam is the cheapest, and {serves}"
    if best == Primal():
        return f"p = {problem.p:,}: {matrix} fits, and {serves}; {kernel} {_disadvantage(problem, Dual(), best)}"
    if best == Dual():
        return f"p = {problem.p:,}: {kernel} fits, and {serves}; {matrix} {_disadvantage(problem, Primal(), best)}"
    if best == _SINGLE_DUAL:
        return (
            f"p = {problem.p:,}: {kernel} fits in single precision, refined by its blocks in double precision, and "
            f"{serves}; in double precision it does not fit {in_words(problem.memory)}, and {matrix} "
            f"{_disadvantage(problem, Primal(), best)}"
        )
    rows = Nystrom().sampled_rows(problem)
    return f"{_no_factorisation(problem)}: the kernel of {rows:,} random rows preconditions conjugate gradients on all"


def _no_factorisation(problem: Problem) -> str:
    """Return the reason why neither the matrix nor the kernel is factorised."""
    N = problem.n * problem.outputs
    p = problem.p
    matrix = f"a {p:,} x {p:,} matrix {_disadvantage(problem, Primal(), Nystrom())}"
    kernel = f"a {N:,} x {N:,} kernel {_disadvantage(problem, Dual(), Nystrom())}"
    return f"p = {p:,}: {matrix} and {kernel}"


def _disadvantage(problem: Problem, solver: Solver, better: Solver) -> str:
    """Return the reason against a solver that was not chosen."""
    if not _fits(problem, solver):
        return f"does not fit {in_words(problem.memory)}"
    ratio = _nominal_cost(problem, solver) / _nominal_cost(problem, better)
    return f"would cost {ratio:.2g} times as much"
