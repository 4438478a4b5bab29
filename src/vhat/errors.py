"""The errors and warnings of the library. Each message states what was wrong and what to do."""

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
    """Base class of all errors that vhat raises on purpose."""


class InputError(VhatError, ValueError):
    """Data, a shape or an option cannot be used by the call."""


class ModelError(VhatError):
    """The model cannot be used: it is random, in training mode, not differentiable, or mixes rows."""


class NotPositiveDefinite(VhatError):  # noqa: N818  (a state of the model, read as a sentence)
    """H + lam is indefinite or singular at these parameters."""


class NotConverged(VhatError):  # noqa: N818
    """An iteration stopped before its tolerance, in a step whose result has no status per row."""


class NoiseError(VhatError):
    """The noise level cannot be estimated from this fit."""


class MemoryBudgetError(VhatError, MemoryError):
    """The work does not fit into the memory budget."""


class MissingPackage(VhatError, ImportError):  # noqa: N818
    """An optional package that this call needs is not installed."""


class PolishError(VhatError):
    """No certified minimum could be reached from these parameters.

    Attributes:
        finding: What happened, without a full stop, so that a recipe can add advice of its own.
        remedy: What to do about it, in sentences.
        record: The fitted model at the minimum, if it was reached and then refused because it predicts validation rows
            clearly worse; else None.
    """

    def __init__(self, finding: str, remedy: str = "", record: Any = None) -> None:
        super().__init__(finding, remedy)
        self.finding = finding
        self.remedy = remedy
        self.record = record

    def __str__(self) -> str:
        return f"{self.finding}. {self.remedy}" if self.remedy else self.finding


class StoreError(VhatError):
    """A saved model cannot be written or read, or is not the requested one."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during long work; carries the results that are finished.

    Attributes:
        record: The finished part of the result: a :class:`vhat.WeightedNorm` of all predictions or a
            :class:`vhat.fit.Curve` of all weight decays (entries that are not finished have the status ``interrupted``
            and no number), a :class:`vhat.Comparison`, a :class:`vhat.LeaveOneOut` of all training rows, a
            :class:`vhat.Audit` of the finished lines, or the generalised degrees of freedom so far. None if a second
            call continues the work and there is no partial result.
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
    """Base class of all warnings of the library."""


class CurvatureWarning(VhatWarning):
    """The exact Hessian could not be used, and Gauss-Newton replaces it."""


class NotMinimumWarning(VhatWarning):
    """The parameters are not a minimum of the given objective."""


class EarlyStoppingWarning(VhatWarning):
    """A minimum predicts validation rows worse than the model that was stopped before reaching it."""


class ConditioningWarning(VhatWarning):
    """``H + lam`` is so close to singular that intervals depend on the decay in some direction."""


class ConvergenceWarning(VhatWarning):
    """Some rows did not converge; their numbers are NaN and their status is the reason."""


class CalibrationWarning(VhatWarning):
    """The calibration rows do not meet the assumptions of a calibrated interval's level."""


class SelectionWarning(VhatWarning):
    """The best weight decay is at an end of the grid; a better one may be outside of it."""


class LeverageWarning(VhatWarning):
    """Some rows determine their own prediction alone: first-order leave-one-out is undefined for them."""


class NoiseWarning(VhatWarning):
    """The variation of the noise over the rows was not given, and the sample weights suggest that it varies."""


class SupportWarning(VhatWarning):
    """Weight decay rather than the data determines predictions: their error is bias, which V does not contain."""


class FixedParameterWarning(VhatWarning):
    """A number among the parameters is held fixed, because it is an integer."""


class TableWarning(VhatWarning):
    """A property of a data table limits what can be learned from it."""


class Labels(Protocol):
    """Labels of the rows of a table."""

    @property
    def noun(self) -> str:
        """The word for one row, such as "row" or "line"."""

    @property
    def labels(self) -> Any:
        """One label per row, in the order of the rows."""


_names: ContextVar[Labels | None] = ContextVar("names of rows", default=None)


@contextmanager
def calling_rows(names: Labels | None) -> Iterator[None]:
    """Context manager in which messages name rows by their labels; None for their positions."""
    before = _names.set(names)
    try:
        yield
    finally:
        _names.reset(before)


def name_rows(rows: Iterable[int], most: int = 8, *, noun: str = "row") -> str:
    """Return a short list of rows for a message, by their labels inside :func:`calling_rows`.

    Args:
        rows: Row numbers, by position, counted from 0.
        most: Largest number of rows that are written out.
        noun: The word for one of them, in the singular. Only rows have labels.

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
    """Return the ``stacklevel`` with which a warning points at the user's code rather than at the library."""
    level = 1
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("vhat", "contextlib"):
        frame = frame.f_back  # type: ignore[assignment]
        level += 1
    return level
