"""Tests of all groups of a column together, and of all columns together.

Every group has a standardised deviation. The sum of their squares over a column is an F statistic, which detects a
trend that no single group shows. Its tail probability makes columns with different numbers of groups comparable. The
smallest probability of all columns is compared with that of redraws. This replaces Bonferroni's correction, loses no
power where columns are correlated, and holds for small groups, whose statistics have no exact F distribution.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from vhat.evidence.audit.row_groups import Groups
from vhat.evidence.audit.standardised_residuals import critical

__all__ = ["just_significant", "worst_group"]

_NOTHING = 1e-30
"""Share of the significant sum of squares below which there is no deviation at all."""


def just_significant(
    groups: Groups, deviations: np.ndarray, redrawn: np.ndarray, level: float, *, lost: int
) -> np.ndarray:
    """Return the factor by which the deviations of a group's column would be just significant; below 1 they are.

    Args:
        groups: The groups.
        deviations: Standardised deviation of each group, (groups, K).
        redrawn: The same of each redraw, (groups, K, REDRAWS).
        level: False alarm rate over all columns and outputs.
        lost: Number of groups of a column less the degrees of freedom of their deviations.

    Returns:
        (groups, K).
    """
    concerned = groups.concerns(deviations.shape[1])
    number = np.bincount(groups.column)
    numerator = (number - lost)[:, None]
    denominator = (np.bincount(groups.column, groups.counts) - number)[:, None]
    found = _sums(groups, np.where(concerned, deviations**2, 0.0))
    drawn = _sums(groups, np.where(concerned[:, :, None], redrawn**2, 0.0))
    rarity = -np.asarray(stats.f.logsf(drawn / numerator[:, :, None], numerator[:, :, None], denominator[:, :, None]))
    limit = critical(rarity.max(axis=(0, 1)), level)
    most = stats.f.isf(np.exp(-limit), numerator, denominator) * numerator
    if not np.all(np.isfinite(most)):
        # Where the errors of rows have most of their noise in common, the probabilities of the redraws underflow.
        # Their statistics do not.
        most = critical((drawn / numerator[:, :, None]).max(axis=(0, 1)), level) * numerator
    factor: np.ndarray = np.sqrt(most / np.maximum(found, _NOTHING * most))[groups.column]
    return factor


def worst_group(
    groups: Groups, sizes: np.ndarray, factor: np.ndarray, trifle: float, prefer: np.ndarray | None = None
) -> tuple[int, int, float]:
    """Return the group that is furthest beyond its threshold, its output and the threshold.

    Args:
        groups: The groups.
        sizes: Size of each group's deviation, (groups, K).
        factor: From :func:`just_significant`.
        trifle: Size that is tolerated however significant it is.
        prefer: Groups that are named before others of the same column, if they exceed the threshold, (groups, K).
    """
    concerned = groups.concerns(sizes.shape[1])
    thresholds = np.maximum(trifle, sizes * factor)
    best: tuple[float, int, int] = (-1.0, 0, 0)
    for column in np.unique(groups.column):
        mine = np.flatnonzero(groups.column == column)
        for k in np.flatnonzero(concerned[mine[0]]):
            order = sizes[mine, k]
            if prefer is not None:
                # a preferred group comes first if it is beyond the threshold itself
                order = order + np.where(prefer[mine, k] & (sizes[mine, k] > thresholds[mine, k]), np.inf, 0.0)
            g = int(mine[np.argmax(order)])
            excess = float(np.max(sizes[mine, k] / thresholds[mine, k]))
            if excess > best[0]:
                best = (excess, g, int(k))
    return best[1], best[2], float(thresholds[best[1], best[2]])


def _sums(groups: Groups, values: np.ndarray) -> np.ndarray:
    """Return sums over the groups of each column, (columns, ...)."""
    sums = np.zeros((int(groups.column.max()) + 1, *values.shape[1:]))
    np.add.at(sums, groups.column, values)
    return sums
