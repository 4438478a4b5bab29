"""Data of the study: Gaussian inputs with a box cut out, and noisy responses of a known truth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vhat.errors import InputError

__all__ = ["Sample", "Truth", "sample"]

_STREAM = 2
"""Number of the stream of random numbers, different from those of :mod:`vhat.study.truth`, which may have the same
seed."""


class Truth(Protocol):
    """A known regression function."""

    @property
    def dimension(self) -> int:
        """Number of inputs."""

    def __call__(self, x: np.ndarray, /) -> np.ndarray:
        """Return the values (rows,) at rows (rows, dimension)."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows, responses, and the responses without noise.

    Attributes:
        X: Inputs, (rows, d).
        y: ``truth + noise z``, (rows,).
        truth: The regression function at the rows, (rows,).
        noise: Standard deviation of the noise.
        gap: Half the side of the box ``[-gap, gap]^d`` without rows; None if there is none.
    """

    X: np.ndarray
    y: np.ndarray
    truth: np.ndarray
    noise: float
    gap: float | None


def sample(truth: Truth, n: int, *, seed: int, noise: float = 0.1, gap: float | None = 0.5) -> Sample:
    """Draw ``n`` inputs from N(0, I_d) with noisy responses, and remove those inside ``[-gap, gap]^d``.

    As in the paper, removed points are not replaced. In one dimension a gap of 0.5 leaves 62% of ``n``, in ten
    dimensions all but 0.007%. The same seed with ``gap=None`` gives the same points together with the removed ones.

    Args:
        truth: The regression function; ``truth.dimension`` is d.
        n: Number of points drawn, before the cut.
        seed: Seed of inputs and noise.
        noise: Standard deviation of the noise.
        gap: Half the side of the box; None keeps every point, as for test sets.

    Returns:
        The sample.

    Raises:
        InputError: When an option is out of range, or the cut leaves no point.
    """
    if not isinstance(n, int | np.integer) or n < 1:
        raise InputError(f"n={n!r} is not a positive whole number.")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed={seed!r} is not a whole number of at least 0.")
    if not 0 <= noise < math.inf:
        raise InputError(f"noise={noise!r} is not a finite number of at least 0.")
    if gap is not None and not 0 < gap < math.inf:
        raise InputError(f"gap={gap!r} is not a finite number above 0. Use gap=None to keep every point.")
    rng = np.random.default_rng([seed, _STREAM])
    X = rng.standard_normal((n, truth.dimension))
    errors = noise * rng.standard_normal(n)
    if gap is not None:
        outside = np.abs(X).max(axis=1) > gap
        X = X[outside]
        errors = errors[outside]
    if not len(X):
        raise InputError(f"the cut of [-{gap}, {gap}]^{truth.dimension} left none of n={n} points. Draw more.")
    values = truth(X)
    return Sample(X, values + errors, values, float(noise), gap)
