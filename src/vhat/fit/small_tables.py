"""Certified minima of small networks, and the choice of their weight decay, by dense steps in NumPy.

A candidate needs no certificate: its descent ends at a small gradient, and its smoother, in dense matrices, scores it.
Only the minimum under the weight decay that scored best is followed to the last digits and certified.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from vhat.errors import ModelError, PolishError
from vhat.fit.data import check_fits
from vhat.fit.dense_scoring import DenseScoring
from vhat.fit.levenberg_marquardt import Descended, Objective, descend
from vhat.fit.minimum import Minimum
from vhat.fit.score_curve import FAILED, Curve
from vhat.fit.selection import Search, Selection, split_table
from vhat.fit.splits import Table
from vhat.models.dense_network import is_small, network_problem
from vhat.models.dense_network.layers import flatten

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["Tried", "fit_small", "is_served", "selected", "try_decays"]

_LOOSE = 1e-3
"""Relative gradient at which a candidate is scored; the leave-one-out score then moves in its fourth digit."""
_CANDIDATE_STEPS = {"leave_one_out": 80, "cross_validation": 40}
"""The most steps of a candidate: the next one goes on from where it stopped. Leaving rows out to first order takes a
minimum; rows that are held out judge whatever was fitted."""
_TIGHT = 1e-9
"""Relative gradient at which the certified minimisation takes over; with exact Hessians some six steps further down."""
_FINAL_STEPS = 500
"""The most steps before it."""
_ADAM = ("warmup", "learning_rate")
"""Options of the recipe that ask for a first descent by Adam."""


def is_served(recipe: Any, rows: int) -> TypeGuard[Minimum]:
    """Return whether a recipe is carried out here: the minimum of a small network, its warm-up left to the library."""
    if type(recipe) is not Minimum or not is_small(recipe.network, rows):
        return False
    defaults = {each.name: each.default for each in fields(Minimum)}
    return all(getattr(recipe, name) == defaults[name] for name in _ADAM)


def fit_small(recipe: Minimum, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
    """Train to a certified minimum from the parameters that ``seed`` draws.

    Raises:
        InputError: When the data cannot be used.
        PolishError: When there is no certified minimum to be reached, with a lam that would do.
    """
    weights = None if sample_weight is None else [sample_weight]
    check_fits(recipe.network, X, y, seeds=[seed], sample_weights=weights)
    return _certified(recipe, Table(X, y, sample_weight), flatten(recipe.network.init(seed)))


@dataclass
class _LoosePath:
    """One training set on its way along the grid: see :class:`vhat.fit.decay_path.Path`.

    Attributes:
        recipe: The recipe, whose own decay does not matter.
        train: The rows.
        share: What lam is divided by.
        seed: Draws the first parameters.
        max_steps: The most steps of a fit.
        theta: Where the last fit ended; None before the first.
        ends: Where each fit ended, by its lam.
    """

    recipe: Minimum
    train: Table
    share: float
    seed: int
    max_steps: int
    theta: np.ndarray | None = None
    ends: dict[float, np.ndarray] = field(default_factory=dict)

    def fit(self, lam: float) -> FittedModel:
        """Fit loosely at ``lam``, from where the last fit ended."""
        start = flatten(self.recipe.network.init(self.seed)) if self.theta is None else self.theta
        decay = lam / self.share
        found = _loosely(self.recipe, self.train, decay, start, self.max_steps)
        self.theta = self.ends[lam] = found.theta
        return _fitted(self.recipe, self.train, found.theta, decay)


@dataclass(frozen=True, eq=False)
class Tried:
    """A choice among candidates, none of them certified yet.

    Attributes:
        weight_decay: The lam with the smallest score.
        curve: The score of every lam.
        by: ``"leave_one_out"`` or ``"cross_validation"``.
        starts: Parameters near minima under each lam, by lam.
    """

    weight_decay: float
    curve: Curve
    by: str
    starts: dict[float, list[np.ndarray]] = field(repr=False)

    def merged(self, other: Tried, curve: Curve) -> Tried:
        """Return this choice with another curve and the candidates of both."""
        lams = self.starts.keys() | other.starts.keys()
        starts = {lam: self.starts.get(lam, []) + other.starts.get(lam, []) for lam in lams}
        return replace(self, curve=curve, starts=starts)


def try_decays(recipe: Minimum, table: Table, *, grid: np.ndarray, seed: int, by: str = "leave_one_out") -> Tried:
    """Score every lam of a rising grid.

    Raises:
        InputError: For data that cannot be used, or too few rows.
        ModelError: When no lam could be scored.
        Interrupted: On Ctrl-C; its ``record`` is the :class:`Curve` so far.
    """
    weights = None if table.weight is None else [table.weight]
    check_fits(recipe.network, table.X, table.y, seeds=[seed], sample_weights=weights)
    scoring = DenseScoring(seed=seed)
    parts = split_table(table, by, 5, None, seed)
    paths = [_LoosePath(recipe, part.train, part.share, seed, _CANDIDATE_STEPS[by]) for part in parts]
    # the scoring itself doubts a candidate that is too far from a minimum
    search = Search(parts, paths, scoring, grid, f"{scoring.words}, {by.replace('_', '-')}", stationary=np.inf)
    with search.kept_on_interruption():
        search.run()
    curve = search.curve()
    assert curve.best is not None
    return Tried(float(grid[curve.best]), curve, by, {lam: [theta] for lam, theta in paths[0].ends.items()})


def selected(recipe: Minimum, table: Table, tried: Tried) -> Selection:
    """Certify the minimum under the best lam; where there is none, under the next best, and say so on the curve.

    Raises:
        ModelError: When no lam that has a score has a certified minimum.
    """
    curve, failures = tried.curve, []
    while curve.best is not None:
        lam = float(curve.weight_decay[curve.best])
        try:
            trained = _certified(replace(recipe, weight_decay=lam), table, *tried.starts[lam])
        except PolishError as error:
            failures.append(error)
            curve = _without(curve, curve.best, str(error))
            continue
        trained.workspace.decay_chosen = True
        return Selection(lam, trained, curve, tried.by)
    reasons = "; ".join(map(str, failures))
    raise ModelError(f"no weight_decay of the grid has a certified minimum. {reasons}") from failures[0]


def _without(curve: Curve, at: int, remark: str) -> Curve:
    """Return the curve with one lam that has no score."""
    columns = {name: getattr(curve, name).copy() for name in ("score", "standard_error", "status", "remark")}
    columns["status"], columns["remark"] = (columns[name].astype(object) for name in ("status", "remark"))
    for name, value in zip(columns, (np.inf, np.nan, FAILED, remark), strict=True):
        columns[name][at] = value
    return replace(curve, **columns)


def _certified(recipe: Minimum, table: Table, *starts: np.ndarray) -> FittedModel:
    """Descend loosely from several starts, go on to the last digits from the lowest end, and certify."""
    lam, steps = recipe.weight_decay, _CANDIDATE_STEPS["leave_one_out"]
    objective = _objective(recipe, table, lam)
    ends = [_loosely(recipe, table, lam, start, steps).theta for start in starts] if len(starts) > 1 else starts
    found = descend(objective, min(ends, key=objective.value), gtol=_TIGHT, max_steps=_FINAL_STEPS)
    return recipe.certify(_fitted(recipe, table, found.theta, lam))


def _loosely(recipe: Minimum, table: Table, lam: float, start: np.ndarray, max_steps: int) -> Descended:
    objective = replace(_objective(recipe, table, lam), single=True)
    return descend(objective, start, gtol=_LOOSE, max_steps=max_steps)


def _objective(recipe: Minimum, table: Table, lam: float) -> Objective:
    weights = np.ones(len(table)) if table.weight is None else table.weight
    return Objective(recipe.network, table.X, table.y.reshape(len(table), -1), weights, lam)


def _fitted(recipe: Minimum, table: Table, theta: np.ndarray, lam: float) -> FittedModel:
    from vhat.fitted.model import FittedModel

    return FittedModel(
        network_problem(recipe.network, theta, table.X, table.y, weight_decay=lam, sample_weight=table.weight)
    )
