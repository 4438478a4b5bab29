"""How many flops this machine does in a CPU second: probed once, in milliseconds, and only printed."""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

from vhat.linalg.solvers.cost import Work

__all__ = ["cpu_seconds"]

_SIZE = 256
"""Rows of the matrices of the probe: a product takes about a millisecond."""
_REPEATS = 20
"""Of which the fastest counts, all of them 20 milliseconds: another process may have had the core."""
_SLOWER = {"jax": 3.5, "torch": 6.0, "numpy": 40.0}
"""By how much a flop of a gradient is slower than one of a matrix product, as `benchmarks/plans.py` measures it. In
NumPy derivatives by differences evaluate the model some dozens of times."""


@lru_cache(maxsize=1)
def product_speed() -> float:
    """Return flops in a CPU second inside matrix products of doubles, the best of twenty."""
    a = np.random.default_rng(0).standard_normal((_SIZE, _SIZE))
    a @ a  # threads and memory are made ready
    best = np.inf
    for _ in range(_REPEATS):
        cpu, wall = time.process_time(), time.perf_counter()
        a @ a
        # The CPU clock of some systems ticks every 16 ms only; with several threads it runs ahead of the wall's.
        best = min(best, max(time.process_time() - cpu, time.perf_counter() - wall))
    return 2.0 * _SIZE**3 / best


def cpu_seconds(work: Work, gradient_flops: float, framework: str) -> float:
    """Return the CPU seconds that an amount of work takes on this machine, within a factor of about three.

    Args:
        work: Gradients of the loss and flops in matrix products.
        gradient_flops: Flops of one gradient of the loss.
        framework: Whose gradients they are: jax, torch or numpy; another one counts as torch.
    """
    flops = work.products + _SLOWER.get(framework, _SLOWER["torch"]) * work.gradients * gradient_flops
    return flops / product_speed()
