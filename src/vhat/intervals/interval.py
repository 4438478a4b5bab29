"""Confidence intervals with their inputs, their options and their guarantee."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import as_numbers
from vhat.errors import InputError
from vhat.intervals.aligned_numbers import align_columns, decimals_of
from vhat.intervals.estimated_tail import EstimatedTail
from vhat.intervals.guarantee import headline
from vhat.intervals.tail import Tail
from vhat.level import level_text
from vhat.linalg.solvers import Status
from vhat.tables.frames import in_library
from vhat.variance.weighted_norm import hardly_supported, shown_share

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["Interval"]

_SHOWN = 6
"""Rows of a printed interval."""
_HALF_WIDTH_DIGITS = 3
"""Digits of the half width to which the limits are printed."""
_DIGITS = 4
"""Digits of a standard error, and of the center of a row that has no width."""


@dataclass(frozen=True, repr=False)
class Interval:
    """A confidence interval for each prediction. Arrays are (points,), (points, outputs), or () for one functional.

    Attributes:
        center: The prediction.
        lower: Lower limit; NaN where the solve failed.
        upper: Upper limit.
        half_width: Half the width.
        standard_error: ``sigma sqrt(V/n)``, the first-order standard deviation of the prediction over the noise.
        weighted_norm: V, without unit.
        unsupported: Share of the prediction's freedom that no training row pins down (0: all data, 1: none). Below 0
            where the residuals' curvature softens the minimum, which makes the interval wider and is not "more than
            all data" (see :class:`vhat.WeightedNorm`). Printed tables show it between 0 and 1. Of a linearised model it
            is the share at which the ridge penalty keeps the refit at the model's own prediction, which is no bias: it
            is to be compared with ``usual_unsupported``.
        noise: The noise level sigma that was used: a number, or one an output.
        noise_source: Where it came from.
        df: Residual degrees of freedom when the noise was estimated, else None.
        status: How each solve ended.
        delta: Probability of a miss; NaN where the method has no level that it could state.
        bound: The bound's name.
        tail: The tail of V: assumed, supplied or estimated, ``"constant"`` or ``"any"``; None where it was neglected.
        target: ``"mean"`` or ``"observation"``.
        curvature: ``"hessian"`` or ``"ggn"``, one and the same matrix for a linearised model; empty for a method that
            rests on neither (:mod:`vhat.methods`).
        solver: The solver's name, likewise.
        guarantee: What is claimed, what to beware of, what was checked, what was assumed: one sentence. Printing the
            interval shows its beginning.
        observation_noise: Standard deviation of a new response at each point, where the target is one; else None.
        usual_unsupported: Of a linearised model, ``unsupported`` at its training rows on average, ``1 - tr(SS)/tr S``;
            0 of another, and where it would be expensive.
        linearised: Whether the interval is that of a linearised model.
        inputs: The points asked about, where they were a single array.
        index: The index of the data frame of points, where they were one.
        undetermined: The share of the fit's own freedom that weight decay takes from the data, where that is more than
            half: no prediction of such a fit is to be relied on. Else None.
    """

    center: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    half_width: np.ndarray
    standard_error: np.ndarray
    weighted_norm: np.ndarray
    unsupported: np.ndarray
    noise: float | np.ndarray
    noise_source: str
    df: float | np.ndarray | None
    status: np.ndarray
    delta: float
    bound: str
    tail: Tail | EstimatedTail | str | None
    target: str
    curvature: str
    solver: str
    guarantee: str
    inputs: np.ndarray | None = field(default=None, repr=False)
    index: pd.Index | None = field(default=None, repr=False)
    undetermined: float | None = None
    observation_noise: np.ndarray | None = field(default=None, repr=False)
    usual_unsupported: float = 0.0
    linearised: bool = False

    def __len__(self) -> int:
        return 1 if self.center.ndim == 0 else len(self.center)

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with one row per prediction.

        Columns: center, lower, upper, half_width, standard_error, weighted_norm, unsupported, status.

        The index is that of the points, where they were a data frame; with several outputs it is (point, output).
        """
        import pandas as pd

        names = (
            "center",
            "lower",
            "upper",
            "half_width",
            "standard_error",
            "weighted_norm",
            "unsupported",
            "status",
        )
        frame = pd.DataFrame({name: np.ravel(getattr(self, name)) for name in names})
        points = pd.RangeIndex(len(self), name="point") if self.index is None else self.index
        if self.center.ndim == 2:
            outputs = range(self.center.shape[1])
            levels = [points.get_level_values(k).repeat(len(outputs)) for k in range(points.nlevels)]
            called = [name or "point" for name in points.names] if points.nlevels == 1 else list(points.names)
            frame.index = pd.MultiIndex.from_arrays([*levels, np.tile(outputs, len(self))], names=[*called, "output"])
        elif self.index is not None:
            frame.index = points
        return frame

    def to_polars(self) -> Any:
        """Return the rows of :meth:`to_pandas` as a data frame of polars; an index becomes columns."""
        return in_library("polars", self._flat())

    def to_arrow(self) -> Any:
        """Return the rows of :meth:`to_pandas` as a table of Arrow; an index becomes columns."""
        return in_library("pyarrow", self._flat())

    def _flat(self) -> pd.DataFrame:
        frame = self.to_pandas()
        return frame if self.index is None and self.center.ndim < 2 else frame.reset_index()

    def abstain(self, *, max_half_width: Any = None, max_unsupported: Any = None) -> np.ndarray:
        """Return where predictions should not be relied on.

        A point is abstained from when its solve failed or its limits are NaN, whatever else is asked; when its interval
        is wider than ``max_half_width``; and when more than ``max_unsupported`` of its freedom is outside the data,
        where a narrow interval means nothing, or the residuals' curvature leaves next to nothing of what the data hold
        (``unsupported`` below -4). Values of ``unsupported`` between -4 and 0 are no reason to abstain.

        Of a linearised model a large ``unsupported`` is usual, also at training rows, because the ridge penalty keeps
        its refit at the model's own prediction. There ``max_unsupported`` counts from what is usual: 0.5 abstains where
        the training data say less than half as much as they do of training rows.

        Args:
            max_half_width: In the unit of the prediction: a number, or an array that broadcasts to the interval (with
                several outputs, one an output). None asks nothing.
            max_unsupported: A share, such as 0.5; 1 and above asks nothing. None asks nothing.

        Returns:
            A boolean array of the shape of ``center``, True where not to rely: ``x[~band.abstain(...)]`` are the rest.

        Raises:
            InputError: For a threshold that is NaN, negative, or of a shape that does not fit; for ``max_unsupported``
                where the method that made the interval has no such notion.
        """
        converged = self.status == Status.CONVERGED
        if max_unsupported is not None and np.any(converged & np.isnan(self.unsupported)):
            raise InputError(f"{self.bound} knows nothing of what is unsupported: leave max_unsupported=None.")
        doubtful = ~converged | np.isnan(self.half_width)
        if max_half_width is not None:
            doubtful = doubtful | ~(self.half_width <= self._threshold("max_half_width", max_half_width))
        if max_unsupported is not None:
            most = self._threshold("max_unsupported", max_unsupported)
            doubtful = doubtful | hardly_supported(self.unsupported, most, self.usual_unsupported)
        return np.asarray(doubtful)

    def _threshold(self, name: str, value: Any) -> np.ndarray:
        """Spread a threshold over the interval."""
        most = as_numbers(name, value)
        if not np.all(most >= 0):
            raise InputError(f"{name}={value!r} must not be NaN or negative.")
        try:
            return np.broadcast_to(most, self.center.shape)
        except ValueError:
            raise InputError(f"{name} has shape {most.shape}; the interval has shape {self.center.shape}.") from None

    def plot(self, x: Any = None, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the band over its single input; see :func:`vhat.plot.band` for the options."""
        from vhat import plot

        x = self.inputs if x is None else x
        if x is None:
            raise InputError("this interval does not belong to points of one array; give x to plot it against.")
        return plot.band(self, x, ax, **{"label": self._label(), **options})

    def _label(self) -> str:
        """Return the text of a legend."""
        level = "interval" if np.isnan(self.delta) else f"{level_text(self.delta)} interval"
        of = "a new response" if self.target == "observation" else "the mean"
        together = ", all points at once" if "points at once" in self.guarantee.split(";")[0] else ""
        return f"{level} of {of}{together}"

    def __repr__(self) -> str:
        good = int(np.sum(self.status == Status.CONVERGED))
        noise = np.array2string(np.asarray(self.noise), precision=4)
        # The Hessian of a linearisation is its Gauss-Newton matrix: neither name would say more than the other.
        curvature = "exact (linearised)" if self.linearised else self.curvature
        parts = ((curvature, "curvature"), (self.solver, "solver"))  # empty where a method has none
        how = [f"{name} {kind}" for name, kind in parts if name]
        count = f"{self.center.size} value{'s' if self.center.size != 1 else ''}"
        level = "no stated level" if np.isnan(self.delta) else f"{level_text(self.delta)} confidence"
        head = [
            f"Interval: {count}, {level}, target {self.target}, bound {self.bound}",
            ", ".join([f"noise {noise} ({self.noise_source})", *how, f"{good} of {self.center.size} converged"]),
        ]
        said = headline(self.guarantee)
        full = [] if said == self.guarantee else ["In full: .guarantee"]
        return "\n".join([*head, *self._table(), *self._usual(), said, *full])

    def _usual(self) -> list[str]:
        """Return a line on how to read the column unsupported of a linearised model."""
        if self.usual_unsupported == 0.0:
            return []
        if np.isnan(self.usual_unsupported):
            return [
                "unsupported is the share at which the ridge penalty keeps a refit at the model's own prediction; what "
                "is usual at training rows could not be computed"
            ]
        return [
            f"unsupported is the share at which the ridge penalty keeps a refit at the model's own prediction: "
            f"{self.usual_unsupported:.2f} is usual at training rows"
        ]

    def _table(self) -> list[str]:
        """Return the first values as lines of text, with the digits that their half widths leave meaningful."""
        shown = min(_SHOWN, self.center.size)

        def first(values: np.ndarray) -> np.ndarray:
            return np.ravel(values)[:shown]

        center, lower, upper = first(self.center), first(self.lower), first(self.upper)
        half = first(self.half_width)
        error = first(self.standard_error)
        share = first(shown_share(self.unsupported))
        status = first(self.status)

        # A row without a width shows the digits of its center.
        has_width = np.isfinite(half) & (half > 0)
        decimals = np.where(has_width, decimals_of(half, _HALF_WIDTH_DIGITS), decimals_of(center, _DIGITS))
        limits = align_columns([center, lower, upper], decimals)
        (errors,) = align_columns([error], decimals_of(error, _DIGITS))
        wide = max(12, 2 + max((len(text) for column in limits for text in column), default=0))
        error_wide = max(12, 2 + max(map(len, errors), default=0))
        names = "".join(f"{name:>{wide}}" for name in ("center", "lower", "upper"))
        lines = [f"{names}{'std. error':>{error_wide}}{'unsupported':>13}  status"]
        for row in range(shown):
            numbers = "".join(f"{column[row]:>{wide}}" for column in limits)
            lines.append(f"{numbers}{errors[row]:>{error_wide}}{share[row]:>13.3f}  {status[row]}")
        more = self.center.size - shown
        if more:
            lines.append(f"{'...':>{wide}}  ({more} more)")
        return lines
