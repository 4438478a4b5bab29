"""A recipe that keeps its fits on disk, so that work of many fits which is killed goes on where it was."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.fit.many import Recipe
from vhat.store import load, save

if TYPE_CHECKING:
    from vhat.fitted import FittedModel

__all__ = ["Remembered"]


@dataclass(frozen=True)
class Remembered:
    """Train by ``recipe``, once for each data set and seed.

    Attributes:
        recipe: How to train.
        folder: Where fits are kept, each in a directory of its own.
    """

    recipe: Recipe
    folder: Path

    def __call__(self, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
        """Return the fit that was kept, or train and keep it."""
        place = self.folder / self._name(X, y, seed, sample_weight)
        if (place / "vhat.json").is_file():
            return load(place)
        fitted = self.recipe(X, y, seed=seed, sample_weight=sample_weight)
        save(fitted, place)
        return fitted

    def _name(self, X: Any, y: Any, seed: int, sample_weight: Any) -> str:
        """A name made from everything that the fit depends on."""
        digest = hashlib.sha256(f"{self.recipe!r} {seed}".encode())
        for array in (X, y, () if sample_weight is None else sample_weight):
            digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
        return digest.hexdigest()[:24]
