"""Detection of changes to a module after it was given, by predicting a few rows again.

Parameters and buffers are copied when a module is given, so that further training has no effect. Plain attributes, the
classes of submodules and the code of ``forward`` are not copied: ``module.scale = 3.0`` or ``module.act = nn.Tanh()``
changes the function whose intervals are computed. Therefore a few predictions are kept and compared with new ones at
the beginning of each call that computes an interval.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vhat.errors import ModelError
from vhat.models.torch.describe import describe
from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import TorchModel, take_rows

__all__ = ["Reference", "record_reference"]

_ROWS = 4
"""Number of rows that are predicted again. One small forward pass costs little compared with an interval."""
_ROUNDING = 1e-9
"""Largest relative change of a prediction by another number of threads, in float64. A cast to float32 inside the module
changes predictions by about 1e-7."""
_ROUNDING_FLOAT32 = 1e-3
"""The same for a module that computes in float32."""
_ROUNDING_HALF = 0.1
"""The same for a module that computes in float16 or bfloat16."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Predictions of a module when it was given.

    Attributes:
        model: The module as a function.
        theta: The fitted parameters, (p,).
        rows: A few rows of inputs.
        predictions: The predictions at these rows, (m, K).
        rounding: Largest relative change of a prediction that counts as rounding.
    """

    model: TorchModel = field(repr=False)
    theta: Any = field(repr=False)
    rows: Rows = field(repr=False)
    predictions: Any = field(repr=False)
    rounding: float

    def on(self, rows: Rows) -> Reference:
        """Return a reference for the same model with predictions at other rows."""
        few = _first_rows(rows)
        return replace(self, rows=few, predictions=_predict(self.model, self.theta, few))

    def refuse_changed(self) -> None:
        """Raise if the module's predictions at these rows have changed.

        Raises:
            ModelError: With the size of the change.
        """
        self.model.guard()
        try:
            again = _predict(self.model, self.theta, self.rows)
        except Exception as error:  # a changed module may raise any error
            raise _changed(f"it can no longer be evaluated ({describe(error)})") from error
        finite = self.predictions.isfinite()
        before = self.predictions[finite]
        if not len(before):
            return
        size = float(before.abs().max())
        change = float((again[finite] - before).abs().max())
        if not change <= self.rounding * size:  # also true for NaN
            raise _changed(f"predictions that were at most {size:.3g} in size have moved by up to {change:.3g}")


def record_reference(model: TorchModel, theta: Any, rows: Rows, narrow: tuple[str, ...]) -> Reference:
    """Return the predictions at the first few rows, for comparison with later ones.

    Args:
        model: The module as a function.
        theta: Its parameters, (p,).
        rows: Inputs.
        narrow: Operations inside the module that leave float64.
    """
    few = _first_rows(rows)
    return Reference(model, theta, few, _predict(model, theta, few), _rounding(narrow))


def _first_rows(rows: Rows) -> Rows:
    return tuple(value.clone() for value in take_rows(rows, slice(0, _ROWS)))


def _predict(model: TorchModel, theta: Any, rows: Rows) -> Any:
    with torch.inference_mode(False), torch.no_grad():
        return model(theta, rows).detach().clone()


def _rounding(narrow: tuple[str, ...]) -> float:
    """Return the largest relative change of a prediction that counts as rounding."""
    if not narrow:
        return _ROUNDING
    if any("16" in cast for cast in narrow):
        return _ROUNDING_HALF
    return _ROUNDING_FLOAT32


def _changed(found: str) -> ModelError:
    return ModelError(
        f"the module has changed since it was given to vhat: {found}. An attribute, a submodule, a hook or a cast "
        "inside it is another now. Call from_torch again with the module as it is, or undo the change."
    )
