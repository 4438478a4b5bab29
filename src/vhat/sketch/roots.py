"""Square roots of the quadratic forms of an interval, which replace the training rows.

With g the gradient of a prediction and ``h = A^-1 g``, an interval needs three quadratic and two linear forms of g: the
variance ``sigma^2 V``, the part of ``g'h`` that the training rows support, the rest of ``g'h``, and the products of h
with the gradients of the penalty and of the loss. A quadratic form ``g'Mg`` is stored as a root, a matrix W with
``W'W = M``, and computed as ``|W g|^2``. There are two kinds of roots:

- *exact*, with p rows, for models with few parameters;
- *sampled*, with K rows ``u_j / sqrt(K)``, where ``u_j = A^-1 J't_j / sqrt(n)`` and ``t_j`` is a draw of the noise of
  the training responses. ``(g'u_j)^2`` has the mean ``sigma^2 V``. If g does not depend on the draws, the mean over j
  is exactly ``sigma^2 V`` times a chi-square variable with K degrees of freedom divided by K.
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
from vhat.linalg.solvers.curvature_root import Root
from vhat.linalg.solvers.gram import variance_ratio
from vhat.linalg.solvers.interface import Solution
from vhat.linalg.solvers.jacobian_factors import jacobian_rows
from vhat.linalg.solvers.row_draws import RowDraws
from vhat.linalg.solvers.row_weights import CurvatureWeights, NoiseWeights, RowWeights
from vhat.models.problem import Array, Problem
from vhat.progress import bar
from vhat.variance.noise import Noise
from vhat.variance.weighted_norm import Measured
from vhat.variance.workspace import Chosen, Workspace

__all__ = ["Roots", "make_roots"]

_BLOCK_ROWS = 1024
"""Training rows differentiated together by a worker of a cluster."""
_MOST_BY_ROWS = 30_000
"""Largest number of parameters for which all right-hand sides are summed over blocks of the Jacobian, 250 MB each."""
_MOST_TOGETHER = 32
"""Largest number of right-hand sides solved together."""
_MAX_DRAWN_NUMBERS = 2**24
"""Largest number of random numbers drawn over the training rows for one block of right-hand sides: 128 MB."""
_VECTORS = 8
"""Arrays of the size of a block of right-hand sides in memory while it is drawn and solved."""


@dataclass(frozen=True, eq=False)
class Roots:
    """Roots of the quadratic forms of an interval, and its linear forms.

    Attributes:
        variance: Root of ``sigma^2 V``, (r, p).
        supported: Root of the supported part of ``g'h``, (r, p); None if that part is ``sigma^2 V / ratio``.
        rest: Root of the rest of ``g'h``, (r, p); None if ``energy`` is given.
        energy: Root of ``g'h``, (p, p); None if ``rest`` is given.
        pull: ``A^-1 b`` with b the gradient of the penalty, (p,).
        slope: ``A^-1 grad L``, (p,).
        ratio: The ratio of ``sigma^2 V`` to the supported part, if it is the same for every g.
        probes: Number of sampled rows; None for exact roots.
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
        """Return the forms at gradients, (k, p), in the same form as a solver's results."""
        variance = _squares(g, self.variance)
        supported = variance / self.ratio if self.supported is None else _squares(g, self.supported)
        energy = supported + _squares(g, self.rest) if self.energy is None else _squares(g, self.energy)
        # A prediction that no parameter changes (g = 0) has no variance: its support is zero, and its error is bias.
        support = np.divide(supported, energy, out=np.zeros_like(energy), where=energy != 0)
        pull = g @ self.pull
        finite = np.isfinite(variance) & np.isfinite(energy)
        nan_if_failed = np.where(finite, 0.0, np.nan)
        return Measured(
            variance=variance + nan_if_failed,
            unsupported=1.0 - support + nan_if_failed,
            bias=pull,
            offset=pull + g @ self.slope,
            shortcut=energy,
            sensitivity=None,
            status=np.where(finite, Status.CONVERGED.value, Status.NOT_FINITE.value),
            residual=np.zeros(len(g)),
            steps=np.zeros(len(g), dtype=int),
        )


def _squares(g: np.ndarray, root: np.ndarray | None) -> np.ndarray:
    """Return ``|W g|^2`` for each row of g, (k,)."""
    assert root is not None
    with np.errstate(over="ignore", invalid="ignore"):  # the status of the row reports it
        product = g.astype(root.dtype, copy=False) @ root.T
        return np.einsum("kr,kr->k", product, product, dtype=np.float64)


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
    """Return the roots of a fit.

    Args:
        work: The fitted model.
        prepared: The solver of its curvature.
        chosen: The curvature.
        level: The noise of the training responses.
        probes: Number of sampled rows, K.
        seed: Seed of the samples.
        exact: Whether to compute exact roots instead.
        engine: Client of the Dask cluster that sums over the training rows; None to sum in this process.

    Raises:
        MemoryBudgetError: When the rows do not fit.
        NotConverged: When the solver does not reach its tolerance.
        Interrupted: On Ctrl-C; a second call continues where the first one stopped.
    """
    problem = work.problem
    _require_memory(problem, problem.p if exact else probes)
    gradients = np.stack([problem.numpy(problem.penalty_gradient()), problem.numpy(problem.gradient())])
    pull, slope = _solve(problem, prepared, gradients)
    # The Hessian of a linear model is its Gauss-Newton matrix.
    gauss_newton = chosen.curvature == "ggn" or problem.linear
    ratio = variance_ratio(problem.loss_derivatives, level.values) if gauss_newton or exact else None
    if exact:
        return _exact_roots(problem, prepared, level, pull, slope, ratio, engine)

    # The supported part of g'h and the rest are those under Gauss-Newton, whose two parts have roots to draw from:
    # J's and Lam^1/2. The residual part of the exact Hessian has none.
    support_solver = prepared if gauss_newton else work.own_solver("ggn")
    draws = _Draws(problem, level, probes, seed, engine)
    samples = [_Sample("variance", prepared, draws.noise)]
    if ratio is None:
        samples.append(_Sample("supported", support_solver, draws.data))
    samples.append(_Sample("rest", support_solver, draws.penalty))
    # An interrupted call leaves its rows in the cache, under everything that determines them.
    key = ("sketch", chosen.curvature, level.digest, probes, seed)
    finished: dict[str, list[np.ndarray]] = work.keep(key, dict)
    _solve_samples(problem, samples, probes, finished)
    rows = {sample.name: np.concatenate(finished[sample.name]) / np.sqrt(probes) for sample in samples}
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


@dataclass(frozen=True)
class _Sample:
    """One sampled root.

    Attributes:
        name: Field of :class:`Roots`.
        solver: The solver of its right-hand sides.
        draw: Returns right-hand sides ``start`` to ``stop``, (k, p).
    """

    name: str
    solver: Prepared
    draw: Callable[[int, int], np.ndarray]


def _solve_samples(
    problem: Problem, samples: list[_Sample], probes: int, finished: dict[str, list[np.ndarray]]
) -> None:
    """Draw and solve the rows of all samples, appending each block to ``finished``.

    Raises:
        Interrupted: On Ctrl-C; the blocks that are finished remain.
    """
    with bar("probes", len(samples) * -(-probes // _rows_together(problem))) as advance:
        try:
            for sample in samples:
                blocks = finished.setdefault(sample.name, [])
                for block in _solved_blocks(problem, sample, probes, len(blocks)):
                    blocks.append(block)
                    advance("")
        except KeyboardInterrupt:
            count = sum(len(block) for blocks in finished.values() for block in blocks)
            raise Interrupted(
                f"{count} of {len(samples) * probes} probes were solved. Call sketch() again with the same options to "
                "go on with the rest.",
                None,
            ) from None


def _exact_roots(
    problem: Problem,
    prepared: Prepared,
    level: Noise,
    pull: np.ndarray,
    slope: np.ndarray,
    ratio: float | None,
    engine: Any,
) -> Roots:
    """Return the exact roots, from p x p matrices."""
    noise = _noise_weights(problem, level)
    variance = _solve(problem, prepared, _root_of_sum(problem, noise, engine))
    supported = None
    if ratio is None:
        data = _data_weights(problem)
        supported = _solve(problem, prepared, _root_of_sum(problem, data, engine))
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
    """Return the weights of the variance: the effect of noise on the loss gradient."""
    return NoiseWeights(problem.loss_derivatives.cross, level.values / np.sqrt(problem.n))


def _data_weights(problem: Problem) -> CurvatureWeights:
    """Return the weights of the supported part: the square root of the curvature weights of the loss."""
    return CurvatureWeights(Root.of(problem.loss_derivatives, problem.n))


def _root_of_sum(problem: Problem, weights: RowWeights, engine: Any) -> np.ndarray:
    """Return rows W with ``W'W = sum_i w_i w_i'`` over the weighted rows of the Jacobian, at most p of them."""
    if engine is not None:
        upper = sum_of_squares(engine, problem, weights, np.ones(problem.p), _BLOCK_ROWS)
        total = np.triu(upper) + np.triu(upper, 1).T
    else:
        total = np.zeros((problem.p, problem.p))
        for block in RowDraws(0, 0, problem.n, problem.outputs).blocks():
            buffer = np.empty(((block.stop - block.start) * problem.outputs, problem.p))
            J = jacobian_rows(problem, block.start, block.stop, buffer)
            rows = weights.take(block.start, block.stop).rows(J)
            total += rows.T @ rows
    # A pivoted Cholesky factorisation of a matrix with unit diagonal: in other units, parameters with small gradients
    # would be lost to rounding.
    unit = np.sqrt(np.diagonal(total))
    unit = np.where(unit > 0, unit, 1.0)
    factor, pivots, rank, _ = dpstrf(total / np.outer(unit, unit), lower=1)
    root = np.zeros((rank, problem.p))
    root[:, pivots - 1] = np.tril(factor)[:, :rank].T
    return root * unit


@dataclass(frozen=True, eq=False)
class _Draws:
    """Random right-hand sides whose solutions are the sampled rows.

    Each is seeded by its own number and that of a block of training rows, and does not depend on the other ones.

    Attributes:
        problem: The training problem.
        level: The noise of the training responses.
        probes: Number of right-hand sides.
        seed: The seed.
        engine: Client of the Dask cluster that sums over the training rows; None to sum in this process.
    """

    problem: Problem
    level: Noise
    probes: int
    seed: int
    engine: Any = field(default=None, repr=False)
    _sums: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def noise(self, start: int, stop: int) -> np.ndarray:
        """Return ``J't / sqrt(n)`` with t the effect of a draw of the noise on the loss gradient, (k, p)."""
        return self._over_rows(_NOISE, _noise_weights(self.problem, self.level), start, stop)

    def data(self, start: int, stop: int) -> np.ndarray:
        """Return ``J's z`` with the curvature weights ``s s' = C/n`` of the loss, (k, p)."""
        return self._over_rows(_DATA, _data_weights(self.problem), start, stop)

    def penalty(self, start: int, stop: int) -> np.ndarray:
        """Return ``Lam^1/2 z``, (k, p)."""
        decay = self.problem.numpy(self.problem.decay)
        draws = self._draws(_PENALTY)
        drawn = [draws.vector(j, 0, decay.shape) for j in range(start, stop)]
        return np.stack(drawn) * np.sqrt(decay)

    def _draws(self, kind: int) -> RowDraws:
        return RowDraws(self.seed, kind, self.problem.n, self.problem.outputs)

    def _over_rows(self, kind: int, weights: RowWeights, start: int, stop: int) -> np.ndarray:
        """Return ``J'M z`` for draws z over the training rows.

        For a model of moderate size all draws are summed in one pass, by matrix products. For a large model each takes
        a vector-Jacobian product.
        """
        problem = self.problem
        draws = self._draws(kind)
        if problem.p > _MOST_BY_ROWS:
            numbers = range(start, stop)
            parts = [weights.take(at.start, at.stop).times(draws.of(numbers, at)) for at in draws.blocks()]
            return np.asarray(problem.numpy(problem.vjp(np.concatenate(parts, axis=1))))
        if kind not in self._sums:
            if self.engine is None:
                self._sums[kind] = self._sum_all(draws, weights)
            else:
                self._sums[kind] = sum_of_draws(self.engine, problem, weights, draws, self.probes)
        return self._sums[kind][start:stop]

    def _sum_all(self, draws: RowDraws, weights: RowWeights) -> np.ndarray:
        """Return ``J'M z`` of all draws, (probes, p), by matrix products over blocks of rows."""
        problem = self.problem
        total = np.zeros((self.probes, problem.p))
        blocks = list(draws.blocks())
        with bar("draws over the training rows", len(blocks)) as advance:
            for rows in blocks:
                z = draws.of(range(self.probes), rows)
                t = weights.take(rows.start, rows.stop).times(z).reshape(self.probes, -1)
                buffer = np.empty((t.shape[1], problem.p))
                total += t @ jacobian_rows(problem, rows.start, rows.stop, buffer)
                advance("")
        return total


_NOISE, _DATA, _PENALTY = range(3)
"""Numbers of the independent sets of draws."""


def _solved_blocks(problem: Problem, sample: _Sample, probes: int, finished: int) -> Iterator[np.ndarray]:
    """Yield the solutions of blocks of right-hand sides, from block number ``finished`` on."""
    step = _rows_together(problem)
    for start in range(finished * step, probes, step):
        yield _solve(problem, sample.solver, sample.draw(start, min(start + step, probes)))


def _rows_together(problem: Problem) -> int:
    """Return how many right-hand sides are drawn and solved together."""
    each = 8 * _VECTORS * problem.p
    fits = problem.memory // (2 * each)
    if problem.p > _MOST_BY_ROWS:  # the draws of a block then cover all training rows at once
        fits = min(fits, _MAX_DRAWN_NUMBERS // (problem.n * problem.outputs))
    return int(np.clip(fits, 1, _MOST_TOGETHER))


def _solve(problem: Problem, prepared: Prepared, rows: np.ndarray) -> np.ndarray:
    """Return ``A^-1`` of each row.

    Raises:
        NotConverged: If a row did not converge, with the remedy of its status.
    """
    native: Array = problem.native(rows)
    # Solvers with a factorisation can verify a block together, which saves a pass over the training rows per row.
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
