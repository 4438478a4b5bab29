"""Kernel ridge regression: a fit that is linear in the responses, with its noise and bias at test points.

The minimiser of ``1/(2n) sum_i (f(x_i) - y_i)^2 + lam/2 |f|^2`` in the reproducing kernel Hilbert space of a kernel k
is::

    f(x) = w(x)'y,        w(x) = (K + n lam I)^-1 k(x),        K = k(x_i, x_j)

Noise of standard deviation sigma gives f(x) the standard deviation ``sigma |w(x)|``. A truth of norm one in that space
gives it a bias of at most ``power(x)``. With ``k(x, x') = phi(x)'phi(x')`` this is ridge regression on the features
phi. Rows of weight ``r_i^2`` are equivalent to rows with responses ``r_i y_i`` and the kernel ``r_i k(x_i, x_j) r_j``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vhat.errors import InputError, NoiseError
from vhat.fit.recipe import check_positive
from vhat.methods.base.answering import Answer
from vhat.methods.base.limits import Limits, without_output_axis
from vhat.variance.noise import Noise

if TYPE_CHECKING:
    from vhat.methods.base.guarantee import Claim
    from vhat.models.problem import Problem

__all__ = [
    "KernelFit",
    "KernelPrediction",
    "biased_answer",
    "check_bound",
    "check_rows",
    "fit_kernel",
    "offset",
    "uniform_noise",
]

_LEAST_FREEDOM = 0.01
"""Residual degrees of freedom, as a share of the rows, below which the fit counts as interpolating."""


def uniform_noise(level: Any, n: int, *, source: str, df: np.ndarray | None = None) -> Noise:
    """Return noise that is the same in all ``n`` rows, with one level per output, (K,)."""
    levels = np.atleast_1d(np.asarray(level, dtype=np.float64))
    values = np.broadcast_to(levels, (n, len(levels))).copy()
    return Noise(values, levels, float(np.sqrt(np.mean(levels**2))), source, df, uniform=True)


def offset(problem: Problem) -> float:
    """Return the constant that a model with internal standardisation adds to its network's output; else 0.

    A regression on the network's features is a regression of ``y - offset``.
    """
    if problem.scaling is None:
        return 0.0
    return float(problem.scaling.shift[0])


def check_bound(name: str, value: float | None) -> None:
    """Refuse a bound on the norm of the truth that is neither None nor a finite number of at least 0.

    Raises:
        InputError: Naming the option and the value.
    """
    if value is not None:
        check_positive(name, value, zero=True)


def check_rows(name: str, array: np.ndarray, width: int | None = None) -> np.ndarray:
    """Return inputs (rows, columns) after checking their shape.

    Args:
        name: Name of the argument, for the message.
        array: The inputs.
        width: Required number of columns; None accepts any.

    Raises:
        InputError: When there is another number of axes or columns, or no row.
    """
    if array.ndim != 2 or (width is not None and array.shape[1] != width):
        remedy = ""
        if array.ndim == 1 and width in (None, 1):
            remedy = f" Give {name}[:, None]."
        raise InputError(f"{name} has shape {array.shape}; give (rows, {width or 'columns'}).{remedy}")
    if not len(array):
        raise InputError(f"{name} is empty; give at least one row.")
    return array


class KernelPrediction(NamedTuple):
    """A kernel fit at m test points.

    Attributes:
        center: The prediction ``w(x)'y``, (m, K).
        response: ``|w(x)|``, (m,): the standard deviation of the prediction for noise of standard deviation one.
        power: The largest bias for a truth of norm one, (m,).
        spread: ``sqrt(k(x, x) - k(x)'(K + n lam I)^-1 k(x))``, (m,): the posterior standard deviation of a Gaussian
            process.
    """

    center: np.ndarray
    response: np.ndarray
    power: np.ndarray
    spread: np.ndarray


@dataclass(frozen=True, eq=False)
class KernelFit:
    """A kernel ridge regression, stored as the eigendecomposition of its weighted Gram matrix.

    Attributes:
        values: Eigenvalues of ``r K r``, (n,).
        vectors: Its eigenvectors, (n, n).
        y: Responses, (n, K).
        decay: lam.
        root: ``r``, the square roots of the row weights, (n,).
    """

    values: np.ndarray = field(repr=False)
    vectors: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    decay: float
    root: np.ndarray = field(repr=False)

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.y)

    @property
    def residual_eigenvalues(self) -> np.ndarray:
        """Eigenvalues ``n lam / (eigenvalue + n lam)`` of ``I - S``, where S maps responses to fitted values, (n,)."""
        ridge = self.n * self.decay
        return np.asarray(ridge / (self.values + ridge))

    @property
    def residuals(self) -> np.ndarray:
        """``y - f``, (n, K)."""
        return np.asarray(self.vectors @ self._residual_coordinates / self.root[:, None])

    @property
    def _residual_coordinates(self) -> np.ndarray:
        """``r (y - f)`` in the basis of the eigenvectors, (n, K)."""
        return np.asarray(self.residual_eigenvalues[:, None] * (self.vectors.T @ (self.root[:, None] * self.y)))

    @property
    def left_out(self) -> np.ndarray:
        """Leave-one-out residuals ``(y_i - f(x_i)) / (1 - S_ii)``, (n, K)."""
        one_less_leverage = np.einsum("ij,j,ij->i", self.vectors, self.residual_eigenvalues, self.vectors)
        return np.asarray(self.residuals / one_less_leverage[:, None])

    @property
    def norm(self) -> np.ndarray:
        """Norm of the fitted function in the space of the kernel, (K,)."""
        # f = sum_i a_i k(x_i, .) with a_i = r_i^2 (y_i - f(x_i)) / (n lam), so that |f|^2 = a'K a.
        coefficients = self._residual_coordinates / (self.n * self.decay)
        return np.asarray(np.sqrt(np.sum(self.values[:, None] * coefficients**2, axis=0)))

    @property
    def log_determinant(self) -> float:
        """``ln det(I + K/(n lam))``."""
        return float(-np.sum(np.log(self.residual_eigenvalues)))

    @property
    def _residual_map(self) -> np.ndarray:
        """``I - S``, (n, n)."""
        inner = (self.vectors * self.residual_eigenvalues) @ self.vectors.T
        return np.asarray(inner * self.root / self.root[:, None])

    def predict(self, cross: np.ndarray, diagonal: np.ndarray) -> KernelPrediction:
        """Return the prediction at m test points, with its sensitivity to noise and its largest bias.

        Args:
            cross: ``k(x, x_i)``, (m, n).
            diagonal: ``k(x, x)``, (m,).
        """
        ridge = self.n * self.decay
        weighted = cross * self.root
        # v = (r K r + n lam)^-1 r k(x), one row per test point.
        v = (weighted @ self.vectors / (self.values + ridge)) @ self.vectors.T
        # Rounding can make either of the two differences slightly negative.
        squared_spread = np.maximum(diagonal - np.sum(v * weighted, axis=1), 0.0)
        power = np.sqrt(np.maximum(squared_spread - ridge * np.sum(v**2, axis=1), 0.0))
        w = v * self.root
        return KernelPrediction(w @ self.y, np.linalg.norm(w, axis=1), power, np.sqrt(squared_spread))

    def noise(self, given: float | None) -> Noise:
        """Return the given noise level, or the estimate ``sigma^2 = |r|^2 / |I - S|_F^2``, one level per output.

        Raises:
            NoiseError: When the noise must be estimated and the fit interpolates.
        """
        if given is not None:
            return uniform_noise(np.full(self.y.shape[1], given), self.n, source="given")
        freedom = float(np.sum(self._residual_map**2))
        squares = np.sum(self.residuals**2, axis=0)
        if freedom < _LEAST_FREEDOM * self.n or not np.all(squares > 0):
            raise NoiseError(
                f"the fit interpolates: the residuals keep {freedom / self.n:.2g} of their {self.n} degrees of "
                "freedom, too few to estimate the noise. Give noise=, from replicates, a holdout or the instrument."
            )
        df = np.full(self.y.shape[1], freedom)
        return uniform_noise(np.sqrt(squares / freedom), self.n, source="estimated from residuals (exact)", df=df)


def fit_kernel(gram: np.ndarray, y: np.ndarray, decay: float, weights: np.ndarray | None = None) -> KernelFit:
    """Return the kernel ridge regression for a Gram matrix.

    Args:
        gram: ``K``, (n, n).
        y: Responses, (n,) or (n, K).
        decay: lam.
        weights: Row weights above 0, (n,); None for equal weights.

    Raises:
        InputError: When the matrix is not finite, or zero.
    """
    if not np.isfinite(gram).all():
        raise InputError("the kernel between training rows is not finite. Standardise X.")
    root = np.ones(len(y)) if weights is None else np.sqrt(weights)
    values, vectors = np.linalg.eigh((gram + gram.T) / 2 * np.outer(root, root))
    # Eigenvalues below the rounding of the largest are noise of either sign: set to zero.
    floor = len(values) * np.finfo(float).eps * max(float(values[-1]), 0.0)
    if not values[-1] > 0 or not math.isfinite(floor):
        raise InputError("the kernel is zero between all training rows: there is nothing to learn a function from.")
    return KernelFit(np.where(values > floor, values, 0.0), vectors, y.reshape(len(y), -1), float(decay), root)


def biased_answer(
    claim: Claim,
    center: np.ndarray,
    *,
    bias: np.ndarray,
    noise_half_width: np.ndarray,
    standard_error: np.ndarray,
    noise: Noise,
    squeeze: bool,
    points: np.ndarray | None = None,
    simultaneous: bool = False,
) -> Answer:
    """Return limits whose half width is a bound on the bias plus a multiple of the standard error.

    Args:
        claim: What the method claims for its intervals.
        center: The prediction, (m, K), like the next three.
        bias: Bound on the bias.
        noise_half_width: The part of the half width for the noise.
        standard_error: Standard deviation of the prediction.
        noise: The noise.
        squeeze: Whether y was (n,): the answer is then (m,).
        points: Test inputs as an array, if the method has converted them.
        simultaneous: Whether the limits hold at all points at once.
    """
    center = without_output_axis(center, squeeze)
    return Answer(
        claim,
        center,
        Limits.symmetric(center, without_output_axis(bias + noise_half_width, squeeze)),
        standard_error=without_output_axis(standard_error, squeeze),
        noise=noise,
        bias=without_output_axis(bias, squeeze),
        simultaneous=simultaneous,
        points=points,
    )
