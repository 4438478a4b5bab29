"""Speed of this machine in flops per CPU second: measured once, in milliseconds, and only printed."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vhat.linalg.solvers.cost import Work

__all__ = ["cpu_seconds"]

_SIZE = 256
"""Rows of the matrices that are multiplied: a product takes about a millisecond."""
_REPEATS = 20
"""Number of products, 20 milliseconds in total. The fastest counts, because other processes may use the core."""
_SLOWDOWN = {"jax": 3.5, "torch": 6.0, "numpy": 40.0}
"""Time of a flop of a gradient relative to that of a flop of a matrix product, measured by `benchmarks/plans.py`. With
NumPy, derivatives by differences evaluate the model several dozen times."""


@lru_cache(maxsize=1)
def product_speed() -> float:
    """Return the flops per CPU second in matrix products of doubles, the best of twenty."""
    a = np.random.default_rng(0).standard_normal((_SIZE, _SIZE))
    a @ a  # starts threads and allocates memory
    best = np.inf
    for _ in range(_REPEATS):
        cpu = time.process_time()
        wall = time.perf_counter()
        a @ a
        # The CPU clock of some systems ticks only every 16 ms. With several threads CPU time exceeds wall time.
        best = min(best, max(time.process_time() - cpu, time.perf_counter() - wall))
    return 2.0 * _SIZE**3 / best


def cpu_seconds(work: Work, gradient_flops: float, framework: str) -> float:
    """Return an estimate of the CPU seconds for an amount of work, right within a factor of about three.

    Args:
        work: Gradients of the loss and flops in matrix products.
        gradient_flops: Flops of one gradient of the loss.
        framework: The framework that computes gradients: jax, torch or numpy; any other counts as torch.
    """
    flops = work.products + _SLOWDOWN.get(framework, _SLOWDOWN["torch"]) * work.gradients * gradient_flops
    return flops / product_speed()
