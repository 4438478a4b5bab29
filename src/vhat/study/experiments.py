"""The cells of each table and figure, and the order in which they are computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from vhat.checks import check_choice, check_count
from vhat.errors import InputError
from vhat.study.cell import EVERY_VERSION, STEPS, TRUTHS, VERSIONS, Cell, TruthName, Version
from vhat.study.protocol import DECAYS, MET_DECAY_1D, PAPER_CG, PUBLISHED_DECAY

__all__ = [
    "EXPERIMENTS",
    "METHODS",
    "VARIANT_METHODS",
    "VARIANT_VERSIONS",
    "Experiment",
    "Plan",
    "decay_of",
    "in_order",
    "variants",
]

Experiment = Literal["table1", "table2", "figure1", "figure2", "variants"]
EXPERIMENTS: tuple[Experiment, ...] = ("table1", "table2", "figure1", "figure2", "variants")
METHODS = ("proposed", "bootstrap")
"""Methods of the tables and figures."""
VARIANT_METHODS = ("proposed", PAPER_CG, "bootstrap")
"""Methods of the variants."""
VARIANT_VERSIONS: tuple[Version, ...] = ("published", "penalised")
"""Versions of the variants."""

_DIMENSIONS: dict[str, tuple[int, ...]] = {
    "table1": (10,),
    "table2": (100,),
    "figure1": (1,),
    "figure2": (10, 100),
    "variants": (10, 100),
}
_SIZES: dict[str, tuple[int, ...]] = {
    "table1": (100, 1000, 10_000, 20_000),
    "table2": (100, 1000, 10_000, 20_000),
    "figure1": (100, 1000, 10_000),
    "figure2": (100, 1000, 10_000),
    "variants": (100,),
}
_MOST_FOR_PAPER_CG = 100
"""Largest number of training points with which figure 1 shows the paper's iteration."""


@dataclass(frozen=True)
class Plan:
    """A table or figure, with the options of its cells.

    Attributes:
        experiment: ``"table1"`` (d = 10), ``"table2"`` (d = 100), ``"figure1"`` (d = 1), ``"figure2"`` (both d > 1,
            over the decays) or ``"variants"`` (both d > 1 at n = 100; see :func:`variants`).
        sizes: Numbers of training points; empty for the paper's.
        trials: Number of draws of the data; figure 1 shows the first.
        methods: Names of methods.
        versions: ``"published"``, ``"met"``, ``"penalised"``.
        truths: ``"matern"``, and ``"smooth"`` for d = 10.
        steps: Passes over the training data.
    """

    experiment: Experiment
    sizes: tuple[int, ...] = ()
    trials: int = 5
    methods: tuple[str, ...] = METHODS
    versions: tuple[Version, ...] = VERSIONS
    truths: tuple[TruthName, ...] = TRUTHS
    steps: int = STEPS

    def __post_init__(self) -> None:
        check_choice("experiment", self.experiment, EXPERIMENTS)
        check_count("trials", self.trials, least=1)
        check_count("steps", self.steps, least=1)
        for name in ("methods", "versions", "truths"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty: name at least one.")
        if not self.sizes:
            object.__setattr__(self, "sizes", _SIZES[self.experiment])
        for size in self.sizes:
            check_count("sizes", size, least=2)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """Numbers of inputs."""
        return _DIMENSIONS[self.experiment]

    def cells(self) -> list[Cell]:
        """Return the cells in the order in which they are computed."""
        return in_order([self])


def variants(trials: int = 5) -> Plan:
    """Return the plan for two questions about the published rows at n = 100: how V was computed and lam applied.

    It compares the paper's iteration with Gauss-Newton, and Adam on ``L_lam`` with AdamW, on the same data.
    """
    return Plan("variants", trials=trials, methods=VARIANT_METHODS, versions=VARIANT_VERSIONS)


def decay_of(version: Version, d: int) -> float:
    """Return the decay of the tables and of figure 1: the paper's, if a minimum can be certified with it."""
    if version == "met" and d == 1:
        return MET_DECAY_1D
    return PUBLISHED_DECAY[d]


def in_order(plans: Sequence[Plan]) -> list[Cell]:
    """Return the cells of several plans, each once, in the order in which they are computed.

    Tables and figure 1 come first, the small sizes of every dimension before the large ones. Then comes figure 2, trial
    by trial, so that every complete trial can be drawn.
    """
    at_one_decay: list[Cell] = []
    over_decays: list[Cell] = []
    for plan in plans:
        if plan.experiment == "figure2":
            over_decays.extend(_over_decays(plan))
        else:
            at_one_decay.extend(_at_one_decay(plan))
    at_one_decay.sort(key=lambda cell: (_rank(cell), cell.trial))
    over_decays.sort(key=lambda cell: (cell.n, cell.trial, _rank(cell)))
    return list(dict.fromkeys([*at_one_decay, *over_decays]))


def _rank(cell: Cell) -> tuple[int, int, int, int]:
    """Return the sort key of a cell: size, truth, dimension, version."""
    return (cell.n, TRUTHS.index(cell.truth), cell.d, EVERY_VERSION.index(cell.version))


def _at_one_decay(plan: Plan) -> Iterable[Cell]:
    """Yield the cells of a table, of figure 1 or of the variants."""
    trials = 1 if plan.experiment == "figure1" else plan.trials
    for d in plan.dimensions:
        for truth in _truths(plan, d):
            for version in plan.versions:
                lam = decay_of(version, d)
                for n in plan.sizes:
                    for trial in range(trials):
                        for method in _methods(plan, version, n):
                            yield Cell(version, truth, d, n, lam, method, trial, plan.steps)


def _methods(plan: Plan, version: Version, n: int) -> tuple[str, ...]:
    """Return the methods of a version and size; figure 1 adds the paper's iteration if n is small enough for it."""
    shows_paper_cg = plan.experiment == "figure1" and version == "published" and "proposed" in plan.methods
    if shows_paper_cg and n <= _MOST_FOR_PAPER_CG:
        return (*plan.methods, PAPER_CG)
    return plan.methods


def _over_decays(plan: Plan) -> Iterable[Cell]:
    """Yield the cells of figure 2."""
    for d in plan.dimensions:
        for version in plan.versions:
            for n in plan.sizes:
                for trial in range(plan.trials):
                    for lam in DECAYS:
                        for method in plan.methods:
                            yield Cell(version, "matern", d, n, lam, method, trial, plan.steps)


def _truths(plan: Plan, d: int) -> tuple[TruthName, ...]:
    """Return the truths of a dimension: the smooth one, which can be learned, only for d = 10."""
    if plan.experiment == "variants":
        return ("matern",)
    return tuple(truth for truth in plan.truths if truth == "matern" or d == 10)
