"""Held-out scores over a grid of weight decays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = [
    "CONVERGED",
    "FAILED",
    "NEARLY_SINGULAR",
    "NOT_A_MINIMUM",
    "ROUGH",
    "UNTRIED",
    "Curve",
    "Entry",
    "assemble",
    "joined",
]

CONVERGED, NEARLY_SINGULAR, NOT_A_MINIMUM = "converged", "nearly singular", "not a minimum"
FAILED, ROUGH, UNTRIED = "failed", "rough", "interrupted"


class Entry(NamedTuple):
    """One lam of a :class:`Curve`."""

    score: float
    standard_error: float
    relative_gradient: float
    status: str
    remark: str


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """What each lam scored. Arrays are (lams,), lam rising.

    Attributes:
        weight_decay: The grid.
        score: Mean score of the held-out rows, in units of y (squared for ``"mse"``); infinite where there is none,
            NaN for what an interruption left open.
        standard_error: Of that mean, from the spread of the rows' scores as if they were independent.
        relative_gradient: How far the fit is from stationary, without unit (the worst of several folds).
        status: ``"converged"``; ``"nearly singular"``, where the data and this lam hardly determine some direction;
            ``"not a minimum"``; ``"rough"``, where leaving rows out to first order does not tell what refits would;
            ``"failed"``, with no score; ``"interrupted"``.
        remark: What there is to say about this lam: why it failed, what its fits warned of.
        measure: What the score is.
    """

    weight_decay: np.ndarray
    score: np.ndarray
    standard_error: np.ndarray
    relative_gradient: np.ndarray
    status: np.ndarray
    remark: np.ndarray
    measure: str

    def __len__(self) -> int:
        return len(self.weight_decay)

    @property
    def best(self) -> int | None:
        """The index of the smallest score, of the larger lam where two are equal; None where no lam has one."""
        usable = np.flatnonzero(np.isfinite(self.score))
        return None if not usable.size else int(usable[self.score[usable] == self.score[usable].min()][-1])

    @property
    def edge(self) -> str:
        """A sentence where the best lam is an end of the grid, so that the best of all may lie beyond; else empty."""
        if self.best == 0:
            end, way, hint = "smallest", "down", ""
        elif self.best == len(self) - 1:
            end, way, hint = "largest", "up", ", unless the inputs say nothing about y"
        else:
            return ""
        return (
            f"the best weight decay, {self.weight_decay[self.best]:.3g}, is the {end} of the grid, and the score may "
            f"fall further beyond it. Extend the grid {way}wards{hint}."
        )

    @property
    def doubt(self) -> str:
        """A clause where the best lam, or the one below it, has no score that could be relied on; else empty."""
        best = self.best
        if best is None:
            return ""
        if self.status[best] == ROUGH:
            return f"the score of the best weight decay, {self.weight_decay[best]:.3g}, is rough: {self.remark[best]}"
        if best and self.status[best - 1] in (FAILED, ROUGH):
            what = "has no score" if self.status[best - 1] == FAILED else "has a rough score"
            return (
                f"less than the best weight decay, {self.weight_decay[best]:.3g}, may be better still: the next one "
                f"below, {self.weight_decay[best - 1]:.3g}, {what}: {self.remark[best - 1]}"
            )
        return ""

    def to_pandas(self) -> pd.DataFrame:
        """Return one row a lam: weight_decay, score, standard_error, relative_gradient, status, remark, best."""
        import pandas as pd

        names = ("weight_decay", "score", "standard_error", "relative_gradient", "status", "remark")
        frame = pd.DataFrame({name: getattr(self, name) for name in names})
        return frame.assign(best=np.arange(len(self)) == self.best)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the scores over lam; see :func:`vhat.plot.decay_curve`."""
        from vhat import plot

        return plot.decay_curve(self, ax)

    def __repr__(self) -> str:
        lines = [self.measure, f"{'weight_decay':>14}{'score':>12}{'std. error':>12}{'gradient':>11}  status"]
        for k in range(len(self)):
            numbers = f"{self.weight_decay[k]:>14.3g}{self.score[k]:>12.4g}{self.standard_error[k]:>12.2g}"
            mark = "  <- best" if k == self.best else ""
            lines.append(f"{numbers}{self.relative_gradient[k]:>11.1e}  {self.status[k]}{mark}")
        told = [f"{self.weight_decay[k]:.3g}: {self.remark[k]}" for k in range(len(self)) if self.remark[k]]
        return "\n".join([*lines, *told, *filter(None, [self.edge])])


def assemble(grid: np.ndarray, entries: Sequence[Entry], measure: str) -> Curve:
    """Return the curve of the lams that have been tried; the rest of the grid is ``interrupted``."""
    missing = Entry(np.nan, np.nan, np.nan, UNTRIED, "")
    every = [*entries, *[missing] * (len(grid) - len(entries))]
    columns = {name: np.array([getattr(entry, name) for entry in every]) for name in Entry._fields}
    return Curve(weight_decay=grid, measure=measure, **columns)


def joined(low: Curve, high: Curve) -> Curve:
    """Return one curve of two parts of a grid that meet in one lam, of which the better score counts."""
    columns = ("weight_decay", *Entry._fields)
    ends = [(curve, at) for curve, at in ((low, -1), (high, 0)) if np.isfinite(curve.score[at])]
    meets, at = min(ends, key=lambda end: float(end[0].score[end[1]]), default=(low, -1))
    parts = {
        name: np.concatenate(
            [getattr(low, name)[:-1], np.atleast_1d(getattr(meets, name)[at]), getattr(high, name)[1:]]
        )
        for name in columns
    }
    return Curve(measure=low.measure, **parts)
