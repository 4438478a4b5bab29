"""What the solvers of one problem share: scale, matrices, factorisations, the sign of the Hessian."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from scipy.linalg import LinAlgError, eigh

from vhat.linalg import curvature as curvatures
from vhat.linalg.curvature.definiteness import Definiteness, smallest_eigenvalue
from vhat.linalg.solvers.gram import Gram, make_gram
from vhat.linalg.solvers.interface import Prepared, Solver
from vhat.linalg.solvers.kernel import Kernel, make_kernel
from vhat.linalg.solvers.plan import Plan, choose
from vhat.linalg.solvers.single_kernel import SingleKernel, TooFewDigits, make_single_kernel
from vhat.models.problem import Array, Curvature, Problem

__all__ = ["SolverWorkspace"]

T = TypeVar("T")


@dataclass(eq=False)
class SolverWorkspace:
    """A problem with its caches. Everything here is a function of the problem alone, never of the test points.

    Attributes:
        problem: The training problem.
        twin: The same parameters and data under another decay, whose kernel may serve here too.
    """

    problem: Problem
    twin: SolverWorkspace | None = field(default=None, repr=False, kw_only=True)
    _kept: dict[Hashable, Any] = field(default_factory=dict, repr=False, kw_only=True)
    _told: set[str] = field(default_factory=set, repr=False, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        # what is kept belongs to the framework's float64 scope, and is made again when it is needed
        return self.__dict__ | {"_kept": {}}

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what is kept under ``key``, made on the first request."""
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found

    def renew(self, key: Hashable, value: Any) -> None:
        """Keep a value under ``key`` in place of what was kept there."""
        self._kept[key] = value

    def drop(self, key: Hashable) -> None:
        """Forget what is kept under ``key``."""
        self._kept.pop(key, None)

    def kept(self, key: Hashable) -> Any:
        """Return what is kept under ``key``, or None where it has not been made."""
        return self._kept.get(key)

    def first(self, event: str) -> bool:
        """Whether this is the first time that ``event`` happens to this model."""
        if event in self._told:
            return False
        self._told.add(event)
        return True

    def release(self) -> None:
        """Forget matrices and factorisations; they are made again when needed."""
        self._kept.clear()
        self.twin = None

    # -- solvers -------------------------------------------------------------------------------
    @property
    def solver(self) -> Solver:
        """The options of the solver that the plan gives this problem."""
        return self.keep("solver", lambda: choose(self.problem).solver)

    def plan(self, sides: int, solver: Solver | str = "auto", curvature: str = "auto") -> Plan:
        """Return the plan for a number of right-hand sides; a solver that it chooses is that of the model itself."""
        found = choose(self.problem, sides, solver, curvature)
        if isinstance(solver, str):
            self._kept.setdefault("solver", found.solver)
        return found

    def prepared(self, solver: Solver, curvature: Curvature) -> Prepared:
        """Return a solver made ready, once."""
        if self.problem.linear and not solver.forms_matrix:
            curvature = "ggn"  # the same matrix, and it needs no correction
        return self.keep(("prepared", solver, curvature), lambda: solver.prepare(self, curvature))

    def own_solver(self, curvature: Curvature) -> Prepared:
        """Return the solver of what belongs to the model rather than to points: noise, stationarity, probes."""
        return self.prepared(self.solver, curvature)

    # -- what they share -----------------------------------------------------------------------
    def scale(self) -> Array:
        """Return the unit of each parameter, (p,)."""
        return self.keep("scale", lambda: curvatures.scale(self.problem))

    def matrix(self, curvature: Curvature) -> np.ndarray:
        """Return ``A`` as a dense matrix (only where that fits)."""
        return self.keep(("matrix", curvature), lambda: curvatures.assemble(self.problem, curvature))

    def kernel(self) -> Kernel:
        """Return the n x n factorisation of the Gauss-Newton matrix, which every dual solve of this model shares."""

        def make() -> Kernel:
            # A multiple of the decay leaves the features and the unfactorised kernel as they are.
            kept = None if self.twin is None else self.twin.kept("kernel")
            rescaled = None if kept is None else kept.under(self.problem)
            self.twin = None  # it has served, and would keep its own matrices alive
            return make_kernel(self.problem) if rescaled is None else rescaled

        return self.keep("kernel", make)

    def single_kernel(self) -> SingleKernel | str:
        """Return the same in single precision, or the reason why there is none."""

        def make() -> SingleKernel | str:
            self.twin = None  # it cannot serve, and would keep its own matrices alive
            try:
                return make_single_kernel(self.problem)
            except TooFewDigits as found:
                return str(found)

        return self.keep("single kernel", make)

    def gram(self, engine: Any = None) -> Gram:
        """Return the p x p factorisation of the Gauss-Newton matrix, which every primal solve of this model shares.

        Args:
            engine: The client of the Dask cluster that sums over the training rows, where it is not there yet.
        """
        return self.keep("gram", lambda: make_gram(self.problem, self.scale(), engine))

    def definiteness(self, curvature: Curvature) -> Definiteness:
        """Return the smallest eigenvalue of ``A``, and what is known of its sign."""
        if self.problem.linear and not self.solver.forms_matrix:
            curvature = "ggn"  # the same matrix, positive by its form

        def find() -> Definiteness:
            return smallest_eigenvalue(
                self.problem,
                curvature,
                scale=self.scale(),
                matrix=self.matrix(curvature) if self.solver.forms_matrix else None,
                metric=partial(self.solver.metric, self, curvature),
            )

        return self.keep(("definite", curvature), find)

    def softest_against_data(self, curvature: Curvature) -> tuple[float, Array] | None:
        """Return the smallest ``x'Ax / x'Px`` and its x, P the Gauss-Newton matrix plus decay.

        None where the plan does not form matrices, or P is not positive definite.
        """

        def find() -> tuple[float, Array] | None:
            s = self.problem.numpy(self.scale())
            unit = np.outer(s, s)
            try:
                values, vectors = eigh(self.matrix(curvature) / unit, self.matrix("ggn") / unit, subset_by_index=[0, 0])
            except LinAlgError:
                return None
            return float(values[0]), self.problem.native(vectors[:, 0] / s)

        if not self.solver.forms_matrix:
            return None
        return self.keep(("softest", curvature), find)
