"""A calibration kept on disk beside its model."""

from __future__ import annotations

from typing import Any

from vhat.errors import StoreError
from vhat.intervals.calibrate import SAVED_OPTIONS, Calibrated, OwnInterval

__all__ = ["load_calibrated"]


def load_calibrated(model: Any, saved: dict[str, Any] | None) -> Any:
    """Return a model that was loaded, or its calibration where one was saved with it.

    Args:
        model: The fitted model or sketch.
        saved: What :meth:`Calibrated.save` keeps beside the model, or None.

    Raises:
        StoreError: For a calibration that is malformed, or of another model.
    """
    if saved is None:
        return model
    asked = saved["asked"]
    if not set(asked) <= set(SAVED_OPTIONS) or not isinstance(asked.get("solver", "auto"), str):
        raise StoreError(f"the saved calibration is malformed: its options are {sorted(asked)}.")
    found = Calibrated.restored(saved["found"], OwnInterval(model, asked))
    outputs = () if model.problem.squeeze else (model.problem.outputs,)
    for name in ("scores", "signed"):
        array = getattr(found, name)
        if array is not None and array.shape[1:] != outputs:
            raise StoreError(f"the saved calibration is malformed: its {name} have shape {array.shape}.")
    return found
