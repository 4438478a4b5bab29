"""Detection of changes to a module after it was given, by predicting and differentiating some rows again.

Parameters and buffers are copied when a module is given, so that further training has no effect. Plain attributes, the
classes of submodules and the code of ``forward`` are not copied: ``module.scale = 3.0`` or ``module.act = nn.Tanh()``
changes the function whose intervals are computed. Therefore predictions at some rows of the table, and one gradient of
their sum with random signs, are compared with new ones at the beginning of each call that computes an interval. A
change that has no effect at these rows is not detected.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vhat.errors import ModelError
from vhat.models.torch.describe import describe
from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import TorchModel

__all__ = ["Reference", "record_reference"]

_ROWS = 16
"""Number of rows that are predicted again, spread evenly over the table, whose rows may be sorted. One small pass
forward and backward costs little compared with an interval."""
_ROUNDING = 1e-9
"""Largest relative change of a prediction by another number of threads, in float64. A cast to float32 inside the module
changes predictions by about 1e-7."""
_ROUNDING_FLOAT32 = 1e-3
"""The same for a module that computes in float32."""
_ROUNDING_HALF = 0.1
"""The same for a module that computes in float16 or bfloat16."""
_ROUNDING_GRADIENT = 1e-7
"""Largest change of the gradient that counts as rounding, relative to its largest entry: terms of its sums cancel."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Predictions of a module when it was given.

    Attributes:
        model: The module as a function.
        theta: The fitted parameters, (p,).
        rows: A few rows of inputs.
        predictions: The predictions at these rows, (m, K).
        gradient: The gradient in theta of the sum of the predictions with random signs, (p,); None if there is none.
        rounding: Largest relative change of a prediction that counts as rounding.
    """

    model: TorchModel = field(repr=False)
    theta: Any = field(repr=False)
    rows: Rows = field(repr=False)
    predictions: Any = field(repr=False)
    gradient: Any = field(repr=False)
    rounding: float

    def on(self, rows: Rows) -> Reference:
        """Return a reference for the same model with predictions at other rows."""
        few = _spread_rows(rows)
        predictions, gradient = _evaluate(self.model, self.theta, few)
        return replace(self, rows=few, predictions=predictions, gradient=gradient)

    def refuse_changed(self) -> None:
        """Raise if the module's predictions at these rows, or their gradient, have changed.

        Raises:
            ModelError: With the size of the change.
        """
        self.model.guard()
        try:
            again, gradient = _evaluate(self.model, self.theta, self.rows)
        except Exception as error:  # a changed module may raise any error
            raise _changed(f"it can no longer be evaluated ({describe(error)})") from error
        moved = _moved(self.predictions, again, self.rounding)
        if moved:
            raise _changed(f"predictions {moved}")
        if self.gradient is None:
            return
        if gradient is None:
            raise _changed("it can no longer be differentiated")
        moved = _moved(self.gradient, gradient, max(self.rounding, _ROUNDING_GRADIENT))
        if moved:
            raise _changed(f"its predictions are the same, but entries of their gradient {moved}")


def record_reference(model: TorchModel, theta: Any, rows: Rows, narrow: tuple[str, ...]) -> Reference:
    """Return the predictions at the first few rows, for comparison with later ones.

    Args:
        model: The module as a function.
        theta: Its parameters, (p,).
        rows: Inputs.
        narrow: Operations inside the module that leave float64.
    """
    few = _spread_rows(rows)
    return Reference(model, theta, few, *_evaluate(model, theta, few), _rounding(narrow))


def _spread_rows(rows: Rows) -> Rows:
    """Return some rows, evenly spaced from the first to the last."""
    count = len(rows[0])
    index = torch.linspace(0, count - 1, min(count, _ROWS)).round().long()
    return tuple(value[index.to(value.device)] for value in rows)


def _evaluate(model: TorchModel, theta: Any, rows: Rows) -> tuple[Any, Any]:
    """Return the predictions, and the gradient of their sum with random signs; None if they have no gradient."""
    with torch.inference_mode(False), torch.enable_grad():
        parameters = theta.detach().clone().requires_grad_()
        predictions = model(parameters, rows)
        found = predictions.detach().clone()
        signs = torch.randint(0, 2, found.shape, generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0
        try:
            (gradient,) = torch.autograd.grad((predictions * signs.to(found)).sum(), parameters)
        except RuntimeError:  # predictions that do not depend on the parameters, or an operation without a derivative
            return found, None
    return found, gradient


def _moved(before: Any, after: Any, rounding: float) -> str:
    """Return by how much finite values have moved, in words; empty if it is rounding."""
    finite = before.isfinite()
    if not finite.any():
        return ""
    size = float(before[finite].abs().max())
    change = float((after[finite] - before[finite]).abs().max())
    if change <= rounding * size:  # false for NaN
        return ""
    return f"that were at most {size:.3g} in size have moved by up to {change:.3g}"


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
