"""How well a fit predicts rows that it has not seen: one score a row, smaller is better."""

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
    """Scores of rows, (m,), what is to be said about them, and whether their mean is not to be relied on."""

    rows: np.ndarray
    remark: str = ""
    rough: bool = False


@dataclass(frozen=True)
class Scoring:
    """What is measured.

    Attributes:
        kind: ``"winkler"``, of the asymptotic interval for a new response, ``center +- q sqrt(sigma^2 + sigma^2
            V/n)``: its width plus ``2/delta`` times the distance by which it misses; or ``"mse"``. Several outputs are
            averaged, as the loss sums over them: they have one unit.
        delta: The probability of a miss that the intervals claim.
        noise: Standard deviation of the responses, or None to estimate it in every fit.
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
        """Score rows that the fit has not seen.

        Raises:
            NotConverged: When some have no interval.
        """
        if self.kind == "mse":
            return Scored(_by_row((fitted.predict(test.X) - test.y) ** 2))
        band = fitted.interval(
            test.X, self.delta, bound="asymptotic", target="observation", noise=self.noise, seed=self.seed
        )
        _require_all(band.status, "held-out rows have no interval")
        return Scored(self._winkler(test.y - band.center, band.half_width))

    def of_left_out(self, fitted: FittedModel) -> Scored:
        """Score every training row by the fit that would not have seen it, to first order; sigma is that of all rows.

        Raises:
            NotConverged: When some row cannot be left out.
            InputError: When the loss is not a function of f - y.
        """
        problem = fitted.problem
        if not problem.loss_derivatives.location:
            raise InputError("leave-one-out residuals need a loss that is a function of f - y. Use by='validation'.")
        with problem.scope():
            found, noise = self._left_out(fitted)
        residual = _residuals(found, problem.targets)
        if self.kind == "mse":
            return Scored(_by_row(residual**2), *_roughness(found))
        assert noise is not None
        spread = np.sqrt(noise.values**2 + found.variance / problem.n)
        return Scored(
            self._winkler(residual, bounds.asymptotic(1.0, 1, spread, self.delta, df=noise.df)), *_roughness(found)
        )

    def _left_out(self, fitted: FittedModel) -> tuple[LeftOut, Noise | None]:
        """Leave out every training row; return the noise as well, where the score needs it."""
        problem, work = fitted.problem, fitted.workspace
        curvature = work.choose_curvature("auto").curvature
        solver = work.own_solver(curvature)
        if self.kind == "mse":
            return leave_rows_out(problem, solver, work.shape), None
        noise = work.noise(self.noise, curvature, self.seed)
        return leave_rows_out(problem, solver, noise.values), noise

    def _winkler(self, residual: np.ndarray, half_width: np.ndarray) -> np.ndarray:
        missed = np.maximum(np.abs(residual) - half_width, 0.0)
        return _by_row(2.0 * half_width + (2.0 / self.delta) * missed)


def _by_row(scores: np.ndarray) -> np.ndarray:
    """Average over outputs."""
    means: np.ndarray = scores.reshape(len(scores), -1).mean(axis=1)
    return means


def _residuals(found: LeftOut, targets: np.ndarray) -> np.ndarray:
    _require_all(found.status, "training rows cannot be left out to first order")
    residuals: np.ndarray = targets - found.prediction
    return residuals


def _require_all(status: np.ndarray, what: str) -> None:
    """Refuse a mean over the rows that happen to have an answer: it would flatter the fit."""
    by_row = (status != Status.CONVERGED).reshape(len(status), -1).any(axis=1)
    if by_row.any():
        kinds = ", ".join(dict.fromkeys(str(kind) for kind in status[status != Status.CONVERGED]))
        # without their numbers: these rows may be those of a table after copies were merged
        raise NotConverged(f"{by_row.sum()} of {len(status)} {what} ({kinds}).")


def _roughness(found: LeftOut) -> tuple[str, bool]:
    """What there is to say of rows that are left out roughly, and whether their mean is not to be relied on."""
    if not found.rough:
        return "", False
    remark = (
        f"{found.rough} of {len(found.leverage)} rows have leverage above {ROUGH}: leaving them out to first order is "
        "rough (by='cross_validation' refits)."
    )
    return remark, found.unreliable
