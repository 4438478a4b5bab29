"""Sharpness of the isoperimetric multipliers: never below the radius of some function, and only slightly above it.

Among functions of one normal U the worst for a given tail solves a concave problem. Let ``F' = sqrt(w(U))`` on
``|U| < z``, with ``P(|U| > z) = delta``, and let F stay there beyond (or go to and fro with small amplitude, where w is
not zero). Then F leaves ``E F +- r`` with probability delta, ``r = 1/2 integral of sqrt(w) over (-z, z)``. This r is
concave in w, and constraints on ``E W = 1`` and on the standard deviation of W are convex, so that the condition of
Lagrange gives the largest:

    1 / (4 sqrt(w)) = (a + b w) phi(u)   on |u| < z,        w = max(0, -a / b)   beyond.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from vhat.bounds import isoperimetric_multiplier

NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)


class Worst(NamedTuple):
    """The worst function of a given standard deviation of W: its radius, and w at nodes of probability ``mass``."""

    radius: float
    u: np.ndarray
    w: np.ndarray
    mass: np.ndarray


def worst_function(delta: float, sd: float) -> Worst:
    """Solve Lagrange's condition for E W = 1 and the given standard deviation."""
    z = -ndtri(delta / 2)
    u = z * NODES
    phi = norm.pdf(u)
    # The last node stands for |u| > z.
    mass = np.append(z * WEIGHTS * phi, delta)

    def square(p: float, b: float) -> np.ndarray:
        """w, from the positive root of ``x^3 + p x = q``, x = sqrt(w), p = a / b, by Newton's method from above."""
        q = 1 / (4 * b * phi)
        x = np.cbrt(q) + np.sqrt(max(-p, 0.0))
        for _ in range(60):
            x = x - (x**3 + p * x - q) / (3 * x**2 + p)
        return np.append(x**2, max(-p, 0.0))

    def of_mean_one(log_b: float) -> np.ndarray:
        b = np.exp(log_b)
        p = optimize.brentq(lambda p: np.sum(mass * square(p, b)) - 1, -1.0, 1e6, xtol=1e-13)
        return square(p, b)

    def excess(log_b: float) -> float:
        return float(np.sum(mass * of_mean_one(log_b) ** 2)) - 1 - sd**2

    w = of_mean_one(optimize.brentq(excess, -9.0, 6.0, xtol=1e-10))
    return Worst(0.5 * z * float(np.sum(WEIGHTS * np.sqrt(w[:-1]))), u, w, mass)


def least_v(worst: Worst, c: float) -> float:
    """Return the least v with ``ln E exp(a (W - 1)) <= a^2 v^2 / (2 (1 - c a))`` for 0 < a < 1/c."""
    a = np.linspace(1e-3, (1 - 1e-4) / c, 2000)[:, None]
    log_moment = np.log(np.sum(worst.mass * np.exp(a * (worst.w - 1)), axis=1, keepdims=True))
    return float(np.sqrt(np.max(2 * (1 - c * a) * log_moment / a**2)))


@pytest.mark.parametrize("delta", [0.1, 0.05, 0.01, 0.001])
@pytest.mark.parametrize("sd", [0.1, 0.3, 0.5])
def test_a_function_attains_the_multiplier_of_two_moments(delta, sd):
    """To 0.6%, from below."""
    found = float(isoperimetric_multiplier(delta, sd=sd))
    attained = worst_function(delta, sd).radius
    assert attained <= found <= 1.006 * attained


@pytest.mark.parametrize(
    ("delta", "sd", "c"),
    [(0.1, 0.5, 0.25), (0.05, 0.3, 0.2), (0.05, 0.5, 0.25), (0.01, 0.3, 0.25), (0.01, 0.5, 0.5)],
)
def test_a_function_attains_the_multiplier_of_a_sub_gamma_tail(delta, sd, c):
    """To 3%, from below: the worst function for its standard deviation, with the least v that its W has for c."""
    worst = worst_function(delta, sd)
    found = float(isoperimetric_multiplier(delta, v=least_v(worst, c), c=c))
    assert worst.radius <= found <= 1.03 * worst.radius


@pytest.mark.parametrize(("delta", "sd"), [(0.1, 0.5), (0.05, 0.3), (0.01, 0.5)])
def test_the_worst_function_is_what_it_is_said_to_be(delta, sd):
    """On a fine grid: E W = 1, the standard deviation, and a miss of delta just below its radius."""
    worst = worst_function(delta, sd)
    z = -ndtri(delta / 2)
    u = np.linspace(-9, 9, 180_001)
    step = u[1] - u[0]
    weights = norm.pdf(u) * step
    to_and_fro = np.where(np.arange(len(u)) // 10 % 2, 1.0, -1.0)
    inside = np.sqrt(np.interp(u, worst.u, worst.w[:-1]))
    slope = np.where(np.abs(u) < z, inside, to_and_fro * np.sqrt(worst.w[-1]))
    W = slope**2
    assert np.sum(weights * W) == pytest.approx(1.0, rel=2e-3)
    assert np.sqrt(np.sum(weights * (W - 1) ** 2)) == pytest.approx(sd, rel=5e-3)
    F = integrate.cumulative_trapezoid(slope, dx=step, initial=0.0)
    gaps = np.abs(F - np.sum(weights * F))
    assert np.sum(weights[gaps > 0.997 * worst.radius]) == pytest.approx(delta, rel=0.02)
    assert np.all(gaps < 1.003 * worst.radius)


@pytest.mark.parametrize("delta", [0.5, 0.2, 0.1, 0.05, 0.01, 1e-3, 1e-6])
def test_the_exact_constants_are_met_from_above(delta):
    """Constant W: the root of D(r) = delta. Nothing but E W: at least both functions that attain it."""

    def area(z: float) -> float:
        return integrate.quad(ndtr, -np.inf, z, epsabs=1e-13, epsrel=1e-13)[0]

    def miss(r: float) -> float:
        z = optimize.brentq(lambda z: area(z) - r, -10, 10, xtol=1e-13)
        return float(ndtr(-z) + ndtr(z - 2 * r))

    constant = optimize.brentq(lambda r: miss(r) - delta, 0.3, 8.0, xtol=1e-12)
    assert constant * (1 - 1e-9) <= float(isoperimetric_multiplier(delta)) <= constant * (1 + 1e-9)
    shared = 0.5 * integrate.quad(lambda u: 1 / norm.pdf(u), 0, -ndtri(delta / 2))[0]
    one_side = integrate.quad(lambda u: ndtr(u) ** 2 / norm.pdf(u), -12, -ndtri(delta))[0]
    exact = np.sqrt(max(shared, one_side))
    assert exact * (1 - 1e-9) <= float(isoperimetric_multiplier(delta, v=np.inf)) <= exact * (1 + 1e-9)
