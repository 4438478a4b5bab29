"""The protocol: truths, sizes, networks, recipes and methods of every cell.

Where the paper is silent, what was chosen instead is said beside the constant.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError
from vhat.study.cell import Cell
from vhat.study.data import Sample, sample
from vhat.study.truth import MaternTruth

if TYPE_CHECKING:
    from vhat.fit.recipe import NetworkRecipe
    from vhat.methods import Method

__all__ = [
    "ALPHA",
    "DECAYS",
    "GAP",
    "GRID",
    "NOISE",
    "PAPER_CG",
    "POINTS",
    "PROTOCOL",
    "PUBLISHED_DECAY",
    "Data",
    "draw",
    "fits_of",
    "known_methods",
    "level",
    "make_method",
    "make_recipe",
    "make_truth",
]

PROTOCOL = 1
"""Raised whenever the same cell would give other numbers for a reason other than rounding; results of another protocol
count as missing.

Rounding: above 1000 rows the trainer sums the gradient in blocks, and the five cells of n = 10,000 computed before it
did so are kept; up to 1000 rows nothing changed. In float64 the trained predictions agree to 1e-15. The published cells
train in float32, where Adam and ReLU enlarge rounding. At d = 10, n = 10,000 (predictions of order 0.1) they move by
3e-6 in 100 steps, 5e-3 in 500 and 0.09 in 2000; another order of the training rows, summed as before, moves them by
4e-6 in 100 and by 0.06 in 2000. After all 10,000 steps trial 0 has a coverage of 0.97 in place of 0.99, and a median
width of 0.783 in place of 0.784: one trial of that size says no more than that.
"""

NOISE = 0.1
GAP = 0.5
ALPHA = 0.01
"""One minus the level: delta of the proposed method before the union bound, and the bootstrap's alpha."""
POINTS = 100
"""Test points for d > 1. The paper does not say how many validation points there were: as many here."""
GRID = np.linspace(-3.0, 3.0, 121)
"""Test points for d = 1; the paper says no more than that they are a uniform grid."""
PUBLISHED_DECAY = {1: 1e-8, 10: 1e-3, 100: 1e-4}
DECAYS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Figure 2's."""
MET_DECAY_1D = 1e-5
"""In one dimension the paper's 1e-8 leaves directions undetermined, so that no minimum can be certified."""

_TRUTH_SEED = 0
_AMPLITUDE = {"matern": 0.1, "smooth": 1.0}  # d > 1; for d = 1 it is 1
_LENGTH_SCALE = {"matern": 1.0, "smooth": 10.0}
PAPER_CG = "paper-cg"
"""The proposed method by the paper's own iteration: on 20 points of figure 1, or at the test points for d > 1."""
_SOME = np.linspace(0, len(GRID) - 1, 20).round().astype(int)
_RESAMPLES = 10
_UNITS = 1024


@dataclass(frozen=True, eq=False)
class Data:
    """The data of a cell: what is trained on, what is judged on, and (None for ``paper-cg``) what lam is chosen on."""

    train: Sample
    test: Sample
    validation: Sample | None


def make_truth(cell: Cell) -> MaternTruth:
    """Return the regression function, the same in all trials."""
    amplitude = 1.0 if cell.d == 1 else _AMPLITUDE[cell.truth]
    return MaternTruth(cell.d, _TRUTH_SEED, length_scale=_LENGTH_SCALE[cell.truth], amplitude=amplitude)


def draw(cell: Cell) -> Data:
    """Draw the data of a cell; the paper's iteration is slow: it gets no validation points, and 20 of the grid."""
    truth, seeds = make_truth(cell), cell.seeds
    train = sample(truth, cell.n, seed=seeds.train, noise=NOISE, gap=GAP)
    if cell.d == 1:
        rows = _SOME if cell.method == PAPER_CG else slice(None)
        test = _grid(truth, seeds.test, rows)
    else:
        test = sample(truth, POINTS, seed=seeds.test, noise=NOISE, gap=None)
    if cell.method == PAPER_CG:
        return Data(train, test, None)
    return Data(train, test, sample(truth, POINTS, seed=seeds.validation, noise=NOISE, gap=GAP))


def _grid(truth: MaternTruth, seed: int, rows: np.ndarray | slice = slice(None)) -> Sample:
    values = truth(GRID[:, None])
    y = values + NOISE * np.random.default_rng(seed).standard_normal(len(GRID))
    return Sample(GRID[rows, None], y[rows], values[rows], NOISE, None)


def make_recipe(cell: Cell) -> NetworkRecipe:
    """Return how the networks of a cell are trained.

    *As published*: ReLU, AdamW. In one dimension two hidden layers with "variance scaling with standard deviation
    100", read as the scale 100 that initialisers of that name take, a variance of 100 over the fan: with a standard
    deviation of 100 over its root the loss is still above 10^6 after 2,500 steps. Biases alike; with zero biases every
    kink would sit at 0. *Penalised*: the same, but Adam on ``L_lam``. *With every assumption met*: the same width and
    first weights, a smooth activation, and a certified minimum of the objective; in one dimension one layer of 64 units
    whose first weights and biases are wide.
    """
    from vhat.fit import Adam, AdamW, Minimum, Network, VarianceScaling, glorot, normal

    if cell.version != "met":
        wide = VarianceScaling(scale=100.0, mode="fan_in", bias=None)
        network = (
            Network((1, _UNITS, 512, 1), "relu", wide)
            if cell.d == 1
            else Network((cell.d, _UNITS, 1), "relu", glorot())
        )
        train = AdamW if cell.version == "published" else Adam
        return train(network, weight_decay=cell.lam, steps=cell.steps)
    network = (
        Network((1, 64, 1), "tanh", (normal(3.0), glorot()))
        if cell.d == 1
        else Network((cell.d, _UNITS, 1), "gelu", glorot())
    )
    return Minimum(network, weight_decay=cell.lam, warmup=cell.steps)


def make_method(cell: Cell) -> Method:
    """Return the method of a cell, with the options of its version.

    Raises:
        InputError: For a method that :mod:`vhat.methods` does not have.
    """
    from vhat import methods
    from vhat.intervals.tail import Tail

    if cell.method == "proposed":
        if cell.version != "met":
            return methods.Proposed(bound="theorem", tail=Tail(1.0, 1.0), noise=NOISE, curvature="ggn")
        return methods.Proposed(bound="tight", noise=NOISE, curvature="hessian")
    if cell.method == PAPER_CG:
        from vhat.study.paper_cg import PaperCG

        return PaperCG()
    if cell.method == "bootstrap":
        return methods.Bootstrap(resamples=_RESAMPLES, resampling="pairs", limits="percentile")
    known = known_methods()
    if cell.method not in known:
        raise InputError(f"there is no method {cell.method!r}. Known are {', '.join(known)}.")
    kind: Any = known[cell.method]
    # The others are given what the proposed method is given, the noise level, where they have a use for it.
    return kind(**({"noise": NOISE} if "noise" in {field.name for field in fields(kind)} else {}))


def known_methods() -> dict[str, Any]:
    """Return the methods of :mod:`vhat.methods` that need no argument, by the names that cells give them."""
    from vhat import methods

    kinds: dict[str, Any] = {_hyphenated(name): getattr(methods, name) for name in methods.__all__}
    return {name: kind for name, kind in sorted(kinds.items()) if _is_method(kind)}


def _is_method(kind: Any) -> bool:
    if not is_dataclass(kind) or not hasattr(kind, "fit"):
        return False
    return all(field.default is not MISSING or field.default_factory is not MISSING for field in fields(kind))


def _hyphenated(name: str) -> str:
    """``DeepEnsemble`` as ``deep-ensemble``, ``MCDropout`` as ``mc-dropout``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def level(cell: Cell) -> float:
    """Return delta of each interval: shared among the test points by the proposed method, as in the paper."""
    points = len(GRID) if cell.d == 1 else POINTS
    return ALPHA / points if cell.method in ("proposed", PAPER_CG) else ALPHA


def fits_of(cell: Cell) -> int:
    """Return how many fits a cell trains: the one to the data, and those of the method."""
    method: Any = make_method(cell)
    return 1 + int(getattr(method, "resamples", getattr(method, "members", 1) - 1))
