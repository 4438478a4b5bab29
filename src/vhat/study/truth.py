"""A sample of a Matern process as one fixed function that can be evaluated anywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vhat.checks import check_finite
from vhat.errors import InputError

__all__ = ["MaternTruth", "exact_draw", "matern_kernel"]

_DEGREES = 3
"""Degrees of freedom 2 nu of the spectral density of the Matern(3/2) kernel, a Student t."""
_STREAM = 1
"""Number of the stream of random numbers, different from that of :mod:`vhat.study.data`, which may have the same
seed."""
_EXACT_STREAM = 3
"""Number of the stream of exact draws."""
_MOST_POINTS = 5000
"""Largest number of points of an exact draw: 200 MB of covariance."""
_JITTER = 1e-10
"""Added to the diagonal of a covariance, in units of the variance: points that nearly coincide make it singular in
rounding."""
_BLOCK_ROWS = 1024
"""Rows evaluated at once: 32 MB of features."""


@dataclass(frozen=True)
class MaternTruth:
    """A Gaussian process sample with the Matern(3/2) kernel, by random Fourier features.

    The kernel is ``amplitude^2 (1 + sqrt(3) r/l) exp(-sqrt(3) r/l)`` with r the Euclidean distance. Its spectral
    density is the multivariate Student t with 3 degrees of freedom and scale ``1/l``: a frequency is
    ``z / (l sqrt(c/3))`` with ``z ~ N(0, I_d)`` and *one* chi-square c with 3 degrees of freedom for all its
    coordinates. The function is

        f(x) = amplitude / sqrt(m) sum_k rho_k cos(omega_k'x + phi_k)

    with Rayleigh ``rho_k`` and uniform phases. Given the frequencies, f is a Gaussian process. Averaged over them, its
    covariance is exactly the kernel, for any number m of features.

    Attributes:
        dimension: Number of inputs d.
        seed: Seed of the function.
        length_scale: The l above.
        amplitude: Standard deviation of f(x) at any x.
        features: Number m of cosines.

    Examples:
        >>> import numpy as np
        >>> truth = MaternTruth(dimension=2, seed=0)
        >>> truth(np.zeros((3, 2))).shape
        (3,)
    """

    dimension: int
    seed: int
    length_scale: float = 1.0
    amplitude: float = 1.0
    features: int = 4096

    def __post_init__(self) -> None:
        for name, least in (("dimension", 1), ("seed", 0), ("features", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"{name}={value!r} is not a whole number of at least {least}.")
        for name in ("length_scale", "amplitude"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InputError(f"{name}={value!r} is not a finite number above 0.")

    @cached_property
    def _waves(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Frequencies (d, m), amplitudes (m,) and phases (m,)."""
        rng = np.random.default_rng([self.seed, _STREAM])
        directions = rng.standard_normal((self.dimension, self.features))
        radii = np.sqrt(rng.chisquare(_DEGREES, self.features) / _DEGREES)
        heights = rng.rayleigh(size=self.features) * self.amplitude / math.sqrt(self.features)
        phases = rng.uniform(0.0, 2.0 * np.pi, self.features)
        return directions / (self.length_scale * radii), heights, phases

    def __call__(self, x: Any) -> np.ndarray:
        """Return f at each row of ``x``, (rows, dimension), as (rows,)."""
        rows = np.asarray(x, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            remedy = " Give x[:, None]." if rows.ndim == 1 and self.dimension == 1 else ""
            raise InputError(f"x has shape {rows.shape}; this truth takes (rows, {self.dimension}).{remedy}")
        check_finite("x", rows)
        frequencies, heights, phases = self._waves
        values = np.empty(len(rows))
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            values[block] = np.cos(rows[block] @ frequencies + phases) @ heights
        return values


def matern_kernel(a: Any, b: Any, *, length_scale: float = 1.0, amplitude: float = 1.0) -> np.ndarray:
    """Return ``amplitude^2 (1 + sqrt(3) r/l) exp(-sqrt(3) r/l)`` between rows of ``a`` and rows of ``b``."""
    from scipy.spatial.distance import cdist

    scaled = math.sqrt(3.0) * cdist(np.asarray(a, dtype=float), np.asarray(b, dtype=float)) / length_scale
    return amplitude**2 * (1.0 + scaled) * np.exp(-scaled)


def exact_draw(x: Any, *, seed: int, length_scale: float = 1.0, amplitude: float = 1.0) -> np.ndarray:
    """Draw a Matern(3/2) process at the rows of ``x``, by the Cholesky factor of their covariance.

    The values are exactly jointly Gaussian with the kernel as covariance, without random features. But the function is
    known only at these points: training, validation and test points must be drawn together.

    Args:
        x: Points, (rows, d).
        seed: Seed of the draw.
        length_scale: Length scale, as in :class:`MaternTruth`.
        amplitude: Amplitude, as in :class:`MaternTruth`.

    Returns:
        The values, (rows,).

    Raises:
        InputError: When there are too many points for a dense covariance.

    Examples:
        >>> exact_draw(np.zeros((2, 3)), seed=0).shape
        (2,)
    """
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or not len(rows):
        raise InputError(f"x has shape {rows.shape}; give (rows, d).")
    if len(rows) > _MOST_POINTS:
        raise InputError(f"{len(rows)} points are too many for an exact draw, at most {_MOST_POINTS}. Use MaternTruth.")
    check_finite("x", rows)
    covariance = matern_kernel(rows, rows, length_scale=length_scale, amplitude=amplitude)
    covariance[np.diag_indices_from(covariance)] += _JITTER * amplitude**2
    z = np.random.default_rng([seed, _EXACT_STREAM]).standard_normal(len(rows))
    return np.linalg.cholesky(covariance) @ z
