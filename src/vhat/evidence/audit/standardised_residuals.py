"""Residuals of the training rows in units of their predicted standard deviation, and redraws of them.

Row i is compared with the model that never saw it::

    z_i = (y_i - f_-i(x_i)) / sqrt(sigma_i^2 + sigma^2 V_-i / n)

which has mean 0 and variance 1 where the model and its noise are right, and is the internally studentised residual of
a least-squares fit. The z are not independent: a fit of 20 parameters to 30 rows leaves ten degrees of freedom in 30
residuals, and tests for independent rows would reject such a fit far too often. Each statistic is therefore compared
with redraws of the noise that pass through the smoother ``S = df/dy`` of this fit, ``(I - S) sigma z``. For a model
that is linear in its parameters this is its exact distribution (a Monte Carlo test), for others a first-order
approximation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import ModelError
from vhat.evidence.audit.result import Line, Verdict
from vhat.evidence.leave_one_out import ALONE, leave_block_out
from vhat.linalg.solvers import Status, choose
from vhat.linalg.solvers.interface import contract
from vhat.variance.weighted_norm import gradient_blocks

if TYPE_CHECKING:
    from vhat.linalg.solvers.interface import Response
    from vhat.models.problem import Curvature, Problem
    from vhat.variance.noise import Noise
    from vhat.variance.workspace import Workspace

__all__ = ["REDRAWS", "NotTested", "Residuals", "affordable_rows", "critical", "rows_in_loss", "standardised_residuals"]

REDRAWS = 299
"""Number of redraws. The k-th largest of 299 statistics is exceeded with probability k/300 under the null."""
_BUDGET = 1000.0
"""Cost of leaving rows out, in gradients of the loss, beyond the factorisation that the audit needs anyway: 1,000 rows
by a dense factorisation, 200 by the kernel of all rows. The other lines take some 200 gradients, and 2 p for a dense
Hessian; each row left out takes a product with the Jacobian of all rows here."""
_LEAST_ROWS = 100
"""Smallest number of rows that are left out in turn, whatever the budget."""
_DAMPED = 0.0503
"""Mean leverage below which residuals are redrawn as independent. The correlations between them are then small, and
neglecting them makes the tests of means conservative. It is not a round number, so that no p / n equals it."""
_OWN_SHARE = 1 / 8
"""Share of the memory budget that redraws of all responses may take; beyond it they are independent."""


@dataclass(frozen=True)
class NotTested:
    """The reason why there are no standardised residuals.

    Attributes:
        reason: A sentence.
        verdict: ``"assumed"`` where nothing can be tested, ``"undecided"`` where a test could be made possible.
    """

    reason: str
    verdict: Verdict = "assumed"

    def line(self, name: str, meaning: str) -> Line:
        """Return a line of the audit that could not be tested."""
        return Line(name, float("nan"), float("nan"), self.verdict, f"Not tested: {self.reason}", meaning)


@dataclass(frozen=True)
class Residuals:
    """Standardised residuals of some training rows.

    Attributes:
        rows: The numbers of the rows, (m,), in an order that does not depend on that of the table.
        values: z, (m, K).
        redraws: z under redrawn noise, (m, K, REDRAWS).
        predictions: Predictions at the rows, (m, K).
        redrawn_predictions: The same under redrawn noise, (m, K, REDRAWS); None where they hardly move.
        everywhere: z of all rows with a part in the loss, (n, K): left-out residuals where they were computed,
            otherwise as fitted. NaN for rows of weight zero.
        left_out: Whether rows were left out; else these are residuals of fitted rows.
        eligible: Number of rows with a part in the loss.
        validation: Whether these are rows that training did not fit. All row numbers then count validation rows.
    """

    rows: np.ndarray
    values: np.ndarray
    redraws: np.ndarray
    predictions: np.ndarray
    redrawn_predictions: np.ndarray | None
    everywhere: np.ndarray
    left_out: bool
    eligible: int
    validation: bool = False

    @property
    def description(self) -> str:
        """The kind of residuals in words, for the meaning of a line."""
        kind = "left-out residuals" if self.left_out else "residuals as fitted"
        if self.validation:
            kind = "validation residuals"
        if len(self.rows) == self.eligible:
            return kind
        return f"{kind} ({len(self.rows):,} of {self.eligible:,} rows)"


def affordable_rows(problem: Problem) -> int:
    """Return the number of training rows that the budget allows to leave out in turn."""
    K = problem.outputs
    # Beyond the factorisation, each solution takes at least one product with the Jacobian.
    each = K * max(1.0, choose(problem).solver.cost(problem, "hessian").each.gradients)
    return max(_LEAST_ROWS, int(_BUDGET / each))


def critical(redrawn: np.ndarray, level: float) -> float:
    """Return the value that a statistic exceeds with probability ``level`` under the null.

    Args:
        redrawn: The statistic of each redraw, (REDRAWS,).
        level: A multiple of ``1/(REDRAWS + 1)``.
    """
    rank = round(level * (REDRAWS + 1))
    return float(np.sort(redrawn)[-rank])


def standardised_residuals(
    work: Workspace, curvature: Curvature, level: Noise | None, seed: int, *, minimum: bool
) -> Residuals | NotTested:
    """Return the standardised residuals, or why there are none.

    Args:
        work: The fit.
        curvature: The curvature that the audit uses.
        level: The noise level; None where there is none.
        seed: Seed of the redraws and of a sample of rows.
        minimum: Whether the parameters are a minimum. If not, rows cannot be left out to first order, and residuals as
            fitted are returned.
    """
    problem = work.problem
    if not problem.loss_derivatives.location:
        return NotTested("the loss is not a function of f - y, so that there are no residuals.")
    if level is None:
        return NotTested("there is no noise level to compare residuals with. Give noise=.", "undecided")
    order = _canonical_order(problem, rows_in_loss(problem))
    rng = np.random.default_rng(seed)
    rows = order
    most = affordable_rows(problem)
    if len(order) > most:
        rows = order[np.sort(rng.choice(len(order), size=most, replace=False))]
    if not minimum:
        return _as_fitted(problem, level, order, rows, rng)
    # where the exact smoother amplifies noise, the noise level rests on Gauss-Newton, and so must the residuals
    used: Curvature = "ggn" if work.amplifies(curvature, seed) else curvature
    try:
        return _left_out(work, used, level, rows, len(order), rng)
    except ModelError as error:  # a model that changes between calls: the line on determinism says so
        return NotTested(f"{error}", "undecided")


def rows_in_loss(problem: Problem) -> np.ndarray:
    """Return the numbers of the rows with a part in the loss; the others have sample weight zero."""
    seen: np.ndarray = np.flatnonzero(np.any(problem.loss_derivatives.cross.reshape(problem.n, -1) != 0, axis=1))
    return seen


def _canonical_order(problem: Problem, rows: np.ndarray) -> np.ndarray:
    """Order rows by their responses, so that redraws and samples do not depend on the order of the table."""
    keys = [*problem.fitted_values[rows].T, *problem.targets[rows].T]
    return rows[np.lexsort(keys)]


def _as_fitted(
    problem: Problem, level: Noise, seen: np.ndarray, rows: np.ndarray, rng: np.random.Generator
) -> Residuals:
    """Return residuals as fitted, in units of the given noise, or of their own root mean square where it was estimated.

    Args:
        problem: The training problem.
        level: The noise level.
        seen: All rows with a part in the loss.
        rows: Those of which the residuals are returned.
        rng: Draws independent residuals to compare them with.
    """
    residual = (problem.targets - problem.fitted_values) / level.values
    if level.estimated:
        size = np.sqrt(np.mean(residual[seen] ** 2, axis=0))
        residual = residual / np.where(size > 0, size, 1.0)
    everywhere = np.full_like(residual, np.nan)
    everywhere[seen] = residual[seen]
    return Residuals(
        rows,
        residual[rows],
        rng.standard_normal((len(rows), problem.outputs, REDRAWS)),
        problem.fitted_values[rows],
        None,
        everywhere,
        left_out=False,
        eligible=len(seen),
    )


def _left_out(
    work: Workspace, curvature: Curvature, level: Noise, rows: np.ndarray, eligible: int, rng: np.random.Generator
) -> Residuals:
    """Return the residuals of rows that are left out in turn, and of the same rows under redrawn noise."""
    problem = work.problem
    prepared = work.own_solver(curvature)
    n, K = problem.n, problem.outputs
    everyone = len(rows) == n and np.array_equal(rows, np.arange(n))
    inputs = problem.X if everyone else problem.rows(rows).X
    shape = (len(rows), K, REDRAWS)
    noise = _redrawn_noise(work, curvature, rng)
    values = np.full((len(rows), K), np.nan)
    if noise is None:  # independent redraws, under which predictions do not move
        redraws = rng.standard_normal(shape)
        moves = None
    else:
        redraws = np.zeros(shape)
        moves = np.zeros(shape)
    start = 0
    for g in gradient_blocks(problem, inputs):
        found = prepared.respond(g)
        here = slice(start, start + len(found.status) // K)
        part = leave_block_out(problem, found, level.values, rows[here])
        sizes = np.sqrt(level.values[rows[here]] ** 2 + part.variance / n)
        usable = (part.status == Status.CONVERGED) & (part.leverage <= ALONE)
        values[here] = np.where(usable[:, None], (problem.targets[rows[here]] - part.prediction) / sizes, np.nan)
        if noise is not None and moves is not None:
            gaps, moves[here] = _redrawn(problem, found, level.values, noise, rows[here], usable)
            redraws[here] = gaps / np.where(usable[:, None], sizes, 1.0)[:, :, None]
        start = here.stop
    known = np.all(np.isfinite(values), axis=1)
    seen = rows_in_loss(problem)
    everywhere = np.full((n, K), np.nan)
    everywhere[seen] = ((problem.targets - problem.fitted_values) / level.values)[seen]
    everywhere[rows] = values
    predictions = problem.fitted_values[rows][known]
    return Residuals(
        rows[known],
        values[known],
        redraws[known],
        predictions,
        None if moves is None else predictions[:, :, None] + moves[known],
        everywhere,
        left_out=True,
        eligible=eligible,
    )


def _redrawn_noise(work: Workspace, curvature: Curvature, rng: np.random.Generator) -> np.ndarray | None:
    """Return redraws of the noise of all responses, (n K, REDRAWS), in noise levels.

    None where residuals are redrawn as independent: the leverages are small, or the redraws do not fit into memory.
    """
    problem = work.problem
    n, K = problem.n, problem.outputs
    effective = float(np.sum(work.freedom(curvature, 0).effective))
    if effective <= _DAMPED * n * K or 8 * n * K * REDRAWS > _OWN_SHARE * problem.memory:
        return None
    order = _canonical_order(problem, np.arange(n))
    drawn = np.empty((n, K, REDRAWS))
    # Assigned in canonical order, so that a row has the same draws wherever it stands in the table.
    drawn[order] = rng.standard_normal((n, K, REDRAWS))
    return drawn.reshape(n * K, REDRAWS)


def _redrawn(
    problem: Problem, found: Response, sigma: np.ndarray, noise: np.ndarray, rows: np.ndarray, usable: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return left-out residuals under redrawn noise, and the moves of the predictions, (b, K, REDRAWS) each.

    With ``r = e - S e`` the residual of a row and ``a C`` its leverage, the left-out residual is ``(I - a C)^-1 r``.

    Args:
        problem: The training problem.
        found: The responses of the solver to the gradients of b rows.
        sigma: Noise of each training response, (n, K).
        noise: Redraws in noise levels, (n K, REDRAWS).
        rows: The numbers of the rows, (b,).
        usable: Which of them can be left out, (b,).
    """
    n, K = problem.n, problem.outputs
    loss = problem.loss_derivatives
    solved = (found.status == Status.CONVERGED).reshape(-1, K).all(axis=1)
    image = np.where(solved[:, None, None, None], found.image.reshape(-1, K, n, K), 0.0)
    here = np.arange(len(rows))
    sensitivities = contract(image.reshape(-1, n, K), loss.cross).reshape(len(rows) * K, n * K)  # -n S
    moves = -((sensitivities * sigma.reshape(1, -1)) @ noise).reshape(len(rows), K, -1) / n  # S e
    own = noise.reshape(n, K, -1)[rows] * sigma[rows][:, :, None]
    a = image[here, :, rows, :] / n
    curvature = loss.curvature[rows]
    aC = a * curvature[:, None, :] if curvature.ndim == 2 else a @ curvature
    remaining = np.where(usable[:, None, None], np.eye(K) - aC, np.eye(K))
    return np.linalg.solve(remaining, own - moves), moves
