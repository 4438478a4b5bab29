"""Under a limit of the address space every plan is kept or refused in words: ``python -m benchmarks.address_space``.

Each configuration runs in a process of its own that may map two gigabytes beyond what Python and the framework have
mapped before the model is taken. The budget is the automatic one. What is measured is memory: the network of a million
parameters has a large weight decay, so that conjugate gradients, which are all that fits, end after some forty steps.
"""

from __future__ import annotations

import resource
import subprocess
import sys

GIGABYTE = 2**30
CASES = {
    "numpy, n = 20,000, p = 50": ("numpy", 20_000, 50),
    "jax, n = 500, p = 2,401": ("jax", 500, 200),
    "jax, n = 20,000, p = 3,601": ("jax", 20_000, 300),
    "jax, n = 8,000, p = 12,001": ("jax", 8_000, 1_000),
    "jax, n = 20,000, p = 12,001": ("jax", 20_000, 1_000),
    "torch, n = 2,000, p = 1,000,001": ("torch", 2_000, 83_333),
}


def numpy_model(n, p):
    import numpy as np

    import vhat

    X = np.random.default_rng(0).normal(size=(n, p))
    return lambda: vhat.from_numpy(lambda q, Z: Z @ q, np.zeros(p), X, X[:, 0], weight_decay=0.1), X[:4]


def jax_model(n, hidden):
    import jax
    import numpy as np

    import vhat
    from vhat.fit import Network

    jax.devices()
    X = np.random.default_rng(0).normal(size=(n, 10))
    network = Network((10, hidden, 1))
    params = network.init(0)
    return lambda: vhat.from_jax(network, params, X, np.asarray(network(params, X)), weight_decay=0.1), X[:4]


def torch_model(n, hidden):
    import numpy as np
    import torch

    import vhat

    X = np.random.default_rng(0).normal(size=(n, 10)).astype(np.float32)
    module = torch.nn.Sequential(torch.nn.Linear(10, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1)).eval()
    with torch.no_grad():
        y = module(torch.as_tensor(X)).numpy()
    return lambda: vhat.from_torch(module, X, y, weight_decay=100.0), X[:4]


def run(framework: str, n: int, size: int) -> None:
    import psutil

    import vhat

    make, x = {"numpy": numpy_model, "jax": jax_model, "torch": torch_model}[framework](n, size)
    mapped = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 2 * GIGABYTE, mapped + 2 * GIGABYTE))
    try:
        fitted = make()
        plan = fitted.plan(x, curvature="ggn")
        fitted.weighted_norm(x, curvature="ggn")
    except vhat.MemoryBudgetError as error:
        print(f"refused: {error}")
        return
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"kept: {plan.solver.name}, planned {plan.memory / 1e6:.0f} MB, budget {plan.budget / 1e6:.0f} MB, "
        f"process at most {peak / 1e6:.0f} MB"
    )


def main() -> None:
    for name, case in CASES.items():
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.address_space", *map(str, case)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        last = (done.stdout.strip() or done.stderr.strip()).splitlines()
        print(f"{name:34s} exit {done.returncode}  {last[-1] if last else ''}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
