"""The loop around conjugate gradients: stopping, true residuals, the sign of curvature, compaction, progress."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from vhat.linalg.curvature import Operator
from vhat.linalg.solvers.cg import CG, descend, redirect
from vhat.linalg.solvers.interface import DARK, FromImages, Response, Solution, Status, Stopped, respond_by_solving
from vhat.linalg.solvers.softest_direction import Measure, Soft
from vhat.models.problem import Array, Curvature, Problem
from vhat.progress import bar

__all__ = ["Iteration"]

_HELD = 1e-6
"""What may be left of a row, against the part of it that the data hold, when only a norm is wanted."""
_NOTHING = 1e-11
"""A share of the row that is as good as nothing, however little of it the data hold."""
_TRUSTED = 1e-3
"""Relative error of the root of V that what is left of a row may stand for, at the very most."""
_FURTHER = 0.1
"""How far below what can be trusted the next attempt aims: what is left may turn to softer directions."""


@dataclass
class _Record:
    """What is known of each row so far, in NumPy."""

    status: np.ndarray
    steps: np.ndarray
    target: np.ndarray


class _Lanes(NamedTuple):
    """The arrays that move together, one lane a row."""

    x: Array
    r: Array
    q: Array
    rho: Array


@dataclass(frozen=True)
class Iteration(FromImages):
    """Conjugate gradients made ready for one problem: see :class:`vhat.linalg.solvers.CG`.

    Attributes:
        options: Tolerance, steps, restarts, block width.
        problem: The training problem.
        curvature: Which ``A``.
        metric: The preconditioner: a matrix that stands for ``A``, with its units.
        soft: The direction of least curvature, if it is known. A row that hardly meets it has a small residual
            along it and yet much of its solution: what is left there is solved for before and after each attempt.
        strict: Whether a row must reach the target of a norm, and not ``rtol`` alone, to be called converged: where
            the metric is close to ``A``, so that it measures the error of a norm.
    """

    options: CG
    problem: Problem
    curvature: Curvature
    metric: Measure
    soft: Soft | None = None
    strict: bool = False
    name: str = "cg"

    def respond(self, g: Array) -> Response:
        """Solve, then look at the training rows.

        Raises:
            Stopped: On Ctrl-C, with the responses of the rows that are finished.
        """
        try:
            return self.response(g, self.solve(g, for_norm=True))
        except Stopped as stop:
            raise Stopped(stop.rows, self.response(g[stop.rows], stop.partial)) from None

    def response(self, g: Array, found: Solution) -> Response:
        """Look at the training rows from solutions, those that can be trusted."""
        return respond_by_solving(self.problem, self._trusted(g, found), g)

    def _trusted(self, g: Array, found: Solution) -> Solution:
        """Return the solutions, those rows not converged whose V may be off however small their residuals are.

        What is left of a row moves ``J h`` by so much more, the softer the direction it is left in. Along the one that
        is known nothing is left; but there may be a second one like it.
        """
        if self.soft is None:
            return found
        xp = array_namespace(g)
        h = xp.where(self._flags((found.status == Status.CONVERGED)[:, None]) > 0, found.h, xp.zeros_like(found.h))
        r, held = g - Operator(self.problem, self.curvature)(h), self.problem.product(h, "ggn")
        unsure = ~(self.soft.reach(self.problem, r) <= self._may_be_off(g, h, held))
        status = np.where(unsure & (found.status == Status.CONVERGED), Status.NOT_CONVERGED.value, found.status)
        return replace(found, status=status)

    def _may_be_off(self, g: Array, h: Array, held: Array) -> np.ndarray:
        """By how much the root of V may be off, in its own unit, (k,); ``held`` is ``J'CJ h / n``."""
        xp = array_namespace(h)
        with np.errstate(invalid="ignore"):
            size, energy = (self.problem.numpy(xp.sum(h * a, axis=1)) for a in (held, g))
            return _TRUSTED * np.sqrt(np.fmax(np.fmax(size, DARK**2 * energy), 0.0))

    def solve(self, g: Array, *, for_norm: bool = False) -> Solution:
        """Solve ``A h = g`` for each row of g, ``options.block`` rows at a time.

        Args:
            g: The right-hand sides, p-space (k, p).
            for_norm: Only ``J h`` is wanted. What is left of g is then brought down against the part ``J'CJ h / n``
                that the data hold of it: for a prediction that they hardly support, that is far less than g.

        Raises:
            Stopped: On Ctrl-C, with the solutions of the rows that are finished.
        """
        parts: list[Solution] = []
        for start in range(0, g.shape[0], self.options.block):
            rows = g[start : start + self.options.block, :]
            try:
                parts.append(self._solve_block(rows, for_norm))
            except KeyboardInterrupt:
                if not parts:
                    raise
                raise _stopped(_joined(parts)) from None
            if np.any(parts[-1].status == Status.INTERRUPTED):
                raise _stopped(_joined(parts))
        return _joined(parts)

    def _solve_block(self, g: Array, for_norm: bool) -> Solution:
        xp, operator = array_namespace(g), Operator(self.problem, self.curvature)
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(self.problem.numpy(xp.sum(g, axis=1)))
        g = xp.where(self._flags(finite[:, None]) > 0, g, xp.zeros_like(g))
        z = self.metric.solve(g)
        size = norms = self._norm(g, z)
        record = _Record(
            status=np.where(finite, Status.CONVERGED.value, Status.NOT_FINITE.value).astype("<U13"),
            steps=np.zeros(len(size), dtype=int),
            target=self.options.rtol * size,
        )
        h, r = xp.zeros_like(g), g
        if self.soft is not None:
            h, r = self.soft.solved(h, r)
            z = self.metric.solve(r)
            norms = self._norm(r, z)
        for attempt in range(self.options.restarts + 1):
            rows = np.flatnonzero((norms > record.target) & (record.status == Status.CONVERGED))
            if not rows.size:
                break
            if attempt:
                z = self.metric.solve(r)
            h = self._iterate(h, r, z, rows, record)
            r = g - operator(h)
            if self.soft is not None:
                h, r = self.soft.solved(h, r)
            norms = self._norm(r, self.metric.solve(r))
            if for_norm:
                record.target = self._norm_target(g, h, r, norms, size)
            if np.any(record.status == Status.INTERRUPTED):
                record.status[(norms > record.target) & (record.status == Status.CONVERGED)] = Status.INTERRUPTED
                break
        # the smaller target of a norm is worth another attempt; where rounding forbids it, rtol has still been met
        needed = record.target if self.strict else self.options.rtol * size
        stalled = ~(norms <= needed) & (record.status == Status.CONVERGED)
        record.status[stalled] = Status.NOT_CONVERGED
        residual = np.divide(norms, size, out=np.zeros_like(size), where=size > 0)
        return Solution(h, record.status, residual, record.steps)

    def _norm_target(self, g: Array, h: Array, r: Array, norms: np.ndarray, size: np.ndarray) -> np.ndarray:
        """What may be left of rows when ``J h`` alone is wanted, (k,).

        Args:
            g: The rows.
            h: Their solutions so far.
            r: What is left of them.
            norms: How much that is, in the metric.
            size: How much they were, in the metric.
        """
        held = self.problem.product(h, "ggn")
        wanted = np.fmax(_HELD * self._norm(held, self.metric.solve(held)), _NOTHING * size)
        target = np.fmin(wanted, self.options.rtol * size)
        if self.soft is None:
            return target
        off, may = self.soft.reach(self.problem, r), self._may_be_off(g, h, held)
        shrunk = np.divide(may, off, out=np.ones_like(off), where=off > may)
        return np.where(shrunk < 1, np.fmin(target, _FURTHER * shrunk * norms), target)

    def _norm(self, r: Array, z: Array) -> np.ndarray:
        """``sqrt(r'M^-1 r)`` for each row: free of the units of the parameters; NaN where M proves not positive."""
        xp = array_namespace(r)
        squares = self.problem.numpy(xp.sum(r * z, axis=1))
        return np.sqrt(np.where(squares >= 0, squares, np.nan))

    def _flags(self, mask: np.ndarray) -> Array:
        return self.problem.native(mask.astype(float))

    def _iterate(
        self,
        h: Array,
        r: Array,
        z: Array,
        rows: np.ndarray,
        record: _Record,
    ) -> Array:
        """Improve ``h`` at ``rows`` until each has converged, met negative curvature or run out of steps.

        The block has one lane a row and idle lanes up to a width of the framework's ladder; lanes that have finished
        are dropped when a narrower width will do. Ctrl-C marks the rows that still run; the others keep what they have.
        """
        problem = self.problem
        lanes, running = self._enter(r, z, rows), np.ones(len(rows), dtype=bool)
        with bar("conjugate gradients", self.options.max_steps) as advance:
            try:
                while running.any():
                    lanes, curved = self._step(lanes, running)
                    squares = problem.numpy(lanes.rho)[: len(rows), 0]
                    running = self._judge(rows, running, record, curved[: len(rows)], squares)
                    width = problem.padded(max(int(running.sum()), 1))
                    if running.any() and width <= 0.75 * lanes.r.shape[0]:
                        # one assignment: nothing is half moved when Ctrl-C comes
                        h, lanes, rows, running = self._narrow(h, lanes, rows, running, width)
                    advance(f"{int(running.sum())} rows to go")
            except KeyboardInterrupt:
                record.status[rows[running]] = Status.INTERRUPTED
        return _deposit(problem, h, lanes.x, rows, np.ones(len(rows), dtype=bool))

    def _narrow(
        self, h: Array, lanes: _Lanes, rows: np.ndarray, running: np.ndarray, width: int
    ) -> tuple[Array, _Lanes, np.ndarray, np.ndarray]:
        """Lay down the lanes that have finished; return what goes on, ``width`` lanes wide."""
        kept = np.flatnonzero(running)
        h = _deposit(self.problem, h, lanes.x, rows, ~running)
        lanes = _Lanes(*(_gather(a, kept, width) for a in lanes))
        return h, lanes, rows[kept], np.ones(len(kept), dtype=bool)

    def _enter(self, r: Array, z: Array, rows: np.ndarray) -> _Lanes:
        width = self.problem.padded(len(rows))
        r, z = (_gather(a, rows, width) for a in (r, z))
        q, rho = self.problem.compiled(redirect)(r, z, 0.0 * r, 0.0 * r[:, :1])
        return _Lanes(0.0 * r, r, q, rho)

    def _step(self, lanes: _Lanes, running: np.ndarray) -> tuple[_Lanes, np.ndarray]:
        """Move every running lane once; return the lanes and ``q'Aq`` of each."""
        problem, operator = self.problem, Operator(self.problem, self.curvature)
        moving = np.zeros((lanes.r.shape[0], 1), dtype=bool)
        moving[: len(running), 0] = running
        forward, turn = problem.compiled(descend), problem.compiled(redirect)
        x, r, curved = forward(lanes.x, lanes.r, lanes.q, operator(lanes.q), lanes.rho, self._flags(moving))
        q, rho = turn(r, self.metric.solve(r), lanes.q, lanes.rho)
        return _Lanes(x, r, q, rho), problem.numpy(curved)[:, 0]

    def _judge(
        self, rows: np.ndarray, running: np.ndarray, record: _Record, curved: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Record the step just taken, give a status to lanes that can go no further, return which go on."""
        record.steps[rows[running]] += 1
        reached = (squares >= 0) & (np.sqrt(np.maximum(squares, 0.0)) <= record.target[rows])
        lost = squares < 0  # rounding in the preconditioner: it is not positive definite here
        spent = record.steps[rows] >= self.options.max_steps
        broken = ~np.isfinite(curved) | ~np.isfinite(squares)
        negative = curved <= 0
        record.status[rows[running & (spent | lost) & ~reached]] = Status.NOT_CONVERGED
        record.status[rows[running & negative]] = Status.INDEFINITE
        record.status[rows[running & broken]] = Status.NOT_FINITE
        return running & ~reached & ~spent & ~lost & ~negative & ~broken


def _joined(parts: list[Solution]) -> Solution:
    """Put blocks of rows together."""
    xp = array_namespace(parts[0].h)
    return Solution(
        h=xp.concat([part.h for part in parts], axis=0),
        status=np.concatenate([part.status for part in parts]),
        residual=np.concatenate([part.residual for part in parts]),
        steps=np.concatenate([part.steps for part in parts]),
    )


def _stopped(found: Solution) -> KeyboardInterrupt:
    """Say which rows were finished when Ctrl-C came."""
    rows = np.flatnonzero(found.status != Status.INTERRUPTED)
    if not rows.size:
        return KeyboardInterrupt()
    return Stopped(rows, Solution(found.h[rows], found.status[rows], found.residual[rows], found.steps[rows]))


def _gather(a: Any, lanes: np.ndarray, width: int) -> Any:
    """Return the given rows of ``a``, with copies of the first up to ``width`` rows."""
    return a[np.concatenate([lanes, np.full(width - len(lanes), lanes[0])])]


def _deposit(problem: Problem, h: Array, x: Array, rows: np.ndarray, which: np.ndarray) -> Array:
    """Return ``h`` with ``x[lane]`` added to row ``rows[lane]`` for the lanes in ``which``."""
    lane = np.zeros(h.shape[0], dtype=int)
    lane[rows[which]] = np.flatnonzero(which)
    taken = np.zeros((h.shape[0], 1))
    taken[rows[which]] = 1.0
    return h + problem.native(taken) * x[lane]
