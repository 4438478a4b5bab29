"""An estimator without its training rows: what is deployed."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vhat.errors import InputError
from vhat.estimator import calibration
from vhat.intervals.calibrate import Calibrated, rescaled
from vhat.sketch.sketch import Sketch
from vhat.tables.row_names import RowNames

if TYPE_CHECKING:
    from vhat.estimator.regressor import NetworkRegressor

__all__ = ["refuse_sketched", "sketch_of", "sketched"]


def sketch_of(network: NetworkRegressor) -> Sketch | None:
    """Return the sketch that an estimator without training rows asks; None where it has them."""
    fitted: Any = network.fitted_
    return fitted if isinstance(fitted, Sketch) else None


def refuse_sketched(network: NetworkRegressor, what: str) -> None:
    """Refuse what needs training rows.

    Args:
        network: The estimator.
        what: What was asked for, such as ``"audit()"``.

    Raises:
        InputError: Naming where to ask.
    """
    if sketch_of(network) is not None:
        raise InputError(f"{what} needs the training rows, which a sketch does not have. Ask the model it was made of.")


def sketched(network: NetworkRegressor, probes: int, seed: int) -> NetworkRegressor:
    """Return an estimator that predicts the same without its training rows: see :meth:`NetworkRegressor.sketch`."""
    refuse_sketched(network, "sketch()")
    found, reason = calibration.calibrated(network, None)
    if network.audited_ is None:
        network.audit()
    made = copy(network)
    sketch = network.fitted_.sketch(probes, seed)
    made.fitted_ = cast(Any, sketch)  # which answers what a deployed estimator asks of a fitted model
    made.calibrated_ = None
    if found is not None:
        made.calibrated_ = Calibrated.restored(found.record(), rescaled(sketch.interval, noise=None))
    made.not_calibrated_ = reason
    # what is left of the rows: their numbers and names, the fits of the selection, and rows that were kept apart
    made.rows_ = np.arange(0)
    made.row_names_ = RowNames(made.rows_)
    made.selection_ = None
    made.held_out_ = None
    return made
