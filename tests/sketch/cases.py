"""Small fits in three frameworks for the tests of sketches."""

from __future__ import annotations

import numpy as np

import vhat
from tests import oracle


def curve(n=60, seed=0, noise=0.05, **options):
    """Two parameters in NumPy, at their minimum."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 4, n)
    y = 2 * np.exp(-0.7 * x) + noise * rng.normal(size=n)

    def decay(q, x):
        return q[0] * np.exp(-q[1] * x)

    return vhat.from_numpy(decay, [2.0, 0.7], x, y, **options).polish()


def network(outputs=None, n=80, d=2, width=6, lam=1e-2, seed=0, **options):
    """A tanh network in JAX, at its minimum."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    truth = np.stack([np.sin(X[:, 0]), X[:, 0] * X[:, 1]], axis=1)
    Y = truth[:, 0] if outputs is None else truth[:, :outputs]
    y = Y + 0.1 * rng.normal(size=Y.shape)
    predict = oracle.network("tanh", outputs)
    fitted = vhat.from_jax(predict, oracle.random_params(rng, d, width, outputs), X, y, weight_decay=lam, **options)
    return fitted.polish()


def tangent(n=120, d=3, lam=1e-2, seed=0):
    """The linearisation of a ReLU module in torch, whose predictions are exactly normal for all parameters."""
    import torch

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.abs(X[:, 0]) + 0.1 * rng.normal(size=n)
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(d, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1), torch.nn.Flatten(0))
    return vhat.from_torch(module, X, y, weight_decay=lam).linearised(lam), module


def points(d=2, m=25, seed=9):
    return np.random.default_rng(seed).normal(size=(m, d))


def sampled(fitted, probes, monkeypatch, **options):
    """Return a sketch by probes of a model that is small enough for an exact one."""
    monkeypatch.setattr("vhat.sketch.sketch.MOST_EXACT", 0)
    return fitted.sketch(probes, **options)
