"""The ridge penalty of a linearisation by the likelihood of rows that training did not fit.

Three things follow from the penalty lam of a ridge refit with noise sigma: the errors at validation rows have the
variances ``sigma^2 (1 + V_lam(x)/n)``; the training residuals are smaller than the noise, ``E |r|^2 = sigma^2 |I -
S_lam|_F^2``; and both share one sigma. The likelihood is the product of the density of the validation errors and of the
density of the size of the training residuals, sigma profiled. A bias of the model adds to both sizes alike and is taken
as noise.

The validation errors alone hardly tell lam: V often varies little over such rows, and sigma takes up its mean. The
difference between the two sizes, which is Efron's optimism ``2 sigma^2 tr S / n``, does, but roughly: after m rows its
standard deviation is about ``n sqrt(2/m + 2/n) / 2`` degrees of freedom with normal noise, 24 for n = 400, m = 200. The
likelihood, with all degrees of freedom equally likely beforehand, is therefore a wide distribution, and the penalty has
its upper quartile: the width is then more often too large than too small. The mean, which is not conservative, was
about right in the median and too small for a quarter of the networks.

Both densities are normal, or Student's t with four degrees of freedom where errors and residuals are likelier under it.
With heavy tails the mean squares are dominated by a few rows, and a normal likelihood takes their difference for
precise.

Measured on 48 networks of twelve kinds (tanh and ReLU, one and two hidden layers, Adam with early stopping on the
validation rows, normal, Laplace, t3 and unequal noise; 200 to 800 rows, 100 to 400 validation rows, 101 to 581
parameters), by the standard error over the standard deviation of 20 retrainings under redrawn responses, at points in
distribution:

=====================  ================  ======  ================  ========
rule                   tenth percentile  median  90th percentile   below .8
=====================  ================  ======  ================  ========
normal, mean                        .65     .99              1.35       23%
normal, quartile                    .79    1.17              1.49       12%
chosen, mean                        .74    1.07              1.37       12%
chosen, quartile                    .85    1.29              1.60        8%
chosen, quantile .84                .91    1.40              1.73        6%
=====================  ================  ======  ================  ========

The penalty was one number for all parameters there. That it is now one for each array of parameters
(:mod:`vhat.variance.penalty_shape`) moves the ratios by a few percent. The rule was chosen on these networks, as the
narrowest that left at most one in ten below .8. Its degrees of freedom were at least the generalised ones of the
training for 94%, where the mean of the normal likelihood bounded 65%. In a gap of one input its ratios were .78, 1.35
and 1.94, beyond its end .76, 1.31 and 2.52. One kind of network is far from the regression function (mean square error
4.7 times the noise) and varies more than a ridge refit with its generalised degrees of freedom (.6). On the nine
networks of ``benchmarks/retraining.py``, on which nothing was chosen and which have only two draws of validation noise,
the ratios are .64 to .91 in distribution (.41 to .76 with the mean under a normal likelihood) and .46 to 1.03 off the
data.

Rows that stopped the training were fitted a little: their errors correlated with their noise as if it had taken 3.9
degrees of freedom from them (mean over 20 draws, all kinds but the two of the largest errors). The quartile covers
that; there is no further allowance, which would be wrong for rows that did not stop it.
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
from vhat.variance.spectrum import Path, follow
from vhat.variance.validation import Validation

__all__ = ["Evidence", "choose_ridge"]

_GRID = 61
"""Values of lam that are tried, from 1e-9 to 1e3 times the largest eigenvalue."""
_BETWEEN = 20
"""Steps between two of them in sums over the degrees of freedom."""
_MOST_POINTS = 1000
"""Validation rows, times outputs, at which V is followed; the others are taken to have its mean."""
_GENERAL_FLOPS = 3e8
"""Operations of V at these rows for one lam where the noise differs between rows: they are fewer then."""
_GRADIENT_NUMBERS = 4e6
"""Numbers in the gradients of these rows: half of the rows are taken where there are 8,000 parameters."""
_FEWEST_POINTS = 100
_QUANTILE = 0.75
"""Quantile of the degrees of freedom under the likelihood that the penalty has; see the module's table."""
_T = 4.0
"""Degrees of freedom of Student's t against outliers."""
_T_VARIANCE = 2.0 * (_T + 3.0) / _T
"""Variance of the logarithm of the squared scale of n values by the likelihood of t4, times n; 2 for the normal."""
_OUTLIERS = 14.0
"""How far the logarithm of the squared scale of t4 is searched below that of the mean square, which outliers a thousand
times as large as the rest may raise."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What lam is judged by, in units of each output's own validation error.

    Attributes:
        errors: Errors at validation rows, (m,).
        points: Which of them V is followed at, (q,), in the order of the path.
        unit: The squared unit of each of these, (q,): V is divided by it.
        path: V along lam.
        n: How many training rows there are.
        size: ``|r|^2`` of the weighted training residuals, or for t4 their squared scale times ``total``; None where
            the loss is not a square, so that they are not compared.
        total: ``tr D``, what ``|r|^2`` would be for sigma = 1 without a fit.
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

    def left(self, lam: float) -> tuple[float, float]:
        """Return mean and variance of ``|r|^2`` of the training residuals for sigma = 1 and normal noise."""
        if not np.isfinite(lam):
            return self.total, 2.0 * self.squares
        spectrum = self.path.spectrum
        pairs = self.total**2 / self.squares  # the number of (row, output) pairs where D is one number
        along = np.full(len(spectrum.values), self.total / pairs) if self.path.spread is None else self.path.spread
        shrunk = lam / (spectrum.values + lam)
        mean = self.total - float(spectrum.counts @ (along * (1 - shrunk**2)))
        variance = self.squares - float(spectrum.counts @ (along**2 * (1 - shrunk**4)))
        least = np.finfo(np.float64).eps
        return max(mean, least * self.total), 2.0 * max(variance, least * self.squares)

    def log_likelihood(self, lam: float) -> float:
        """Return the log-likelihood of lam, up to a constant, sigma profiled."""
        spread = 1.0 + self.shares(lam)
        squares = self.errors**2 / spread
        mean, variance = self.left(lam)
        relative = variance / mean**2 * (1.0 if self.likelihood == "normal" else _T_VARIANCE / 2.0)

        def surprise(log: float) -> float:
            return self._of_errors(squares, log) + self._of_residuals(mean, relative, log)

        found = _minimum(surprise, *self._range(squares, mean))
        return -found[1] - 0.5 * float(np.sum(np.log(spread)))

    def _range(self, squares: np.ndarray, mean: float) -> tuple[float, float]:
        """Return between which values ``log sigma^2`` is searched: the two sizes by themselves, and a margin."""
        sizes = [float(np.log(np.mean(squares)))]
        if self.size is not None:
            sizes.append(float(np.log(self.size / mean)))
        return min(sizes) - (1.0 if self.likelihood == "normal" else _OUTLIERS), max(sizes) + 1.0

    def _of_errors(self, squares: np.ndarray, log: float) -> float:
        """Return minus the log-density of the validation errors for ``log sigma^2``."""
        scaled = squares * np.exp(-log)
        if self.likelihood == "normal":
            return 0.5 * float(len(squares) * log + np.sum(scaled))
        return 0.5 * len(squares) * log + 0.5 * (_T + 1) * float(np.sum(np.log1p(scaled / _T)))

    def _of_residuals(self, mean: float, relative: float, log: float) -> float:
        """Return minus the log-density of the logarithm of the size of the training residuals."""
        if self.size is None:
            return 0.0
        return 0.5 * (np.log(self.size / mean) - log) ** 2 / relative + 0.5 * float(np.log(relative))


def choose_ridge(
    problem: Problem, validation: Validation, shape: np.ndarray, *, likelihood: str = "auto", seed: int = 0
) -> RidgeRefit:
    """Choose the penalty by the likelihood of validation rows and of the size of the training residuals.

    The penalty is a multiple of :func:`penalty_shape`.

    Args:
        problem: The training problem, at the parameters of the model.
        validation: Rows that training did not fit.
        shape: Relative noise of each training response, (n, K).
        likelihood: ``"normal"``; ``"t4"`` against outliers; or ``"auto"``, whichever is larger.
        seed: Draws training rows where the path is followed on some of them only.
    """
    penalty = penalty_shape(problem)
    evidence = gather(problem, validation, shape, np.sqrt(penalty), likelihood, seed)
    spectrum = evidence.path.spectrum
    grid = spectrum.values.max() * np.logspace(-9, 3, _GRID)
    found = np.array([evidence.log_likelihood(lam) for lam in grid])
    best = int(np.argmax(found))
    freedom = np.array([spectrum.freedom(lam) for lam in grid])
    mean, deviation, chosen = _weighed(freedom, found)
    return RidgeRefit(
        weight_decay=spectrum.penalty(chosen) * penalty,
        way="validation",
        rows=validation.rows,
        freedom=chosen,
        freedom_mean=mean,
        freedom_error=deviation,
        gain=2.0 * float(found[best] - evidence.log_likelihood(np.inf)),
        at_end=best in (0, _GRID - 1),
        path_rows=evidence.path.rows,
        likelihood=evidence.likelihood,
    )


def _weighed(freedom: np.ndarray, log_likelihood: np.ndarray) -> tuple[float, float, float]:
    """Return mean, standard deviation and upper quantile of the degrees of freedom under the likelihood.

    All degrees of freedom are equally likely beforehand. The log-likelihood is linear between the values of the grid.

    Args:
        freedom: Degrees of freedom along increasing lam, (grid,), so that they decrease.
        log_likelihood: Of each, (grid,).
    """
    places = np.linspace(0.0, len(freedom) - 1.0, (len(freedom) - 1) * _BETWEEN + 1)
    fine = np.interp(places, np.arange(len(freedom)), freedom)[::-1]
    density = np.exp(np.interp(places, np.arange(len(freedom)), log_likelihood - log_likelihood.max()))[::-1]
    shares = 0.5 * (density[1:] + density[:-1]) * np.diff(fine)
    middles = 0.5 * (fine[1:] + fine[:-1])
    mean = float(np.average(middles, weights=shares))
    deviation = float(np.sqrt(np.average((middles - mean) ** 2, weights=shares)))
    below = np.concatenate([[0.0], np.cumsum(shares)]) / shares.sum()
    return mean, deviation, float(np.interp(_QUANTILE, below, fine))


def gather(
    problem: Problem, validation: Validation, shape: np.ndarray, root: np.ndarray, likelihood: str, seed: int
) -> Evidence:
    """Return what lam is judged by."""
    relative = validation.relative_noise(problem)
    errors = validation.errors(problem) / relative
    level = _size_of_errors(errors)
    noise = shape * level
    inputs, index = validation.sample(problem, _points(problem))
    path = follow(problem, inputs, root, noise, seed)
    K = problem.outputs
    spread = np.maximum(problem.loss_derivatives.own_curvature, 0.0) * noise**2
    if likelihood == "auto":
        likelihood = _likelier(problem, errors / level, noise, spread)
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
        InputError: Where it is zero or too large for double precision, so that no likelihood can be computed.
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


def _points(problem: Problem) -> int:
    """Return at how many validation rows V is followed."""
    rank = min(problem.n * problem.outputs, problem.p, 2000)
    affordable = int(np.clip(_GRADIENT_NUMBERS / problem.p, _FEWEST_POINTS, _MOST_POINTS))
    if problem.outputs > 1 or np.ptp(problem.weights) > 0:
        affordable = min(affordable, int(np.clip(_GENERAL_FLOPS / rank**2, _FEWEST_POINTS, _MOST_POINTS)))
    return max(1, affordable // problem.outputs)


def _residual_size(problem: Problem, noise: np.ndarray, spread: np.ndarray, likelihood: str) -> float | None:
    """Return ``|r|^2`` of the weighted training residuals; for t4, their squared scale times ``tr D``."""
    loss = problem.loss_derivatives
    residuals = problem.fitted_values - problem.targets
    if not loss.square or not residuals.any():
        return None
    if likelihood == "normal":
        return float(np.sum(loss.own_curvature * residuals**2))
    seen = spread > 0
    return float(spread.sum()) * _student_scale((residuals / noise)[seen])


def _likelier(problem: Problem, errors: np.ndarray, noise: np.ndarray, spread: np.ndarray) -> str:
    """Return the likelihood, normal or t4, under which validation errors and training residuals are more likely.

    The sizes of both, output by output, are free: the comparison is of the shape alone. Neither the units of the
    responses nor how closely each output was fitted have a part in it.

    Args:
        problem: The training problem.
        errors: Validation errors, in units of their root mean square, (m, K).
        noise: Noise of each training response in the same unit, (n, K).
        spread: ``D``, which is zero for rows that the loss does not see, (n, K).
    """
    gain = sum(_gain_of_t4(column) for column in errors.T)
    residuals = problem.fitted_values - problem.targets
    if problem.loss_derivatives.square and residuals.any():
        seen = spread > 0
        gain += sum(_gain_of_t4((residuals / noise)[seen[:, k], k]) for k in range(problem.outputs))
    return "t4" if gain > 0 else "normal"


def _gain_of_t4(values: np.ndarray) -> float:
    """Return how much larger the log-likelihood of t4 is than that of the normal, each at its most likely scale."""
    squares = values**2
    if not squares.any():
        return 0.0
    squared_scale = _student_scale(values)
    normal = -0.5 * len(values) * float(np.log(2 * np.pi * np.mean(squares)) + 1.0)
    tails = -0.5 * (_T + 1) * float(np.sum(np.log1p(squares / (squared_scale * _T))))
    peak = float(gammaln((_T + 1) / 2) - gammaln(_T / 2)) - 0.5 * float(np.log(_T * np.pi * squared_scale))
    return len(values) * peak + tails - normal


def _student_scale(values: np.ndarray) -> float:
    """Return the squared scale under which values are most likely as t4."""
    squares = values**2

    def surprise(log: float) -> float:
        return 0.5 * len(squares) * log + 0.5 * (_T + 1) * float(np.sum(np.log1p(squares * np.exp(-log) / _T)))

    middle = float(np.log(np.mean(squares)))
    return float(np.exp(_minimum(surprise, middle - _OUTLIERS, middle + 1.0)[0]))


def _minimum(surprise: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Return where a function of one number is smallest, and its value there."""
    found = minimize_scalar(surprise, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return float(found.x), float(found.fun)
