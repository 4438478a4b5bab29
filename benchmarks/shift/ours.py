"""vhat's intervals for the networks as they are: all parameters, the last layer, and both calibrated."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator

import numpy as np
from torch import nn

import vhat
from benchmarks.shift.bands import DELTA, Band
from benchmarks.shift.splits import Shift

PARAMETERS = {"linearised": "all", "last layer": "last"}
"""What counts as trained."""


def bands(split: Shift, modules: list[nn.Sequential]) -> Iterator[tuple[str, Band]]:
    """Yield both kinds, as they are and after ``calibrate``.

    As they are, lam and noise are read off all rows that training did not fit; what is calibrated has validation rows
    for lam, and the calibration rows for its level.
    """
    X = split.X("inside", "outside")
    held = ("validation", "calibration")
    for name, which in PARAMETERS.items():
        plain, calibrated = [], []
        seconds = np.zeros(3)
        unidentified = 0
        for module in modules:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", vhat.VhatWarning)
                began = time.process_time()
                fitted = _fitted(module, split, which)
                made = time.process_time()
                refit = fitted.linearised(validation=(split.X(*held), split.y(*held)))
                plain.append(refit.interval(X, DELTA, target="observation"))
                asked = time.process_time()
                refit_too = fitted.linearised(validation=split.rows["validation"])
                calibrated.append(refit_too.calibrate(*split.rows["calibration"]).interval(X, DELTA))
                seconds += np.diff([began, made, asked, time.process_time()])
            unidentified += not refit.workspace.refit.identified
        build, first, second = seconds / len(modules)
        note = f"lam not identified in {unidentified} of {len(modules)}" if unidentified else ""
        for label, found, cost in ((name, plain, first), (f"{name}, calibrated", calibrated, second)):
            center = np.stack([band.center for band in found])
            half = np.stack([band.half_width for band in found])
            yield label, Band(center, half, build + cost, note)


def _fitted(module: nn.Sequential, split: Shift, which: str) -> vhat.FittedModel:
    # A module that returns (rows,), for the responses are.
    flat = nn.Sequential(*module, nn.Flatten(0))
    X, y = split.rows["train"]
    return vhat.from_torch(flat, X, y, weight_decay=0.0, parameters=which)
