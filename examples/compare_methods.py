"""Compare every method of vhat.methods on two problems with a known truth: printed tables, and pictures.

Run all with ``python examples/compare_methods.py``, or name one problem: ``gap`` (one input, no data in the middle) or
``ten`` (ten inputs, a hundred rows).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import vhat
from vhat import methods
from vhat.fit import Adam, GradientDescent, Minimum, Network
from vhat.study import MaternTruth, sample

PICTURES = Path("docs/images")


def every_method(network: Network, weight_decay: float, length_scale: float) -> dict[str, methods.Method]:
    """Return all methods by name, with default options except for 40 resamples and 5 randomised priors (default 10).

    Two methods have a recipe of their own. `UnrolledDescent` needs no minimum, so its descent has 20,000 steps only.
    """
    adam = Adam(network, weight_decay, steps=3000)
    descent = GradientDescent(network, weight_decay, steps=20_000, tol=1e-3)
    return {
        "Proposed": methods.Proposed(),
        "Wald (HC3)": methods.Wald(covariance="hc3"),
        "Bootstrap": methods.Bootstrap(resamples=40),
        "Perturbed responses": methods.PerturbedResponses(members=10),
        "Deep ensemble": methods.DeepEnsemble(members=5),
        "Randomised prior": methods.RandomizedPrior(members=5),
        "MC dropout": methods.WithRecipe(methods.MCDropout(), adam),
        "Linearised Laplace": methods.LinearizedLaplace(),
        "SGLD": methods.SGLD(),
        "Bayes by Backprop": methods.BayesByBackprop(),
        "Constrained fit": methods.ConstrainedFit(),
        "Unrolled descent": methods.WithRecipe(methods.UnrolledDescent(), descent),
        "Last layer": methods.LastLayer(),
        "Tangent kernel": methods.NeuralTangent(),
        "Kernel ridge": methods.KernelRidge(length_scale=length_scale),
        "Gaussian process": methods.GaussianProcess(),
        "Conformal": methods.Conformal(),
    }


def gap(n_jobs: int = 2) -> vhat.Comparison:
    """One input: a hundred points of a Matern process, without those in [-0.5, 0.5]."""
    truth = MaternTruth(dimension=1, seed=0)
    data = sample(truth, 100, seed=1, noise=0.1, gap=0.5)
    network, decay = Network((1, 16, 1), "tanh"), 1e-4
    return vhat.compare(
        every_method(network, decay, length_scale=1.0),
        data.X,
        data.y,
        recipe=Minimum(network, decay),
        truth=truth,
        test=np.linspace(-3, 3, 61)[:, None],
        splits=1,
        n_jobs=n_jobs,
    )


def ten(n_jobs: int = 2, training_sets: int = 1) -> vhat.Comparison:
    """Ten inputs: one to three training sets of a hundred rows, tested at the same hundred points."""
    truth = MaternTruth(dimension=10, seed=0, length_scale=10.0)
    data = sample(truth, 400, seed=1, noise=0.1, gap=None)
    network, decay = Network((10, 8, 1), "tanh"), 1e-2
    held = np.arange(300, 400)
    return vhat.compare(
        every_method(network, decay, length_scale=10.0),
        data.X,
        data.y,
        recipe=Minimum(network, decay),
        truth=truth,
        splits=[(np.arange(start, start + 100), held) for start in (0, 100, 200)[:training_sets]],
        n_jobs=n_jobs,
    )


def main() -> None:
    """Run the problems that are named on the command line, or both."""
    asked = sys.argv[1:] or ["gap", "ten"]
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in asked:
        began = time.perf_counter()
        found = {"gap": gap, "ten": ten}[name]()
        print(found, f"{name}: {time.perf_counter() - began:.0f} s", sep="\n", flush=True)
        if name == "gap":
            found.gallery(truth=MaternTruth(dimension=1, seed=0), gap=(-0.5, 0.5)).savefig(PICTURES / "gallery.png")
        else:
            found.plot().figure.savefig(PICTURES / "coverage-plane.png")


if __name__ == "__main__":
    main()
