"""Certified minima of small networks, and the choice of their weight decay, by dense steps in NumPy.

Candidate fits are not certified: their descent stops at a small gradient, and dense matrices give their score. Only the
minimum for the best weight decay is converged to the last digits and certified.
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
from vhat.fit.search import Search
from vhat.fit.selection import Selection, split_table
from vhat.fit.splits import Table
from vhat.models.dense_network import is_small, network_problem
from vhat.models.dense_network.layers import flatten

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["Tried", "fit_small", "is_served", "selected", "try_decays"]

_CANDIDATE_GTOL = 1e-3
"""Relative gradient at which a candidate is scored. It changes the leave-one-out score in the fourth digit."""
_CANDIDATE_STEPS = {"leave_one_out": 80, "cross_validation": 40}
"""Largest number of steps of a candidate; the next candidate continues from its end. First-order leave-one-out needs a
minimum, and so more steps; the score of held-out rows is valid for any fit."""
_FOLDS = 5
"""Folds of cross-validation."""
_FINAL_GTOL = 1e-9
"""Relative gradient at which the certified minimisation takes over, some six steps later with exact Hessians."""
_FINAL_STEPS = 500
"""Largest number of steps before the certified minimisation."""
_WARMUP_OPTIONS = ("warmup", "learning_rate")
"""Options of the recipe for its warm-up by Adam, which is not done here."""


def is_served(recipe: Any, rows: int) -> TypeGuard[Minimum]:
    """Return whether this module can train a recipe: ``Minimum`` on a small network, with default warm-up options."""
    if type(recipe) is not Minimum or not is_small(recipe.network, rows):
        return False
    defaults = {each.name: each.default for each in fields(Minimum)}
    return all(getattr(recipe, name) == defaults[name] for name in _WARMUP_OPTIONS)


def fit_small(recipe: Minimum, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
    """Train to a certified minimum from random first parameters.

    Args:
        recipe: The recipe.
        X: Rows, (n, inputs).
        y: Responses, (n,) or (n, outputs).
        seed: Seed of the first parameters.
        sample_weight: Row weights, (n,), or None.

    Raises:
        InputError: When the data cannot be used.
        PolishError: When no certified minimum is reached; it suggests a larger lam.
    """
    weights = None if sample_weight is None else [sample_weight]
    check_fits(recipe.network, X, y, seeds=[seed], sample_weights=weights)
    return _certified(recipe, Table(X, y, sample_weight), flatten(recipe.network.init(seed)))


@dataclass
class _CandidatePath:
    """The candidate fits of one training set along the grid; see :class:`vhat.fit.decay_path.Path`.

    Attributes:
        recipe: The recipe; its own decay is ignored.
        train: The rows.
        share: Divisor of lam.
        seed: Seed of the first parameters.
        max_steps: Largest number of steps of a fit.
        theta: Parameters of the last fit; None before the first.
        ends: Parameters of every fit, by its lam.
    """

    recipe: Minimum
    train: Table
    share: float
    seed: int
    max_steps: int
    theta: np.ndarray | None = None
    ends: dict[float, np.ndarray] = field(default_factory=dict)

    def fit(self, lam: float) -> FittedModel:
        """Return the candidate fit at ``lam``, from the parameters of the last fit."""
        start = flatten(self.recipe.network.init(self.seed)) if self.theta is None else self.theta
        decay = lam / self.share
        descended = _descend_to_candidate(self.recipe, self.train, decay, start, self.max_steps)
        self.theta = descended.theta
        self.ends[lam] = descended.theta
        return _fitted(self.recipe, self.train, descended.theta, decay)


@dataclass(frozen=True, eq=False)
class Tried:
    """A choice among candidates, before the certificate.

    Attributes:
        weight_decay: The lam with the smallest score.
        curve: The score of every lam.
        by: ``"leave_one_out"`` or ``"cross_validation"``.
        starts: Parameters near minima, by lam.
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
    """Score every lam of an ascending grid.

    Args:
        recipe: The recipe; its own decay is ignored.
        table: The rows.
        grid: The lams.
        seed: Seed of the first parameters and of the folds.
        by: ``"leave_one_out"`` or ``"cross_validation"``.

    Raises:
        InputError: When the data cannot be used, or there are too few rows.
        ModelError: When no lam could be scored.
        Interrupted: On Ctrl-C; its ``record`` is the :class:`Curve` so far.
    """
    weights = None if table.weight is None else [table.weight]
    check_fits(recipe.network, table.X, table.y, seeds=[seed], sample_weights=weights)
    scoring = DenseScoring(seed=seed)
    parts = split_table(table, by, _FOLDS, None, seed)
    paths = [_CandidatePath(recipe, part.train, part.share, seed, _CANDIDATE_STEPS[by]) for part in parts]
    # An infinite threshold: DenseScoring itself marks candidates that are too far from a minimum.
    search = Search(parts, paths, scoring, grid, f"{scoring.words}, {by.replace('_', '-')}", stationary=np.inf)
    with search.curve_on_interruption():
        search.run()
    curve = search.curve()
    assert curve.best is not None
    # With several folds, the minimum on all rows starts from that of the first.
    starts = {lam: [theta] for lam, theta in paths[0].ends.items()}
    return Tried(float(grid[curve.best]), curve, by, starts)


def selected(recipe: Minimum, table: Table, tried: Tried) -> Selection:
    """Certify the minimum of the best lam, or of the next best that has one; the curve shows those without.

    Raises:
        ModelError: When no lam with a score has a certified minimum.
    """
    curve = tried.curve
    failures = []
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
    """Return the curve with the score of one lam removed.

    Args:
        curve: The curve.
        at: Index of the lam.
        remark: Why it has no score.
    """
    score = curve.score.copy()
    standard_error = curve.standard_error.copy()
    # As objects, because an array of strings would cut longer ones off.
    status = curve.status.astype(object)
    remarks = curve.remark.astype(object)
    score[at] = np.inf
    standard_error[at] = np.nan
    status[at] = FAILED
    remarks[at] = remark
    return replace(curve, score=score, standard_error=standard_error, status=status, remark=remarks)


def _certified(recipe: Minimum, table: Table, *starts: np.ndarray) -> FittedModel:
    """Return the certified minimum from the best of several starts.

    With several starts, a loose descent from each comes first, and the lowest end is converged to the last digits.
    """
    lam = recipe.weight_decay
    objective = _objective(recipe, table, lam)
    ends = list(starts)
    if len(starts) > 1:
        steps = _CANDIDATE_STEPS["leave_one_out"]
        ends = [_descend_to_candidate(recipe, table, lam, start, steps).theta for start in starts]
    lowest = min(ends, key=objective.value)
    descended = descend(objective, lowest, gtol=_FINAL_GTOL, max_steps=_FINAL_STEPS)
    return recipe.certify(_fitted(recipe, table, descended.theta, lam))


def _descend_to_candidate(recipe: Minimum, table: Table, lam: float, start: np.ndarray, max_steps: int) -> Descended:
    """Descend to the loose tolerance of a candidate, with matrices in single precision."""
    objective = replace(_objective(recipe, table, lam), single=True)
    return descend(objective, start, gtol=_CANDIDATE_GTOL, max_steps=max_steps)


def _objective(recipe: Minimum, table: Table, lam: float) -> Objective:
    """Return the objective of a network on a table."""
    weights = np.ones(len(table)) if table.weight is None else table.weight
    return Objective(recipe.network, table.X, table.y.reshape(len(table), -1), weights, lam)


def _fitted(recipe: Minimum, table: Table, theta: np.ndarray, lam: float) -> FittedModel:
    """Return the fitted model at the given parameters."""
    from vhat.fitted.model import FittedModel

    return FittedModel(
        network_problem(recipe.network, theta, table.X, table.y, weight_decay=lam, sample_weight=table.weight)
    )
