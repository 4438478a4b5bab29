"""The audit's line on unequal noise: do some rows scatter more, or less, than the others?

Groups of rows, along the predictions and along each input column, are compared by the mean of ``|z|``, the size of
their standardised residuals about the group's own mean, which is proportional to the noise. This is the test of Breusch
and Pagan on indicators of the groups, with two changes. It is studentised as Koenker proposed: the spread of ``|z|`` is
measured within the groups and not taken from the normal distribution, so that heavy tails alone do not fail it. And it
uses ``|z|`` in place of ``z^2``, as the tests of Glejser and Levene do, on which a single outlier has little influence.
Outliers have a line of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vhat.evidence.audit.column_tests import just_significant, worst_group
from vhat.evidence.audit.input_columns import note_on_features
from vhat.evidence.audit.result import Line
from vhat.evidence.audit.row_groups import Groups
from vhat.evidence.audit.standardised_residuals import NotTested, Residuals

if TYPE_CHECKING:
    from vhat.variance.noise import Noise
    from vhat.variance.workspace import Workspace

__all__ = ["unequal_noise_line"]

_LEVEL = 3 / 300
"""False alarm rate of the line."""
_UNEQUAL = 1.25
"""Factor on the noise of a group that is tolerated: at 1.25 a 90% interval of the common noise covers 81% there."""
_UNKNOWN = "whether the noise is of the size described in every row"


def unequal_noise_line(
    work: Workspace, level: Noise | None, found: Residuals | NotTested, groups: Groups | None
) -> Line:
    """Return the line.

    Args:
        work: The fit.
        level: The noise level.
        found: The standardised residuals, or why there are none.
        groups: The groups of their rows; None where there are too few rows.
    """
    if isinstance(found, NotTested):
        return found.line("unequal noise", _UNKNOWN)
    if groups is None:
        few = NotTested(f"{len(found.rows)} usable rows are too few to compare groups of them.")
        return few.line("unequal noise", _UNKNOWN)
    if not np.all(np.any(found.values != 0, axis=0)):
        return NotTested("the residuals are zero.").line("unequal noise", _UNKNOWN)
    worst = _furthest(found, groups)
    meaning = f"noise of the group that is furthest off, as a factor, by {found.description}"
    if worst.factor <= worst.threshold:
        remedy = "No difference beyond chance was found along the predictions or along any column."
        where = f"{meaning} ({worst.words})"
        return Line("unequal noise", worst.factor, worst.threshold, "holds", remedy, where)
    has_head = level is not None and work.own_factor(level) is not None
    note = note_on_features(work.problem)
    remedy = f"{_finding(worst, has_head=has_head)}{note} {_advice(work, has_head=has_head)}"
    return Line("unequal noise", worst.factor, worst.threshold, "fails", remedy, meaning)


def _finding(worst: _Furthest, *, has_head: bool) -> str:
    """Return a sentence on the group that is furthest off.

    Args:
        worst: The group.
        has_head: Whether the noise is that of the model's own variance head, or a multiple of it.
    """
    words = f"{worst.words[:1].upper()}{worst.words[1:]} ({worst.count} of them)"
    effect = "covers too few of them" if worst.more else "is wider than they need"
    if has_head:
        size = f"{worst.factor:.2g} times {'larger' if worst.more else 'smaller'}"
        return (
            f"{words} have residuals {size} than those of all rows, in units of the variance head's noise: the head's "
            f"noise does not match the residuals, and an interval {effect}."
        )
    size = f"{worst.factor:.2g} times {'the noise' if worst.more else 'less noise than the mean'}"
    return f"{words} have {size}: an interval of one common noise level {effect}."


def _advice(work: Workspace, *, has_head: bool) -> str:
    """Name the calls that help, the best first.

    Noise of each row and sample weights concern training rows. Where residuals are those of validation rows, whose
    noise they do not tell, neither can help.
    """
    calls = []
    if has_head:
        calls.append("Train the head further, or with more units.")
    elif _may_have_head(work):
        calls.append(
            'Train a module that has a mean and a variance head and give vhat.from_torch(..., loss="gaussian_nll"): '
            "its intervals follow the noise of each row."
        )
    if work.validation is not None:
        calls.append(
            f"{'Or call' if calls else 'Call'} fitted.calibrate(X_cal, y_cal), with rows of their own: its intervals "
            "of a new response hold over all rows together, and for this group when they are calibrated with rows of "
            "the group alone. Sample weights do not help here, because validation rows take none."
        )
        return " ".join(calls)
    if has_head:
        calls.append("Or give noise=, one number per row.")
    else:
        calls.append('Give noise=, one number per row; or fit with sample_weight=1/noise^2 and noise="weights".')
    calls.append(
        "Intervals of a new response from fitted.calibrate(...) hold for this group when they are calibrated with "
        "held-out rows of the group alone; with rows of all kinds they hold over all rows together only."
    )
    return " ".join(calls)


def _may_have_head(work: Workspace) -> bool:
    """Whether a model of this kind can be trained with a variance head: a torch module with one output."""
    problem = work.problem
    return problem.autodiff.framework == "torch" and problem.outputs == 1 and problem.scaling is None


@dataclass(frozen=True)
class _Furthest:
    """The group whose noise differs most from the others'.

    Attributes:
        factor: Its noise over that of all rows, or the inverse, so that it is at least 1.
        threshold: Largest factor that is tolerated.
        more: Whether it has more noise than the others.
        words: Name of its rows.
        count: Number of its rows.
    """

    factor: float
    threshold: float
    more: bool
    words: str
    count: int


def _furthest(found: Residuals, groups: Groups) -> _Furthest:
    """Return the group whose factor is largest against its threshold."""
    K = found.values.shape[1]
    logs, errors = _log_ratios(found.values[:, :, None], groups, redrawn=False)
    drawn, drawn_errors = _log_ratios(found.redraws, groups, redrawn=True)
    logs, errors = logs[:, :, 0], errors[:, :, 0]
    factor = just_significant(groups, logs / errors, drawn / drawn_errors, _LEVEL, lost=1)
    # A noisier group is named first, because too narrow an interval does more harm than too wide a one.
    g, k, threshold = worst_group(groups, np.abs(logs), factor, np.log(_UNEQUAL), prefer=logs > 0)
    output = f", output {k} (counted from 0)" if K > 1 else ""
    return _Furthest(
        float(np.exp(min(abs(logs[g, k]), _LOG_MOST))),
        float(np.exp(min(threshold, _LOG_MOST))),
        bool(logs[g, k] > 0),
        groups.words[g] + output,
        int(groups.counts[g]),
    )


_LOG_MOST = 300.0
"""Largest logarithm of a factor that is written out: e^300 is still a number."""


def _positive(values: np.ndarray) -> np.ndarray:
    return np.maximum(values, np.finfo(float).tiny)


def _log_ratios(values: np.ndarray, groups: Groups, *, redrawn: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithm of each group's mean size over that of all rows of its column, and its standard error.

    Args:
        values: Standardised residuals, (m, K, draws).
        groups: The groups of their rows.
        redrawn: Whether these are redraws, whose predictions have groups of their own.

    Returns:
        Two arrays (groups, K, draws); 0 and 1 for outputs that a group does not concern.
    """
    shape = (len(groups.words), *values.shape[1:])
    logs = np.zeros(shape)
    errors = np.ones(shape)
    for column in np.unique(groups.column):
        mine = np.flatnonzero(groups.column == column)
        outputs = range(values.shape[1]) if groups.output[mine[0]] < 0 else [int(groups.output[mine[0]])]
        members = groups.members[:, mine]
        inside = members.any(axis=1)
        for k in outputs:
            if redrawn and groups.output[mine[0]] == k and k in groups.redrawn:
                found = _compared(values[:, k], groups.redrawn[k][1], len(mine))
            else:
                part = np.broadcast_to(members[inside].argmax(axis=1)[:, None], values[inside, k].shape)
                found = _compared(values[inside, k], part, len(mine))
            logs[mine, k], errors[mine, k] = found
    return logs, errors


def _compared(values: np.ndarray, part: np.ndarray, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Compare the parts of one column: see :func:`_log_ratios`.

    Sizes are taken about the mean of the part, which lack of fit may have moved, and corrected for the degree of
    freedom of this mean.

    Args:
        values: Standardised residuals, (m, draws).
        part: Number of the part of each, (m, draws).
        parts: Number of parts.

    Returns:
        Logarithms of ratios and standard errors, (parts, draws) each.
    """
    draws = values.shape[1]
    place = (part * draws + np.arange(draws)).ravel()

    def totals(each: np.ndarray) -> np.ndarray:
        return np.bincount(place, each.ravel(), minlength=parts * draws)

    # rows with equal inputs change parts together under a redraw, and may leave one empty
    counts = np.maximum(np.bincount(place, minlength=parts * draws), 2)
    means = totals(values) / counts
    shrunk = np.sqrt(1 - 1 / counts)
    sizes = np.abs(values.ravel() - means[place]) / shrunk[place]
    own = _positive(totals(sizes) / counts)
    # Relative to the part's own mean: the spread over all rows would grow with the inequality that is being tested.
    spread = (sizes / own[place]).reshape(values.shape).std(axis=0)
    overall = _positive(sizes.reshape(values.shape).mean(axis=0))
    counts = counts.reshape(parts, draws)
    ratios = own.reshape(parts, draws) / overall
    empty = ratios <= np.finfo(float).eps
    logs = np.where(empty, -_LOG_MOST if draws == 1 else 0.0, np.log(_positive(ratios)))
    return logs, _positive(spread / np.sqrt(counts))
