"""Kernel ridge regression, which is linear in the responses, and what follows from that.

The function of least ``1/(2n) sum_i (f(x_i) - y_i)^2 + lam/2 |f|^2`` in the space of a kernel k is::

    f(x) = w(x)'y,        w(x) = (K + n lam I)^-1 k(x),        K = k(x_i, x_j)

so that noise of standard deviation sigma gives it the standard deviation ``sigma |w(x)|``, and a truth of norm one in
that space the bias ``power(x)`` at most. With ``k(x, x') = phi(x)'phi(x')`` this is ridge regression on the features.
Rows of weight ``r_i^2`` are rows ``r_i y_i`` of the kernel ``r_i k(x_i, x_j) r_j``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vhat.errors import InputError, NoiseError
from vhat.fit.recipe import check_positive
from vhat.variance.noise import Noise

if TYPE_CHECKING:
    from vhat.models.problem import Problem

__all__ = ["At", "KernelFit", "check_bound", "check_rows", "fit_kernel", "offset", "uniform_noise"]

_LEAST_SHARE = 0.01
"""Least share of degrees of freedom that the residuals must keep for an estimate of the noise."""


def uniform_noise(level: Any, n: int, *, source: str, df: np.ndarray | None = None) -> Noise:
    """Return noise of one level an output, (K,), in all of ``n`` rows."""
    levels = np.atleast_1d(np.asarray(level, dtype=np.float64))
    values = np.broadcast_to(levels, (n, len(levels))).copy()
    return Noise(values, levels, float(np.sqrt(np.mean(levels**2))), source, df, uniform=True)


def offset(problem: Problem) -> float:
    """Return what a model that standardises inside adds to its network; regressions are of deviations from it."""
    if problem.scaling is None:
        return 0.0
    return float(problem.scaling.shift[0])


def check_bound(name: str, value: float | None) -> None:
    """Refuse a bound on the size of the truth that is neither None nor a number of at least 0."""
    if value is not None:
        check_positive(name, value, zero=True)


def check_rows(name: str, array: np.ndarray, width: int | None = None) -> np.ndarray:
    """Return inputs that are one row a point; refuse another number of axes or of columns, and none at all."""
    if array.ndim != 2 or (width is not None and array.shape[1] != width):
        remedy = ""
        if array.ndim == 1 and width in (None, 1):
            remedy = f" Give {name}[:, None]."
        raise InputError(f"{name} has shape {array.shape}; give (rows, {width or 'columns'}).{remedy}")
    if not len(array):
        raise InputError(f"{name} is empty; give at least one row.")
    return array


class At(NamedTuple):
    """What a kernel fit knows of test points, one entry a point.

    Attributes:
        center: ``w(x)'y``, (m, K), with ``n lam / r^2`` in place of ``n lam I`` where rows have weights.
        response: ``|w(x)|``: the standard deviation of the center for noise of standard deviation one.
        power: The largest bias that a truth of norm one can have.
        spread: ``sqrt(k(x, x) - k(x)'(K + n lam I)^-1 k(x))``, the posterior standard deviation of a Gaussian process.
    """

    center: np.ndarray
    response: np.ndarray
    power: np.ndarray
    spread: np.ndarray


@dataclass(frozen=True, eq=False)
class KernelFit:
    """A kernel fit through the eigenvectors of its Gram matrix.

    Attributes:
        values: Eigenvalues of ``r K r``, (n,).
        vectors: Its eigenvectors, (n, n).
        y: Responses, (n, K).
        decay: lam.
        root: ``r``, the roots of the rows' weights, (n,).
    """

    values: np.ndarray = field(repr=False)
    vectors: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    decay: float
    root: np.ndarray = field(repr=False)

    @property
    def n(self) -> int:
        """How many rows there are."""
        return len(self.y)

    @property
    def shrunk(self) -> np.ndarray:
        """Eigenvalues ``n lam / (eigenvalue + n lam)`` of ``I - S``, S the map from responses to fitted values."""
        ridge = self.n * self.decay
        return np.asarray(ridge / (self.values + ridge))

    @property
    def residuals(self) -> np.ndarray:
        """``y - f``, (n, K)."""
        return np.asarray(self.vectors @ self._along / self.root[:, None])

    @property
    def _along(self) -> np.ndarray:
        """``r (y - f)`` along the eigenvectors, (n, K)."""
        return np.asarray(self.shrunk[:, None] * (self.vectors.T @ (self.root[:, None] * self.y)))

    @property
    def left_out(self) -> np.ndarray:
        """Leave-one-out residuals, (n, K)."""
        left = np.einsum("ij,j,ij->i", self.vectors, self.shrunk, self.vectors)
        return np.asarray(self.residuals / left[:, None])

    @property
    def norm(self) -> np.ndarray:
        """The norm of the fitted function in the space of the kernel, (K,)."""
        along = self._along / (self.n * self.decay)
        return np.asarray(np.sqrt(np.sum(self.values[:, None] * along**2, axis=0)))

    @property
    def log_determinant(self) -> float:
        """``ln det(I + K/(n lam))``."""
        return float(-np.sum(np.log(self.shrunk)))

    @property
    def _residual_map(self) -> np.ndarray:
        """``I - S``, (n, n)."""
        inner = (self.vectors * self.shrunk) @ self.vectors.T
        return np.asarray(inner * self.root / self.root[:, None])

    def at(self, cross: np.ndarray, diagonal: np.ndarray) -> At:
        """Look at test points.

        Args:
            cross: ``k(x, x_i)``, (m, n).
            diagonal: ``k(x, x)``, (m,).
        """
        ridge = self.n * self.decay
        seen = cross * self.root
        # v = (r K r + n lam)^-1 r k(x); rounding can take the two differences below just under zero.
        v = (seen @ self.vectors / (self.values + ridge)) @ self.vectors.T
        spread = np.maximum(diagonal - np.sum(v * seen, axis=1), 0.0)
        power = np.sqrt(np.maximum(spread - ridge * np.sum(v**2, axis=1), 0.0))
        w = v * self.root
        return At(w @ self.y, np.linalg.norm(w, axis=1), power, np.sqrt(spread))

    def noise(self, given: float | None) -> Noise:
        """Return the noise that was given, or ``sigma^2 = |r|^2 / |I - S|_F^2``, one level an output.

        Raises:
            NoiseError: When it has to be estimated and the fit interpolates.
        """
        if given is not None:
            return uniform_noise(np.full(self.y.shape[1], given), self.n, source="given")
        freedom = float(np.sum(self._residual_map**2))
        squares = np.sum(self.residuals**2, axis=0)
        if freedom < _LEAST_SHARE * self.n or not np.all(squares > 0):
            raise NoiseError(
                f"the fit interpolates: the residuals keep {freedom / self.n:.2g} of their {self.n} degrees of "
                "freedom, too few to estimate the noise. Give noise=, from replicates, a holdout or the instrument."
            )
        df = np.full(self.y.shape[1], freedom)
        return uniform_noise(np.sqrt(squares / freedom), self.n, source="estimated from residuals (exact)", df=df)


def fit_kernel(gram: np.ndarray, y: np.ndarray, decay: float, weights: np.ndarray | None = None) -> KernelFit:
    """Decompose a Gram matrix; eigenvalues below its rounding are zero.

    Args:
        gram: ``K``, (n, n).
        y: Responses, (n,) or (n, K).
        decay: lam.
        weights: Of the rows, all above 0, (n,); None where all count alike.

    Raises:
        InputError: When the matrix is not finite.
    """
    if not np.isfinite(gram).all():
        raise InputError("the kernel between training rows is not finite. Standardise X.")
    root = np.ones(len(y)) if weights is None else np.sqrt(weights)
    values, vectors = np.linalg.eigh((gram + gram.T) / 2 * np.outer(root, root))
    floor = len(values) * np.finfo(float).eps * max(float(values[-1]), 0.0)
    if not values[-1] > 0 or not math.isfinite(floor):
        raise InputError("the kernel is zero between all training rows: there is nothing to learn a function from.")
    return KernelFit(np.where(values > floor, values, 0.0), vectors, y.reshape(len(y), -1), float(decay), root)
