"""Cache shared by the solvers of one problem: scale, matrices, factorisations, the sign of the Hessian."""

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
    """A problem with its cache. Everything in the cache depends on the problem alone, never on test points.

    Attributes:
        problem: The training problem.
        twin: Workspace of the same parameters and data under another decay, whose kernel may be rescaled for this one.
    """

    problem: Problem
    twin: SolverWorkspace | None = field(default=None, repr=False, kw_only=True)
    _cache: dict[Hashable, Any] = field(default_factory=dict, repr=False, kw_only=True)
    _events: set[str] = field(default_factory=set, repr=False, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        # Cached arrays belong to the framework's float64 scope. They are not pickled, but computed again when needed.
        return self.__dict__ | {"_cache": {}}

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value cached under ``key``; the first request calls ``make``."""
        if key not in self._cache:
            self._cache[key] = make()
        found: T = self._cache[key]
        return found

    def renew(self, key: Hashable, value: Any) -> None:
        """Replace the value cached under ``key``."""
        self._cache[key] = value

    def drop(self, key: Hashable) -> None:
        """Remove the value cached under ``key``."""
        self._cache.pop(key, None)

    def kept(self, key: Hashable) -> Any:
        """Return the value cached under ``key``; None if there is none."""
        return self._cache.get(key)

    def first(self, event: str) -> bool:
        """Return whether this is the first call for ``event``, so that a warning is given once."""
        if event in self._events:
            return False
        self._events.add(event)
        return True

    def release(self) -> None:
        """Clear the cache of matrices and factorisations; they are computed again when needed."""
        self._cache.clear()
        self.twin = None

    # -- solvers -------------------------------------------------------------------------------
    @property
    def solver(self) -> Solver:
        """The options of the solver chosen for this problem."""
        return self.keep("solver", lambda: choose(self.problem).solver)

    def plan(self, sides: int, solver: Solver | str = "auto", curvature: str = "auto") -> Plan:
        """Return the plan for a number of right-hand sides; ``"auto"`` gives the solver of :attr:`solver`."""
        found = choose(self.problem, sides, solver, curvature)
        if isinstance(solver, str):
            self._cache.setdefault("solver", found.solver)
        return found

    def prepared(self, solver: Solver, curvature: Curvature) -> Prepared:
        """Return a prepared solver, cached."""
        if self.problem.linear and not solver.forms_matrix:
            # The Hessian of a linear model is the Gauss-Newton matrix, which needs no corrections.
            curvature = "ggn"
        return self.keep(("prepared", solver, curvature), lambda: solver.prepare(self, curvature))

    def own_solver(self, curvature: Curvature) -> Prepared:
        """Return the prepared solver for systems of the model itself: noise, stationarity, probes."""
        return self.prepared(self.solver, curvature)

    # -- cached matrices -----------------------------------------------------------------------
    def scale(self) -> Array:
        """Return the unit of each parameter, (p,)."""
        return self.keep("scale", lambda: curvatures.scale(self.problem))

    def matrix(self, curvature: Curvature) -> np.ndarray:
        """Return ``A`` as a dense matrix, without a check of memory."""
        return self.keep(("matrix", curvature), lambda: curvatures.assemble(self.problem, curvature))

    def kernel(self) -> Kernel:
        """Return the n x n factorisation of the Gauss-Newton matrix, shared by all dual solves of this model."""

        def make() -> Kernel:
            # Under a multiple of the twin's decay, its features and unfactorised kernel only have to be rescaled.
            existing = None if self.twin is None else self.twin.kept("kernel")
            rescaled = None if existing is None else existing.under(self.problem)
            self.twin = None  # no longer needed, and a reference would keep its matrices in memory
            return make_kernel(self.problem) if rescaled is None else rescaled

        return self.keep("kernel", make)

    def single_kernel(self) -> SingleKernel | str:
        """Return the kernel in single precision; a str with the reason if that is not accurate enough."""

        def make() -> SingleKernel | str:
            self.twin = None  # of no use here, and a reference would keep its matrices in memory
            try:
                return make_single_kernel(self.problem)
            except TooFewDigits as found:
                return str(found)

        return self.keep("single kernel", make)

    def gram(self, engine: Any = None) -> Gram:
        """Return the p x p factorisation of the Gauss-Newton matrix, shared by all primal solves of this model.

        Args:
            engine: Client of the Dask cluster that sums over the training rows if the matrix is not cached; None to sum
                in this process.
        """
        return self.keep("gram", lambda: make_gram(self.problem, self.scale(), engine))

    def definiteness(self, curvature: Curvature) -> Definiteness:
        """Return the smallest eigenvalue of ``A``, and its sign."""
        if self.problem.linear and not self.solver.forms_matrix:
            # The Hessian of a linear model is the Gauss-Newton matrix, which is positive by construction.
            curvature = "ggn"

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
        """Return the smallest ``x'Ax / x'Px`` and its x, with P the Gauss-Newton matrix plus decay.

        None if the plan does not form matrices, or if P is not positive definite.
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
