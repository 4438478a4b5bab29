"""Scores of a fit on rows that it was not trained on: one score per row, smaller is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from vhat import bounds
from vhat.checks import check_choice, check_count, check_delta
from vhat.errors import InputError, NotConverged
from vhat.evidence.leave_one_out import ROUGH, LeftOut, leave_rows_out
from vhat.fit.splits import Table
from vhat.level import level_text
from vhat.linalg.solvers import Status

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["Scored", "Scoring"]


class Scored(NamedTuple):
    """Scores of rows.

    Attributes:
        rows: One score per row, (m,).
        remark: A caveat; empty if there is none.
        rough: Whether the mean score is unreliable.
    """

    rows: np.ndarray
    remark: str = ""
    rough: bool = False


@dataclass(frozen=True)
class Scoring:
    """The definition of a score.

    Attributes:
        kind: ``"winkler"``: the score of the asymptotic interval for a new response, ``center +- q sqrt(sigma^2 +
            sigma^2 V/n)``, which is its width plus ``2/delta`` times the distance by which it misses; or ``"mse"``.
            Scores are averaged over several outputs, which have a common unit because the loss sums over them.
        delta: Probability of a miss that the intervals claim.
        noise: Standard deviation of the responses; None estimates it in every fit.
        seed: Seed of random probes.
    """

    kind: Literal["winkler", "mse"] = "winkler"
    delta: float = 0.05
    noise: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("score", self.kind, ("winkler", "mse"))
        object.__setattr__(self, "delta", check_delta(self.delta))
        check_count("seed", self.seed)
        if self.noise is not None and not (np.ndim(self.noise) == 0 and 0 < self.noise < np.inf):
            raise InputError(f"noise={self.noise!r} is not a positive number. It is the standard deviation of y.")

    @property
    def words(self) -> str:
        """The name of the mean score."""
        if self.kind == "mse":
            return "mean squared error"
        return f"mean Winkler score of {level_text(self.delta)} intervals"

    def of_rows(self, fitted: FittedModel, test: Table) -> Scored:
        """Score held-out rows.

        Raises:
            NotConverged: When some rows have no interval.
        """
        if self.kind == "mse":
            return Scored(_by_row((fitted.predict(test.X) - test.y) ** 2))
        band = fitted.interval(
            test.X, self.delta, bound="asymptotic", target="observation", noise=self.noise, seed=self.seed
        )
        _require_all(band.status, "held-out rows have no interval")
        return Scored(self._winkler(test.y - band.center, band.half_width))

    def of_left_out(self, fitted: FittedModel) -> Scored:
        """Score every training row by a fit without it, to first order; sigma is estimated from all rows.

        Raises:
            NotConverged: When some row has no leave-one-out prediction.
            InputError: When the loss is not a function of f - y.
        """
        problem = fitted.problem
        if not problem.loss_derivatives.location:
            raise InputError("leave-one-out residuals need a loss that is a function of f - y. Use by='validation'.")
        with problem.scope():
            left_out, noise = self._left_out(fitted)
        remark, rough = _roughness(left_out)
        residual = _residuals(left_out, problem.targets)
        if self.kind == "mse":
            return Scored(_by_row(residual**2), remark, rough)
        assert noise is not None
        spread = np.sqrt(noise.values**2 + left_out.variance / problem.n)
        half_width = bounds.asymptotic(1.0, 1, spread, self.delta, df=noise.df)
        return Scored(self._winkler(residual, half_width), remark, rough)

    def _left_out(self, fitted: FittedModel) -> tuple[LeftOut, Noise | None]:
        """Leave out every training row; return the noise as well, if the score needs it."""
        problem = fitted.problem
        work = fitted.workspace
        curvature = work.choose_curvature("auto").curvature
        solver = work.own_solver(curvature)
        if self.kind == "mse":
            return leave_rows_out(problem, solver, work.shape), None
        noise = work.noise(self.noise, curvature, self.seed)
        return leave_rows_out(problem, solver, noise.values), noise

    def _winkler(self, residual: np.ndarray, half_width: np.ndarray) -> np.ndarray:
        """Return the interval score of every row, ``width + 2/delta * miss``, (m,)."""
        missed = np.maximum(np.abs(residual) - half_width, 0.0)
        return _by_row(2.0 * half_width + (2.0 / self.delta) * missed)


def _by_row(scores: np.ndarray) -> np.ndarray:
    """Return the mean over the outputs of every row, (m,)."""
    means: np.ndarray = scores.reshape(len(scores), -1).mean(axis=1)
    return means


def _residuals(left_out: LeftOut, targets: np.ndarray) -> np.ndarray:
    """Return leave-one-out residuals.

    Raises:
        NotConverged: When some row has none.
    """
    _require_all(left_out.status, "training rows cannot be left out to first order")
    residuals: np.ndarray = targets - left_out.prediction
    return residuals


def _require_all(status: np.ndarray, what: str) -> None:
    """Refuse rows without a result: a mean over the other rows would be too good.

    Args:
        status: Status of every row and output.
        what: What is missing for these rows, for the message.

    Raises:
        NotConverged: Naming the number of rows and their statuses.
    """
    by_row = (status != Status.CONVERGED).reshape(len(status), -1).any(axis=1)
    if by_row.any():
        kinds = ", ".join(dict.fromkeys(str(kind) for kind in status[status != Status.CONVERGED]))
        # Without row numbers: these rows may be those of a table in which equal rows were merged.
        raise NotConverged(f"{by_row.sum()} of {len(status)} {what} ({kinds}).")


def _roughness(left_out: LeftOut) -> tuple[str, bool]:
    """Return a caveat about rows of high leverage, and whether the mean score is unreliable because of them."""
    if not left_out.rough:
        return "", False
    remark = (
        f"{left_out.rough} of {len(left_out.leverage)} rows have leverage above {ROUGH}: leaving them out to first "
        "order is rough (by='cross_validation' refits)."
    )
    return remark, left_out.unreliable
