"""Rivals with a variance of their own: a deep ensemble, a Gaussian process and laplace-torch."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from benchmarks.early_stopping import Stack
from benchmarks.rivals.foreign import Foreign
from benchmarks.shift.bands import Band, Z
from benchmarks.shift.conformal import Predictions
from benchmarks.shift.splits import Shift

HELD = ("validation", "calibration")
LAPLACE = {
    "laplace, last layer": ("last_layer", "full"),
    "laplace, kron": ("all", "kron"),
    "laplace, full": ("all", "full"),
}


def ensemble(split: Shift, f: Predictions, training: float) -> Band:
    """A deep ensemble: normal intervals with the networks' variance and a noise level that held-out rows choose.

    The level is the one under which validation and calibration rows are most likely, given the networks' variance.
    """
    began = time.process_time()
    held = np.concatenate([f.validation, f.calibration], axis=1)
    errors = split.y(*HELD) - held.mean(axis=0)
    own = held.var(axis=0, ddof=1)

    def misfit(log_variance: float) -> float:
        total = np.exp(log_variance) + own
        return float(np.sum(np.log(total) + errors**2 / total))

    middle = np.log(np.mean(errors**2))
    level = np.exp(minimize_scalar(misfit, bounds=(middle - 10, middle + 2), method="bounded").x)
    spread = np.sqrt(level + f.test.var(axis=0, ddof=1))
    return Band(f.test.mean(axis=0)[None], Z * spread[None], training + time.process_time() - began)


def gaussian_process(split: Shift) -> Band:
    """scikit-learn's Gaussian process on all rows: Matern 5/2 with a length for every input, and noise."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    began = time.process_time()
    X, y = split.X("train", *HELD), split.y("train", *HELD)
    lengths = np.full(X.shape[1], 2.0)
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * Matern(lengths, (1e-2, 1e3), nu=2.5) + WhiteKernel(0.1, (1e-6, 1e1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound: the input does not matter
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(X, y)
        mean, sd = process.predict(split.X("inside", "outside"), return_std=True)
    return Band(mean[None], Z * sd[None], time.process_time() - began)


def laplace(split: Shift, stack: Stack, rival: Foreign) -> Iterator[tuple[str, Band]]:
    """laplace-torch around each network, prior and noise tuned by held-out rows, in a process of its own."""
    arrays = {f"w{i}": w.numpy() for i, (w, _) in enumerate(stack.layers)}
    arrays |= {f"b{i}": b.numpy() for i, (_, b) in enumerate(stack.layers)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "split.npz"
        np.savez(
            file,
            X=split.X("train"),
            y=split.y("train"),
            X_held=split.X(*HELD),
            y_held=split.y(*HELD),
            X_test=split.X("inside", "outside"),
            activation=stack.recipe.activation,
            **arrays,
        )
        for name, (subset, structure) in LAPLACE.items():
            seconds, found = rival.call("intervals", file=str(file), subset=subset, structure=structure)
            center, spread = np.asarray(found["center"]), np.asarray(found["spread"])
            note = f"prior at an end of the grid in {found['at end']} of {len(center)}" if found["at end"] else ""
            yield name, Band(center, Z * spread, seconds / len(center), note)
