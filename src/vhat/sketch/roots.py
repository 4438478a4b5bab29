"""The quadratic forms of an interval, as rows that the gradient of a prediction is multiplied with.

An interval needs, of ``h = A^-1 g`` with the gradient g of a prediction, three quadratic forms of g and two linear
ones: the variance ``sigma^2 V``, what the training rows hold of ``g'h``, the rest of ``g'h``, and the products of
h with the gradients of the penalty and of the loss. A form ``g'Mg`` is kept as a root, rows W
with ``W'W = M``, so that it is ``|W g|^2``. Two kinds of roots are used:

- *exact*, p rows: ``M`` is a p x p matrix, for models of few parameters;
- *sampled*, K rows ``u_j / sqrt(K)``, ``u_j = A^-1 J't_j / sqrt(n)`` with ``t_j`` a draw of noise over the training
  responses: ``(g'u_j)^2`` has the mean ``sigma^2 V``, and the mean over j is, for a g chosen without sight of the
  draws, exactly ``sigma^2 V`` times a chi-square variable with K degrees of freedom over K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg.lapack import dpstrf

from vhat.errors import Interrupted, MemoryBudgetError, NotConverged
from vhat.linalg.memory import in_words
from vhat.linalg.solvers import Prepared, Status
from vhat.linalg.solvers.gram import variance_ratio
from vhat.linalg.solvers.interface import Solution
from vhat.linalg.solvers.jacobian_factors import jacobian_rows
from vhat.linalg.solvers.kernel import Root
from vhat.models.problem import Array, Problem
from vhat.progress import bar
from vhat.variance.noise import Noise
from vhat.variance.weighted_norm import Measured
from vhat.variance.workspace import Chosen, Workspace

__all__ = ["Roots", "make_roots"]

_BLOCK_ROWS = 1024
"""Rows of the Jacobian, one an output, that are multiplied together, and of the training data that are drawn for."""
_MOST_BY_ROWS = 30_000
"""Parameters up to which all right-hand sides are summed over blocks of the Jacobian: 250 MB each."""
_MOST_TOGETHER = 32
"""Right-hand sides that are solved together."""
_NUMBERS_TOGETHER = 2**24
"""Numbers of all right-hand sides together that are drawn over the training rows: 128 MB."""
_VECTORS = 8
"""Arrays of the size of a block of right-hand sides that drawing and solving them takes."""


@dataclass(frozen=True, eq=False)
class Roots:
    """What an interval needs of the fit, without the training rows.

    Attributes:
        variance: Root of ``sigma^2 V``, (r, p).
        supported: Root of what the training rows hold of ``g'h``, (r, p); None where that is ``variance / ratio``.
        rest: Root of ``g'h`` less that, (r, p); None where ``energy`` is given.
        energy: Root of ``g'h`` itself, (p, p); None where ``rest`` is given.
        pull: ``A^-1 b`` with the gradient b of the penalty, (p,).
        slope: ``A^-1 grad L``, (p,).
        ratio: The number by which the variance exceeds what is supported, where it is one.
        probes: How many rows were drawn; None where the roots are exact.
    """

    variance: np.ndarray = field(repr=False)
    supported: np.ndarray | None = field(repr=False)
    rest: np.ndarray | None = field(repr=False)
    energy: np.ndarray | None = field(repr=False)
    pull: np.ndarray = field(repr=False)
    slope: np.ndarray = field(repr=False)
    ratio: float
    probes: int | None

    def measure(self, g: np.ndarray) -> Measured:
        """Return the forms at gradients, (k, p), as a solver would have measured them."""
        variance = _squares(g, self.variance)
        supported = variance / self.ratio if self.supported is None else _squares(g, self.supported)
        energy = supported + _squares(g, self.rest) if self.energy is None else _squares(g, self.energy)
        # A prediction that no parameter moves (g = 0) has no variance; whatever is wrong with it is bias.
        share = np.divide(supported, energy, out=np.zeros_like(energy), where=energy != 0)
        pull = g @ self.pull
        finite = np.isfinite(variance) & np.isfinite(energy)
        nothing = np.where(finite, 0.0, np.nan)
        return Measured(
            variance=variance + nothing,
            unsupported=1.0 - share + nothing,
            bias=pull,
            offset=pull + g @ self.slope,
            shortcut=energy,
            sensitivity=None,
            status=np.where(finite, Status.CONVERGED.value, Status.NOT_FINITE.value),
            residual=np.zeros(len(g)),
            steps=np.zeros(len(g), dtype=int),
        )


def _squares(g: np.ndarray, root: np.ndarray | None) -> np.ndarray:
    assert root is not None
    with np.errstate(over="ignore", invalid="ignore"):  # the status of the row says so
        found = g.astype(root.dtype, copy=False) @ root.T
        return np.einsum("kr,kr->k", found, found, dtype=np.float64)


def make_roots(
    work: Workspace, prepared: Prepared, chosen: Chosen, level: Noise, probes: int, seed: int, *, exact: bool
) -> Roots:
    """Compute the roots of a fit.

    Args:
        work: The fitted model.
        prepared: The solver of its curvature.
        chosen: Which curvature.
        level: The noise of the training responses.
        probes: How many rows are drawn, K.
        seed: Draws them.
        exact: Whether the roots are exact instead.

    Raises:
        MemoryBudgetError: When the rows do not fit.
        NotConverged: When the solver does not reach its tolerance.
        Interrupted: On Ctrl-C; a second call goes on where the first one stopped.
    """
    problem = work.problem
    _require_memory(problem, problem.p if exact else probes)
    gradients = np.stack([problem.numpy(problem.penalty_gradient()), problem.numpy(problem.gradient())])
    pull, slope = _solved(problem, prepared, gradients)
    # The Hessian of a linear model is its Gauss-Newton matrix.
    gauss_newton = chosen.curvature == "ggn" or problem.linear
    ratio = variance_ratio(problem.loss_derivatives, level.values) if gauss_newton or exact else None
    if exact:
        return _exact_roots(problem, prepared, level, pull, slope, ratio)

    # The samples of an interrupted call are kept under what they were drawn for.
    draw = _Draws(problem, level, probes, seed)
    key = ("sketch", chosen.curvature, level.digest, probes, seed)
    done: dict[str, list[np.ndarray]] = work.keep(key, dict)
    held = None if gauss_newton else work.own_solver("ggn")
    sets: list[tuple[str, Prepared, Callable[[int, int], np.ndarray]]] = [("variance", prepared, draw.noise)]
    if ratio is None:
        sets.append(("supported", held or prepared, draw.data))
    sets.append(("rest", held or prepared, draw.penalty))
    with bar("probes", len(sets) * -(-probes // _together(problem))) as advance:
        try:
            for name, solver, make in sets:
                for part in _blocks(problem, solver, make, probes, len(done.setdefault(name, []))):
                    done[name].append(part)
                    advance("")
        except KeyboardInterrupt:
            count = sum(len(part) for parts in done.values() for part in parts)
            raise Interrupted(
                f"{count} of {len(sets) * probes} probes were solved. Call sketch() again with the same options to "
                "go on with the rest.",
                None,
            ) from None
    rows = {name: np.concatenate(done[name]) / np.sqrt(probes) for name, *_ in sets}
    work.drop(key)
    return Roots(
        variance=rows["variance"],
        supported=rows.get("supported"),
        rest=rows["rest"],
        energy=None,
        pull=pull,
        slope=slope,
        ratio=1.0 if ratio is None else ratio,
        probes=probes,
    )


def _exact_roots(
    problem: Problem, prepared: Prepared, level: Noise, pull: np.ndarray, slope: np.ndarray, ratio: float | None
) -> Roots:
    """Return roots of the p x p matrices themselves."""
    loss = problem.loss_derivatives
    spread = level.values / np.sqrt(problem.n)

    def noise(start: int, stop: int, J: np.ndarray) -> np.ndarray:
        if loss.cross.ndim == 2:
            return J * (spread * loss.cross)[start:stop].reshape(-1, 1)
        rows = J.reshape(stop - start, problem.outputs, -1)
        turned = np.einsum("iap,iab->ibp", rows, loss.cross[start:stop]) * spread[start:stop, :, None]
        return turned.reshape(J.shape)

    root = Root.of(loss, problem.n)
    variance = _solved(problem, prepared, _root_of_sum(problem, noise))
    supported = None
    if ratio is None:
        supported = _solved(problem, prepared, _root_of_sum(problem, root.rows))
    assert prepared.half is not None
    return Roots(
        variance=variance,
        supported=supported,
        rest=None,
        energy=np.ascontiguousarray(prepared.half(np.eye(problem.p)).T),
        pull=pull,
        slope=slope,
        ratio=1.0 if ratio is None else ratio,
        probes=None,
    )


def _root_of_sum(problem: Problem, weighted: Callable[[int, int, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return rows W with ``W'W = sum_i w_i w_i'`` over the weighted rows of the Jacobian, at most p of them.

    In the unit of each parameter, so that a pivoted Cholesky factorisation loses none of them to rounding.
    """
    total = np.zeros((problem.p, problem.p))
    for block in _row_blocks(problem):
        room = np.empty(((block.stop - block.start) * problem.outputs, problem.p))
        rows = weighted(block.start, block.stop, jacobian_rows(problem, block.start, block.stop, room))
        total += rows.T @ rows
    unit = np.sqrt(np.diagonal(total))
    unit = np.where(unit > 0, unit, 1.0)
    factor, pivots, rank, _ = dpstrf(total / np.outer(unit, unit), lower=1)
    root = np.zeros((rank, problem.p))
    root[:, pivots - 1] = np.tril(factor)[:, :rank].T
    return root * unit


@dataclass(frozen=True, eq=False)
class _Draws:
    """Right-hand sides whose solutions are the sampled rows, numbered from 0.

    Each is drawn by its own number and that of a block of training rows, so that it is the same whatever else is
    computed with it.

    Attributes:
        problem: The training problem.
        level: The noise of the training responses.
        probes: How many there are.
        seed: Draws them.
    """

    problem: Problem
    level: Noise
    probes: int
    seed: int
    _sums: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def noise(self, start: int, stop: int) -> np.ndarray:
        """Return ``J't / sqrt(n)``, t the loss's response to a draw of the noise, (k, p)."""
        cross = self.problem.loss_derivatives.cross
        spread = self.level.values / np.sqrt(self.problem.n)

        def response(rows: slice, z: np.ndarray) -> np.ndarray:
            scaled = z * spread[rows]
            return scaled * cross[rows] if cross.ndim == 2 else np.einsum("iab,kib->kia", cross[rows], scaled)

        return self._through_rows(_NOISE, response, start, stop)

    def data(self, start: int, stop: int) -> np.ndarray:
        """Return ``J's z``, ``s s' = C/n`` the curvature weights of the loss, (k, p)."""
        root = Root.of(self.problem.loss_derivatives, self.problem.n)

        def weighted(rows: slice, z: np.ndarray) -> np.ndarray:
            return replace(root, values=root.values[rows]).times(z)

        return self._through_rows(_DATA, weighted, start, stop)

    def penalty(self, start: int, stop: int) -> np.ndarray:
        """Return ``Lam^1/2 z``, (k, p)."""
        decay = self.problem.numpy(self.problem.decay)
        drawn = [self._normal(_PENALTY, j, 0, decay.shape) for j in range(start, stop)]
        return np.stack(drawn) * np.sqrt(decay)

    def _through_rows(
        self, kind: int, make: Callable[[slice, np.ndarray], np.ndarray], start: int, stop: int
    ) -> np.ndarray:
        """Return ``J't`` for draws t over the training rows.

        Of a model of moderate size all of them are summed in one pass, as products of matrices; a large one takes a
        vector-Jacobian product for each.
        """
        problem = self.problem
        if problem.p > _MOST_BY_ROWS:
            parts = [make(rows, self._over_rows(kind, start, stop, rows)) for rows in _row_blocks(problem)]
            return np.asarray(problem.numpy(problem.vjp(np.concatenate(parts, axis=1))))
        if kind not in self._sums:
            total = np.zeros((self.probes, problem.p))
            blocks = list(_row_blocks(problem))
            with bar("draws over the training rows", len(blocks)) as advance:
                for rows in blocks:
                    t = make(rows, self._over_rows(kind, 0, self.probes, rows)).reshape(self.probes, -1)
                    room = np.empty((t.shape[1], problem.p))
                    total += t @ jacobian_rows(problem, rows.start, rows.stop, room)
                    advance("")
            self._sums[kind] = total
        return self._sums[kind][start:stop]

    def _over_rows(self, kind: int, start: int, stop: int, rows: slice) -> np.ndarray:
        """Return the normal draws of a block of training rows, (k, rows, K)."""
        shape = (rows.stop - rows.start, self.problem.outputs)
        return np.stack([self._normal(kind, j, rows.start, shape) for j in range(start, stop)])

    def _normal(self, kind: int, number: int, at: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([_STREAM, self.seed, kind, number, at]).standard_normal(shape)


_STREAM = 0x5E7C
"""Sets the draws apart from those of a user who seeds a generator by the same number."""
_NOISE, _DATA, _PENALTY = range(3)
"""Which set of probes is drawn."""


def _row_blocks(problem: Problem) -> Iterator[slice]:
    """Yield blocks of training rows, always the same ones."""
    step = max(1, _BLOCK_ROWS // problem.outputs)
    for start in range(0, problem.n, step):
        yield slice(start, min(start + step, problem.n))


def _blocks(
    problem: Problem, solver: Prepared, make: Callable[[int, int], np.ndarray], probes: int, finished: int
) -> Iterator[np.ndarray]:
    """Yield the solutions of blocks of right-hand sides, from block number ``finished`` on."""
    step = _together(problem)
    for start in range(finished * step, probes, step):
        yield _solved(problem, solver, make(start, min(start + step, probes)))


def _together(problem: Problem) -> int:
    """Return how many right-hand sides are drawn and solved together."""
    each = 8 * _VECTORS * problem.p
    fits = problem.memory // (2 * each)
    if problem.p > _MOST_BY_ROWS:  # each is then drawn over all training rows
        fits = min(fits, _NUMBERS_TOGETHER // (problem.n * problem.outputs))
    return int(np.clip(fits, 1, _MOST_TOGETHER))


def _solved(problem: Problem, prepared: Prepared, rows: np.ndarray) -> np.ndarray:
    """Return ``A^-1`` of each row.

    Raises:
        NotConverged: Naming the remedy.
    """
    native: Array = problem.native(rows)
    # A solver with a factorisation verifies a block at once, which saves a product with all training rows for each.
    solve: Callable[[Array], Solution] = getattr(prepared, "solve_together", prepared.solve)
    found = solve(native)
    failed = found.status != Status.CONVERGED
    if np.any(failed):
        worst = Status(found.status[failed][0])
        raise NotConverged(
            f"{int(failed.sum())} of {len(rows)} probes of the sketch are {worst}, with relative residuals up to "
            f"{np.nanmax(found.residual[failed]):.1e}: {worst.remedy}."
        )
    return np.array(problem.numpy(found.h))


def _require_memory(problem: Problem, rows: int) -> None:
    need = 3 * 8 * rows * problem.p
    if need > problem.memory:
        raise MemoryBudgetError(
            f"a sketch of {rows:,} rows for p = {problem.p:,} parameters takes up to {in_words(need)}; the budget is "
            f"{in_words(problem.memory)}. Ask for fewer probes, raise memory=, or take parameters='last'."
        )
