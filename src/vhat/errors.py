"""Every error and warning of the library, each a sentence that says what came and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vhat.evidence.audit import Audit
    from vhat.evidence.leave_one_out import LeaveOneOut
    from vhat.fit.score_curve import Curve
    from vhat.fitted.generalised_freedom import GeneralisedFreedom
    from vhat.methods.comparison import Comparison
    from vhat.variance.weighted_norm import WeightedNorm

__all__ = [
    "CalibrationWarning",
    "ConditioningWarning",
    "ConvergenceWarning",
    "CurvatureWarning",
    "EarlyStoppingWarning",
    "FixedParameterWarning",
    "InputError",
    "Interrupted",
    "LeverageWarning",
    "MemoryBudgetError",
    "MissingPackage",
    "ModelError",
    "NoiseError",
    "NoiseWarning",
    "NotConverged",
    "NotMinimumWarning",
    "NotPositiveDefinite",
    "PolishError",
    "SelectionWarning",
    "StoreError",
    "SupportWarning",
    "TableWarning",
    "VhatError",
    "VhatWarning",
    "calling_rows",
    "name_rows",
    "outside",
]


class VhatError(Exception):
    """The root of every error that vhat raises on purpose."""


class InputError(VhatError, ValueError):
    """Data, a shape or an option is not what the call can use."""


class ModelError(VhatError):
    """The model itself cannot be used: random, in training mode, not differentiable, mixing rows."""


class NotPositiveDefinite(VhatError):  # noqa: N818  (a state of the model, read as a sentence)
    """H + lam is indefinite or singular at these parameters."""


class NotConverged(VhatError):  # noqa: N818
    """An iteration stopped before its tolerance where no row could carry the status."""


class NoiseError(VhatError):
    """The noise level cannot be estimated from this fit."""


class MemoryBudgetError(VhatError, MemoryError):
    """The work would not fit into the memory budget."""


class MissingPackage(VhatError, ImportError):  # noqa: N818
    """A package that vhat does without until it is asked for this is not installed."""


class PolishError(VhatError):
    """No certified minimum could be reached from these parameters.

    Attributes:
        finding: What happened, without a full stop: a recipe that knows its model better has advice of its own.
        remedy: What to do about it, in sentences.
        record: The fitted model at the minimum, where that was reached and then refused because validation rows are
            predicted clearly worse there; else None.
    """

    def __init__(self, finding: str, remedy: str = "", record: Any = None) -> None:
        super().__init__(finding, remedy)
        self.finding = finding
        self.remedy = remedy
        self.record = record

    def __str__(self) -> str:
        return f"{self.finding}. {self.remedy}" if self.remedy else self.finding


class StoreError(VhatError):
    """A saved model cannot be written, cannot be read, or is not the one that was asked for."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came in the middle of long work; what is finished is kept.

    Attributes:
        record: The :class:`vhat.WeightedNorm` of all predictions that were asked for, the :class:`vhat.fit.Curve` of
            all weight decays (what was not finished has the status ``interrupted`` and no number), the
            :class:`vhat.Comparison` of what was compared, the :class:`vhat.LeaveOneOut` of all training rows, the
            :class:`vhat.Audit` of the lines that are finished, or the generalised degrees of freedom so far; None
            where a second call goes on and there is nothing to look at.
    """

    def __init__(
        self,
        message: str,
        record: WeightedNorm | Curve | Comparison | LeaveOneOut | Audit | GeneralisedFreedom | None,
    ) -> None:
        super().__init__(message, record)
        self.record = record

    def __str__(self) -> str:
        return str(self.args[0])


class VhatWarning(UserWarning):
    """The root of every warning of the library."""


class CurvatureWarning(VhatWarning):
    """The exact Hessian could not be used and Gauss-Newton took its place."""


class NotMinimumWarning(VhatWarning):
    """The parameters are not a minimum of the objective that was described."""


class EarlyStoppingWarning(VhatWarning):
    """A minimum predicts validation rows worse than the model that was stopped on the way to it."""


class ConditioningWarning(VhatWarning):
    """``H + lam`` is so close to singular that intervals rest on the decay in some direction."""


class ConvergenceWarning(VhatWarning):
    """Some rows did not converge; their numbers are NaN and their status says why."""


class CalibrationWarning(VhatWarning):
    """The calibration rows are not what the level of a calibrated interval rests on."""


class SelectionWarning(VhatWarning):
    """The best weight decay is an end of the grid: a better one may lie beyond."""


class LeverageWarning(VhatWarning):
    """Some rows decide their own prediction alone: there is no leave-one-out answer for them."""


class NoiseWarning(VhatWarning):
    """Nothing was said of how the noise varies over the rows, and the sample weights suggest that it does."""


class SupportWarning(VhatWarning):
    """Weight decay, and not the data, decides predictions: their error is bias, which no interval of V holds."""


class FixedParameterWarning(VhatWarning):
    """A number among the parameters is held fixed, because it is a whole number."""


class TableWarning(VhatWarning):
    """Something about a table of data limits what can be learned from it."""


class Labels(Protocol):
    """What the rows of a table are called."""

    @property
    def noun(self) -> str:
        """What a label counts, such as "row" or "line"."""

    @property
    def labels(self) -> Any:
        """One a row, in the order of the rows."""


_names: ContextVar[Labels | None] = ContextVar("names of rows", default=None)


@contextmanager
def calling_rows(names: Labels | None) -> Iterator[None]:
    """Let messages inside the block call rows by their names; None calls them by position."""
    before = _names.set(names)
    try:
        yield
    finally:
        _names.reset(before)


def name_rows(rows: Iterable[int], most: int = 8, *, noun: str = "row") -> str:
    """Name rows in a message without flooding it, by the names of their table inside :func:`calling_rows`.

    Args:
        rows: Row numbers, by position, counted from 0.
        most: How many are written out.
        noun: What they are called, in the singular. Only rows have names.

    Returns:
        For example ``"row 3"`` or ``"rows 1, 2, 5 and 40 more"``.

    Examples:
        >>> name_rows([3])
        'row 3'
        >>> name_rows(range(10), most=3)
        'rows 0, 1, 2 and 7 more'
    """
    rows = [int(row) for row in rows]
    labels: Sequence[Any] = rows
    names = _names.get()
    if noun == "row" and names is not None and all(row < len(names.labels) for row in rows):
        noun = names.noun
        labels = [names.labels[row] for row in rows]
    shown = ", ".join(str(label) for label in labels[:most])
    rest = f" and {len(rows) - most} more" if len(rows) > most else ""
    return f"{noun}{'s' if len(rows) != 1 else ''} {shown}{rest}"


def outside() -> int:
    """Return the ``stacklevel`` at which a warning points at the user's code rather than at the library."""
    level = 1
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("vhat", "contextlib"):
        frame = frame.f_back  # type: ignore[assignment]
        level += 1
    return level
