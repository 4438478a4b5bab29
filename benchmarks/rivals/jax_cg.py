"""``jax.scipy.sparse.linalg.cg`` around the same linearised product, one point at a time or mapped over points."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg

from benchmarks.objective import Objective
from benchmarks.problems import Trained


class JaxCG:
    """V at a block of points.

    Attributes:
        together: Whether ``jax.vmap`` runs over the points, or ``jax.lax.map``.
    """

    def __init__(self, trained: Trained, *, together: bool) -> None:
        self.objective = Objective(trained)
        self.together = together

    def __call__(self, points: np.ndarray, rtol: float) -> np.ndarray:
        """V at points (m, d), each solved to a relative residual of ``rtol``."""
        with jax.enable_x64(True):
            objective = self.objective
            return np.asarray(self._solve(objective.theta, objective.data, jnp.asarray(points), rtol))

    @cached_property
    def _solve(self) -> Any:
        def solve(theta: Any, data: Any, points: Any, rtol: Any) -> Any:
            product = self.objective.hessian(theta, data, keep=True)

            def one(x: Any) -> Any:
                h, _ = cg(product, self.objective.gradient_of_prediction(theta, x), tol=rtol, maxiter=20_000)
                return self.objective.norm(theta, data, h)

            return jax.vmap(one)(points) if self.together else jax.lax.map(one, points)

        return jax.jit(solve)
