"""How far the CPU seconds of a plan are from those that are taken: ``python -m benchmarks.plans``.

Each configuration is run twice with models of their own, so that what is timed is compiled and nothing is kept.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import vhat
from vhat.fit import Network


def jax_network(n, hidden, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 10))
    network = Network((10, hidden, 1))
    params = network.init(0)
    y = np.asarray(network(params, X)) + 0.01 * rng.normal(size=n)
    return lambda: vhat.from_jax(network, params, X, y, weight_decay=1e-2, **options)


def torch_network(n, hidden):
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(10, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1)).eval()
    X = np.random.default_rng(0).normal(size=(n, 10)).astype(np.float32)
    with torch.no_grad():
        y = module(torch.as_tensor(X)).numpy()
    return lambda: vhat.from_torch(module, X, y, weight_decay=1e-2)


def curve(n):
    x = np.linspace(0, 4, n)
    theta = np.array([2.0, 1.3, 0.5, 0.2, 0.1])

    def decay(q, t):
        return q[0] * np.exp(-q[1] * t) + q[2] * np.exp(-q[3] * t) + q[4]

    y = decay(theta, x) + 0.01 * np.random.default_rng(0).normal(size=n)
    return lambda: vhat.from_numpy(decay, theta, x, y, weight_decay=1e-3)


CASES = {
    "numpy, p = 5, n = 20,000, ggn": (curve(20_000), np.linspace(0, 5, 1000), "ggn"),
    "jax, p = 1,201, n = 2,000": (jax_network(2_000, 100), 1000, "hessian"),
    "jax, p = 6,001, n = 2,000": (jax_network(2_000, 500), 300, "hessian"),
    "jax, p = 3,601, n = 20,000, ggn": (jax_network(20_000, 300), 1000, "ggn"),
    "torch, p = 3,601, n = 3,000": (torch_network(3_000, 300), 100, "hessian"),
    "jax, p = 12,001, n = 8,000, 300 MB": (jax_network(8_000, 1000, memory=3e8), 16, "ggn"),
}


def measured(make, points, curvature):
    """Return the plan, and the CPU seconds of V from nothing prepared and nothing compiled anew."""
    x = np.random.default_rng(1).normal(size=(points, 10)) if isinstance(points, int) else points
    for _ in range(2):
        fitted = make()
        plan = fitted.plan(x, curvature=curvature)
        start = time.process_time()
        fitted.weighted_norm(x, curvature=curvature)
        taken = time.process_time() - start
    return plan, taken


def main() -> None:
    print(f"{'configuration':36s} {'solver':8s} {'planned':>9s} {'taken':>9s} {'ratio':>6s}   CPU seconds")
    for name, (make, points, curvature) in CASES.items():
        plan, taken = measured(make, points, curvature)
        ratio = plan.seconds / taken
        print(f"{name:36s} {plan.solver.name:8s} {plan.seconds:9.2f} {taken:9.2f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
