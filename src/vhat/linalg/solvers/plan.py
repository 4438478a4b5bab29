"""Which solver, what it will take, and why."""

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

_DENSE_MOST = 3000
"""Parameters up to which the exact Hessian is formed and factorised: no iteration is needed, and traces are exact."""
_DENSE_FLOPS = 3e11
"""Flops of gradients that forming it may cost, a minute or two on one core. Beyond, what is cheapest is taken."""
_LONG = 50_000
"""Training rows times outputs from which a linear model is answered without a look at all of them for each point."""
_LINEAR_FLOPS = 1e10
"""The same for a model that is linear in its parameters, a second or so: its Hessian is the Gauss-Newton matrix, which
products of the Jacobian with itself give at a fraction of that. 13,000 rows of 951 parameters took 27 CPU seconds."""
_NOMINAL_SIDES = 1000
"""Right-hand sides for which costs are compared, however many are asked about: a row alone is solved as in company."""
_TRIFLE = 2**22
"""Bytes beyond the budget that are not worth a refusal: what single vectors of small models take."""
_NYSTROM_LEAST = 64
"""Rows of a sample, times outputs, below which it is not worth the trouble."""


_FORMED = Dense()
"""The whole matrix."""
_HALF = Dual(precision="single")
"""The kernel in half of its memory, for problems whose own does not fit."""


@dataclass(frozen=True)
class Plan:
    """The way a set of points will be solved.

    Attributes:
        solver: The solver's options.
        memory: Peak bytes of the solve, over the data themselves.
        work: Gradients of the loss and flops in matrix products.
        gradients: The same as a number of gradients of the loss.
        reason: Why this solver.
        budget: The bytes that arrays may take; compiled programs come on top.
        framework: Whose gradients they are: "jax", "torch" or "numpy".
        gradient_flops: Flops of one gradient of the loss.
        remedy: What to do where it does not fit.
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
        """Whether the budget has room for it."""
        return self.memory <= self.budget + COMPILED

    @cached_property
    def seconds(self) -> float:
        """CPU seconds on this machine, within a factor of about three; compilation is not counted."""
        return cpu_seconds(self.work, self.gradient_flops, self.framework)

    @property
    def duration(self) -> str:
        """The CPU time in words, to the digits that are known."""
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
            MemoryBudgetError: Naming what it needs and what there is.
        """
        if self.memory > self.budget + COMPILED + _TRIFLE:
            raise MemoryBudgetError(
                f"{self.solver!r} needs {in_words(self.memory - COMPILED)} here; the budget is "
                f"{in_words(self.budget)}. {self.remedy}"
            )

    def __str__(self) -> str:
        return (
            f"solver    {self.solver!r}\n"
            f"memory    {in_words(self.memory)}, {in_words(COMPILED)} of it for compiled programs{self._room()}\n"
            f"cost      {self.duration} of CPU time, as much as {self.gradients:,.0f} gradients of the "
            "loss\n"
            f"reason    {self.reason}"
        )

    def _room(self) -> str:
        if self.fits:
            return ""
        return f"; TOO MUCH for a budget of {in_words(self.budget)}: it will be refused. Raise memory=, or ask for less"


def choose(problem: Problem, sides: int = 1, solver: Solver | str = "auto", curvature: str = "auto") -> Plan:
    """Choose a solver, or describe the one that was asked for.

    Args:
        problem: The training problem.
        sides: How many right-hand sides; the choice does not depend on it.
        solver: ``"auto"`` or the options of a solver.
        curvature: ``"ggn"``, or the cost is that of the exact Hessian; the choice does not depend on it.

    Raises:
        InputError: For a solver that is neither ``"auto"`` nor a solver's options.
    """
    if isinstance(solver, str):
        if solver != "auto":
            raise _unknown(solver)
        return _described(problem, sides, *_auto(problem), curvature)
    if isinstance(solver, type) or not hasattr(solver, "prepare"):
        raise _unknown(solver)
    return _described(problem, sides, solver, "asked for by name", curvature)


def _unknown(solver: object) -> InputError:
    return InputError(
        f"solver={solver!r} is not known. Use 'auto', vhat.CG(...), vhat.Dense(), vhat.Dual(), vhat.Primal(), "
        "vhat.Nystrom() or vhat.MinimumNorm()."
    )


def _described(problem: Problem, sides: int, solver: Solver, reason: str, curvature: str) -> Plan:
    cost = solver.cost(problem, curvature)
    work = cost.work(sides)
    return Plan(
        solver,
        cost.memory(problem, sides),
        work,
        work.in_gradients(problem),
        reason,
        problem.memory,
        problem.autodiff.framework,
        gradient_flops(problem),
        cost.remedy,
    )


def _auto(problem: Problem) -> tuple[Solver, str]:
    """Choose the cheapest of the solvers that fit, and say why."""
    if _is_long_and_linear(problem) and _fits(problem, Primal()):
        return Primal(), (
            f"p = {problem.p:,}: the model is linear, its Hessian is a {problem.p:,} x {problem.p:,} Gauss-Newton "
            f"matrix, and no point looks at all {problem.n:,} rows"
        )
    cost = _FORMED.cost(problem, "hessian")
    forming = cost.setup.gradients * gradient_flops(problem)
    most = _LINEAR_FLOPS if problem.linear else _DENSE_FLOPS
    if problem.p <= _DENSE_MOST and forming <= most and _has_room(problem, cost):
        return _FORMED, f"p = {problem.p:,} is small: one factorisation of H + lam serves every point"
    # What either factorisation does after its matrix products costs next to nothing for a linear model: the products
    # decide between them, and products with the Hessian, by which Dense forms it, are out of the question.
    formed: tuple[Solver, ...] = (Primal(), Dual()) if problem.linear else (_FORMED, Primal(), Dual())
    candidates: list[Solver] = [solver for solver in formed if _fits(problem, solver)]
    if not _fits(problem, Dual()) and _fits(problem, _HALF):
        candidates.append(_HALF)
    sampled = Nystrom()
    if sampled.sampled_rows(problem) * problem.outputs >= _NYSTROM_LEAST and _fits(problem, sampled):
        candidates.append(sampled)
    if not candidates:
        return CG(), f"{_no_factorisation(problem)}, nor does the kernel of a few rows: matrix-free"
    best = min(candidates, key=lambda solver: _nominal(problem, solver))
    return best, _reason(problem, best)


def _is_long_and_linear(problem: Problem) -> bool:
    """Return whether a linear model has so many rows that a look at all of them for each point is what costs."""
    return problem.linear and problem.p <= _DENSE_MOST and problem.n * problem.outputs >= _LONG


def _fits(problem: Problem, solver: Solver) -> bool:
    return _has_room(problem, solver.cost(problem, "hessian"))


def _has_room(problem: Problem, cost: Cost) -> bool:
    # the budget is for arrays, not for programs
    return cost.memory(problem) <= problem.memory + COMPILED


def _nominal(problem: Problem, solver: Solver) -> float:
    """What a solver costs for a fixed number of right-hand sides, in gradients of the loss."""
    return solver.cost(problem, "hessian").work(_NOMINAL_SIDES).in_gradients(problem)


def _reason(problem: Problem, best: Solver) -> str:
    N = problem.n * problem.outputs
    serves = "one factorisation serves every point"
    kernel = f"a {N:,} x {N:,} kernel"
    matrix = f"a {problem.p:,} x {problem.p:,} Gauss-Newton matrix"
    if best == _FORMED:
        return f"p = {problem.p:,}: forming H + lam is the cheapest, and {serves}"
    if best == Primal():
        return f"p = {problem.p:,}: {matrix} fits, and {serves}; {kernel} {_fault(problem, Dual(), best)}"
    if best == Dual():
        return f"p = {problem.p:,}: {kernel} fits, and {serves}; {matrix} {_fault(problem, Primal(), best)}"
    if best == _HALF:
        return (
            f"p = {problem.p:,}: {kernel} fits in single precision, refined by its blocks in double precision, and "
            f"{serves}; in double precision it does not fit {in_words(problem.memory)}, and {matrix} "
            f"{_fault(problem, Primal(), best)}"
        )
    rows = Nystrom().sampled_rows(problem)
    return f"{_no_factorisation(problem)}: the kernel of {rows:,} random rows preconditions conjugate gradients on all"


def _no_factorisation(problem: Problem) -> str:
    """Say why neither matrix is factorised."""
    N, p = problem.n * problem.outputs, problem.p
    sides: dict[str, Solver] = {f"a {p:,} x {p:,} matrix": Primal(), f"a {N:,} x {N:,} kernel": Dual()}
    told = [f"{what} {_fault(problem, solver, Nystrom())}" for what, solver in sides.items()]
    return f"p = {p:,}: " + " and ".join(told)


def _fault(problem: Problem, solver: Solver, better: Solver) -> str:
    """Say what speaks against a solver that was not chosen."""
    if not _fits(problem, solver):
        return f"does not fit {in_words(problem.memory)}"
    ratio = _nominal(problem, solver) / _nominal(problem, better)
    return f"would cost {ratio:.2g} times as much"
