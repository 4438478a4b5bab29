"""Iterations of conjugate gradients against the paper's rate: ``python -m benchmarks.cg_rate``.

The paper has ``sqrt(1 + B^2/lam) ln(1/eps)`` iterations. Here its network 10-1024-1 with ReLU units is at its first
weights, with its own predictions as responses: the residuals are zero, so the Hessian is ``J'J/n``, whose eigenvalues
lie between 0 and ``B^2``, the largest squared gradient of a prediction. Textbook conjugate gradients run from zero
without a preconditioner, at twenty points.

The bound that follows from the Chebyshev polynomials, for the residual in place of the paper's error in the energy
norm, is ``sqrt(k)/2 ln(2 sqrt(k)/eps)`` iterations with ``k = 1 + B^2/lam``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

import vhat
from vhat.fit import Network
from vhat.study.paper_cg import descend

DECAYS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
TOLERANCE = 1e-6
POINTS = 20


@dataclass(frozen=True)
class Rate:
    """What was measured for one weight decay.

    Attributes:
        decay: lam.
        root: ``sqrt(1 + B^2/lam)``.
        most: The bound on the number of iterations.
        steps: Iterations at each point.
    """

    decay: float
    root: float
    most: float
    steps: np.ndarray


def measure(rows: int, width: int, decay: float, seed: int = 0) -> Rate:
    """Count iterations at points drawn like the training rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 10))
    x = rng.normal(size=(POINTS, 10))
    network = Network((10, width, 1), activation="relu")
    params = network.init(seed)
    y = np.asarray(network(params, X), dtype=np.float64)
    problem = vhat.from_jax(network, params, X, y, weight_decay=decay).problem
    with problem.scope():
        gradients = problem.numpy(problem.gradients(problem.inputs(X)))
        largest = float(np.max(np.sum(gradients**2, axis=1)))
        found = descend(problem, problem.gradients(problem.inputs(x)), tolerance=TOLERANCE, iterations=100_000)
    root = float(np.sqrt(1.0 + largest / decay))
    return Rate(decay, root, 0.5 * root * float(np.log(2.0 * root / TOLERANCE)), found.steps)


def table(rates: list[Rate]) -> str:
    """Return the measurements as a table."""
    lines = ["| lam | sqrt(1 + B²/lam) | bound | iterations, median | largest |", "|---|---|---|---|---|"]
    lines += [
        f"| {each.decay:g} | {each.root:.3g} | {each.most:.0f} | {np.median(each.steps):.0f} | {each.steps.max()} |"
        for each in rates
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Iterations of conjugate gradients against the paper's rate.")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--width", type=int, default=1024)
    given = parser.parse_args()
    print(table([measure(given.rows, given.width, decay) for decay in DECAYS]))


if __name__ == "__main__":
    main()
