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

# The statuses of a lam; see the docstring of Curve.
CONVERGED = "converged"
NEARLY_SINGULAR = "nearly singular"
NOT_A_MINIMUM = "not a minimum"
ROUGH = "rough"
FAILED = "failed"
UNTRIED = "interrupted"


class Entry(NamedTuple):
    """One lam of a :class:`Curve`; the fields are described there."""

    score: float
    standard_error: float
    relative_gradient: float
    status: str
    remark: str


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """The scores of all lams of a grid. Arrays are (lams,), with lam ascending.

    Attributes:
        weight_decay: The grid.
        score: Mean score of the held-out rows, in units of y (squared for ``"mse"``); infinite if there is none, NaN if
            an interruption came first.
        standard_error: Standard error of that mean, as if the rows' scores were independent.
        relative_gradient: Relative gradient of the fit, without unit; the largest of several folds.
        status: ``"converged"``; ``"nearly singular"``: the data and this lam hardly determine some direction;
            ``"not a minimum"``; ``"rough"``: first-order leave-one-out may differ from refits; ``"failed"``: there is
            no score; ``"interrupted"``.
        remark: Why this lam failed, or the warnings of its fits.
        measure: Name of the score.
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
        """Index of the smallest score, of the largest lam among equal scores; None if no lam has a score."""
        usable = np.flatnonzero(np.isfinite(self.score))
        if not usable.size:
            return None
        smallest = usable[self.score[usable] == self.score[usable].min()]
        return int(smallest[-1])

    @property
    def edge(self) -> str:
        """A sentence that says that the best lam is at an end of the grid; empty if it is not."""
        if self.best == 0:
            end = "smallest"
            advice = "Extend the grid downwards."
        elif self.best == len(self) - 1:
            end = "largest"
            advice = "Extend the grid upwards, unless the inputs say nothing about y."
        else:
            return ""
        return (
            f"the best weight decay, {self.weight_decay[self.best]:.3g}, is the {end} of the grid, and the score may "
            f"fall further beyond it. {advice}"
        )

    @property
    def doubt(self) -> str:
        """A clause that says that the score of the best lam, or of the one below, is unreliable; else empty."""
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
        """Return one row per lam: weight_decay, score, standard_error, relative_gradient, status, remark, best."""
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
        lines += [f"{self.weight_decay[k]:.3g}: {self.remark[k]}" for k in range(len(self)) if self.remark[k]]
        if self.edge:
            lines.append(self.edge)
        return "\n".join(lines)


def assemble(grid: np.ndarray, entries: Sequence[Entry], measure: str) -> Curve:
    """Return the curve of the lams that have been tried; the rest of the grid has the status ``"interrupted"``."""
    missing = Entry(np.nan, np.nan, np.nan, UNTRIED, "")
    every = [*entries, *[missing] * (len(grid) - len(entries))]
    columns = {name: np.array([getattr(entry, name) for entry in every]) for name in Entry._fields}
    return Curve(weight_decay=grid, measure=measure, **columns)


def joined(low: Curve, high: Curve) -> Curve:
    """Return one curve from two parts of a grid, where the last lam of ``low`` is the first of ``high``.

    The better score of that lam is kept.
    """
    shared_of_low = (low, -1)
    shared_of_high = (high, 0)
    finite = [(curve, at) for curve, at in (shared_of_low, shared_of_high) if np.isfinite(curve.score[at])]
    kept, at = min(finite, key=lambda entry: float(entry[0].score[entry[1]]), default=shared_of_low)
    columns = {}
    for name in ("weight_decay", *Entry._fields):
        shared = np.atleast_1d(getattr(kept, name)[at])
        columns[name] = np.concatenate([getattr(low, name)[:-1], shared, getattr(high, name)[1:]])
    return Curve(measure=low.measure, **columns)
