"""Intervals of one method on one split, and what they are worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

DELTA = 0.1
Z = float(stats.norm.isf(DELTA / 2))
SIDES = ("inside", "outside")


@dataclass(frozen=True)
class Band:
    """Intervals at the test rows, of one network or several.

    Attributes:
        center: Middle of each interval, (networks, rows).
        half: Half of each width, (networks, rows).
        seconds: CPU seconds of one network's intervals, beyond the training of one network.
        note: Anything that a reader should know of this split.
    """

    center: np.ndarray
    half: np.ndarray
    seconds: float
    note: str = ""


def worth(band: Band, y: np.ndarray, shifted: np.ndarray, matched: np.ndarray) -> dict[str, object]:
    """Return what a method's intervals are worth on either side, means over rows and networks.

    Args:
        band: The intervals.
        y: Responses of the test rows, (rows,).
        shifted: Which test rows are outside, (rows,).
        matched: Mean half-width of split conformal on each side, of each network, (2, networks): for ``matched`` the
            widths of a side are scaled to it, for ``matched overall`` those of both by one number, both sides
            counting alike.
    """
    found: dict[str, object] = {"seconds": band.seconds}
    if band.note:
        found["note"] = band.note
    sides = (~shifted, shifted)
    error = np.abs(y - band.center)
    own = np.stack([band.half[:, rows].mean(axis=1) for rows in sides])
    target = matched if matched.shape == own.shape else matched.mean(axis=1, keepdims=True)
    # A relative 1e-9 keeps widths that are equal already from losing a row to rounding.
    factors = target / own * (1 + 1e-9)
    overall = target.mean(axis=0) / own.mean(axis=0) * (1 + 1e-9)
    for side, rows, factor in zip(SIDES, sides, factors, strict=True):
        e, half = error[:, rows], band.half[:, rows]
        found[side] = {
            "coverage": float(np.mean(e <= half)),
            "width": float(np.mean(2 * half)),
            "winkler": float(np.mean(2 * half + 2 / DELTA * np.maximum(e - half, 0.0))),
            "matched": float(np.mean(e <= half * factor[:, None])),
            "matched overall": float(np.mean(e <= half * overall[:, None])),
            "rmse": float(np.sqrt(np.mean(e**2))),
        }
    return found


def conformal_quantile(scores: np.ndarray) -> np.ndarray:
    """Return the ``ceil((1 - delta)(m + 1))``-th smallest score along the last axis, (..., 1)."""
    m = scores.shape[-1]
    rank = int(np.ceil((1 - DELTA) * (m + 1)))
    if rank > m:
        raise ValueError(f"{m} calibration rows are too few")
    return np.sort(scores, axis=-1)[..., rank - 1 : rank]


def profiled(errors: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-likelihood of errors of variance ``sigma^2 (1 + share)``, sigma profiled, and sigma.

    Both arrays are (..., rows); the results are (...). The rule by which every tuned method here is tuned.
    """
    spread = 1.0 + share
    variance = np.mean(errors**2 / spread, axis=-1)
    likelihood = -0.5 * (np.sum(np.log(spread), axis=-1) + errors.shape[-1] * np.log(variance))
    return likelihood, np.sqrt(variance)


FACTORS = np.concatenate([[0.0], np.logspace(-3, 4, 29)])
"""Factors that are tried on a squared signal that has been divided by its mean: none, and four a decade."""


def tuned_spread(errors: np.ndarray, signal: np.ndarray, at: list[np.ndarray]) -> list[np.ndarray]:
    """Return ``sqrt(1 + b signal^2)`` at other rows, b the factor under which validation errors are most likely.

    Args:
        errors: Of validation rows.
        signal: There, not negative: a distance, or the spread of an ensemble.
        at: The signal at other rows.
    """
    unit = np.mean(signal**2)
    if not unit > 0:
        return [np.ones_like(values) for values in at]
    likelihood = [profiled(errors, b * signal**2 / unit)[0] for b in FACTORS]
    b = FACTORS[int(np.argmax(likelihood))] / unit
    return [np.sqrt(1.0 + b * values**2) for values in at]
