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


def _run(design: Design, ys: np.ndarray) -> tuple[np.ndarray, ...]:
    weight = np.ones(len(design.X)) if design.weight is None else design.weight
    with jax.enable_x64(True):
        arrays = (design.start, design.X, design.truth, ys, weight, design.lam)
        return tuple(map(np.asarray, _follow(design.predict, *map(jnp.asarray, arrays))))


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
        return (jnp.linalg.norm(s.slope) > tolerance) & (s.steps < MOST)

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
def _follow(predict, start, X, reference, ys, w, lam):
    """Move the responses from the reference to each draw in stages, and the minimum with them."""

    def value(theta, y):
        return _objective(predict, theta, X, y, w, lam)

    functions = value, jax.grad(value), jax.hessian(value)

    def one(y):
        def stage(theta, t):
            return _descend(functions, theta, reference + t * (y - reference), COARSE), None

        def leave(theta, _):
            """From a saddle go downhill along its negative curvature; at a minimum stay."""
            values, vectors = jnp.linalg.eigh(functions[2](theta, y))
            aside = theta + LEAVE * jnp.array([[1.0], [-1.0]]) * vectors[:, 0]
            lower = aside[jnp.argmin(jax.vmap(value, (0, None))(aside, y))]
            return jax.lax.cond(values[0] > 0, lambda: theta, lambda: _descend(functions, lower, y, FINE)), None

        theta, _ = jax.lax.scan(stage, start, jnp.arange(1, STAGES + 1) / STAGES)
        theta, _ = jax.lax.scan(leave, _descend(functions, theta, y, FINE), length=SADDLES)
        smallest = jnp.linalg.eigvalsh(functions[2](theta, y))[0]
        return theta, jnp.linalg.norm(functions[1](theta, y)), smallest

    return jax.lax.map(one, ys)
