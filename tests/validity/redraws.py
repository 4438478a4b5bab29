"""Refits under redrawn noise, by dense Newton steps of JAX alone: an oracle that uses no code of vhat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

STATIONARY = 1e-10
"""A refit is a minimum when ``|grad|`` is below this and the smallest eigenvalue of ``H + lam`` is above 0."""
STAGES, COARSE, FINE, MOST = 4, 1e-5, 1e-13, 1000
STALLED = 1e4
"""Shift of the Hessian at which descent ends: no step of visible length goes down from there."""
LEAVE, SADDLES = 0.1, 3


@dataclass(frozen=True)
class Design:
    """A fixed-design experiment: ``y = truth + noise z``, a model of a flat parameter vector, half the mean square.

    Attributes:
        predict: ``predict(theta, X)``, (rows,) or (rows, outputs).
        X: Training inputs, (n, d).
        truth: The expected responses, (n,) or (n, outputs).
        noise: Standard deviations, broadcastable to ``truth``.
        lam: Decay.
        start: The minimum at the responses ``truth``, from which every refit starts.
        weight: Sample weights, (n,), or None.
    """

    predict: Callable
    X: np.ndarray
    truth: np.ndarray
    noise: float | np.ndarray
    lam: float
    start: np.ndarray
    weight: np.ndarray | None = None

    def draw(self, count: int, seed: int) -> np.ndarray:
        """Return ``count`` draws of the responses."""
        z = np.random.default_rng(seed).standard_normal((count, *self.truth.shape))
        return self.truth + self.noise * z

    def settled(self) -> Design:
        """The same with ``start`` moved to the minimum that descent finds from there."""
        (theta,), (slope,), (smallest,) = _run(self, self.truth[None])
        assert slope < STATIONARY
        assert smallest > 0
        return replace(self, start=theta)


@dataclass(frozen=True)
class Refits:
    """Minima under redrawn noise.

    Attributes:
        y: Responses of the certified refits, (redraws, n, ...).
        theta: Their parameters, (redraws, p).
        gradient: ``|grad|`` of each.
        smallest: Smallest eigenvalue of ``H + lam`` of each.
        dropped: How many refits were no certified minimum.
    """

    y: np.ndarray
    theta: np.ndarray
    gradient: np.ndarray
    smallest: np.ndarray
    dropped: int


def refit(design: Design, count: int, seed: int) -> Refits:
    """Draw the noise ``count`` times and follow the minimum of ``design.start`` to each draw."""
    ys = design.draw(count, seed)
    theta, slope, smallest = _run(design, ys)
    good = (slope < STATIONARY) & (smallest > 0)  # NaN compares false
    return Refits(ys[good], theta[good], slope[good], smallest[good], int(np.sum(~good)))


def predictions(design: Design, thetas: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return every refit's predictions, (redraws, points, ...)."""
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(design.predict, (0, None))(jnp.asarray(thetas), jnp.asarray(x)))


@dataclass(frozen=True)
class Answers:
    """What the refits say about points, by explicit matrices.

    Attributes:
        value: Predictions, (redraws, points, ...).
        standard_error: ``sqrt(sum_i sigma_i^2 (df/dy_i)^2)`` of each, with the exact Hessian at the refit.
        residual_square: ``|r|^2`` of each refit.
        df: ``|I - S|_F^2`` of each refit, S being the derivative of the fitted values in the responses; with the
            Gauss-Newton matrix in place of the Hessian where S amplifies noise: ``|S|_F^2 > tr S``, and it counts a
            tenth more, or one more, than that one.
    """

    value: np.ndarray
    standard_error: np.ndarray
    residual_square: np.ndarray
    df: np.ndarray


def answers(design: Design, refits: Refits, x: np.ndarray) -> Answers:
    """Return predictions, standard errors and residual degrees of freedom of every refit."""
    weight = np.ones(len(design.X)) if design.weight is None else design.weight
    spread = np.broadcast_to(design.noise, design.truth.shape)
    with jax.enable_x64(True):
        arrays = refits.theta, refits.y, design.X, weight, design.lam, spread, x
        return Answers(*map(np.asarray, _answer(design.predict, *map(jnp.asarray, arrays))))


@partial(jax.jit, static_argnums=0)
def _answer(predict, thetas, ys, X, w, lam, spread, x):
    p = thetas.shape[1]

    def one(given):
        theta, y = given
        H = jax.hessian(_objective, argnums=1)(predict, theta, X, y, w, lam)
        J = jax.jacobian(predict)(theta, X)
        weighted = (J * w.reshape(-1, *[1] * (J.ndim - 1)) / len(X)).reshape(-1, p)
        value = predict(theta, x)
        g = jax.jacobian(predict)(theta, x).reshape(-1, p)
        both = jnp.concatenate([g, J.reshape(-1, p)])
        moves = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(H), both.T).T @ weighted.T
        error = jnp.linalg.norm(moves[: len(g)] * spread.ravel(), axis=1)
        S = moves[len(g) :]
        gauss = J.reshape(-1, p).T @ weighted + lam * jnp.eye(p)
        other = J.reshape(-1, p) @ jnp.linalg.solve(gauss, weighted.T)
        exact, least = (jnp.sum((jnp.eye(y.size) - each) ** 2) for each in (S, other))
        amplifies = (jnp.sum(S**2) > jnp.trace(S)) & (exact - least > jnp.minimum(0.1 * least, 1.0))
        residual = predict(theta, X) - y
        return value, error.reshape(value.shape), jnp.sum(residual**2), jnp.where(amplifies, least, exact)

    return jax.lax.map(one, (thetas, ys))


def _run(design: Design, ys: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the minima, their gradients' norms and their smallest eigenvalues; one program serves every draw."""
    weight = np.ones(len(design.X)) if design.weight is None else design.weight
    with jax.enable_x64(True):
        start, X, truth, w = map(jnp.asarray, (design.start, design.X, design.truth, weight))
        found = [_follow(design.predict, start, X, truth, jnp.asarray(y), w, design.lam) for y in ys]
        return tuple(np.array([np.asarray(each[k]) for each in found]) for k in range(3))


def _objective(predict: Callable, theta: jax.Array, X: jax.Array, y: jax.Array, w: jax.Array, lam: jax.Array):
    square = (predict(theta, X) - y) ** 2
    rows = square if square.ndim == 1 else jnp.sum(square, axis=1)
    return 0.5 * jnp.mean(w * rows) + 0.5 * lam * jnp.sum(theta**2)


class _State(NamedTuple):
    theta: jax.Array
    value: jax.Array
    slope: jax.Array
    H: jax.Array
    mu: jax.Array
    steps: jax.Array


def _descend(functions: tuple, theta: jax.Array, y: jax.Array, tolerance: float) -> jax.Array:
    """Newton's method with the exact Hessian, shifted by ``mu I`` until it is definite and the step goes down."""
    value, gradient, hessian = functions

    def evaluate(q: jax.Array, mu: jax.Array, steps: jax.Array) -> _State:
        return _State(q, value(q, y), gradient(q, y), hessian(q, y), mu, steps)

    def going(s: _State) -> jax.Array:
        return (jnp.linalg.norm(s.slope) > tolerance) & (s.steps < MOST) & (s.mu < STALLED)

    def step(s: _State) -> _State:
        factor = jnp.linalg.cholesky(s.H + s.mu * jnp.eye(len(s.theta)))  # NaN where not definite
        trial = s.theta - jax.scipy.linalg.cho_solve((factor, True), s.slope)
        drop = s.value - value(trial, y)
        rounding = 1e-14 * jnp.abs(s.value)
        flatter = jnp.linalg.norm(gradient(trial, y)) < jnp.linalg.norm(s.slope)
        accepted = (drop > rounding) | ((jnp.abs(drop) <= rounding) & flatter)
        return jax.lax.cond(
            accepted,
            lambda: evaluate(trial, jnp.where(s.mu < 1e-9, 0.0, s.mu / 8), s.steps + 1),
            lambda: s._replace(mu=jnp.maximum(4 * s.mu, 1e-6), steps=s.steps + 1),
        )

    return jax.lax.while_loop(going, step, evaluate(theta, jnp.zeros(()), jnp.zeros((), int))).theta


@partial(jax.jit, static_argnums=0)
def _follow(predict, start, X, reference, y, w, lam):
    """Move the responses from the reference to y in stages, and the minimum with them; then leave saddles."""

    def value(theta, now):
        return _objective(predict, theta, X, now, w, lam)

    functions = value, jax.grad(value), jax.hessian(value)
    last = STAGES  # the stage that ends at the fine tolerance; those after it leave saddles

    def going(state):
        _, values, _, stage = state
        return (stage <= last) | ((values[0] <= 0) & (stage <= last + SADDLES))

    def leave(theta, vectors):
        """Go from a saddle along its negative curvature, to the lower side."""
        aside = theta + LEAVE * jnp.array([[1.0], [-1.0]]) * vectors[:, 0]
        return aside[jnp.argmin(jax.vmap(value, (0, None))(aside, y))]

    def advance(state):
        theta, values, vectors, stage = state
        now = reference + jnp.minimum((stage + 1) / STAGES, 1.0) * (y - reference)
        theta = jax.lax.cond(stage > last, leave, lambda q, _: q, theta, vectors)
        theta = _descend(functions, theta, now, jnp.where(stage < last, COARSE, FINE))
        spectrum = jax.lax.cond(
            stage < last, lambda _: (values, vectors), lambda q: tuple(jnp.linalg.eigh(functions[2](q, y))), theta
        )
        return theta, *spectrum, stage + 1

    nothing = jnp.zeros(len(start)), jnp.zeros((len(start), len(start)))
    theta, values, _, _ = jax.lax.while_loop(going, advance, (start, *nothing, jnp.zeros((), int)))
    return theta, jnp.linalg.norm(functions[1](theta, y)), values[0]
