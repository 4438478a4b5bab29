"""The mean and the tail of the weighted norm V, estimated by refits under redrawn responses (a parametric bootstrap).

Responses are redrawn from the fitted model, ``f(x_i) + sigma_i z_i``, the minimum is followed from the fitted
parameters by Newton's method, and V is computed there. The mean of these V estimates E[V]. The isoperimetric bound also
uses their standard deviation. For the other bounds a pair (v, c) is fitted to the draws of V at each point, such that

    ln E exp(a (V - E V)) <= a^2 v^2 / (2 (1 - c a)),        0 < a < 1/c.

Redraws are made from the fit, in place of the unknown truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from vhat.checks import check_count
from vhat.errors import InputError, VhatError
from vhat.evidence.minimise.polish import polish
from vhat.intervals import monte_carlo_limits
from vhat.linalg.solvers import Status
from vhat.linalg.solvers.kernel import newton_metric
from vhat.models.problem import Array, Curvature, Problem
from vhat.progress import bar
from vhat.variance.noise import Noise
from vhat.variance.weighted_norm import Measured, measure
from vhat.variance.workspace import Workspace

__all__ = ["EstimatedTail", "Redraws", "estimate_tail", "fit_pair"]

_FEWEST = 10
"""Smallest number of redraws."""
_USABLE = 0.9
"""Smallest share of the redraws that must reach a minimum."""
_GRID = np.geomspace(1e-2, 1e2, 81)
"""Arguments a of the moment generating function at which the inequality must hold, in units of 1/sd(V)."""


@dataclass(frozen=True)
class Redraws:
    """Ask for a tail that is estimated by refits under redrawn responses: ``interval(x, tail=vhat.Redraws(200))``.

    Attributes:
        count: Number of refits; ``tail="estimated"`` makes 100. The scale c rests on the skewness of so many values.
    """

    count: int = 100

    def __post_init__(self) -> None:
        check_count("Redraws: count", self.count, least=_FEWEST)


@dataclass(frozen=True, eq=False)
class EstimatedTail:
    """The mean, the spread and the tail of V over redraws of the responses, at each point, in units of V.

    Attributes:
        v: Square root of the variance factor, in the shape of the interval (see :class:`vhat.Tail`); NaN where a
            redraw has no V.
        c: Scale.
        mean: Mean of V over the redraws, beside the V that the interval reports.
        sd: Standard deviation of V over the redraws.
        redraws: Number of redraws that reached a minimum.
        lost: Number of redraws that did not.
        draws: V at each redraw, (redraws, ...).
        origin: A digest of the points, the noise and the fit that it was estimated for.

    Examples:
        >>> import numpy as np, vhat
        >>> x = np.linspace(0, 4, 30)
        >>> y = 2.0 * np.exp(-x) + 0.01 * np.cos(30 * x)
        >>> fitted = vhat.from_numpy(lambda q, x: q[0] * np.exp(-q[1] * x), [2.0, 1.0], x, y).polish()
        >>> band = fitted.interval([1.0, 2.0], tail=vhat.Redraws(10))
        >>> band.tail.redraws, band.tail.v.shape
        (10, (2,))
    """

    delta_share: ClassVar[float] = 1 / 20
    """Share of delta that is spent on the Monte Carlo error of the mean, and again on that of the spread."""

    v: np.ndarray
    c: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    redraws: int
    lost: int
    draws: np.ndarray = field(repr=False)
    origin: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, draws: np.ndarray, lost: int) -> EstimatedTail:
        """Summarise draws of V, (redraws, ...)."""
        v, c = fit_pair(draws)
        return cls(v, c, np.mean(draws, axis=0), np.std(draws, axis=0, ddof=1), len(draws), lost, draws)

    def check_origin(self, origin: bytes) -> None:
        """Refuse to be used for other points, another noise or another fit.

        Raises:
            InputError: Saying so.
        """
        if self.origin != origin:
            raise InputError(
                "this tail was estimated for other points, another noise level or another fit. A tail belongs to its "
                "points: use tail='estimated' again."
            )

    def pair(self, _: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (v, c) at each point."""
        return self.v, self.c

    def mean_limit(self, eta: float) -> np.ndarray:
        """Return an upper limit of E[V] at each point, exceeded with probability about ``eta`` over the redraws."""
        return monte_carlo_limits.mean_limit(self.draws, eta)

    def sd_limit(self, eta: float) -> np.ndarray:
        """Return an upper limit of the standard deviation of V, likewise."""
        return monte_carlo_limits.sd_limit(self.draws, eta)

    def mark(self, found: Measured) -> Measured:
        """Return the norms with the status "not converged" at points that have no tail, and so no interval."""
        missing = (found.status == Status.CONVERGED) & np.isnan(self.v.ravel())
        return replace(found, status=np.where(missing, Status.NOT_CONVERGED.value, found.status))

    def __repr__(self) -> str:
        lost = f", {self.lost} more without a minimum" if self.lost else ""
        known = np.isfinite(self.v)
        spans = (f"{name} {a[known].min():.3g} to {a[known].max():.3g}" for name, a in (("v", self.v), ("c", self.c)))
        shown = ", ".join(spans) if known.any() else "no point has one"
        return f"EstimatedTail({shown}, from {self.redraws} redraws{lost})"


def estimate_tail(
    work: Workspace,
    curvature: Curvature,
    noise: Noise,
    sides: Callable[[Problem], Iterable[Array]],
    reference: np.ndarray,
    redraws: Redraws,
    seed: int,
) -> EstimatedTail:
    """Estimate the tail of V at every point.

    Args:
        work: The fitted model, at a minimum.
        curvature: The curvature in V.
        noise: The noise of the training responses.
        sides: Returns the right-hand sides of the points at the parameters of a problem.
        reference: The noise level in whose unit V is expressed, in the shape of the interval.
        redraws: The number of redraws.
        seed: Seed of the redraws.

    Raises:
        InputError: When the loss has no residual, so that responses cannot be redrawn from predictions, or when more
            than a tenth of the redraws have no minimum.
    """
    if not work.problem.loss_derivatives.location:
        raise InputError(
            "tail='estimated' redraws responses about the predictions, and this loss is not a function of f - y: a "
            "prediction is not the mean of a response. Use tail=None, or supply vhat.Tail(v, c)."
        )
    key = ("redraws", noise.values.tobytes(), redraws.count, seed)
    minima = work.keep(key, lambda: _move_minima(work.problem, noise, redraws.count, seed))
    lost = redraws.count - len(minima)
    if len(minima) < _USABLE * redraws.count:
        raise InputError(
            f"the tail of V cannot be estimated: {lost} of {redraws.count} redraws of the responses led to no certified"
            " minimum, so that V may be infinite within reach of the noise. See fitted.audit(refits=10); more weight "
            "decay, or a simpler model, moves the fold away."
        )
    variances = []
    for i, theta in minima:
        redrawn = Workspace(_redraw(work.problem, noise, seed, i).at(theta), work.shape)
        solver = redrawn.own_solver(curvature)
        variances.append(measure(redrawn.problem, solver, sides(redrawn.problem), noise.values).variance)
    return EstimatedTail.of(np.reshape(variances, (len(minima), *reference.shape)) / reference**2, lost)


def _move_minima(problem: Problem, noise: Noise, count: int, seed: int) -> list[tuple[int, Array]]:
    """Return the number of each redraw that reaches a minimum, and the parameters there."""
    found = []
    with bar("redraws", count) as advance:
        for i in range(count):
            redrawn = _redraw(problem, noise, seed, i)
            try:
                theta = polish(redrawn, warmup=0, metric=newton_metric(redrawn), seed=seed).problem.theta
            except VhatError:
                advance("no minimum")
                continue
            found.append((i, theta))
            advance("")
    return found


def _redraw(problem: Problem, noise: Noise, seed: int, i: int) -> Problem:
    """Return the problem with the responses of redraw i, at the same parameters."""
    z = np.random.default_rng([seed, i]).standard_normal(noise.values.shape)
    return problem.with_targets(problem.fitted_values + noise.values * z)


def fit_pair(drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit a sub-gamma pair to draws of V along the first axis, at every point.

    The scale is that of the gamma law with the same variance and third moment, ``c = k3 / (2 k2)``, and 0 where the
    skewness is negative. v is then the smallest value, at least the standard deviation of the draws, for which the
    inequality holds for their empirical law.

    Args:
        drawn: (draws, ...), draws of V.

    Returns:
        v and c, each of the shape of one draw; NaN where any draw is.
    """
    centred = drawn - np.mean(drawn, axis=0)
    count = len(drawn)
    second = np.sum(centred**2, axis=0) / (count - 1)
    sd = np.sqrt(second)
    unit = np.where(sd > 0, sd, 1.0)
    z = centred / unit
    skew = np.mean(z**3, axis=0) * count**2 / ((count - 1) * (count - 2))
    scale = np.maximum(skew, 0.0) / 2
    factor = np.ones(np.shape(sd))
    for a in _GRID:
        usable = a * scale < 1
        room = np.where(usable, 1 - a * scale, 0.0)
        factor = np.maximum(factor, 2 * room * _log_mean_exp(a * z) / a**2)
    return sd * np.sqrt(factor), sd * scale


def _log_mean_exp(values: np.ndarray) -> np.ndarray:
    top = np.max(values, axis=0)
    return np.asarray(top + np.log(np.mean(np.exp(values - top), axis=0)))
