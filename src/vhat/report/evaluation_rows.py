"""Evaluation rows: responses with predictions and intervals that do not depend on these responses.

They are held-out rows, or training rows that are each predicted by the model without them.
"""

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

__all__ = ["EvaluationRows", "evaluate_held_out", "evaluate_left_out"]

_TWO_SIDED = ("asymptotic", "exact", "loo", "cv", "split")
"""Intervals whose coverage should equal their level. The others are bounds, which may cover more."""
_MIDDLES = (np.arange(50) + 0.5) / 50
"""Probabilities at whose quantiles a distribution of the coverage is represented: the middles of 50 equal parts."""


@dataclass(frozen=True, eq=False)
class EvaluationRows:
    """Rows with their responses, predictions and intervals. Arrays have the shape (m, outputs) unless stated otherwise.

    Attributes:
        source: ``"held-out"`` for rows that were not used in the fit; ``"left-out"`` for training rows, each predicted
            by the model without it, to first order.
        names: The names of the rows in messages.
        values: Their inputs, (m, columns).
        observed: Their responses.
        prediction: Their predictions; NaN if a row cannot be left out.
        lower: Lower limit of the interval of a new response; NaN if there is none.
        upper: Upper limit.
        bound: The name of the bound or calibration of the interval; empty if there are no intervals.
        coverage: Equally likely values of the true coverage, over draws of the training rows: one array per output. See
            :func:`_coverage_given_noise` and :func:`_coverage_given_scores`.
        index: The indices of these rows among the training rows, (m,); None for held-out rows.
        doubt: Why first-order leave-one-out is unreliable for this fit; empty if it is not.
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
    def has_intervals(self) -> bool:
        """Return whether there are intervals of a new response."""
        return bool(self.bound)

    @property
    def two_sided(self) -> bool:
        """Return whether coverage should equal the level, so that covering more is a fault, too."""
        return self.bound in _TWO_SIDED

    @property
    def circular(self) -> bool:
        """Return whether these rows determined the width of the intervals: their overall coverage is then no test."""
        return self.source == "left-out" and self.bound in ("loo", "cv")

    @property
    def inside(self) -> np.ndarray:
        """Return whether each response lies inside its interval; False where there is none."""
        inside: np.ndarray = (self.lower <= self.observed) & (self.observed <= self.upper)
        return inside


def evaluate_held_out(
    subject: Subject, table: Table, options: Options, shown: Shown, held_out: HeldOut
) -> EvaluationRows:
    """Return all held-out rows, with the same kind of intervals as on the page."""
    shape = held_out.observed.shape
    points = table.inputs(held_out.values)
    drawn = shown.held_out
    band: Interval | None
    if drawn is not None and len(drawn) == len(held_out):
        band = drawn.observation  # the page shows all rows: their intervals are there already
    elif shown.no_observation_reason:
        band = None
    else:
        band = _observation_interval(subject, options, points, held_out.names)
    missing = np.full(shape, np.nan)
    return EvaluationRows(
        source="held-out",
        names=held_out.names,
        values=held_out.values,
        observed=held_out.observed,
        prediction=subject.fitted.predict(points).reshape(shape),
        lower=missing if band is None else band.lower.reshape(shape),
        upper=missing if band is None else band.upper.reshape(shape),
        bound="" if band is None else band.bound,
        coverage=_coverage(subject, options.delta, shown.training.mean.df, shape[1]),
    )


def _coverage(subject: Subject, delta: float, df: Any, outputs: int) -> tuple[np.ndarray, ...]:
    """Return values of the true coverage at rows that did not determine the width, one array per output.

    An interval keeps its level on average over draws of the training rows. For the training rows at hand, the coverage
    is a little above or below the level. Many held-out rows can detect that difference, and it is not a fault.
    """
    calibrated = subject.calibrated
    if calibrated is not None:
        scores = len(calibrated.scores)
        # Held-out rows give independent scores. Those of training rows share the fit, which costs degrees of freedom.
        freedom = scores if calibrated.source == "split" or df is None else df
        return tuple(_coverage_given_scores(scores, delta, float(each)) for each in np.broadcast_to(freedom, outputs))
    if df is None:  # the noise level is known
        return (np.array([1 - delta]),) * outputs
    return tuple(_coverage_given_noise(float(each), delta) for each in np.broadcast_to(df, outputs))


def _coverage_given_scores(scores: int, delta: float, freedom: float | None = None) -> np.ndarray:
    """Return quantiles of the coverage of a calibrated interval, given its calibration rows.

    The half width is the r-th smallest of m scores. If the scores are independent, the coverage has the distribution
    Beta(r, m + 1 - r). Scores of training rows, each left out in turn, tell as much as one per residual degree of
    freedom: the parameters of the distribution are scaled so that its variance is that of so many scores. Of 323
    networks calibrated by their 300 training rows, 5.6% were then called off by 4,000 new rows, and 7.4% without the
    scaling; at most 4.6% should be.

    Args:
        scores: The number m of scores.
        delta: Probability of a miss.
        freedom: Residual degrees of freedom of the fit that predicts the scored rows; None for independent scores.
    """
    from scipy.stats import beta

    # 1e-9 absorbs rounding: 0.95 * 20 is 19 exactly, and must not be rounded up to 20.
    rank = min(int(np.ceil((1 - delta) * (scores + 1) - 1e-9)), scores)
    scale = 1.0
    if freedom is not None:
        scale = (min(max(freedom, 1.0), scores) + 1) / (scores + 1)
    quantiles: np.ndarray = beta.ppf(_MIDDLES, scale * rank, scale * (scores + 1 - rank))
    return quantiles


def _coverage_given_noise(df: float, delta: float) -> np.ndarray:
    """Return quantiles of the coverage of an interval ``+- t s``, given the estimate s of the noise level sigma.

    The coverage is ``2 Phi(t s / sigma) - 1``, and ``s^2 / sigma^2`` has the distribution chi^2 / df.
    """
    from scipy.stats import chi2, norm, t

    ratio = np.sqrt(chi2.ppf(_MIDDLES, df) / df)
    quantiles: np.ndarray = 2 * norm.cdf(t.ppf(1 - delta / 2, df) * ratio) - 1
    return quantiles


def _observation_interval(subject: Subject, options: Options, points: object, names: RowNames) -> Interval | None:
    """Return the intervals of a new response, or None if the noise is known at the training rows only."""
    with calling_rows(names):
        if subject.calibrated is not None:
            return subject.calibrated.interval(points, options.delta)
        try:
            return subject.fitted.interval(
                points, options.delta, target="observation", noise=options.noise, seed=options.seed
            )
        except InputError:  # the noise of a new response is not known
            return None


def evaluate_left_out(
    subject: Subject, table: Table, options: Options, shown: Shown, left_out: LeaveOneOut, rows: RowNames, doubt: str
) -> EvaluationRows | None:
    """Return the training rows of positive weight, each with the prediction of the model without it.

    The interval is ``f_-i(x_i) +- q sigma sqrt(1 + V_-i(x_i) / n)``. The noise level sigma is that at this prediction
    if the calibration found noise that varies. The factor q is that of the calibration if the intervals on the page are
    calibrated, and the quantile of Student's t otherwise.

    Returns:
        The rows; None for a loss whose predictions are not on the scale of the responses.
    """
    if left_out.residual is None:
        return None
    problem = subject.fitted.problem
    weighted = np.any(problem.loss_derivatives.cross.reshape(problem.n, -1) != 0, axis=1)
    index = np.flatnonzero(weighted)
    prediction = left_out.prediction.reshape(problem.n, -1)[index]
    bound = ""
    half_width = np.full(prediction.shape, np.nan)
    mean = shown.training.mean
    if shown.training.observation is not None:
        noise = np.broadcast_to(mean.noise, problem.outputs)
        relative_noise: Any = 1.0
        if subject.calibrated is not None:
            bound = subject.calibrated.source
            factor = subject.calibrated.quantile(options.delta)
            if subject.calibrated.noise_shape is not None:
                relative_noise = subject.calibrated.noise_shape(prediction)
        else:
            bound = "asymptotic"
            factor = bounds.asymptotic(1.0, 1, 1.0, options.delta, df=mean.df)
        # Standard error of f_-i(x_i): sigma sqrt(V_-i / n).
        standard_error = noise * np.sqrt(left_out.weighted_norm.reshape(problem.n, -1)[index] / problem.n)
        half_width = spread_of(standard_error, noise, relative_noise) * np.broadcast_to(factor, problem.outputs)
    return EvaluationRows(
        source="left-out",
        names=rows.take(index),
        values=table.values[index],
        observed=problem.targets[index],
        prediction=prediction,
        lower=prediction - half_width,
        upper=prediction + half_width,
        bound=bound,
        coverage=(np.array([1 - options.delta]),) * problem.outputs,  # these rows determined the width themselves
        index=index,
        doubt=doubt,
    )
