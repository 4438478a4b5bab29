"""Print what the isoperimetric bound covers: ``python -m benchmarks.coverage [minima|freedom|limits|moments] [COUNT]``.

- ``minima``: the default bound at certified minima of the four problems of ``tests/validity/test_fixed_design.py``.
- ``freedom``: with noise estimated from 3, 5 and 10 degrees of freedom, ``test_few_degrees_of_freedom.py``.
- ``limits``: error rates of ``vhat.intervals.monte_carlo_limits`` over eta.
- ``moments``: misses over delta of intervals with E V and sd(V) from redraws, by those limits.

COUNT is the number of redraws (500, 10,000), of samples (100,000) or of sets of redraws (20,000).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import stats

from vhat import bounds
from vhat.bounds import isoperimetric_multiplier
from vhat.intervals.monte_carlo_limits import mean_limit, sd_limit

DELTAS = (0.1, 0.05, 0.01)
ETAS = (0.005, 0.0025, 0.0005)
DRAWS = (30, 100, 400)
GRID = np.linspace(-9, 9, 36_001)
MASS = stats.norm.pdf(GRID) * (GRID[1] - GRID[0])
FUNCTIONS = {
    # F and the square of its derivative.
    "tanh(z/2)": (lambda z: np.tanh(z / 2), lambda z: 0.25 / np.cosh(z / 2) ** 4),
    "z^2": (lambda z: z**2, lambda z: 4 * z**2),
    "exp(z/2)": (lambda z: np.exp(z / 2), lambda z: 0.25 * np.exp(z)),
    "extremal at .01": (None, lambda z: (stats.norm.cdf(z) / stats.norm.pdf(z)) ** 2 * (z <= stats.norm.isf(0.01))),
    "extremal at .05": (None, lambda z: stats.norm.pdf(z) ** -2.0 * (np.abs(z) <= stats.norm.isf(0.025))),
}


def summary(covered: np.ndarray) -> str:
    """Mean with its standard error over redraws, worst tenth of the points, worst point."""
    each = covered.mean(axis=1)
    points = np.sort(covered.mean(axis=0))
    worst = points[: int(np.ceil(0.1 * len(points)))]
    error = each.std(ddof=1) / np.sqrt(len(each))
    return f"{each.mean():.4f} +- {error:.4f}, worst tenth {worst.mean():.3f}, worst point {points[0]:.3f}"


def minima(count: int = 500) -> Iterator[str]:
    from tests.validity import test_fixed_design as cases

    cases.REDRAWS = count
    for name, problem in cases.PROBLEMS.items():
        campaign = cases.run(problem)
        V = campaign.found.standard_error**2
        spread = np.median(V.std(axis=0) / V.mean(axis=0))
        yield f"{name}: {len(V)} redraws, {campaign.refits.dropped} dropped, V's relative spread {spread:.2f} (median)"
        for delta in DELTAS:
            half = campaign.half_width("isoperimetric", delta)
            ratio = half.mean() / campaign.half_width("tight", delta).mean()
            yield f"  {delta}: {summary(campaign.covered(half))}, width over tight {ratio:.3f}"
            for tail, form in (("constant", bounds.isoperimetric(V, 1, 1.0, delta)), ("any", any_tail(V, delta))):
                yield f"    tail {tail}: {summary(campaign.covered(form))}"


def any_tail(V: np.ndarray, delta: float) -> np.ndarray:
    return bounds.isoperimetric(V, 1, 1.0, delta, v=np.inf)


def freedom(count: int = 10_000) -> Iterator[str]:
    from tests.validity import test_few_degrees_of_freedom as cases

    cases.REDRAWS = count
    for name in cases.MODELS:
        for df in cases.FREEDOM:
            fits = cases.refit(name, df)
            gaps = np.abs(fits.value - fits.value.mean(axis=0))
            yield f"{name}, n - p = {df}: {len(gaps)} redraws"
            for delta in DELTAS:
                half = cases.multiplier(delta)(1 / fits.df)[:, None] * fits.standard_error
                yield f"  {delta}: {summary(gaps <= half)}"


class Transformed:
    """The law of a function of a standard normal, with the methods of ``scipy.stats`` that are used here."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self.function = function

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> np.ndarray:
        return self.function(random_state.standard_normal(size))

    def mean(self) -> float:
        return float(np.sum(MASS * self.function(GRID)))

    def std(self) -> float:
        return float(np.sqrt(np.sum(MASS * (self.function(GRID) - self.mean()) ** 2)))


def limits(count: int = 100_000) -> Iterator[str]:
    laws: dict[str, Any] = {
        "of tanh(z/2)": Transformed(FUNCTIONS["tanh(z/2)"][1]),
        "gamma, shape 8": stats.gamma(8),
        "gamma, shape 2": stats.gamma(2),
        "gamma, shape 1": stats.gamma(1),
        "chi-square, df 1": stats.chi2(1),
        "lognormal, 0.5": stats.lognorm(0.5),
        "lognormal, 1": stats.lognorm(1.0),
    }
    yield f"error rate over eta, mean / sd; eta = {ETAS}"
    for name, law in laws.items():
        for draws in DRAWS:
            rng = np.random.default_rng(draws)
            wrong = np.zeros((2, len(ETAS)))
            for part in np.array_split(np.arange(count), max(1, count * draws // 2_000_000)):
                sample = law.rvs(size=(draws, len(part)), random_state=rng)
                wrong[0] += [np.sum(mean_limit(sample, eta) < law.mean()) for eta in ETAS]
                wrong[1] += [np.sum(sd_limit(sample, eta) < law.std()) for eta in ETAS]
            rates = wrong / count / ETAS
            yield f"{name}, {draws} draws: " + ", ".join(f"{a:.2f} / {b:.2f}" for a, b in rates.T)


def moments(count: int = 20_000) -> Iterator[str]:
    yield f"miss over delta (median width over that with known moments); delta = {DELTAS}"
    for name, (value, square) in FUNCTIONS.items():
        W = square(GRID)
        F = np.cumsum(np.sqrt(W)) * (GRID[1] - GRID[0]) if value is None else value(GRID)
        gaps = np.abs(F - np.sum(MASS * F))
        order = np.argsort(gaps)
        beyond = np.append(np.cumsum(MASS[order][::-1])[::-1], 0.0)
        mean = np.sum(MASS * W)
        spread = np.sqrt(np.sum(MASS * (W - mean) ** 2)) / mean
        for draws in DRAWS:
            sample = square(np.random.default_rng(draws).standard_normal((draws, count)))
            shown = []
            for delta in DELTAS:
                high = mean_limit(sample, delta / 20)
                ratio = sd_limit(sample, delta / 20) / high
                half = np.sqrt(high) * isoperimetric_multiplier(0.9 * delta, sd=ratio)
                known = np.sqrt(mean) * isoperimetric_multiplier(delta, sd=spread)
                missed = beyond[np.searchsorted(gaps[order], half, side="right")].mean()
                shown.append(f"{missed / delta:.2f} ({np.median(half) / known:.2f})")
            yield f"{name}, {draws} redraws: " + ", ".join(shown)


TABLES: dict[str, Callable[..., Iterator[str]]] = {
    "minima": minima,
    "freedom": freedom,
    "limits": limits,
    "moments": moments,
}

if __name__ == "__main__":
    chosen = sys.argv[1:2] or list(TABLES)
    for table in chosen:
        for line in TABLES[table](*map(int, sys.argv[2:])):
            print(line, flush=True)
