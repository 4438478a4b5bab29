"""The choice of weight decay: the lam whose fits predict rows that they have not seen best."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.checks import check_choice, check_count
from vhat.errors import (
    ConditioningWarning,
    CurvatureWarning,
    InputError,
    Interrupted,
    ModelError,
    SelectionWarning,
    VhatError,
    VhatWarning,
    outside,
)
from vhat.fit.data import check_fits
from vhat.fit.decay_path import DecayPath, Path, check_grid, default_grid, family, gradient_of, heard
from vhat.fit.recipe import NetworkRecipe
from vhat.fit.score_curve import CONVERGED, FAILED, NEARLY_SINGULAR, NOT_A_MINIMUM, ROUGH, Curve, Entry, assemble
from vhat.fit.scoring import Scored, Scoring
from vhat.fit.splits import Part, Table, all_rows, check_table, fresh_rows, held_out_share, in_folds
from vhat.progress import bar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vhat.fitted.model import FittedModel

__all__ = ["Search", "Selection", "choose_weight_decay", "split_table"]

_STATIONARY = 1e-6
"""A relative gradient above this is no minimum."""


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """A weight decay and what it was chosen by.

    Attributes:
        weight_decay: The lam with the smallest score.
        trained: The fitted model under it, on all rows that were given to train on: ready for use.
        curve: The score of every lam.
        by: ``"leave_one_out"``, ``"cross_validation"`` or ``"validation"``.
    """

    weight_decay: float
    trained: FittedModel = field(repr=False)
    curve: Curve
    by: str

    def merged(self, other: Selection, curve: Curve) -> Selection:
        """Return this choice with the curve of both."""
        del other
        return replace(self, curve=curve)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the scores over lam; see :func:`vhat.plot.decay_curve`."""
        return self.curve.plot(ax)

    def __repr__(self) -> str:
        return f"Selection of weight_decay={self.weight_decay:.4g} by {self.by}\n{self.curve!r}"


def choose_weight_decay(
    recipe: Any,
    X: Any,
    y: Any,
    *,
    grid: Any = None,
    by: Literal["leave_one_out", "loo", "cross_validation", "cv", "validation"] = "leave_one_out",
    folds: int = 5,
    validation: Any = 0.2,
    score: Literal["winkler", "mse"] = "winkler",
    delta: float = 0.05,
    noise: float | None = None,
    sample_weight: Any = None,
    seed: int = 0,
) -> Selection:
    """Choose lam of ``L + lam/2 |theta|^2`` by how well its fits predict rows that they have not seen.

    The score is the mean Winkler score of the asymptotic interval for a new response (``target="observation"``), whose
    width and misses both count; or the mean squared error. Rows that are left out leave the sum of the loss, while
    ``1/n`` and lam stay, so that for a model linear in its parameters leave-one-out is cross-validation with n folds.

    - ``"leave_one_out"``, or ``"loo"``: one fit a lam, on all rows; each row is predicted by the model that had not
      seen it, to first order (exact for models linear in their parameters, rough for rows of high leverage: a remark
      counts them).
    - ``"cross_validation"``, or ``"cv"``: ``folds`` fits a lam.
    - ``"validation"``: one fit a lam, scored on a share of the rows, or on rows of your own (the paper's rule).

    Lam rises along the grid. A recipe with a method ``resume(params, X, y, *, sample_weight=None)``, such as
    :class:`vhat.fit.Minimum`, starts each fit at the minimum of the lam before; a fold never starts from a fit that saw
    its held-out rows. Every other recipe starts afresh each time. (Downwards, a network would begin with its units
    decayed to nothing, and find only poorer minima on the way back: on one-dimensional data, at the middle of the grid,
    of up to twice the objective.)

    **Units.** y is used as it is. The score of a linear model scales with y and the choice does not change. A network's
    lam has a meaning only beside the unit of y, as its weights have: standardise y first (``vhat.NetworkRegressor``
    does). The default grid refuses to guess.

    Args:
        recipe: A recipe of :mod:`vhat.fit`, whose own ``weight_decay`` is replaced; or a function from lam to a
            recipe, for a training loop of your own.
        X: Rows.
        y: Responses, (n,) or (n, outputs).
        grid: Lams above 0, in any order. None takes eleven, two a decade, up to a tenth of the mean squared
            gradient of a prediction at the start.
        by: What is held out.
        folds: For cross-validation.
        validation: For ``by="validation"``: the share to hold out, or rows ``(X_val, y_val)`` of their own.
        score: ``"winkler"`` or ``"mse"``.
        delta: The probability of a miss that the scored intervals claim.
        noise: Standard deviation of y; None estimates it in every fit.
        sample_weight: Weights of the rows, in the fits and in the mean score.
        seed: Draws splits and first parameters; the same seed gives the same choice.

    Returns:
        The lam, the model under it and the whole curve. A lam that cannot be scored is infinite there, with the reason.

    Raises:
        InputError: For data or options that cannot be used, or too few rows.
        ModelError: When no lam of the grid could be scored, or the one chosen could not be refitted on all rows.
        Interrupted: On Ctrl-C; its ``record`` is the :class:`Curve` so far.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Minimum, Network
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(40, 20))
        >>> y = X @ np.full(20, 0.2) + rng.normal(size=40)
        >>> recipe = Minimum(Network((20, 1)), weight_decay=1.0)
        >>> choice = choose_weight_decay(recipe, X, y, grid=[0.01, 0.1, 1.0, 10.0])
        >>> choice.weight_decay
        0.1
        >>> choice.trained.interval(X[:2]).center.shape
        (2,)
    """
    check_choice("by", by, ("leave_one_out", "loo", "cross_validation", "cv", "validation"))
    way = {"loo": "leave_one_out", "cv": "cross_validation"}.get(by, str(by))
    check_count("seed", seed)
    scoring, table, recipes = Scoring(score, delta, noise, seed), check_table(X, y, sample_weight), family(recipe)
    if isinstance(recipe, NetworkRecipe):
        weights = None if table.weight is None else [table.weight]
        check_fits(recipe.network, table.X, table.y, seeds=[seed], sample_weights=weights)
    parts = split_table(table, way, folds, validation, seed)
    lams = default_grid(recipe, table, seed) if grid is None else check_grid(grid)
    paths = [Path(recipes, part.train, part.share, seed) for part in parts]
    search = Search(parts, paths, scoring, lams, f"{scoring.words}, {way.replace('_', '-')}")
    with search.kept_on_interruption():
        search.run()
        trained = search.trained(Path(recipes, table, 1.0, seed))
    curve = search.curve()
    if curve.edge or curve.doubt:
        warnings.warn(curve.edge or curve.doubt, SelectionWarning, stacklevel=outside())
    trained.workspace.decay_chosen = True
    return Selection(float(lams[curve.best]), trained, curve, way)


def split_table(table: Table, by: str, folds: int, validation: Any, seed: int) -> list[Part]:
    """Return the training sets, and what they are scored on: see :func:`choose_weight_decay`."""
    if by == "leave_one_out":
        return all_rows(table)
    if by == "cross_validation":
        return in_folds(table, folds, seed)
    if isinstance(validation, int | float | np.number):
        return held_out_share(table, float(validation), seed)
    return fresh_rows(table, validation)


@dataclass
class Search:
    """The walk along the grid.

    Attributes:
        parts: Training sets, and what they are scored on.
        paths: The fits of each, under way.
        scoring: The score.
        lams: The grid, rising.
        measure: The score in words.
        entries: What has been found so far, one a lam.
        failures: Why lams failed.
        leader: What is kept of the best lam so far.
        stationary: The relative gradient above which a fit is called no minimum.
    """

    parts: list[Part]
    paths: Sequence[DecayPath]
    scoring: Scoring
    lams: np.ndarray
    measure: str
    entries: list[Entry] = field(default_factory=list)
    failures: list[VhatError] = field(default_factory=list)
    leader: _Leader | None = None
    stationary: float = _STATIONARY

    def curve(self) -> Curve:
        """Return the scores so far."""
        return assemble(self.lams, self.entries, self.measure)

    def run(self) -> None:
        """Fit and score every lam.

        Raises:
            ModelError: When none of them has a score.
        """
        with bar("weight decay", len(self.lams)) as advance:
            for lam in self.lams:
                entry = self._entry(float(lam))
                self.entries.append(entry)
                advance(f"lam {lam:.1e}, score {entry.score:.4g}")
        if self.leader is None:
            self._refuse()

    def trained(self, path: Path) -> FittedModel:
        """Return the model of the best lam on all rows, and repeat what its fit had warned of.

        Raises:
            ModelError: When all rows cannot be fitted under it.
        """
        leader = self.leader
        assert leader is not None
        if self.parts[0].share == 1.0:
            for warning in leader.said:
                warnings.warn(warning, stacklevel=outside())
            return leader.fitted
        path.params = leader.fitted.params
        try:
            return path.fit(leader.lam)
        except VhatError as error:
            raise ModelError(
                f"the best of the grid, weight_decay={leader.lam:.3g}, could not be refitted on all rows: {error}"
            ) from error

    def _entry(self, lam: float) -> Entry:
        """Fit and score one lam; what goes wrong is in the entry."""
        gradient = np.nan
        with heard() as said:
            try:
                fits = [path.fit(lam) for path in self.paths]
                gradient = max(gradient_of(fitted) for fitted in fits)
                scored = [self._scored(part, fitted) for part, fitted in zip(self.parts, fits, strict=True)]
            except VhatError as error:
                self.failures.append(error)
                return Entry(np.inf, np.nan, gradient, FAILED, str(error))
        mean, error_of_mean = _mean(scored, self.parts)
        if not np.isfinite(mean):
            return Entry(np.inf, np.nan, gradient, FAILED, "the score is not finite: predictions are out of range.")
        if self.leader is None or mean <= self.leader.score:  # the larger of two equals
            self.leader = _Leader(lam, mean, fits[0], said)
        remarks = [*dict.fromkeys(each.remark for each in scored if each.remark), *(str(each) for each in said)]
        rough = any(each.rough for each in scored)
        return Entry(mean, error_of_mean, gradient, _status(gradient > self.stationary, said, rough), " ".join(remarks))

    def _scored(self, part: Part, fitted: FittedModel) -> Scored:
        return self.scoring.of_left_out(fitted) if part.test is None else self.scoring.of_rows(fitted, part.test)

    def _refuse(self) -> None:
        first = self.failures[0] if self.failures else None
        if isinstance(first, InputError) and all(str(each) == str(first) for each in self.failures):
            raise first
        reasons = "; ".join(f"{lam:.3g}: {entry.remark}" for lam, entry in zip(self.lams, self.entries, strict=True))
        raise ModelError(f"no weight_decay of the grid could be scored. {reasons}") from first

    @contextmanager
    def kept_on_interruption(self) -> Iterator[None]:
        """Hand what was scored to the caller on Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(
                f"{len(self.entries)} of {len(self.lams)} weight decays were scored. To keep them: except "
                "vhat.Interrupted as stop: stop.record",
                self.curve(),
            ) from None


@dataclass(frozen=True)
class _Leader:
    """The best lam so far: the fit of its first training set, and what that warned of."""

    lam: float
    score: float
    fitted: FittedModel
    said: list[VhatWarning]


def _status(moving: bool, said: list[VhatWarning], rough: bool) -> str:
    if moving or any(isinstance(each, CurvatureWarning) for each in said):
        return NOT_A_MINIMUM
    if rough:
        return ROUGH
    return NEARLY_SINGULAR if any(isinstance(each, ConditioningWarning) for each in said) else CONVERGED


def _mean(scored: list[Scored], parts: list[Part]) -> tuple[float, float]:
    """Return the weighted mean of all rows' scores and its standard error."""
    tables = [part.train if part.test is None else part.test for part in parts]
    weights = np.concatenate([np.ones(len(t)) if t.weight is None else t.weight for t in tables])
    rows = np.concatenate([each.rows for each in scored])
    mean = float(np.average(rows, weights=weights))
    effective = np.sum(weights) ** 2 / np.sum(weights**2)
    spread = float(np.average((rows - mean) ** 2, weights=weights))
    return mean, float(np.sqrt(spread / max(effective - 1, 1.0)))
