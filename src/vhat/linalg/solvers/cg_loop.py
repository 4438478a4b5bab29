"""The loop of conjugate gradients on blocks of rows: stopping, restarts by the true residual, negative curvature."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from vhat.linalg.curvature import Operator
from vhat.linalg.solvers.cg import CG, descend, redirect
from vhat.linalg.solvers.interface import (
    STATUS_DTYPE,
    SUPPORT_FLOOR,
    FromImages,
    Response,
    Solution,
    Status,
    Stopped,
    respond_by_solving,
)
from vhat.linalg.solvers.softest_direction import Preconditioner, SoftDirection
from vhat.models.problem import Array, Curvature, Problem
from vhat.progress import bar

__all__ = ["Iteration"]

_NORM_RTOL = 1e-6
"""Target for the residual if only a norm is needed, relative to ``J'CJ h / n``, the part of g that the data support."""
_NORM_RTOL_FLOOR = 1e-11
"""Lowest target for the residual relative to g, however little of g the data support."""
_MAX_NORM_ERROR = 1e-3
"""Upper bound of the relative error of the square root of V above which a row is not converged."""
_SAFETY_FACTOR = 0.1
"""Safety factor on the retry's target residual: the remaining residual may turn to softer directions."""


@dataclass
class _Record:
    """Progress of each row of a block, (k,) each, in NumPy.

    Attributes:
        status: A :class:`Status` value.
        steps: Iterations so far.
        target: Residual, in the norm of the preconditioner, at which the row stops.
    """

    status: np.ndarray
    steps: np.ndarray
    target: np.ndarray


class _Lanes(NamedTuple):
    """State of conjugate gradients, one lane per running row.

    Attributes:
        x: Iterates (k, p), relative to the start.
        r: Residuals (k, p).
        q: Search directions (k, p).
        rho: ``r'M^-1 r``, (k, 1).
    """

    x: Array
    r: Array
    q: Array
    rho: Array


@dataclass(frozen=True)
class Iteration(FromImages):
    """Conjugate gradients prepared for one problem: see :class:`vhat.linalg.solvers.CG`.

    Attributes:
        options: Tolerance, steps, restarts, block size.
        problem: The training problem.
        curvature: The matrix ``A``: exact Hessian or Gauss-Newton.
        metric: The preconditioner: an approximation of ``A`` with the same units.
        soft: The direction of least curvature, if known. A row may have a small residual along it and yet a large
            error. It is therefore solved for exactly before and after each attempt.
        strict: Whether a converged row must have reached the target of a norm, and not only ``rtol``. True if the
            preconditioner is so close to ``A`` that its norm of the residual measures the error of a norm.
    """

    options: CG
    problem: Problem
    curvature: Curvature
    metric: Preconditioner
    soft: SoftDirection | None = None
    strict: bool = False
    name: str = "cg"

    def respond(self, g: Array) -> Response:
        """Solve, and return the images over the training rows.

        Raises:
            Stopped: On Ctrl-C, with the responses of the rows that are finished.
        """
        try:
            return self.response(g, self.solve(g, for_norm=True))
        except Stopped as stop:
            raise Stopped(stop.rows, self.response(g[stop.rows], stop.partial)) from None

    def response(self, g: Array, found: Solution) -> Response:
        """Return the images of solutions; rows whose norm is not accurate enough are not converged."""
        return respond_by_solving(self.problem, self._check_norms(g, found), g)

    def _check_norms(self, g: Array, found: Solution) -> Solution:
        """Return the solutions with the status ``not converged`` for rows whose V may have a large error.

        A residual changes ``J h`` the more, the less curvature its direction has. No residual is left along the known
        softest direction, but there may be a second one with as little curvature.
        """
        if self.soft is None:
            return found
        xp = array_namespace(g)
        h = xp.where(self._flags((found.status == Status.CONVERGED)[:, None]) > 0, found.h, xp.zeros_like(found.h))
        r = g - Operator(self.problem, self.curvature)(h)
        supported = self.problem.product(h, "ggn")
        inaccurate = ~(self.soft.image_error_bound(self.problem, r) <= self._norm_tolerance(g, h, supported))
        status = np.where(inaccurate & (found.status == Status.CONVERGED), Status.NOT_CONVERGED.value, found.status)
        return replace(found, status=status)

    def _norm_tolerance(self, g: Array, h: Array, supported: Array) -> np.ndarray:
        """Return the tolerated absolute error of the square root of V, (k,).

        Args:
            g: The right-hand sides.
            h: Their solutions.
            supported: ``J'CJ h / n``.
        """
        xp = array_namespace(h)
        with np.errstate(invalid="ignore"):
            variance = self.problem.numpy(xp.sum(h * supported, axis=1))
            energy = self.problem.numpy(xp.sum(h * g, axis=1))
            return _MAX_NORM_ERROR * np.sqrt(np.fmax(np.fmax(variance, SUPPORT_FLOOR**2 * energy), 0.0))

    def solve(self, g: Array, *, for_norm: bool = False) -> Solution:
        """Solve ``A h = g`` for each row of g, ``options.block`` rows at a time.

        Args:
            g: The right-hand sides, p-space (k, p).
            for_norm: Whether only ``J h`` is needed. The residual is then made small relative to ``J'CJ h / n``, the
                part of g that the data support, which may be far smaller than g.

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
                raise _stopped(_concatenate(parts)) from None
            if np.any(parts[-1].status == Status.INTERRUPTED):
                raise _stopped(_concatenate(parts))
        return _concatenate(parts)

    def _solve_block(self, g: Array, for_norm: bool) -> Solution:
        """Solve for one block of rows; restart the rows whose true residual is above the target."""
        xp = array_namespace(g)
        operator = Operator(self.problem, self.curvature)
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(self.problem.numpy(xp.sum(g, axis=1)))
        g = xp.where(self._flags(finite[:, None]) > 0, g, xp.zeros_like(g))
        z = self.metric.solve(g)
        size = self._norm(g, z)
        norms = size
        record = _Record(
            status=np.where(finite, Status.CONVERGED.value, Status.NOT_FINITE.value).astype(STATUS_DTYPE),
            steps=np.zeros(len(size), dtype=int),
            target=self.options.rtol * size,
        )
        h = xp.zeros_like(g)
        r = g
        if self.soft is not None:
            h, r = self.soft.deflate(h, r)
            z = self.metric.solve(r)
            norms = self._norm(r, z)
        for attempt in range(self.options.restarts + 1):
            rows = np.flatnonzero((norms > record.target) & (record.status == Status.CONVERGED))
            if not rows.size:
                break
            if attempt:
                z = self.metric.solve(r)
            h = self._iterate(h, r, z, rows, record)
            # The true residual: that of the iteration drifts away from it by rounding.
            r = g - operator(h)
            if self.soft is not None:
                h, r = self.soft.deflate(h, r)
            norms = self._norm(r, self.metric.solve(r))
            if for_norm:
                record.target = self._norm_target(g, h, r, norms, size)
            if np.any(record.status == Status.INTERRUPTED):
                record.status[(norms > record.target) & (record.status == Status.CONVERGED)] = Status.INTERRUPTED
                break
        # The target of a norm may be below rounding: unless strict, rows that reach rtol count as converged.
        needed = record.target if self.strict else self.options.rtol * size
        stalled = ~(norms <= needed) & (record.status == Status.CONVERGED)
        record.status[stalled] = Status.NOT_CONVERGED
        residual = np.divide(norms, size, out=np.zeros_like(size), where=size > 0)
        return Solution(h, record.status, residual, record.steps)

    def _norm_target(self, g: Array, h: Array, r: Array, norms: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Return the target for the residuals if only ``J h`` is needed, (k,).

        Args:
            g: The right-hand sides.
            h: Their solutions so far.
            r: Their residuals.
            norms: Norms of the residuals.
            size: Norms of the right-hand sides.
        """
        supported = self.problem.product(h, "ggn")
        target = np.fmax(_NORM_RTOL * self._norm(supported, self.metric.solve(supported)), _NORM_RTOL_FLOOR * size)
        target = np.fmin(target, self.options.rtol * size)
        if self.soft is None:
            return target
        # Lower the target further in rows whose norm may still have too large an error.
        bound = self.soft.image_error_bound(self.problem, r)
        tolerance = self._norm_tolerance(g, h, supported)
        reduction = np.divide(tolerance, bound, out=np.ones_like(bound), where=bound > tolerance)
        return np.where(reduction < 1, np.fmin(target, _SAFETY_FACTOR * reduction * norms), target)

    def _norm(self, r: Array, z: Array) -> np.ndarray:
        """Return ``sqrt(r'M^-1 r)`` for each row, free of the parameters' units; NaN if M is not positive there."""
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
        """Improve ``h`` at ``rows`` until each row has converged, has met negative curvature or has no steps left.

        The block has one lane per row, and idle lanes up to one of the widths for which the framework compiles.
        Finished lanes are dropped as soon as a narrower width is enough. Ctrl-C marks the running rows as interrupted;
        the finished rows keep their solutions.
        """
        problem = self.problem
        lanes = self._start(r, z, rows)
        running = np.ones(len(rows), dtype=bool)
        with bar("conjugate gradients", self.options.max_steps) as advance:
            try:
                while running.any():
                    lanes, curvature = self._step(lanes, running)
                    squares = problem.numpy(lanes.rho)[: len(rows), 0]
                    running = self._update_status(rows, running, record, curvature[: len(rows)], squares)
                    width = problem.padded(max(int(running.sum()), 1))
                    if running.any() and width <= 0.75 * lanes.r.shape[0]:
                        # One assignment, so that Ctrl-C cannot come between the changes of the four.
                        h, lanes, rows, running = self._narrow(h, lanes, rows, running, width)
                    advance(f"{int(running.sum())} rows to go")
            except KeyboardInterrupt:
                record.status[rows[running]] = Status.INTERRUPTED
        return _deposit(problem, h, lanes.x, rows, np.ones(len(rows), dtype=bool))

    def _narrow(
        self, h: Array, lanes: _Lanes, rows: np.ndarray, running: np.ndarray, width: int
    ) -> tuple[Array, _Lanes, np.ndarray, np.ndarray]:
        """Add the finished lanes to ``h``; return it with the running lanes, ``width`` lanes wide."""
        kept = np.flatnonzero(running)
        h = _deposit(self.problem, h, lanes.x, rows, ~running)
        lanes = _Lanes(*(_gather(a, kept, width) for a in lanes))
        return h, lanes, rows[kept], np.ones(len(kept), dtype=bool)

    def _start(self, r: Array, z: Array, rows: np.ndarray) -> _Lanes:
        """Return the lanes at the start, with ``q = z``."""
        width = self.problem.padded(len(rows))
        r = _gather(r, rows, width)
        z = _gather(z, rows, width)
        q, rho = self.problem.compiled(redirect)(r, z, 0.0 * r, 0.0 * r[:, :1])
        return _Lanes(0.0 * r, r, q, rho)

    def _step(self, lanes: _Lanes, running: np.ndarray) -> tuple[_Lanes, np.ndarray]:
        """Move every running lane once; return the lanes and ``q'Aq`` of each."""
        problem = self.problem
        operator = Operator(problem, self.curvature)
        active = np.zeros((lanes.r.shape[0], 1), dtype=bool)
        active[: len(running), 0] = running
        compiled_descend = problem.compiled(descend)
        compiled_redirect = problem.compiled(redirect)
        x, r, curvature = compiled_descend(lanes.x, lanes.r, lanes.q, operator(lanes.q), lanes.rho, self._flags(active))
        q, rho = compiled_redirect(r, self.metric.solve(r), lanes.q, lanes.rho)
        return _Lanes(x, r, q, rho), problem.numpy(curvature)[:, 0]

    def _update_status(
        self, rows: np.ndarray, running: np.ndarray, record: _Record, curvature: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Record one step, set the status of lanes that failed, and return which lanes continue.

        Args:
            rows: The row of each lane.
            running: Which lanes are running.
            record: Progress of the rows, updated in place.
            curvature: ``q'Aq`` of each lane.
            squares: ``r'M^-1 r`` of each lane.
        """
        record.steps[rows[running]] += 1
        reached = (squares >= 0) & (np.sqrt(np.maximum(squares, 0.0)) <= record.target[rows])
        not_positive = squares < 0  # the preconditioner is not positive definite here, by rounding
        out_of_steps = record.steps[rows] >= self.options.max_steps
        not_finite = ~np.isfinite(curvature) | ~np.isfinite(squares)
        indefinite = curvature <= 0
        # In reverse order of precedence: later assignments win.
        record.status[rows[running & (out_of_steps | not_positive) & ~reached]] = Status.NOT_CONVERGED
        record.status[rows[running & indefinite]] = Status.INDEFINITE
        record.status[rows[running & not_finite]] = Status.NOT_FINITE
        return running & ~reached & ~out_of_steps & ~not_positive & ~indefinite & ~not_finite


def _concatenate(parts: list[Solution]) -> Solution:
    """Return the solutions of consecutive blocks as one."""
    xp = array_namespace(parts[0].h)
    return Solution(
        h=xp.concat([part.h for part in parts], axis=0),
        status=np.concatenate([part.status for part in parts]),
        residual=np.concatenate([part.residual for part in parts]),
        steps=np.concatenate([part.steps for part in parts]),
    )


def _stopped(found: Solution) -> KeyboardInterrupt:
    """Return the exception for Ctrl-C, with the solutions of the rows that are finished."""
    rows = np.flatnonzero(found.status != Status.INTERRUPTED)
    if not rows.size:
        return KeyboardInterrupt()
    return Stopped(rows, Solution(found.h[rows], found.status[rows], found.residual[rows], found.steps[rows]))


def _gather(a: Any, lanes: np.ndarray, width: int) -> Any:
    """Return the given rows of ``a``, padded to ``width`` rows by copies of the first."""
    return a[np.concatenate([lanes, np.full(width - len(lanes), lanes[0])])]


def _deposit(problem: Problem, h: Array, x: Array, rows: np.ndarray, which: np.ndarray) -> Array:
    """Return ``h`` with ``x[lane]`` added to row ``rows[lane]`` for the lanes in ``which``."""
    # A gather and a product, because the framework's arrays may be immutable.
    lane = np.zeros(h.shape[0], dtype=int)
    lane[rows[which]] = np.flatnonzero(which)
    selected = np.zeros((h.shape[0], 1))
    selected[rows[which]] = 1.0
    return h + problem.native(selected) * x[lane]
