"""What a report is about, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vhat.checks import check_count, check_delta
from vhat.errors import InputError
from vhat.tables.row_names import RowNames

if TYPE_CHECKING:
    from vhat.fit import Curve
    from vhat.fitted.model import FittedModel
    from vhat.intervals.calibrate import Calibrated

__all__ = ["Options", "Subject"]


@dataclass(frozen=True)
class Subject:
    """A fitted model and what is known of how it came about.

    Attributes:
        fitted: The model.
        training: How it was fitted, as label and text, where something is known beyond the model itself.
        columns: The names of the columns, or None to take those that the model keeps.
        response: What y was called when the model was fitted, or None.
        curve: The scores of the weight decays that were tried, or None.
        score_unit: The unit of these scores.
        decay: A sentence on the weight decay, for where there is no curve.
        rows: What the training rows are called, or None to ask the training inputs.
        calibrated: What calibrates the intervals of a new response; None for those of the bound.
        not_calibrated: Why they are those of the bound, where an estimator would have calibrated them; else empty.
        sources: The column of the table that each column of the model comes from, where one is encoded as several; None
            where each is its own.
        readings: How each column of the table was read, as name, kind and text; nothing where it was numbers without
            gaps.
    """

    fitted: FittedModel
    training: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] | None = None
    response: str | None = None
    curve: Curve | None = field(default=None, repr=False)
    score_unit: str = "units of the response"
    decay: str = "The weight decay was given together with the model; no others were tried here."
    rows: RowNames | None = field(default=None, repr=False)
    calibrated: Calibrated | None = field(default=None, repr=False)
    not_calibrated: str = ""
    sources: tuple[str, ...] | None = None
    readings: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Options:
    """What is asked of a report.

    Attributes:
        delta: Probability of a miss of every interval on the page.
        held_out: ``(X, y)`` that training did not see, or None.
        response: What y is called, with its unit; or one name an output. By default what the fit called it, or the
            name of the held-out y, or y.
        noise: As in :meth:`vhat.FittedModel.interval`.
        max_unsupported: Predictions with more than this share of unsupported freedom are listed as abstained.
        refits: As in :meth:`vhat.FittedModel.audit`.
        seed: Seed of random probes, and of the choice of rows where there are too many to show.
        held_out_rows: What the held-out rows are called, or None to ask their inputs.
        advice: From the audit's advice, which names calls of Python, to what the reader of the page can type.

    Raises:
        InputError: For options that cannot be used.
    """

    delta: float = 0.05
    held_out: tuple[Any, Any] | None = None
    response: str | tuple[str, ...] | None = None
    noise: Any = None
    max_unsupported: float = 0.5
    refits: int = 0
    seed: int = 0
    held_out_rows: RowNames | None = field(default=None, repr=False)
    advice: Callable[[str], str] = field(default=str, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", check_delta(self.delta))
        check_count("refits", self.refits)
        check_count("seed", self.seed)
        if not isinstance(self.max_unsupported, int | float) or not 0 <= self.max_unsupported <= 1:
            raise InputError(f"max_unsupported={self.max_unsupported!r} is not a share between 0 and 1.")
        if self.held_out is not None and (not isinstance(self.held_out, tuple | list) or len(self.held_out) != 2):
            raise InputError("held_out must be a pair (X, y) of rows that training did not see.")

    def responses(self, outputs: int, called: str | None = None) -> tuple[str, ...]:
        """Return one name an output.

        Args:
            outputs: How many there are.
            called: What y was called when the model was fitted, if that is known.

        Raises:
            InputError: For another number of names than outputs.
        """
        if self.response is None:
            name = called or getattr(None if self.held_out is None else self.held_out[1], "name", None)
            names: tuple[str, ...] = ("y" if name is None else str(name),)
        else:
            names = (self.response,) if isinstance(self.response, str) else tuple(map(str, self.response))
        if len(names) == outputs:
            return names
        if len(names) == 1:
            return tuple(f"{names[0]}, output {k}" for k in range(outputs))
        raise InputError(f"response names {len(names)} outputs, {list(names)}; the model has {outputs}.")
