"""The audit's line on outliers: are there rows that the noise cannot explain?

A row is judged by its externally studentised residual ``t = z sqrt((df - 1) / (df - z^2))``. The noise level without
the row has df - 1 degrees of freedom, and t has Student's distribution for a least-squares fit. A given noise level is
known, and z is then normal. The noise level of a linear model with decay is estimated from what no parameter explains,
on which a single residual has little influence: z itself is then compared with Student's distribution. The level is
divided by the number of rows (Bonferroni).

Several outliers mask each other by inflating the noise level. The worst row is therefore removed and the next one
judged without it, up to a twentieth of the rows. All rows up to the last one that is judged an outlier are outliers
(Rosner's generalised extreme Studentised deviate test).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from vhat.errors import name_rows
from vhat.evidence.audit.result import Line
from vhat.evidence.audit.standardised_residuals import NotTested, Residuals
from vhat.variance.noise import Noise

__all__ = ["outliers_line"]

_LEVEL = 0.01
"""False alarm rate of the line."""
_MOST = 0.05
"""Largest share of the rows that may be outliers. More of them are a distribution with heavy tails."""
_FEW = 5.0
"""Degrees of freedom of the noise below which single rows cannot be judged."""
NAN = float("nan")
_UNKNOWN = "whether noise explains every row"


def outliers_line(found: Residuals | NotTested, level: Noise | None, *, penalised: bool = False) -> Line:
    """Return the line.

    Args:
        found: The standardised residuals, or why there are none.
        level: The noise level.
        penalised: Whether the fit has weight decay.
    """
    if isinstance(found, NotTested):
        return found.line("outliers", _UNKNOWN)
    assert level is not None  # or there would be no residuals
    z = found.everywhere
    outputs = z.shape[1]
    tested = int(np.sum(np.any(np.isfinite(z), axis=1)))
    if not found.left_out and level.df is not None:  # their own size was taken as the noise
        df = np.full(outputs, tested - 1.0)
    else:
        df = np.full(outputs, np.inf) if level.df is None else level.df
    if not tested or np.min(df) < _FEW:
        few = NotTested("too few degrees of freedom are left to judge single rows by.")
        return few.line("outliers", _UNKNOWN)
    apart = penalised and level.independent
    judged = [_judge(z[:, k], float(df[k]), _LEVEL / outputs, apart=apart) for k in range(outputs)]
    worst = max(judged, key=lambda each: each.value / each.threshold)
    meaning = f"largest studentised residual of {tested:,} rows"
    rows = np.unique(np.concatenate([each.rows for each in judged]))
    if not rows.size:
        return Line(
            "outliers", worst.value, worst.threshold, "holds", "No row is further off than chance explains.", meaning
        )
    sizes = np.nanmax(np.abs(z[rows]), axis=1)
    noun = "validation row" if found.validation else "row"
    named = name_rows(rows, noun=noun)
    first = ""
    if rows.size > 1 and not found.validation:
        first = f"Begin with {name_rows([rows[sizes.argmax()]])}: it may have drawn the fit away from the others. "
    remedy = (
        f"Noise of this level does not explain {named}: up to {sizes.max():.3g} noise levels from the "
        f"prediction. {first}Correct or leave out what is wrong. If nothing is, the noise has heavy tails: intervals "
        "of a new response from fitted.calibrate(...) allow for them, others do not."
    )
    return Line("outliers", worst.value, worst.threshold, "fails", remedy, meaning)


@dataclass(frozen=True)
class _Judged:
    """Outcome of the test of one output.

    Attributes:
        value: The absolute studentised residual that is largest against its threshold.
        threshold: Its threshold.
        rows: The rows that are outliers.
    """

    value: float
    threshold: float
    rows: np.ndarray


def _judge(z: np.ndarray, df: float, level: float, *, apart: bool = False) -> _Judged:
    """Judge the rows of one output, the furthest first, each without those before it.

    Args:
        z: Standardised residuals, (n,); NaN for rows that are not judged.
        df: Degrees of freedom of the noise level; infinite where it is known.
        level: False alarm rate over all rows.
        apart: Whether a single residual has little influence on the noise level.
    """
    known = np.flatnonzero(np.isfinite(z))
    order = known[np.argsort(-np.abs(z[known]), kind="stable")]
    candidates = max(1, int(_MOST * len(known)))
    most = (-1.0, 0.0, NAN)  # the largest t over its limit, with t and the limit
    last = 0
    removed = 0.0  # sum of squares of the rows before this one
    for i, row in enumerate(order[:candidates]):
        if apart:
            t = abs(float(z[row]))
            limit = float(stats.t.isf(level / (2 * (len(known) - i)), df))
            most = max(most, (t / limit, t, limit))
            if t > limit:
                last = i + 1
            continue
        left = df - i - 1  # degrees of freedom of the noise level without this row
        if left < _FEW - 1 or removed >= df:
            break
        # Noise variance without the rows before this one, as a share of the estimate with all rows.
        variance = (df - removed) / (df - i) if np.isfinite(df) else 1.0
        t = _studentised(z[row], df - i, variance)
        limit = float(stats.t.isf(level / (2 * (len(known) - i)), left))
        most = max(most, (t / limit, t, limit))
        if t > limit:
            last = i + 1
        removed += float(z[row]) ** 2
    return _Judged(most[1], most[2], order[:last])


def _studentised(z: float, df: float, variance: float) -> float:
    """Return the absolute residual in units of the noise level without its row.

    Args:
        z: The residual in units of the noise level of all rows.
        df: Degrees of freedom of the noise level with this row.
        variance: Noise variance with this row, and without those removed before, in the same units.
    """
    square = float(z) ** 2 / variance
    if not np.isfinite(df):
        return float(np.sqrt(square))
    return float(np.sqrt(square * (df - 1) / max(df - square, np.finfo(float).eps * df)))
