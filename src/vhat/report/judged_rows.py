"""The rows that judge a fit: their responses beside predictions and intervals that do not rest on these responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat import bounds
from vhat.errors import InputError, calling_rows
from vhat.intervals.noise_shape import spread_of
from vhat.report.options import Options, Subject
from vhat.report.table import Table
from vhat.tables.row_names import RowNames

if TYPE_CHECKING:
    from vhat.evidence.leave_one_out import LeaveOneOut
    from vhat.intervals.interval import Interval
    from vhat.report.points import HeldOut, Shown

__all__ = ["JudgedRows", "held_out_judges", "left_out_judges"]

_AIMED = ("asymptotic", "exact", "loo", "cv", "split")
"""Intervals that aim at their level; the others are bounds, which may cover more."""
_MIDDLES = (np.arange(50) + 0.5) / 50
"""Probabilities at which a distribution of the coverage is represented."""


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Rows with what was observed, predicted and claimed at them. Arrays are (m, K) unless said.

    Attributes:
        source: ``"held-out"``: the fit did not see these rows; ``"left-out"``: training rows, each predicted by the
            model without it, to first order.
        names: What the rows are called.
        values: Their inputs, (m, columns).
        observed: Their responses.
        prediction: Their predictions; NaN where a row cannot be left out.
        lower: Lower end of the interval of a new response; NaN where there is none.
        upper: Its upper end.
        bound: The name of the bound or of the calibration that gives the interval.
        coverage: Values that the true coverage takes, equally likely, over draws of the training rows: one array an
            output. See :func:`_given_noise` and :func:`_given_scores`.
        index: Which training rows these are, (m,); None for held-out rows.
        doubt: Why leaving rows out to first order is not to be relied on for this fit; empty where it is.
    """

    source: Literal["held-out", "left-out"]
    names: RowNames
    values: np.ndarray
    observed: np.ndarray
    prediction: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    bound: str
    coverage: tuple[np.ndarray, ...]
    index: np.ndarray | None = None
    doubt: str = ""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def answered(self) -> bool:
        """Whether there are intervals of a new response at all."""
        return bool(self.bound)

    @property
    def aimed(self) -> bool:
        """Whether the intervals aim at their level, so that covering more is a fault too."""
        return self.bound in _AIMED

    @property
    def circular(self) -> bool:
        """Whether the same rows set the level, so that their total coverage tells nothing."""
        return self.source == "left-out" and self.bound in ("loo", "cv")

    @property
    def inside(self) -> np.ndarray:
        """Whether each response lies inside its interval; no interval holds nothing."""
        held: np.ndarray = (self.lower <= self.observed) & (self.observed <= self.upper)
        return held


def held_out_judges(subject: Subject, table: Table, options: Options, shown: Shown, held_out: HeldOut) -> JudgedRows:
    """Return all held-out rows, with the intervals of a new response that the page draws."""
    shape = held_out.observed.shape
    points = table.inputs(held_out.values)
    drawn = shown.held_out
    fresh: Interval | None
    if drawn is not None and len(drawn) == len(held_out):
        fresh = drawn.fresh
    else:
        fresh = None if shown.unanswered else _fresh(subject, options, points, held_out.names)
    nothing = np.full(shape, np.nan)
    return JudgedRows(
        "held-out",
        held_out.names,
        held_out.values,
        held_out.observed,
        subject.fitted.predict(points).reshape(shape),
        nothing if fresh is None else fresh.lower.reshape(shape),
        nothing if fresh is None else fresh.upper.reshape(shape),
        "" if fresh is None else fresh.bound,
        _coverage(subject, options.delta, shown.training.mean.df, shape[1]),
    )


def _coverage(subject: Subject, delta: float, df: Any, outputs: int) -> tuple[np.ndarray, ...]:
    """Return the coverage that rows may find which did not set the level themselves, one array an output.

    An interval keeps its level in the mean over draws of the training rows. Those at hand have set it once for all:
    many held-out rows tell that level from the one claimed, and it is not wrong.
    """
    if subject.calibrated is not None:
        return (_given_scores(len(subject.calibrated.scores), delta),) * outputs
    if df is None:
        return (np.array([1 - delta]),) * outputs
    return tuple(_given_noise(float(each), delta) for each in np.broadcast_to(df, outputs))


def _given_scores(scores: int, delta: float) -> np.ndarray:
    """Return quantiles of the coverage of ``q = the r-th smallest of m scores``: Beta(r, m + 1 - r)."""
    from scipy.stats import beta

    rank = min(int(np.ceil((1 - delta) * (scores + 1) - 1e-9)), scores)  # 0.95 * 20 is 19, whatever its last bit
    found: np.ndarray = beta.ppf(_MIDDLES, rank, scores + 1 - rank)
    return found


def _given_noise(df: float, delta: float) -> np.ndarray:
    """Return quantiles of the coverage of ``+- t s``: ``2 Phi(t s/sigma) - 1``, where ``s^2/sigma^2 ~ chi^2/df``."""
    from scipy.stats import chi2, norm, t

    ratio = np.sqrt(chi2.ppf(_MIDDLES, df) / df)
    found: np.ndarray = 2 * norm.cdf(t.ppf(1 - delta / 2, df) * ratio) - 1
    return found


def _fresh(subject: Subject, options: Options, points: object, names: RowNames) -> Interval | None:
    with calling_rows(names):
        if subject.calibrated is not None:
            return subject.calibrated.interval(points, options.delta)
        try:
            return subject.fitted.interval(
                points, options.delta, target="observation", noise=options.noise, seed=options.seed
            )
        except InputError:  # noise that is known at the training rows alone
            return None


def left_out_judges(
    subject: Subject, table: Table, options: Options, shown: Shown, left_out: LeaveOneOut, rows: RowNames, doubt: str
) -> JudgedRows | None:
    """Return the training rows that the loss sees, each beside what the model without it says.

    The interval is ``f_-i(x_i) +- q sigma sqrt(1 + V_-i(x_i) / n)``, with the noise that the calibration has found at
    this prediction, where it varies. The factor q is that of the calibration, where
    the intervals of the page are calibrated; otherwise it is the quantile of Student's t.

    Returns:
        The rows; None for a loss whose predictions are not on the scale of the responses.
    """
    if left_out.residual is None:
        return None
    problem = subject.fitted.problem
    seen = np.flatnonzero(np.any(problem.loss_derivatives.cross.reshape(problem.n, -1) != 0, axis=1))
    prediction = left_out.prediction.reshape(problem.n, -1)[seen]
    bound = ""
    half = np.full(prediction.shape, np.nan)
    mean = shown.training.mean
    if shown.training.fresh is not None:
        noise = np.broadcast_to(mean.noise, problem.outputs)
        relative: Any = 1.0
        if subject.calibrated is not None:
            bound = subject.calibrated.source
            factor = subject.calibrated.quantile(options.delta)
            if subject.calibrated.noise_shape is not None:
                relative = subject.calibrated.noise_shape(prediction)
        else:
            bound = "asymptotic"
            factor = bounds.asymptotic(1.0, 1, 1.0, options.delta, df=mean.df)
        standard_error = noise * np.sqrt(left_out.weighted_norm.reshape(problem.n, -1)[seen] / problem.n)
        half = spread_of(standard_error, noise, relative) * np.broadcast_to(factor, problem.outputs)
    return JudgedRows(
        "left-out",
        rows.take(seen),
        table.values[seen],
        problem.targets[seen],
        prediction,
        prediction - half,
        prediction + half,
        bound,
        (np.array([1 - options.delta]),) * problem.outputs,  # these rows have set the level themselves
        seen,
        doubt,
    )
