"""Run one configuration in its own process, and print planned and used memory in bytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import vhat


def jax_network(n, widths, memory=6e9):
    from vhat.fit import Network

    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, widths[0]))
    network = Network(widths)
    params = network.init(0)
    y = np.asarray(network(params, X)) + 1e-3 * rng.normal(size=n)
    return vhat.from_jax(network, params, X, y, weight_decay=0.1, memory=memory)


def torch_network(n, widths):
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(widths[0], widths[1]), torch.nn.Tanh(), torch.nn.Linear(widths[1], widths[2])]
    X = np.random.default_rng(0).normal(size=(n, widths[0])).astype(np.float32)
    module = torch.nn.Sequential(*layers).eval()
    with torch.no_grad():
        y = module(torch.as_tensor(X)).numpy()
    return vhat.from_torch(module, X, y, weight_decay=0.1, memory=6e9)


def jax_signal(n, length, outputs=1):
    """Return a small network applied at every place of a long signal: few parameters, and large intermediate arrays."""
    import jax.numpy as jnp

    def predict(q, X):
        return jnp.tanh(X[..., None] @ q["v"] + q["c"]).mean(axis=1) @ q["w"]

    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, length))
    params = {"v": rng.normal(size=(1, 8)), "c": rng.normal(size=8), "w": rng.normal(size=(8, outputs))}
    y = rng.normal(size=(n, outputs))
    return vhat.from_jax(predict, params, X, y, weight_decay=10.0)


LONG = 2500
CASES = {
    "dense, jax": (lambda: jax_network(500, (10, 230, 1)), "auto", 300),
    "primal, jax": (lambda: jax_network(20_000, (10, 400, 1)), "auto", 300),
    "dual, jax": (lambda: jax_network(6000, (10, 300, 1)), "auto", 300),
    "dual, torch": (lambda: torch_network(5000, (10, 300, 1)), "auto", 300),
    "dual, single precision, jax": (lambda: jax_network(8000, (10, 300, 1)), vhat.Dual(precision="single"), 300),
    "nystrom, jax": (lambda: jax_network(10_000, (10, 800, 1), memory=5e8), "auto", 64),
    "cg, jax": (lambda: jax_network(50, (10, 5000, 1)), vhat.CG(rtol=1e-2), 64),
}


ROWS_THAT_WRITE_MUCH = {
    "dense, jax, long rows": (lambda: jax_signal(512, LONG), "auto", 300),
    "dense, jax, long rows, eight outputs": (lambda: jax_signal(32, LONG, 8), "auto", 64),
}


def status(field):
    """Return a field of this process's status in bytes; ``ru_maxrss`` would include the parent's peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(field)))


def main(name):
    make, solver, points = (CASES | ROWS_THAT_WRITE_MUCH)[name]
    fitted = make()
    x = np.random.default_rng(1).normal(size=(points, LONG if "long" in name else 10))
    fitted.predict(x)
    curvature = "hessian" if solver == "auto" else "ggn"
    plan = fitted.plan(x, solver=solver, curvature=curvature)
    before = status("VmRSS")
    fitted.weighted_norm(x, curvature=curvature, solver=solver)
    print(json.dumps({"planned": plan.memory, "taken": status("VmHWM") - before, "solver": plan.solver.name}))


if __name__ == "__main__":
    main(sys.argv[1])
