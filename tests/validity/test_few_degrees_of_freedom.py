"""Intervals whose noise is estimated from residuals with 3, 5 and 10 degrees of freedom."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import PchipInterpolator

import vhat
from tests.validity.linear import estimator, polynomial
from vhat import bounds

pytestmark = pytest.mark.slow

DELTAS = (0.1, 0.05, 0.01)
FREEDOM = (3, 5, 10)
REDRAWS = 5000
"""The share that is covered is then known to a standard error of 0.1 points at delta = 0.01, 0.3 at 0.1."""


# -- linear models -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("df", FREEDOM)
def test_students_t_covers_a_linear_model_at_exactly_its_level(df):
    """A cubic on n = 4 + df rows, 20,000 redraws; three binomial standard errors, for every point by itself."""
    draws, noise = 20_000, 0.3
    X = polynomial(np.linspace(-1, 1, 4 + df), 3)
    points = polynomial(np.linspace(-1.5, 1.5, 5), 3)
    z = noise * np.random.default_rng(df).standard_normal((draws, len(X)))
    moves = points @ estimator(X)
    residuals = z - z @ estimator(X).T @ X.T
    scale = np.sqrt(np.sum(residuals**2, axis=1) / df)
    V = len(X) * np.sum(moves**2, axis=1)
    for delta in DELTAS:
        half = bounds.asymptotic(V, len(X), scale[:, None], delta, df=df)
        covered = np.mean(np.abs(z @ moves.T) <= half, axis=0)
        assert np.all(np.abs(covered - (1 - delta)) < 3.5 * np.sqrt(delta * (1 - delta) / draws))
        # The constant-V form of the isoperimetric bound is hardly wider, and never narrower.
        wide = bounds.isoperimetric(V, len(X), 1.0, delta, df=df)
        ratio = wide / bounds.asymptotic(V, len(X), 1.0, delta, df=df)
        assert np.all((ratio >= 1 - 1e-6) & (ratio < 1.01))


# -- non-linear models ---------------------------------------------------------------------------------------------
def decay(q, x):
    return q[0] * jnp.exp(-q[1] * x)


def offset(q, x):
    return q[0] * jnp.exp(-q[1] * x) + q[2]


def logistic(q, x):
    return q[0] / (1 + jnp.exp(-q[1] * (x - q[2])))


def step(q, x):
    return q[0] * jnp.tanh(q[1] * x + q[2]) + q[3]


def ramp(q, x):
    return q[0] * jnp.tanh(q[1] * x + q[2]) + q[3] + q[4] * x


MODELS = {
    # The model, its true parameters, the interval of the rows, the noise.
    "decay": (decay, (2.0, 1.0), (0.0, 3.0), 0.2),
    "offset": (offset, (2.0, 1.0, 0.5), (0.0, 3.0), 0.1),
    "logistic": (logistic, (2.0, 2.0, 1.5), (0.0, 3.0), 0.15),
    "step": (step, (1.0, 1.5, 0.3, 0.5), (-2.0, 2.0), 0.1),
    "ramp": (ramp, (1.0, 1.5, 0.3, 0.5, 0.3), (-2.0, 2.0), 0.1),
}
LAM = 1e-4


class Fits(NamedTuple):
    """Minima of one model under redrawn noise, and what they say: (redraws, ...) each."""

    rows: np.ndarray
    points: np.ndarray
    y: np.ndarray
    theta: np.ndarray
    value: np.ndarray
    standard_error: np.ndarray
    noise: np.ndarray
    df: np.ndarray


def derivatives(model, x):
    """Return a function of a batch of parameters: predictions at x, their gradients, their Hessians."""

    def one(q):
        def f(p):
            return model(p, x)

        return f(q), jax.jacfwd(f)(q), jax.jacfwd(jax.jacfwd(f))(q)

    compiled = jax.jit(jax.vmap(one))

    def batch(theta):
        with jax.enable_x64(True):
            return tuple(np.asarray(part) for part in compiled(jnp.asarray(theta)))

    return batch


def descend(evaluate, theta, y):
    """Minimise half the mean square plus half LAM |q|^2 for every row of y at once: shifted Newton steps."""
    n = y.shape[1]
    eye = np.eye(theta.shape[1])
    shift = np.zeros(len(y))

    def objective(q):
        f, J, K = evaluate(q)
        residual = f - y
        loss = 0.5 * np.mean(residual**2, axis=1) + 0.5 * LAM * np.sum(q**2, axis=1)
        slope = np.einsum("ri,rip->rp", residual, J) / n + LAM * q
        H = (np.einsum("rip,riq->rpq", J, J) + np.einsum("ri,ripq->rpq", residual, K)) / n + LAM * eye
        return loss, slope, H

    loss, slope, H = objective(theta)
    for _ in range(300):
        smallest = np.linalg.eigvalsh(H)[:, 0]
        open_ = (np.linalg.norm(slope, axis=1) > 1e-13) & (shift < 1e6)
        if not open_.any():
            break
        # Enough to make the matrix definite, and more after steps that did not go down.
        total = np.where(smallest > 0, 0.0, -2 * smallest + 1e-6) + shift
        move = np.linalg.solve(H + total[:, None, None] * eye, slope[:, :, None])[:, :, 0]
        trial = np.where(open_[:, None], theta - move, theta)
        with np.errstate(over="ignore", invalid="ignore"):
            found = objective(trial)
        drop = loss - found[0]
        flatter = np.linalg.norm(found[1], axis=1) < np.linalg.norm(slope, axis=1)
        accepted = open_ & ((drop > 1e-14 * loss) | ((np.abs(drop) <= 1e-14 * loss) & flatter))
        theta = np.where(accepted[:, None], trial, theta)
        loss, slope, H = (
            np.where(accepted.reshape(-1, *[1] * (old.ndim - 1)), new, old)
            for old, new in zip((loss, slope, H), found, strict=True)
        )
        shift = np.where(accepted, np.where(shift < 1e-8, 0.0, shift / 8), np.where(open_, 4 * shift + 1e-6, shift))
    return theta, np.linalg.norm(slope, axis=1), smallest, H


def residual_freedom(J, solve):
    """Return ``|I - S|_F^2`` of every refit, and the degrees of freedom, at most ``n - tr S``.

    S is by Gauss-Newton where the exact one amplifies noise: ``|S|_F^2 > tr S``, and it counts a tenth more, or one
    more, than Gauss-Newton.
    """
    n, p = J.shape[1:]
    gauss = np.linalg.inv(np.einsum("rip,riq->rpq", J, J) / n + LAM * np.eye(p))
    exact, shrinking = (np.einsum("rjp,rpq,riq->rji", J, A, J, optimize=True) / n for A in (solve, gauss))
    most, least = (np.sum((np.eye(n) - S) ** 2, axis=(1, 2)) for S in (exact, shrinking))
    grows = np.sum(exact**2, axis=(1, 2)) > np.trace(exact, axis1=1, axis2=2)
    amplifies = grows & (most - least > np.minimum(0.1 * least, 1.0))
    left = np.where(amplifies, least, most)
    trace = np.trace(np.where(amplifies[:, None, None], shrinking, exact), axis1=1, axis2=2)
    return left, np.minimum(left, n - trace)


@cache
def refit(name: str, df: int) -> Fits:
    """Refit one model with ``df`` more rows than parameters under redrawn noise; no refit may fail."""
    model, truth, (low, high), noise = MODELS[name]
    start = np.array(truth)
    rows = np.linspace(low, high, len(start) + df)
    evaluate = derivatives(model, rows)
    expected = evaluate(start[None])[0][0]
    y = expected + noise * np.random.default_rng(df).standard_normal((REDRAWS, len(rows)))
    theta = np.tile(start, (REDRAWS, 1))
    for part in (0.25, 0.5, 0.75, 1.0):  # the minimum is followed as the responses move
        theta, slope, smallest, H = descend(evaluate, theta, expected + part * (y - expected))
    good = (slope < 1e-10) & (smallest > 0)
    assert np.sum(~good) <= 0.02 * REDRAWS
    margin = 0.2 * (high - low)
    points = np.linspace(low - margin, high + margin, 15)
    f, J, _ = evaluate(theta)
    value, g, _ = derivatives(model, points)(theta)
    solve = np.linalg.inv(H)
    moves = np.einsum("rmp,rpq,riq->rmi", g, solve, J, optimize=True) / len(rows)
    left, residual_df = residual_freedom(J, solve)
    estimate = np.sqrt(np.sum((f - y) ** 2, axis=1) / left)
    error = estimate[:, None] * np.linalg.norm(moves, axis=2)
    return Fits(rows, points, *(part[good] for part in (y, theta, value, error, estimate, residual_df)))


@cache
def multiplier(delta: float) -> PchipInterpolator:
    """The default's multiplier as a function of 1/df: every refit has degrees of freedom of its own."""
    inverse = np.linspace(1 / 40, 1.0, 25)
    return PchipInterpolator(inverse, bounds.isoperimetric_multiplier(delta, v=0.5, c=0.25, df=1 / inverse))


@pytest.mark.parametrize("df", FREEDOM)
@pytest.mark.parametrize("name", MODELS)
def test_the_default_with_estimated_noise_covers_to_a_point(name, df):
    """The mean over the points; V is plugged in, and the laws of V and of the noise estimate are approximate."""
    fits = refit(name, df)
    gaps = np.abs(fits.value - fits.value.mean(axis=0))
    for delta in DELTAS:
        half = multiplier(delta)(1 / fits.df)[:, None] * fits.standard_error
        assert np.mean(gaps <= half) >= 1 - delta - 0.01
        known = bounds.isoperimetric_multiplier(delta, v=0.5, c=0.25) * fits.standard_error
        if df == 3 and delta < 0.1:  # the check can fail: without degrees of freedom it does
            assert np.mean(gaps <= known) < 1 - delta - 0.01


def test_the_library_estimates_noise_and_widens_as_the_dense_matrices_do():
    fits = refit("decay", 3)
    model = MODELS["decay"][0]
    for k in range(5):
        fitted = vhat.from_jax(model, fits.theta[k], fits.rows, fits.y[k], weight_decay=LAM)
        band = fitted.interval(fits.points, 0.05, curvature="hessian", bound="isoperimetric")
        assert band.df == pytest.approx(fits.df[k], rel=1e-6)
        np.testing.assert_allclose(band.center, fits.value[k], rtol=1e-6)
        np.testing.assert_allclose(band.standard_error, fits.standard_error[k], rtol=1e-6)
        exact = bounds.isoperimetric(
            fits.standard_error[k] ** 2,
            1,
            1.0,
            0.05,
            v=fits.standard_error[k] ** 2 / 2,
            c=fits.standard_error[k] ** 2 / 4,
            df=fits.df[k],
        )
        np.testing.assert_allclose(band.half_width, exact, rtol=1e-6)
        np.testing.assert_allclose(multiplier(0.05)(1 / fits.df[k]) * fits.standard_error[k], exact, rtol=2e-3)
