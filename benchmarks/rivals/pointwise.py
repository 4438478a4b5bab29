"""The paper's algorithm: conjugate gradients from zero, one test point at a time, then one product with the Jacobian.

The whole solve of a point is one compiled program around the linearised Hessian product of
:mod:`benchmarks.objective`. It stops on the relative residual, as the paper does; the tolerance is the largest at which
V is as accurate as asked, found with the true V at hand: no user could stop earlier.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.objective import Objective
from benchmarks.problems import Trained
from benchmarks.timing import Stopwatch

LADDER = 10.0 ** -np.arange(0.5, 13.1, 0.25)
"""Relative residuals at which a solve may stop."""
_SURE = 1e-2
"""A trace ends when the error of V has fallen to this share of what is wanted."""


class _State(NamedTuple):
    h: Any
    r: Any
    q: Any
    rho: Any
    step: Any


class Found(NamedTuple):
    """V of one point, the steps taken and the relative residual reached."""

    V: float
    steps: int
    residual: float


class Pointwise:
    """Per-point conjugate gradients on one trained network.

    Attributes:
        rtol: Relative residual at which a point stops; see :meth:`calibrate`.
        keep: Whether the linearisation is kept from step to step: the quicker of the two ways.
    """

    def __init__(self, trained: Trained, watch: Stopwatch, most_steps: int = 20_000) -> None:
        self.objective = Objective(trained)
        self.most_steps = most_steps
        self.rtol = float(LADDER[-1])
        point = np.zeros(trained.setting.d)
        ways = {way: partial(self._call, partial(self._some, way == "kept"), point) for way in ("kept", "again")}
        self.keep = watch.fastest(ways, times=3) == "kept"

    def __call__(self, x: np.ndarray) -> Found:
        """Solve for one point (d,)."""
        V, steps, residual = self._call(self._solve, x, self.rtol)
        return Found(float(V), int(steps), float(residual))

    def calibrate(self, points: np.ndarray, truth: np.ndarray, wanted: float = 1e-6) -> float:
        """Set ``rtol`` to the largest rung from which on every given point has V to ``wanted``, and return it."""
        errors = np.array([self._call(self._trace, x, V, wanted) for x, V in zip(points, truth, strict=False)])
        bad = np.any(errors > wanted, axis=0)  # rungs below the end of a trace are NaN, and good
        last_bad = int(np.flatnonzero(bad).max(initial=-1))
        self.rtol = float(LADDER[min(last_bad + 1, len(LADDER) - 1)])
        return self.rtol

    def _call(self, function: Any, x: np.ndarray, *more: Any) -> Any:
        with jax.enable_x64(True):
            objective = self.objective
            return jax.block_until_ready(function(objective.theta, objective.data, jnp.asarray(x), *more))

    def _begin(self, keep: bool, theta: Any, data: Any, x: Any) -> Any:
        """The right-hand side's norm, the first state, and the step."""
        product = self.objective.hessian(theta, data, keep=keep)
        g = self.objective.gradient_of_prediction(theta, x)

        def forward(s: _State) -> _State:
            Aq = product(s.q)
            alpha = s.rho / (s.q @ Aq)
            r = s.r - alpha * Aq
            rho = r @ r
            return _State(s.h + alpha * s.q, r, r + (rho / s.rho) * s.q, rho, s.step + 1)

        return jnp.linalg.norm(g), _State(jnp.zeros_like(g), g, g, g @ g, 0), forward

    @cached_property
    def _solve(self) -> Any:
        def solve(theta: Any, data: Any, x: Any, rtol: Any) -> Any:
            size, start, forward = self._begin(self.keep, theta, data, x)
            end = jax.lax.while_loop(
                lambda s: (jnp.sqrt(s.rho) > rtol * size) & (s.step < self.most_steps), forward, start
            )
            return self.objective.norm(theta, data, end.h), end.step, jnp.sqrt(end.rho) / size

        return jax.jit(solve)

    @partial(jax.jit, static_argnums=(0, 1))
    def _some(self, keep: bool, theta: Any, data: Any, x: Any) -> Any:
        """Twenty steps, to see which way is quicker."""
        _, start, forward = self._begin(keep, theta, data, x)
        return jax.lax.fori_loop(0, 20, lambda _, s: forward(s), start).h

    @cached_property
    def _trace(self) -> Any:
        """A solve that notes the error of V whenever the residual passes a rung of the ladder."""
        ladder = jnp.asarray(LADDER)

        def run(theta: Any, data: Any, x: Any, truth: Any, wanted: Any) -> Any:
            size, start, forward = self._begin(self.keep, theta, data, x)

            def error(h: Any) -> Any:
                return jnp.abs(self.objective.norm(theta, data, h) / truth - 1)

            def body(carry: Any) -> Any:
                s, seen, last = carry
                s = forward(s)
                passed = jnp.isnan(seen) & (jnp.sqrt(s.rho) <= ladder * size)
                last = jax.lax.cond(passed.any(), lambda: error(s.h), lambda: last)
                return s, jnp.where(passed, last, seen), last

            def unfinished(carry: Any) -> Any:
                s, seen, last = carry
                return (last > _SURE * wanted) & jnp.isnan(seen).any() & (s.step < self.most_steps)

            start = (start, jnp.full(len(LADDER), jnp.nan), jnp.inf)
            return jax.lax.while_loop(unfinished, body, start)[1]

        return jax.jit(run)
