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
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpstrf

from vhat.errors import Interrupted, MemoryBudgetError, NotConverged
from vhat.linalg.memory import in_words
from vhat.linalg.solvers import Prepared, Status
from vhat.linalg.solvers.cluster import sum_of_draws, sum_of_squares
from vhat.linalg.solvers.gram import variance_ratio
from vhat.linalg.solvers.interface import Solution
from vhat.linalg.solvers.jacobian_factors import jacobian_rows
from vhat.linalg.solvers.kernel import Root
from vhat.linalg.solvers.row_draws import RowDraws
from vhat.linalg.solvers.row_weights import CurvatureWeights, NoiseWeights, RowWeights
from vhat.models.problem import Array, Problem
from vhat.progress import bar
from vhat.variance.noise import Noise
from vhat.variance.weighted_norm import Measured
from vhat.variance.workspace import Chosen, Workspace

__all__ = ["Roots", "make_roots"]

_BLOCK_ROWS = 1024
"""Training rows that a worker of a cluster differentiates together."""
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
    work: Workspace,
    prepared: Prepared,
    chosen: Chosen,
    level: Noise,
    probes: int,
    seed: int,
    *,
    exact: bool,
    engine: Any = None,
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
        engine: The client of the Dask cluster that sums over the training rows; None where this process does.

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
        return _exact_roots(problem, prepared, level, pull, slope, ratio, engine)

    # The samples of an interrupted call are kept under what they were drawn for.
    draw = _Draws(problem, level, probes, seed, engine)
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
    problem: Problem,
    prepared: Prepared,
    level: Noise,
    pull: np.ndarray,
    slope: np.ndarray,
    ratio: float | None,
    engine: Any,
) -> Roots:
    """Return roots of the p x p matrices themselves."""
    noise = _noise_weights(problem, level)
    variance = _solved(problem, prepared, _root_of_sum(problem, noise, engine))
    supported = None
    if ratio is None:
        data = _data_weights(problem)
        supported = _solved(problem, prepared, _root_of_sum(problem, data, engine))
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


def _noise_weights(problem: Problem, level: Noise) -> NoiseWeights:
    """Return M of the variance: the loss's response to noise."""
    return NoiseWeights(problem.loss_derivatives.cross, level.values / np.sqrt(problem.n))


def _data_weights(problem: Problem) -> CurvatureWeights:
    """Return M of what the training rows hold: the root of the curvature weights of the loss."""
    return CurvatureWeights(Root.of(problem.loss_derivatives, problem.n))


def _root_of_sum(problem: Problem, weights: RowWeights, engine: Any) -> np.ndarray:
    """Return rows W with ``W'W = sum_i w_i w_i'`` over the weighted rows of the Jacobian, at most p of them.

    In the unit of each parameter, so that a pivoted Cholesky factorisation loses none of them to rounding.
    """
    if engine is not None:
        upper = sum_of_squares(engine, problem, weights, np.ones(problem.p), _BLOCK_ROWS)
        total = np.triu(upper) + np.triu(upper, 1).T
    else:
        total = np.zeros((problem.p, problem.p))
        for block in RowDraws(0, 0, problem.n, problem.outputs).blocks():
            room = np.empty(((block.stop - block.start) * problem.outputs, problem.p))
            J = jacobian_rows(problem, block.start, block.stop, room)
            rows = weights.take(block.start, block.stop).rows(J)
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
        engine: The client of the Dask cluster that sums over the training rows; None where this process does.
    """

    problem: Problem
    level: Noise
    probes: int
    seed: int
    engine: Any = field(default=None, repr=False)
    _sums: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def noise(self, start: int, stop: int) -> np.ndarray:
        """Return ``J't / sqrt(n)``, t the loss's response to a draw of the noise, (k, p)."""
        return self._through_rows(_NOISE, _noise_weights(self.problem, self.level), start, stop)

    def data(self, start: int, stop: int) -> np.ndarray:
        """Return ``J's z``, ``s s' = C/n`` the curvature weights of the loss, (k, p)."""
        return self._through_rows(_DATA, _data_weights(self.problem), start, stop)

    def penalty(self, start: int, stop: int) -> np.ndarray:
        """Return ``Lam^1/2 z``, (k, p)."""
        decay = self.problem.numpy(self.problem.decay)
        draws = self._draws(_PENALTY)
        drawn = [draws.vector(j, 0, decay.shape) for j in range(start, stop)]
        return np.stack(drawn) * np.sqrt(decay)

    def _draws(self, kind: int) -> RowDraws:
        return RowDraws(self.seed, kind, self.problem.n, self.problem.outputs)

    def _through_rows(self, kind: int, weights: RowWeights, start: int, stop: int) -> np.ndarray:
        """Return ``J'M z`` for draws z over the training rows.

        Of a model of moderate size all of them are summed in one pass, as products of matrices; a large one takes a
        vector-Jacobian product for each.
        """
        problem = self.problem
        draws = self._draws(kind)
        if problem.p > _MOST_BY_ROWS:
            numbers = range(start, stop)
            parts = [weights.take(at.start, at.stop).times(draws.of(numbers, at)) for at in draws.blocks()]
            return np.asarray(problem.numpy(problem.vjp(np.concatenate(parts, axis=1))))
        if kind not in self._sums:
            if self.engine is None:
                self._sums[kind] = self._summed(draws, weights)
            else:
                self._sums[kind] = sum_of_draws(self.engine, problem, weights, draws, self.probes)
        return self._sums[kind][start:stop]

    def _summed(self, draws: RowDraws, weights: RowWeights) -> np.ndarray:
        """Return ``J'M z`` of all draws, (probes, p), by products of matrices over blocks of rows."""
        problem = self.problem
        total = np.zeros((self.probes, problem.p))
        blocks = list(draws.blocks())
        with bar("draws over the training rows", len(blocks)) as advance:
            for rows in blocks:
                z = draws.of(range(self.probes), rows)
                t = weights.take(rows.start, rows.stop).times(z).reshape(self.probes, -1)
                room = np.empty((t.shape[1], problem.p))
                total += t @ jacobian_rows(problem, rows.start, rows.stop, room)
                advance("")
        return total


_NOISE, _DATA, _PENALTY = range(3)
"""Which set of probes is drawn."""


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
