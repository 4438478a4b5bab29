"""Which cells each table and figure is made of, and in what order they are computed."""

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
VARIANT_METHODS = ("proposed", PAPER_CG, "bootstrap")
VARIANT_VERSIONS: tuple[Version, ...] = ("published", "penalised")

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
_FEW = 100
"""Training points up to which the paper's iteration is run."""


@dataclass(frozen=True)
class Plan:
    """What is asked for.

    Attributes:
        experiment: ``"table1"`` (d = 10), ``"table2"`` (d = 100), ``"figure1"`` (d = 1), ``"figure2"`` (both d > 1,
            over the decays) or ``"variants"`` (both d > 1 at n = 100; see :func:`variants`).
        sizes: Numbers of training points; empty for the paper's.
        trials: Draws of the data; figure 1 shows the first.
        methods: Names of methods.
        versions: ``"published"``, ``"met"``, ``"penalised"``.
        truths: ``"matern"``, and for d = 10 ``"smooth"``.
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
    """Return the plan of two doubts about the published rows at n = 100: how V was computed, and how lam was applied.

    The paper's iteration stands beside Gauss-Newton, and Adam on ``L_lam`` beside AdamW, on the same data.
    """
    return Plan("variants", trials=trials, methods=VARIANT_METHODS, versions=VARIANT_VERSIONS)


def decay_of(version: Version, d: int) -> float:
    """Return the decay of the tables and of figure 1: the paper's, wherever a minimum can be certified with it."""
    return MET_DECAY_1D if version == "met" and d == 1 else PUBLISHED_DECAY[d]


def in_order(plans: Sequence[Plan]) -> list[Cell]:
    """Return the cells of several plans, each once, in the order in which they are computed.

    Tables and figure 1 first, the small sizes of every dimension before the large ones; then figure 2 trial by trial,
    so that each trial that is complete can be drawn.
    """
    tables = [cell for plan in plans if plan.experiment != "figure2" for cell in _at_one_decay(plan)]
    pareto = [cell for plan in plans if plan.experiment == "figure2" for cell in _over_decays(plan)]
    tables.sort(key=lambda cell: (_rank(cell), cell.trial))
    pareto.sort(key=lambda cell: (cell.n, cell.trial, _rank(cell)))
    return list(dict.fromkeys([*tables, *pareto]))


def _rank(cell: Cell) -> tuple[int, int, int, int]:
    return (cell.n, TRUTHS.index(cell.truth), cell.d, EVERY_VERSION.index(cell.version))


def _at_one_decay(plan: Plan) -> Iterable[Cell]:
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
    """Figure 1 has the paper's own iteration beside the proposed method, where n is small enough for it."""
    asked = plan.experiment == "figure1" and version == "published" and "proposed" in plan.methods
    return (*plan.methods, PAPER_CG) if asked and n <= _FEW else plan.methods


def _over_decays(plan: Plan) -> Iterable[Cell]:
    for d in plan.dimensions:
        for version in plan.versions:
            for n in plan.sizes:
                for trial in range(plan.trials):
                    for lam in DECAYS:
                        for method in plan.methods:
                            yield Cell(version, "matern", d, n, lam, method, trial, plan.steps)


def _truths(plan: Plan, d: int) -> tuple[TruthName, ...]:
    """The smooth truth belongs to the table of ten dimensions: it is there to be learned."""
    if plan.experiment == "variants":
        return ("matern",)
    return tuple(truth for truth in plan.truths if truth == "matern" or d == 10)
