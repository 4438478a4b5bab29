"""The loop around conjugate gradients: stopping, true residuals, the sign of curvature, compaction, progress."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from vhat.curvature import Operator
from vhat.problem import Array, Curvature, Problem
from vhat.progress import bar
from vhat.solve.cg import CG, descend, redirect
from vhat.solve.contract import Solution, Status, metric_norm

__all__ = ["Iteration"]


@dataclass
class _Record:
    """What is known of each row so far, in NumPy."""

    status: np.ndarray
    steps: np.ndarray
    target: np.ndarray


@dataclass(frozen=True)
class Iteration:
    """Conjugate gradients made ready for one problem: see :class:`vhat.solve.CG`."""

    options: CG
    problem: Problem
    curvature: Curvature
    scale: Array
    name: str = "cg"

    def solve(self, g: Array) -> Solution:
        """Solve ``A h = g`` for each row of g, ``options.block`` rows at a time."""
        xp = array_namespace(g)
        blocks = range(0, g.shape[0], self.options.block)
        parts = [self._solve_block(g[start : start + self.options.block, :]) for start in blocks]
        return Solution(
            xp.concat([part.h for part in parts], axis=0),
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("status", "residual", "steps")),
        )

    def _solve_block(self, g: Array) -> Solution:
        xp, operator = array_namespace(g), Operator(self.problem, self.curvature)
        size = metric_norm(self.problem, g, self.scale)
        record = _Record(
            status=np.full(len(size), Status.CONVERGED.value, dtype="<U13"),
            steps=np.zeros(len(size), dtype=int),
            target=self.options.rtol * size,
        )
        record.status[~np.isfinite(size)] = Status.NOT_FINITE
        g = xp.where(self._flags(np.isfinite(size)[:, None]) > 0, g, xp.zeros_like(g))
        h, r = xp.zeros_like(g), g
        for _ in range(self.options.restarts + 1):
            norms = metric_norm(self.problem, r, self.scale)
            rows = np.flatnonzero((norms > record.target) & (record.status == Status.CONVERGED))
            if not rows.size:
                break
            h = self._iterate(h, r, rows, record)
            r = g - operator(h)
        norms = metric_norm(self.problem, r, self.scale)
        stalled = (norms > record.target) & (record.status == Status.CONVERGED)
        record.status[stalled] = Status.NOT_CONVERGED
        record.status[~np.isfinite(norms)] = Status.NOT_FINITE
        residual = np.where(size > 0, norms / np.where(size > 0, size, 1.0), 0.0)
        return Solution(h, record.status, residual, record.steps)

    def _flags(self, mask: np.ndarray) -> Array:
        return self.problem.native(mask.astype(float))

    def _iterate(self, h: Array, r: Array, rows: np.ndarray, record: _Record) -> Array:
        """Improve ``h`` at ``rows`` until each has converged, met negative curvature or run out of steps.

        The block has one lane a row and idle lanes up to a width of the framework's ladder; lanes that have finished
        are dropped when a narrower width will do.
        """
        problem, operator = self.problem, Operator(self.problem, self.curvature)
        forward, turn = problem.compiled(descend), problem.compiled(redirect)
        inverse = 1.0 / self.scale**2
        r = _gather(r, rows, problem.padded(len(rows)))
        x = 0.0 * r
        q, rho = turn(r, inverse * r, x, 0.0 * r[:, :1])
        running = np.ones(len(rows), dtype=bool)
        with bar("conjugate gradients", self.options.max_steps) as advance:
            while running.any():
                moving = np.zeros((r.shape[0], 1), dtype=bool)
                moving[: len(rows), 0] = running
                x, r, curved = forward(x, r, q, operator(q), rho, self._flags(moving))
                q, rho = turn(r, inverse * r, q, rho)
                curved, norms = (problem.numpy(a)[: len(rows), 0] for a in (curved, rho))
                running = self._judge(rows, running, record, curved, np.sqrt(np.maximum(norms, 0.0)))
                width = problem.padded(max(int(running.sum()), 1))
                if running.any() and width <= 0.75 * r.shape[0]:
                    h = _deposit(problem, h, x, rows, ~running)
                    lanes = np.flatnonzero(running)
                    x, r, q, rho = (_gather(a, lanes, width) for a in (x, r, q, rho))
                    rows, running = rows[lanes], np.ones(len(lanes), dtype=bool)
                advance(f"{int(running.sum())} rows to go")
        return _deposit(problem, h, x, rows, np.ones(len(rows), dtype=bool))

    def _judge(
        self, rows: np.ndarray, running: np.ndarray, record: _Record, curved: np.ndarray, norms: np.ndarray
    ) -> np.ndarray:
        """Record the step just taken, give a status to lanes that can go no further, return which go on."""
        record.steps[rows[running]] += 1
        reached = norms <= record.target[rows]
        spent = record.steps[rows] >= self.options.max_steps
        broken = ~np.isfinite(curved) | ~np.isfinite(norms)
        negative = curved <= 0
        record.status[rows[running & spent & ~reached]] = Status.NOT_CONVERGED
        record.status[rows[running & negative]] = Status.INDEFINITE
        record.status[rows[running & broken]] = Status.NOT_FINITE
        return running & ~reached & ~spent & ~negative & ~broken


def _gather(a: Array, lanes: np.ndarray, width: int) -> Array:
    """Return the given rows of ``a``, with copies of the first up to ``width`` rows."""
    index = np.concatenate([lanes, np.full(width - len(lanes), lanes[0])])
    return a[index, :]


def _deposit(problem: Problem, h: Array, x: Array, rows: np.ndarray, which: np.ndarray) -> Array:
    """Return ``h`` with ``x[lane]`` added to row ``rows[lane]`` for the lanes in ``which``."""
    lane = np.zeros(h.shape[0], dtype=int)
    lane[rows[which]] = np.flatnonzero(which)
    taken = np.zeros((h.shape[0], 1))
    taken[rows[which]] = 1.0
    return h + problem.native(taken) * x[lane, :]
