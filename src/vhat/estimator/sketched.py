"""Make the estimator that is deployed: it predicts the same without its training rows."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vhat.estimator import calibration
from vhat.estimator.sketch_of import refuse_sketched
from vhat.intervals.calibrate import Calibrated, OwnInterval
from vhat.tables.row_names import RowNames

if TYPE_CHECKING:
    from vhat.estimator.regressor import NetworkRegressor

__all__ = ["sketched"]


def sketched(network: NetworkRegressor, probes: int, seed: int) -> NetworkRegressor:
    """Return an estimator that predicts the same without its training rows: see :meth:`NetworkRegressor.sketch`."""
    refuse_sketched(network, "sketch()")
    found, reason = calibration.ensure_calibration(network, None)
    if network.audited_ is None:
        network.audit()
    made = copy(network)
    sketch = network.fitted_.sketch(probes, seed)
    made.fitted_ = cast(Any, sketch)  # a sketch has the methods of a fitted model that a deployed estimator calls
    assert sketch.problem.scaling is not None
    made.scaling_ = sketch.problem.scaling
    made.calibrated_ = None
    if found is not None and found.source == "split" and sketch.probes is not None:
        doubt = (
            f"the scores were made with V itself and the widths with V from {sketch.probes} probes, so that this "
            "probability is not promised (calibrate the sketch)"
        )
        found = replace(found, doubt=doubt)
    if found is not None:
        made.calibrated_ = Calibrated.restored(found.record(), OwnInterval(sketch, {"noise": None}))
    made.not_calibrated_ = reason
    # These hold training or held-out rows, or numbers and names of rows.
    made.rows_ = np.arange(0)
    made.row_names_ = RowNames(made.rows_)
    made.selection_ = None
    made.held_out_ = None
    return made
