"""The noise of responses as a function of their prediction, estimated from left-out errors.

Responses often vary more where they are large: a constant noise level is then too wide for small predictions and too
narrow for large ones, though right on average. The model here is a variance function of the mean (Carroll & Ruppert,
*Transformation and Weighting in Regression*, 1988), quadratic on a logarithmic scale::

    noise(x) = sigma r(f(x)),    log r(f) = b_0 + b_1 z + b_2 z^2,    z = Phi^-1(rank of f)

The normal score z of a prediction is that of its rank among the predictions from which r was estimated, and constant
beyond the smallest and the largest of them. With ``(f - mean) / sd`` in its place, a few very large predictions would
determine the curvature of the parabola: for noise proportional to an exponential f, n = 5000, the estimated r fell to a
half at the largest prediction, where the true r is six to nine. The coefficients minimise the Laplace
quasi-likelihood of the left-out scores ``a_i = |y_i - f_i| / spread_i``, a convex function of b::

    sum_i  log r_i + a_i / r_i    +    m penalty (b_1^2 + b_2^2) / 2

``r`` is used only if it predicts the sizes of errors that it was not estimated from better than a constant does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from vhat.errors import InputError

__all__ = ["NoiseShape", "estimate_noise_shape", "spread_of"]

_FEWEST = 100
"""Smallest number of scores from which r is estimated. With fewer, three coefficients are as uncertain as what they
correct."""
_PENALTY = 0.01
"""Ridge penalty per score on the slopes, in units of z. From 0.001 to 0.1 the results on five tables agree to 1%; it
matters only for predictions that hardly vary."""
_FOLDS = 5
"""Folds of the cross-validation that compares r with a constant."""
_KNOTS = 65
"""Number of quantiles of the predictions that are kept; scores between them are interpolated."""
_STANDARD_ERRORS = 2.0
"""Smallest gain in held-out quasi-likelihood, in its standard errors, for r to be used."""
_STEPS = 30
"""Largest number of Newton steps."""
_LEAST_WEIGHT = 0.2
"""Lower limit of the Newton weights ``a_i / r_i``, which are 0 for a score of 0."""
_CLOSE = 1e-10
"""Decrease of the objective per score at which Newton's method ends."""


@dataclass(frozen=True, eq=False)
class NoiseShape:
    """The noise of a response relative to its root mean square, as a function of the prediction.

    Attributes:
        knots: Quantiles of the predictions from which it was estimated, ascending, (outputs, knots).
        scores: Their normal scores, (outputs, knots).
        coefficients: ``b_0, b_1, b_2``, (outputs, 3); all 0 for an output whose noise is constant.
    """

    knots: np.ndarray
    scores: np.ndarray
    coefficients: np.ndarray

    def __post_init__(self) -> None:
        """Refuse arrays that do not belong together, which a damaged file may hold."""
        outputs = len(self.coefficients) if self.coefficients.ndim == 2 else 0
        if (
            self.coefficients.shape != (outputs, 3)
            or self.knots.shape != self.scores.shape
            or self.knots.ndim != 2
            or len(self.knots) != outputs
            or np.any(np.diff(self.knots, axis=1) < 0)
        ):
            raise InputError(
                f"a noise shape has knots and scores of one shape, (outputs, knots), in rising order, and coefficients "
                f"(outputs, 3); these are {self.knots.shape}, {self.scores.shape} and {self.coefficients.shape}."
            )

    def __call__(self, prediction: Any) -> np.ndarray:
        """Return ``r(f)``, shaped like the predictions: (points,) or (points, outputs)."""
        asked = np.asarray(prediction, dtype=np.float64)
        flat = asked.reshape(-1, len(self.knots))
        columns = [
            np.exp(_basis(np.interp(f, knots, scores)) @ b)
            for f, knots, scores, b in zip(flat.T, self.knots, self.scores, self.coefficients, strict=True)
        ]
        return np.stack(columns, axis=1).reshape(asked.shape)

    @property
    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest value of ``r`` at the knots, over all outputs."""
        found = self(self.knots.T)
        return float(found.min()), float(found.max())


def spread_of(standard_error: Any, noise: Any, relative: Any) -> np.ndarray:
    """Return the standard deviation of a new response around its prediction.

    The standard error of the prediction was computed under constant noise. Where the noise is larger, it is scaled by
    the same factor. Where the noise is smaller, it is not scaled, because the prediction may depend on other rows with
    larger noise.

    Args:
        standard_error: Of the prediction, under constant noise.
        noise: The constant noise level.
        relative: ``r(f)``.
    """
    found: np.ndarray = np.hypot(standard_error * np.maximum(relative, 1.0), noise * relative)
    return found


def estimate_noise_shape(
    prediction: np.ndarray, scores: np.ndarray, groups: np.ndarray | None = None
) -> tuple[NoiseShape | None, np.ndarray]:
    """Estimate how the noise varies with the prediction.

    Args:
        prediction: Prediction of each row by a model that was not fitted to it, (m,) or (m, outputs).
        scores: Their errors in units of the spread under constant noise, of the same shape; NaN where a row has none.
        groups: A number for each row, (m,). Rows of one group, such as copies, share one error. None where every row is
            a group of its own.

    Returns:
        The shape, or None where the noise of no output varies; and ``r`` at each row, of the shape of the scores,
        estimated from the other rows. An r estimated from the row itself would follow its error, and a calibration with
        it would be too narrow.
    """
    outputs = 1 if scores.ndim == 1 else scores.shape[1]
    flat_scores = np.abs(scores).reshape(-1, outputs)
    flat_prediction = prediction.reshape(-1, outputs)
    if groups is None:
        groups = np.arange(len(flat_scores))
    found = [_estimate(flat_prediction[:, k], flat_scores[:, k], groups) for k in range(outputs)]
    if all(each is None for each in found):
        return None, np.ones(scores.shape)
    relative = np.ones(flat_scores.shape)
    columns = []
    for k, each in enumerate(found):
        if each is None:
            columns.append((np.zeros(_KNOTS), np.zeros(_KNOTS), np.zeros(3)))
            continue
        columns.append(each[0])
        relative[:, k] = each[1]
    knots, normal_scores, coefficients = (np.array(values) for values in zip(*columns, strict=True))
    return NoiseShape(knots, normal_scores, coefficients), relative.reshape(scores.shape)


def _estimate(prediction: np.ndarray, sizes: np.ndarray, groups: np.ndarray) -> tuple[Any, np.ndarray] | None:
    """Return the fields of a shape and ``r`` at each row from the other rows; None where the noise is constant."""
    usable = np.isfinite(sizes) & np.isfinite(prediction)
    f = prediction[usable]
    a = sizes[usable]
    _, group = np.unique(groups[usable], return_inverse=True)
    independent = len(a) and int(group.max()) + 1
    if independent < _FEWEST or not f.std() > 0 or not a.mean() > 0:
        return None
    knots, normal_scores = _normal_scores(f)
    basis = _basis(np.interp(f, knots, normal_scores))
    held_out, row_gain = _cross_validate(basis, a, group)
    gain = np.bincount(group, row_gain)
    # Strictly greater: equal errors everywhere have gain 0 and standard error 0.
    if not gain.sum() > _STANDARD_ERRORS * gain.std() * np.sqrt(len(gain)):
        return None
    b = _minimise(basis, a)
    # Normalise r to root mean square 1 over these rows, so that sigma keeps its meaning.
    level = 0.5 * np.log(np.mean(np.exp(2 * basis @ b)))
    b[0] -= level
    relative = np.ones(len(sizes))
    relative[usable] = np.exp(held_out - level)
    return (knots, normal_scores, b), relative


def _basis(z: np.ndarray) -> np.ndarray:
    """Return the design matrix ``(1, z, z^2)``, (m, 3)."""
    return np.column_stack([np.ones_like(z), z, z**2])


def _normal_scores(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return quantiles of the predictions at equidistant normal scores, and these scores."""
    outermost = norm.isf(0.5 / len(f))
    scores = np.linspace(-outermost, outermost, _KNOTS)
    # Hazen's quantiles: the i-th smallest of m stands for the probability (i - 1/2) / m
    return np.quantile(f, norm.cdf(scores), method="hazen"), scores


def _cross_validate(basis: np.ndarray, a: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``log r`` of each row, estimated from other groups, and its gain over a constant there, (m,) each."""
    part = np.random.default_rng(0).permutation(int(group.max()) + 1)[group] % _FOLDS
    varying = np.empty(len(a))
    constant = np.empty(len(a))
    for fold in range(_FOLDS):
        held = part == fold
        varying[held] = basis[held] @ _minimise(basis[~held], a[~held])
        constant[held] = np.log(a[~held].mean())
    gain = (constant + a * np.exp(-constant)) - (varying + a * np.exp(-varying))
    return varying, gain


def _minimise(basis: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return the coefficients of ``log r``, by Newton's method with step halving.

    Args:
        basis: The design matrix, (m, 3).
        a: The scores, (m,).
    """
    penalty = len(a) * _PENALTY * np.diag([0.0, 1.0, 1.0])

    def objective(b: np.ndarray) -> float:
        log_r = basis @ b
        return float(np.sum(log_r + a * np.exp(-log_r)) + b @ penalty @ b / 2)

    b = np.array([np.log(a.mean()), 0.0, 0.0])
    value = objective(b)
    for _ in range(_STEPS):
        ratio = a * np.exp(-basis @ b)
        gradient = basis.T @ (1 - ratio) + penalty @ b
        hessian = (basis.T * np.maximum(ratio, _LEAST_WEIGHT)) @ basis + penalty
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        with np.errstate(over="ignore"):
            while size > _CLOSE and not objective(b - size * step) <= value:
                size /= 2
        b = b - size * step
        before = value
        value = objective(b)
        if before - value <= _CLOSE * len(a):
            break
    return b
