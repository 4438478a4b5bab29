"""The audit's line on lack of fit: are rows missed by more than the noise, or in one direction?

Three tests, each at a third of the line's level:

1. The root mean square of the left-out residuals, in units of their predicted standard deviation, against 1.
2. Their mean in groups of rows, along the predictions and along each input column, against 0.
3. Where input rows are repeated, the means of the repeated rows against the scatter within them: the classical test of
   lack of fit against pure error.

Each number is compared with a threshold that is the larger of two: what redraws of the noise exceed with the
probability of the test, and an effect size below which the miss is a trifle, however many rows show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from vhat.errors import NotConverged
from vhat.evidence.audit.column_tests import just_significant, worst_group
from vhat.evidence.audit.input_columns import note_on_features, one_array
from vhat.evidence.audit.result import Line
from vhat.evidence.audit.row_groups import Groups
from vhat.evidence.audit.standardised_residuals import NotTested, Residuals, critical, rows_in_loss

if TYPE_CHECKING:
    from vhat.models.problem import Curvature, Problem
    from vhat.variance.noise import Noise
    from vhat.variance.workspace import Workspace

__all__ = ["lack_of_fit_line"]

_LEVEL = 1 / 300
"""False alarm rate of each of the three tests, so that it is 1% for the line."""
_LARGE = 1.25
"""Root mean square of residuals that is tolerated, in noise levels: there a 90% interval covers 81%."""
_BIASED = 0.25
"""Mean residual of a group that is tolerated, in noise levels: a 90% interval of a new response covers 89% there."""
_UNKNOWN = "whether rows are missed by noise alone"


@dataclass(frozen=True)
class _Finding:
    """The outcome of one test.

    Attributes:
        value: The statistic.
        threshold: Its largest tolerated value.
        meaning: The statistic in words.
        said: The finding in a sentence, for a test that fails.
        group: The group of rows to which it belongs, in words; empty for all rows.
    """

    value: float
    threshold: float
    meaning: str
    said: str
    group: str = ""

    @property
    def fails(self) -> bool:
        """Whether the test fails."""
        return self.value > self.threshold


def lack_of_fit_line(
    work: Workspace,
    curvature: Curvature,
    level: Noise | None,
    found: Residuals | NotTested,
    groups: Groups | None,
    seed: int,
    noise_kind: str | None = None,
) -> Line:
    """Return the line.

    Args:
        work: The fit.
        curvature: The curvature that the audit uses.
        level: The noise level.
        found: The standardised residuals, or why there are none.
        groups: The groups of their rows; None where there are too few rows.
        seed: Seed of the residual degrees of freedom.
        noise_kind: How an estimated noise varies over the rows, see :meth:`vhat.variance.workspace.Workspace.noise`.
    """
    if isinstance(found, NotTested):
        return found.line("lack of fit", _UNKNOWN)
    assert level is not None  # or there would be no residuals
    tests = [
        *_size(found, level),
        *_trend(found, groups, note_on_features(work.problem)),
        *_pure_error(work, curvature, level, found, seed, noise_kind),
    ]
    if not tests:
        return NotTested(f"{len(found.rows)} usable rows are too few.").line("lack of fit", _UNKNOWN)
    worst = max(tests, key=lambda test: test.value / test.threshold)
    failed = [test.said for test in tests if test.fails]
    if not failed:
        remedy = "No misfit beyond chance was found, in the size of misses or in their direction."
        meaning = f"{worst.meaning} ({worst.group})" if worst.group else worst.meaning
        return Line("lack of fit", worst.value, worst.threshold, "holds", remedy, meaning)
    remedy = f"{' '.join(failed)} {_REMEDY if work.refit is None else _REMEDY_LINEARISED}"
    return Line("lack of fit", worst.value, worst.threshold, "fails", remedy, worst.meaning)


_REMEDY = (
    "The model cannot follow the data, or weight decay holds it back: use a richer model (more units, the missing "
    "term) or lower weight_decay. Until then intervals of the mean are in the wrong place; fitted.calibrate(...) "
    "widens those of a new response by what rows are missed by, over all rows alike."
)
_REMEDY_LINEARISED = (
    "A linearisation keeps the model's own predictions, so that no penalty can mend this: train longer or with more "
    "units, and linearise that model. Until then intervals of the mean are in the wrong place; fitted.calibrate(X, y), "
    "with rows of their own, widens those of a new response by what rows are missed by, over all rows alike."
)


# -- the size of misses ------------------------------------------------------------------------------
def _size(found: Residuals, level: Noise) -> Iterator[_Finding]:
    """Test the root mean square of left-out residuals. Residuals as fitted are too small by an unknown factor."""
    if not found.left_out or not len(found.rows):
        return
    if found.validation and level.validation_rows:  # the level is the size of these very residuals
        return
    sizes = np.sqrt(np.mean(found.values**2, axis=0))
    k = int(np.argmax(sizes))
    redrawn = np.sqrt(np.mean(found.redraws**2, axis=0)).max(axis=0)
    threshold = max(_LARGE, critical(redrawn, _LEVEL))
    yield _Finding(
        float(sizes[k]),
        threshold,
        f"root mean square of {found.description}, in units of their predicted standard deviation",
        f"Rows that were left out{_of_output(found, k)} are missed by {sizes[k]:.3g} times what the noise level says.",
    )


# -- the direction of misses --------------------------------------------------------------------------
def _trend(found: Residuals, groups: Groups | None, note: str) -> Iterator[_Finding]:
    """Test the mean of every group: an F test along each column, the smallest probability against redraws.

    A group that is noisier than the rest is judged by its own scatter, so that unequal noise alone does not fail it.
    The threshold of a group is the mean at which its column would be just significant, or ``_BIASED`` if that is more.

    Args:
        found: The standardised residuals.
        groups: The groups of their rows; None where there are too few rows.
        note: What to add to the finding, after a space.
    """
    if groups is None:
        return
    means = groups.means(found.values)
    errors = _standard_errors(groups, means, groups.means(found.values**2))
    drawn = groups.redrawn_means(found.redraws)
    drawn_errors = _standard_errors(groups, drawn, groups.redrawn_means(found.redraws**2))
    factor = just_significant(groups, means / errors, drawn / drawn_errors, _LEVEL, lost=0)
    g, k, threshold = worst_group(groups, np.abs(means), factor, _BIASED)
    side = "above" if means[g, k] > 0 else "below"
    count = int(groups.counts[g])
    words = groups.words[g][:1].upper() + groups.words[g][1:]
    yield _Finding(
        float(abs(means[g, k])),
        threshold,
        f"largest mean of {found.description} in a group, in noise levels",
        f"{words} ({count} of them) lie {abs(means[g, k]):.2g} noise levels {side} their predictions on average"
        f"{_of_output(found, k)}.{note}",
        group=f"{groups.words[g]}{_of_output(found, k)}",
    )


def _standard_errors(groups: Groups, means: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return the standard error of each group's mean, by its own scatter where that is above that of its column."""
    counts = groups.counts.reshape(-1, *([1] * (means.ndim - 1)))
    scatter = np.maximum(squares - means**2, 0.0) * counts
    own = scatter / (counts - 1)
    pooled = np.empty_like(own)
    for column in np.unique(groups.column):
        mine = groups.column == column
        pooled[mine] = scatter[mine].sum(axis=0) / np.sum(counts[mine] - 1)
    errors: np.ndarray = np.sqrt(np.maximum(own, pooled) / counts)
    return np.maximum(errors, np.finfo(float).tiny)


# -- pure error ---------------------------------------------------------------------------------------
def _pure_error(
    work: Workspace, curvature: Curvature, level: Noise, found: Residuals, seed: int, noise_kind: str | None
) -> Iterator[_Finding]:
    """Test the means of repeated input rows against the scatter within them (Fisher's test of lack of fit).

    Residuals of equal inputs differ by their noise alone. With c distinct rows among n, ``SS_within`` has n - c degrees
    of freedom and ``SS_means = |r|^2 - SS_within`` those that the fit left to the residuals, less these. Rows are
    weighted by their noise. Copies of a row, response and all, are no repeated measurement: they count once in the
    scatter.
    """
    problem = work.problem
    seen = rows_in_loss(problem)
    place = _repeated(problem, seen)
    if place is None or not found.left_out or found.validation:
        return
    try:
        freedom = work.residual_freedom(curvature, seed, noise_kind)
    except NotConverged:
        return
    residuals = (problem.targets - problem.fitted_values)[seen]
    once = np.unique(np.column_stack([place, problem.targets[seen]]), axis=0, return_index=True)[1]
    distinct = place.max() + 1
    within = len(once) - distinct
    for k in range(problem.outputs):
        between = float(freedom.residual[k, k]) - (len(seen) - distinct)
        if within < 1 or between < 1:
            continue
        weight = 1 / level.values[seen, k] ** 2
        gaps = residuals[:, k] - _means(place[once], residuals[once, k], weight[once])[place]
        noise = float(np.sum((weight * gaps**2)[once])) / within
        if not noise > 0:
            continue
        mean = _means(place, residuals[:, k], weight)
        misfit = float(np.sum(weight * mean[place] ** 2)) / between
        critical_ratio = float(stats.f.isf(_LEVEL / problem.outputs, between, within))
        size = _beyond_noise(misfit / noise, between, len(seen))
        limit = _beyond_noise(critical_ratio, between, len(seen))
        yield _Finding(
            size,
            max(_BIASED, limit),
            f"what the means of repeated input rows are missed by beyond their noise, in noise levels; {within} "
            "degrees of freedom of pure error",
            f"Repeated input rows agree with each other better than with the model{_of_output(found, k)}: their means "
            f"are missed by {size:.2g} noise levels beyond their own scatter.",
        )


def _beyond_noise(ratio: float, between: float, rows: int) -> float:
    """Return the root mean square per row of what the means are missed by beyond their noise, in noise levels.

    Args:
        ratio: The F ratio of the means.
        between: Its degrees of freedom.
        rows: Number of rows.
    """
    return float(np.sqrt(max(between * (ratio - 1), 0.0) / rows))


def _means(place: np.ndarray, values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the weighted mean of the rows that share a place, one per place."""
    means: np.ndarray = np.bincount(place, weight * values) / np.bincount(place, weight)
    return means


def _repeated(problem: Problem, rows: np.ndarray) -> np.ndarray | None:
    """Return the number of the distinct input row that each row repeats; None where none is repeated."""
    try:
        array = one_array(problem, problem.X)
    except (TypeError, ValueError):
        return None
    place: np.ndarray = np.unique(array.reshape(problem.n, -1)[rows], axis=0, return_inverse=True)[1].ravel()
    return place if place.max() + 1 < len(rows) else None


def _of_output(found: Residuals, k: int) -> str:
    """Name an output, where there are several."""
    return f", output {k} (counted from 0)" if found.values.shape[1] > 1 else ""
