"""The protocol of the study: truths, sizes, networks, recipes and methods of every cell.

Choices that the paper does not state are documented at their constants.
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
"""Version of the protocol. Raise it if the same cell would give other numbers for a reason other than rounding. Results
of another protocol count as missing.

Rounding: above 1000 rows the trainer sums the gradient in blocks. The five cells of n = 10,000 computed before this
change are kept; up to 1000 rows nothing changed. In float64 the trained predictions agree to 1e-15. The published cells
train in float32, where Adam and ReLU amplify rounding. At d = 10, n = 10,000 (predictions of order 0.1) the predictions
change by 3e-6 in 100 steps, 5e-3 in 500 and 0.09 in 2000. Another order of the training rows, summed as before, changes
them by 4e-6 in 100 steps and by 0.06 in 2000. After all 10,000 steps trial 0 has a coverage of 0.97 instead of 0.99,
and a median width of 0.783 instead of 0.784: a single trial of that size is no more precise than that.
"""

NOISE = 0.1
"""Standard deviation of the responses about the truth."""
GAP = 0.5
"""Half the side of the box without training points."""
ALPHA = 0.01
"""One minus the level: delta of the proposed method before the union bound, and the bootstrap's alpha."""
POINTS = 100
"""Number of test points for d > 1, and of validation points. The paper does not state the latter."""
GRID = np.linspace(-3.0, 3.0, 121)
"""Test points for d = 1. The paper states only that they are a uniform grid."""
PUBLISHED_DECAY = {1: 1e-8, 10: 1e-3, 100: 1e-4}
"""The paper's weight decay in its tables and figure 1, by d."""
DECAYS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""The weight decays of figure 2."""
MET_DECAY_1D = 1e-5
"""The weight decay for d = 1 at a minimum: the paper's 1e-8 leaves directions undetermined, so that no
minimum can be certified."""
PAPER_CG = "paper-cg"
"""Name of the proposed method computed by the paper's own iteration: at 20 points of figure 1, or at the test points
for d > 1."""

_TRUTH_SEED = 0
"""Seed of the regression function, the same in all trials."""
_AMPLITUDE = {"matern": 0.1, "smooth": 1.0}
"""Standard deviation of the truth for d > 1; for d = 1 it is 1."""
_LENGTH_SCALE = {"matern": 1.0, "smooth": 10.0}
_PAPER_CG_ROWS = np.linspace(0, len(GRID) - 1, 20).round().astype(int)
"""Numbers of the points of ``GRID`` at which the paper's iteration is run."""
_RESAMPLES = 10
"""The paper's number of bootstrap resamples."""
_UNITS = 1024
"""The paper's number of hidden units."""


@dataclass(frozen=True, eq=False)
class Data:
    """The data of a cell.

    Attributes:
        train: Training points.
        test: Test points, where intervals are scored.
        validation: Points for the choice of lam; None for ``paper-cg``.
    """

    train: Sample
    test: Sample
    validation: Sample | None


def make_truth(cell: Cell) -> MaternTruth:
    """Return the regression function, the same in all trials."""
    amplitude = 1.0 if cell.d == 1 else _AMPLITUDE[cell.truth]
    return MaternTruth(cell.d, _TRUTH_SEED, length_scale=_LENGTH_SCALE[cell.truth], amplitude=amplitude)


def draw(cell: Cell) -> Data:
    """Draw the data of a cell.

    The paper's iteration is slow: it gets no validation points, and only 20 points of the grid.
    """
    truth = make_truth(cell)
    seeds = cell.seeds
    train = sample(truth, cell.n, seed=seeds.train, noise=NOISE, gap=GAP)
    if cell.d == 1:
        rows = _PAPER_CG_ROWS if cell.method == PAPER_CG else slice(None)
        test = _grid(truth, seeds.test, rows)
    else:
        test = sample(truth, POINTS, seed=seeds.test, noise=NOISE, gap=None)
    if cell.method == PAPER_CG:
        return Data(train, test, None)
    return Data(train, test, sample(truth, POINTS, seed=seeds.validation, noise=NOISE, gap=GAP))


def _grid(truth: MaternTruth, seed: int, rows: np.ndarray | slice = slice(None)) -> Sample:
    """Return some points of the grid with noisy responses; the noise is drawn for the whole grid."""
    values = truth(GRID[:, None])
    y = values + NOISE * np.random.default_rng(seed).standard_normal(len(GRID))
    return Sample(GRID[rows, None], y[rows], values[rows], NOISE, None)


def make_recipe(cell: Cell) -> NetworkRecipe:
    """Return the recipe of a cell.

    - As published: ReLU, AdamW. In one dimension there are two hidden layers with "variance scaling with standard
      deviation 100". This is read as the argument ``scale=100`` of the initialiser of that name, a variance of 100 over
      the fan: with a standard deviation of 100 over the root of the fan, the loss is still above 10^6 after 2,500
      steps. Biases have the same distribution; with zero biases every kink would be at 0.
    - Penalised: the same, but Adam on ``L_lam``.
    - At a minimum: the same width and first weights, a smooth activation, and a certified minimum of the
      objective. In one dimension there is one layer of 64 units with wide first weights and biases.
    """
    from vhat.fit import Adam, AdamW, Minimum, Network, VarianceScaling, glorot, normal

    if cell.version == "met":
        if cell.d == 1:
            network = Network((1, 64, 1), "tanh", (normal(3.0), glorot()))
        else:
            network = Network((cell.d, _UNITS, 1), "gelu", glorot())
        return Minimum(network, weight_decay=cell.lam, warmup=cell.steps)
    if cell.d == 1:
        wide = VarianceScaling(scale=100.0, mode="fan_in", bias=None)
        network = Network((1, _UNITS, 512, 1), "relu", wide)
    else:
        network = Network((cell.d, _UNITS, 1), "relu", glorot())
    recipe = AdamW if cell.version == "published" else Adam
    return recipe(network, weight_decay=cell.lam, steps=cell.steps)


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
    # Like the proposed method, the others are given the noise level if they have such an option.
    if "noise" in {field.name for field in fields(kind)}:
        return kind(noise=NOISE)
    return kind()


def known_methods() -> dict[str, Any]:
    """Return the methods of :mod:`vhat.methods` that have no required option, by their names in cells."""
    from vhat import methods

    kinds: dict[str, Any] = {_hyphenated(name): getattr(methods, name) for name in methods.__all__}
    return {name: kind for name, kind in sorted(kinds.items()) if _is_method(kind)}


def _is_method(kind: Any) -> bool:
    """Return whether a class is a method whose options all have defaults."""
    if not is_dataclass(kind) or not hasattr(kind, "fit"):
        return False
    return all(field.default is not MISSING or field.default_factory is not MISSING for field in fields(kind))


def _hyphenated(name: str) -> str:
    """Return a class name with hyphens: ``DeepEnsemble`` as ``deep-ensemble``, ``MCDropout`` as ``mc-dropout``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def level(cell: Cell) -> float:
    """Return delta of each interval; the proposed method divides it by the number of test points, as in the paper."""
    points = len(GRID) if cell.d == 1 else POINTS
    return ALPHA / points if cell.method in ("proposed", PAPER_CG) else ALPHA


def fits_of(cell: Cell) -> int:
    """Return the number of fits that a cell trains: the fit to the data, and those of the method."""
    method: Any = make_method(cell)
    return 1 + int(getattr(method, "resamples", getattr(method, "members", 1) - 1))
