"""Choose the ridge penalty of a linearisation by the likelihood of validation rows, which training did not fit.

For a ridge refit with penalty lam and noise sigma,

- the errors at validation rows have the variances ``sigma^2 (1 + V_lam(x)/n)``;
- the training residuals are smaller than the noise, ``E |r|^2 = sigma^2 |I - S_lam|_F^2``;
- sigma is the same in both.

The likelihood is the product of the density of the validation errors and the density of the size of the training
residuals, with sigma profiled out. A bias of the model increases both sizes equally and counts as noise.

The validation errors alone hardly determine lam: V often varies little over these rows, and its mean is confounded with
sigma. The difference of the two sizes, Efron's optimism ``2 sigma^2 tr S / n``, determines lam, but not precisely: with
m rows and normal noise its standard deviation is about ``n sqrt(2/m + 2/n) / 2`` degrees of freedom, 24 for n = 400,
m = 200. The likelihood, with a uniform prior for the degrees of freedom, is therefore a wide distribution. The penalty
is that of its upper quartile, so that intervals are more often too wide than too narrow. With the mean, which is not
conservative, the width was about right in the median and too small for a quarter of the networks.

Both densities are normal, or Student's t with four degrees of freedom if that gives errors and residuals a higher
likelihood. With heavy tails the mean squares are dominated by a few rows, and a normal likelihood overestimates the
precision of their difference.

Measured on 48 networks of twelve kinds (tanh and ReLU, one and two hidden layers, Adam with early stopping on the
validation rows, normal, Laplace, t3 and unequal noise; 200 to 800 rows, 100 to 400 validation rows, 101 to 581
parameters): the ratio of the standard error to the standard deviation of 20 retrainings under redrawn responses, at
points in distribution:

=====================  ================  ======  ================  ========
rule                   tenth percentile  median  90th percentile   below .8
=====================  ================  ======  ================  ========
normal, mean                        .65     .99              1.35       23%
normal, quartile                    .79    1.17              1.49       12%
chosen, mean                        .74    1.07              1.37       12%
chosen, quartile                    .85    1.29              1.60        8%
chosen, quantile .84                .91    1.40              1.73        6%
=====================  ================  ======  ================  ========

In these measurements the penalty was a single number for all parameters. One number per array of parameters, as now
(:mod:`vhat.variance.penalty_shape`), changes the ratios by a few percent. The rule was chosen on these networks: it is
the narrowest with at most one in ten below .8. Its degrees of freedom were at least the generalised degrees of freedom
of the training for 94% of them; with the mean of the normal likelihood, for 65%. In a gap of one input its ratios were
.78, 1.35 and 1.94, beyond its end .76, 1.31 and 2.52. One kind of network is far from the regression function (mean
square error 4.7 times the noise) and varies more than a ridge refit with its generalised degrees of freedom (.6). On
the nine networks of ``benchmarks/retraining.py``, which were not used for the choice and have only two draws of
validation noise, the ratios are .64 to .92 in distribution (.41 to .76 with the mean under a normal likelihood) and .46
to 1.03 off the data.

Rows that decided when training stopped were fitted slightly: the correlation of their errors with their noise was that
of 3.9 fitted degrees of freedom (mean over 20 draws, all kinds but the two with the largest errors). The quartile
covers that. There is no further correction, because it would be wrong for rows that did not stop the training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

from vhat.errors import InputError
from vhat.models.problem import Problem
from vhat.variance.penalty_shape import penalty_shape
from vhat.variance.ridge_refit import RidgeRefit
from vhat.variance.spectrum import Path, compute_path
from vhat.variance.validation import Validation

__all__ = ["Evidence", "choose_ridge", "make_evidence"]

_GRID = 61
"""Values of lam on the grid, from 1e-9 to 1e3 times the largest eigenvalue."""
_INTERPOLATION_STEPS = 20
"""Steps between two values of the grid for integrals over the degrees of freedom."""
_MOST_POINTS = 1000
"""Largest number of validation rows, times outputs, at which V is computed; the other rows are given its mean."""
_GENERAL_FLOPS = 3e8
"""Largest number of flops of V at these rows for one lam, if the noise differs between rows."""
_GRADIENT_NUMBERS = 4e6
"""Largest number of entries in the gradients of these rows: with 8,000 parameters half of the rows are used."""
_FEWEST_POINTS = 100
"""Smallest number of validation rows, times outputs, at which V is computed."""
_QUANTILE = 0.75
"""Quantile of the degrees of freedom under the likelihood that determines the penalty; see the module's table."""
_T = 4.0
"""Degrees of freedom of Student's t, for data with outliers."""
_T_VARIANCE = 2.0 * (_T + 3.0) / _T
"""Variance of the logarithm of the squared scale of n values, estimated by the likelihood of t4, times n; for the
normal distribution it is 2."""
_OUTLIERS = 14.0
"""Distance of the lower end of the search for the logarithm of the squared scale of t4 below that of the mean square,
which outliers a thousand times as large as the rest may raise."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Data for the likelihood of lam, in units of each output's root mean square validation error.

    Attributes:
        errors: Errors at validation rows, (m,).
        points: Indices of the errors at which V is computed, (q,), in the order of the path.
        unit: The squared unit of each of these, (q,); V is divided by it.
        path: V as a function of lam.
        n: Number of training rows.
        size: ``|r|^2`` of the weighted training residuals, or for t4 their squared scale times ``total``; None if the
            loss is not a square, and the residuals are not used.
        total: ``tr D``, the expectation of ``|r|^2`` for sigma = 1 without a fit.
        squares: ``tr D^2``.
        likelihood: ``"normal"`` or ``"t4"``.
    """

    errors: np.ndarray
    points: np.ndarray
    unit: np.ndarray
    path: Path
    n: int
    size: float | None
    total: float
    squares: float
    likelihood: str

    def shares(self, lam: float) -> np.ndarray:
        """Return ``V_lam/n`` of each validation row, in units of the noise, (m,)."""
        if not np.isfinite(lam):
            return np.zeros(len(self.errors))
        known = self.path.norms(lam) / (self.n * self.unit)
        shares = np.full(len(self.errors), float(np.mean(known)))
        shares[self.points] = known
        return shares

    def residual_moments(self, lam: float) -> tuple[float, float]:
        """Return the mean and the variance of ``|r|^2`` of the training residuals, for sigma = 1 and normal noise."""
        if not np.isfinite(lam):
            return self.total, 2.0 * self.squares
        spectrum = self.path.spectrum
        spread = self.path.spread
        if spread is None:
            # tr(D)^2 / tr(D^2) is the number of (row, output) pairs if D is one number.
            pairs = self.total**2 / self.squares
            spread = np.full(len(spectrum.values), self.total / pairs)
        # The residual along an eigenvector is lam / (s + lam) times the response.
        shrinkage = lam / (spectrum.values + lam)
        mean = self.total - float(spectrum.counts @ (spread * (1 - shrinkage**2)))
        variance = self.squares - float(spectrum.counts @ (spread**2 * (1 - shrinkage**4)))
        least = np.finfo(np.float64).eps
        return max(mean, least * self.total), 2.0 * max(variance, least * self.squares)

    def log_likelihood(self, lam: float) -> float:
        """Return the log-likelihood of lam up to a constant, with sigma profiled out."""
        inflation = 1.0 + self.shares(lam)
        squares = self.errors**2 / inflation
        mean, variance = self.residual_moments(lam)
        relative_variance = variance / mean**2 * (1.0 if self.likelihood == "normal" else _T_VARIANCE / 2.0)

        def negative_log_density(log_variance: float) -> float:
            errors = self._of_errors(squares, log_variance)
            return errors + self._of_residuals(mean, relative_variance, log_variance)

        low, high = self._range(squares, mean)
        _, smallest = _minimum(negative_log_density, low, high)
        return -smallest - 0.5 * float(np.sum(np.log(inflation)))

    def _range(self, squares: np.ndarray, mean: float) -> tuple[float, float]:
        """Return the range of the search for ``log sigma^2``: the estimates from each size alone, and a margin."""
        estimates = [float(np.log(np.mean(squares)))]
        if self.size is not None:
            estimates.append(float(np.log(self.size / mean)))
        margin = 1.0 if self.likelihood == "normal" else _OUTLIERS
        return min(estimates) - margin, max(estimates) + 1.0

    def _of_errors(self, squares: np.ndarray, log_variance: float) -> float:
        """Return the negative log-density of the validation errors for a value of ``log sigma^2``."""
        scaled = squares * np.exp(-log_variance)
        if self.likelihood == "normal":
            return 0.5 * float(len(squares) * log_variance + np.sum(scaled))
        return 0.5 * len(squares) * log_variance + 0.5 * (_T + 1) * float(np.sum(np.log1p(scaled / _T)))

    def _of_residuals(self, mean: float, relative_variance: float, log_variance: float) -> float:
        """Return the negative log-density of ``log |r|^2`` of the training residuals, approximated as normal."""
        if self.size is None:
            return 0.0
        square = (np.log(self.size / mean) - log_variance) ** 2
        return 0.5 * square / relative_variance + 0.5 * float(np.log(relative_variance))


def choose_ridge(
    problem: Problem, validation: Validation, shape: np.ndarray, *, likelihood: str = "auto", seed: int = 0
) -> RidgeRefit:
    """Return the penalty chosen by the likelihood of validation rows and of the size of the training residuals.

    The penalty is a multiple of :func:`penalty_shape`.

    Args:
        problem: The training problem, at the parameters of the model.
        validation: Rows that training did not fit.
        shape: Relative noise of each training response, (n, K).
        likelihood: ``"normal"``; ``"t4"`` for outliers; or ``"auto"``, whichever is larger.
        seed: Seed of the sample of training rows, if V is computed from a sample.
    """
    penalty = penalty_shape(problem)
    evidence = make_evidence(problem, validation, shape, np.sqrt(penalty), likelihood, seed)
    spectrum = evidence.path.spectrum
    grid = spectrum.values.max() * np.logspace(-9, 3, _GRID)
    log_likelihood = np.array([evidence.log_likelihood(lam) for lam in grid])
    best = int(np.argmax(log_likelihood))
    freedom = np.array([spectrum.freedom(lam) for lam in grid])
    mean, deviation, quantile = _posterior_summary(freedom, log_likelihood)
    return RidgeRefit(
        weight_decay=spectrum.penalty(quantile) * penalty,
        way="validation",
        rows=validation.rows,
        freedom=quantile,
        freedom_mean=mean,
        freedom_error=deviation,
        gain=2.0 * float(log_likelihood[best] - evidence.log_likelihood(np.inf)),
        at_end=best in (0, _GRID - 1),
        path_rows=evidence.path.rows,
        likelihood=evidence.likelihood,
    )


def _posterior_summary(freedom: np.ndarray, log_likelihood: np.ndarray) -> tuple[float, float, float]:
    """Return mean, standard deviation and upper quantile of the degrees of freedom under the likelihood.

    The prior of the degrees of freedom is uniform. The log-likelihood is interpolated linearly between grid points.

    Args:
        freedom: Degrees of freedom for increasing lam, (grid,), and therefore decreasing.
        log_likelihood: The log-likelihood of each, (grid,).
    """
    grid = np.arange(len(freedom))
    places = np.linspace(0.0, len(freedom) - 1.0, (len(freedom) - 1) * _INTERPOLATION_STEPS + 1)
    fine = np.interp(places, grid, freedom)[::-1]
    density = np.exp(np.interp(places, grid, log_likelihood - log_likelihood.max()))[::-1]
    # Trapezoidal rule over the degrees of freedom.
    masses = 0.5 * (density[1:] + density[:-1]) * np.diff(fine)
    middles = 0.5 * (fine[1:] + fine[:-1])
    mean = float(np.average(middles, weights=masses))
    deviation = float(np.sqrt(np.average((middles - mean) ** 2, weights=masses)))
    cumulative = np.concatenate([[0.0], np.cumsum(masses)]) / masses.sum()
    return mean, deviation, float(np.interp(_QUANTILE, cumulative, fine))


def make_evidence(
    problem: Problem, validation: Validation, shape: np.ndarray, root: np.ndarray, likelihood: str, seed: int
) -> Evidence:
    """Return the data for the likelihood of lam."""
    relative = validation.relative_noise(problem)
    errors = validation.errors(problem) / relative
    level = _size_of_errors(errors)
    noise = shape * level
    inputs, index = validation.sample(problem, _affordable_points(problem))
    path = compute_path(problem, inputs, root, noise, seed)
    K = problem.outputs
    spread = np.maximum(problem.loss_derivatives.own_curvature, 0.0) * noise**2  # D
    if likelihood == "auto":
        likelihood = _more_likely(problem, errors / level, noise, spread)
    return Evidence(
        errors=(errors / level).reshape(-1),
        points=(index[:, None] * K + np.arange(K)).reshape(-1),
        unit=((level * relative[index]) ** 2).reshape(-1),
        path=path,
        n=problem.n,
        size=_residual_size(problem, noise, spread, likelihood),
        total=float(spread.sum()),
        squares=float(np.sum(spread**2)),
        likelihood=likelihood,
    )


def _size_of_errors(errors: np.ndarray) -> np.ndarray:
    """Return the root mean square of the validation errors of each output, (K,).

    Raises:
        InputError: If it is zero or too large for double precision, so that no likelihood can be computed.
    """
    with np.errstate(over="ignore"):
        level = np.sqrt(np.mean(errors**2, axis=0))
    if not np.all(np.isfinite(level) & (level > 0)):
        raise InputError(
            f"the errors of the validation rows reach {np.max(np.abs(errors)):.3g}, and their mean square is "
            f"{np.max(level**2):.3g}: no likelihood can choose a penalty by them. Give other validation rows, or "
            "linearised(weight_decay=...) a number."
        )
    return level


def _affordable_points(problem: Problem) -> int:
    """Return the number of validation rows at which V is computed."""
    rank = min(problem.n * problem.outputs, problem.p, 2000)
    affordable = int(np.clip(_GRADIENT_NUMBERS / problem.p, _FEWEST_POINTS, _MOST_POINTS))
    if problem.outputs > 1 or np.ptp(problem.weights) > 0:
        affordable = min(affordable, int(np.clip(_GENERAL_FLOPS / rank**2, _FEWEST_POINTS, _MOST_POINTS)))
    return max(1, affordable // problem.outputs)


def _residual_size(problem: Problem, noise: np.ndarray, spread: np.ndarray, likelihood: str) -> float | None:
    """Return ``|r|^2`` of the weighted training residuals; for t4, their squared scale times ``tr D``."""
    loss = problem.loss_derivatives
    residuals = problem.fitted_values - problem.targets
    counted = spread > 0
    # Rows of weight zero are in neither sum. Where only they have residuals, there is no size to take the logarithm of.
    if not loss.square or not residuals[counted].any():
        return None
    if likelihood == "normal":
        return float(np.sum(loss.own_curvature * residuals**2))
    return float(spread.sum()) * _student_scale((residuals / noise)[counted])


def _more_likely(problem: Problem, errors: np.ndarray, noise: np.ndarray, spread: np.ndarray) -> str:
    """Return the likelihood, normal or t4, under which validation errors and training residuals are more likely.

    The scales of both are free for each output, so that only the shapes of the distributions are compared. The units of
    the responses and the quality of the fit have no effect.

    Args:
        problem: The training problem.
        errors: Validation errors, in units of their root mean square, (m, K).
        noise: Noise of each training response in the same unit, (n, K).
        spread: ``D``, zero for rows of weight zero, (n, K).
    """
    gain = sum(_gain_of_t4(column) for column in errors.T)
    residuals = problem.fitted_values - problem.targets
    if problem.loss_derivatives.square and residuals.any():
        counted = spread > 0
        gain += sum(_gain_of_t4((residuals / noise)[counted[:, k], k]) for k in range(problem.outputs))
    return "t4" if gain > 0 else "normal"


def _gain_of_t4(values: np.ndarray) -> float:
    """Return the log-likelihood of t4 minus that of the normal distribution, each at its most likely scale."""
    squares = values**2
    if not squares.any():
        return 0.0
    squared_scale = _student_scale(values)
    normal = -0.5 * len(values) * float(np.log(2 * np.pi * np.mean(squares)) + 1.0)
    tails = -0.5 * (_T + 1) * float(np.sum(np.log1p(squares / (squared_scale * _T))))
    peak = float(gammaln((_T + 1) / 2) - gammaln(_T / 2)) - 0.5 * float(np.log(_T * np.pi * squared_scale))
    return len(values) * peak + tails - normal


def _student_scale(values: np.ndarray) -> float:
    """Return the maximum likelihood estimate of the squared scale of values with a t4 distribution."""
    squares = values**2

    def negative_log_density(log: float) -> float:
        return 0.5 * len(squares) * log + 0.5 * (_T + 1) * float(np.sum(np.log1p(squares * np.exp(-log) / _T)))

    middle = float(np.log(np.mean(squares)))
    best, _ = _minimum(negative_log_density, middle - _OUTLIERS, middle + 1.0)
    return float(np.exp(best))


def _minimum(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Return the minimiser of a function between two bounds, and the minimum."""
    found = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return float(found.x), float(found.fun)
