"""vhat as a user calls it, ready to be timed."""

from __future__ import annotations

from typing import Any

import numpy as np

import vhat
from benchmarks.problems import Trained
from benchmarks.truth import error


class Ours:
    """V at all points from a model that has worked out nothing yet: set-up, factorisation and certificate included.

    Attributes:
        found: The last result.
    """

    def __init__(self, trained: Trained, points: np.ndarray, **options: Any) -> None:
        self.trained, self.points, self.options = trained, points, options
        self.found: vhat.WeightedNorm | None = None

    def __call__(self, _: int = 0) -> None:
        """Once from the beginning."""
        self.found = self.trained.fitted().weighted_norm(self.points, **self.options)

    def error(self, truth: np.ndarray) -> float:
        """Largest relative error of the last result; NaN where a point did not converge."""
        return error(self.found.value, truth)

    @property
    def details(self) -> dict[str, Any]:
        """What the last result says of itself."""
        found = self.found
        return {
            "solver": found.solver,
            "curvature": found.curvature,
            "steps": float(np.median(found.steps)),
            "converged": int(np.sum(found.status == "converged")),
            "residual": float(np.max(found.residual)),
        }


def medians(seconds: dict[str, np.ndarray]) -> dict[str, float]:
    """The median of each."""
    return {name: float(np.median(values)) for name, values in seconds.items()}
