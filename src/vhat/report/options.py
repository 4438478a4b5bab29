"""The subject of a report, and its options."""

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
    """A fitted model and the facts known about its training.

    Attributes:
        fitted: The model.
        training: Facts on the training beyond the model itself, as label and text.
        columns: The names of the columns; None for those that the model keeps.
        response: The name of y when the model was fitted, or None.
        curve: The scores of the weight decays that were tried, or None.
        score_unit: The unit of these scores.
        decay: A sentence on the weight decay, for a model without a curve.
        rows: The names of the training rows; None for those of the training inputs.
        calibrated: The calibration of the intervals of a new response; None for intervals by a bound.
        not_calibrated: Why an estimator did not calibrate its intervals; otherwise empty.
        sources: The column of the table from which each column of the model was made; None if each is a column of the
            table itself.
        readings: How each column of the table was read, as name, kind and text; empty for numbers without gaps.
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
    """Options of a report.

    Attributes:
        delta: Probability of a miss, for every interval on the page.
        held_out: ``(X, y)``, rows that were not used in training, or None.
        response: The name of y, with its unit; or one name per output. By default the name of y in the fit, or of the
            held-out y, or ``"y"``.
        noise: As in :meth:`vhat.FittedModel.interval`.
        max_unsupported: Predictions with a larger unsupported share are listed as abstentions.
        refits: As in :meth:`vhat.FittedModel.audit`.
        seed: Seed of random probes, and of the choice of rows if there are too many to show.
        held_out_rows: The names of the held-out rows; None for those of their inputs.
        advice: Function that translates the advice of the audit, which names Python calls, for the reader of the page.

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
        """Return one name per output.

        Args:
            outputs: The number of outputs.
            called: The name of y when the model was fitted, if it is known.

        Raises:
            InputError: If there are not as many names as outputs.
        """
        if self.response is None:
            name = called or None
            if name is None and self.held_out is not None:
                name = getattr(self.held_out[1], "name", None)
            names: tuple[str, ...] = ("y" if name is None else str(name),)
        elif isinstance(self.response, str):
            names = (self.response,)
        else:
            names = tuple(map(str, self.response))
        if len(names) == outputs:
            return names
        if len(names) == 1:
            return tuple(f"{names[0]}, output {k}" for k in range(outputs))
        raise InputError(f"response names {len(names)} outputs, {list(names)}; the model has {outputs}.")
