"""Cheap recipes whose answers are known, for the tests of vhat.methods."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import vhat


def data(n=30, d=2, outputs=None, seed=0):
    """Linear data with noise of standard deviation 0.3."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    mean = X @ rng.normal(size=(d, outputs or 1))
    y = mean + 0.3 * rng.normal(size=mean.shape)
    return X, y if outputs else y[:, 0]


def ridge_solution(X, y, lam, weights=None):
    """The minimum of 1/(2n) sum w (x'theta - y)^2 + lam/2 |theta|^2."""
    w = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    A = X.T @ (w[:, None] * X) / len(X) + lam * np.eye(X.shape[1])
    return np.linalg.solve(A, X.T @ (w[:, None] * y if y.ndim == 2 else w * y) / len(X))


def ridge(lam=0.0):
    """A linear model in closed form, one output or several; the seed does not matter."""

    def recipe(X, y, *, seed, sample_weight=None):
        X, y = np.asarray(X, float), np.asarray(y, float)
        theta = ridge_solution(X, y, lam, sample_weight)
        shape = theta.shape

        def predict(q, Z):
            return Z @ q.reshape(shape)

        def jac(q, Z):
            return Z if len(shape) == 1 else np.einsum("nd,kj->nkdj", Z, np.eye(shape[1])).reshape(len(Z), shape[1], -1)

        def hess(q, Z):
            return np.zeros((len(Z), *shape[1:], q.size, q.size))

        return vhat.from_numpy(
            predict, theta.ravel(), X, y, jac=jac, hess=hess, weight_decay=lam, sample_weight=sample_weight
        )

    return recipe


def jax_ridge(lam):
    """The same linear model of one output, in JAX; a square that counts for nothing hides its structure, as there."""

    def predict(q, Z):
        return Z @ q + 0.0 * jnp.sum(q**2)

    def recipe(X, y, *, seed, sample_weight=None):
        theta = ridge_solution(X, y, lam, sample_weight)
        return vhat.from_jax(predict, theta, X, y, weight_decay=lam, sample_weight=sample_weight)

    return recipe


def constant(X, y, *, seed, sample_weight=None):
    """The mean of y, as a model with one parameter."""
    return ridge()(np.ones((len(y), 1)), y, seed=seed, sample_weight=sample_weight)


def torch_recipe(X, y, *, seed, sample_weight=None, dropout=0.0, steps=60):
    """A training loop such as a user writes, in plain torch."""
    import torch

    torch.manual_seed(seed)
    layers = [torch.nn.Linear(1, 6), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(6, 1)]
    module = torch.nn.Sequential(*layers).double()
    X, y = torch.as_tensor(X), torch.as_tensor(y)[:, None]
    weights = torch.ones(len(y)) if sample_weight is None else torch.as_tensor(sample_weight)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (weights[:, None] * (module(X) - y) ** 2).mean().div(2).backward()
        optimizer.step()
    return vhat.from_torch(module.eval(), X, y, weight_decay=1e-3, sample_weight=sample_weight)
