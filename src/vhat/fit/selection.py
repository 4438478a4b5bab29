"""The choice of weight decay: the lam whose fits predict held-out rows best."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.checks import check_choice, check_count
from vhat.errors import SelectionWarning, outside
from vhat.fit.data import check_fits
from vhat.fit.decay_path import Path, check_grid, default_grid, family
from vhat.fit.recipe import NetworkRecipe
from vhat.fit.scoring import Scoring
from vhat.fit.search import Search
from vhat.fit.splits import Part, Table, all_rows, check_table, fresh_rows, held_out_share, in_folds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vhat.fit.score_curve import Curve
    from vhat.fitted.model import FittedModel

__all__ = ["Selection", "choose_weight_decay", "split_table"]

_METHODS = {
    "leave_one_out": "leave_one_out",
    "loo": "leave_one_out",
    "cross_validation": "cross_validation",
    "cv": "cross_validation",
    "validation": "validation",
}
"""The accepted values of ``by``, with their full names."""


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """A weight decay, and the scores by which it was chosen.

    Attributes:
        weight_decay: The lam with the smallest score.
        trained: The fitted model with this lam, on all training rows.
        curve: The score of every lam.
        by: ``"leave_one_out"``, ``"cross_validation"`` or ``"validation"``.
    """

    weight_decay: float
    trained: FittedModel = field(repr=False)
    curve: Curve
    by: str

    def merged(self, other: Selection, curve: Curve) -> Selection:
        """Return this choice with the joint curve of both; :class:`vhat.fit.small_tables.Tried` merges more."""
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
    """Choose lam of ``L + lam/2 |theta|^2`` by the score of its fits on held-out rows.

    The score is the mean Winkler score of the asymptotic interval for a new response (``target="observation"``), which
    penalises both width and misses; or the mean squared error. Held-out rows are removed from the sum of the loss,
    while ``1/n`` and lam stay. For a model linear in its parameters, leave-one-out is then the same as cross-validation
    with n folds.

    - ``"leave_one_out"``, or ``"loo"``: one fit per lam, on all rows. Each row is predicted by a model without it, to
      first order: exact for models linear in their parameters, rough for rows of high leverage, which a remark counts.
    - ``"cross_validation"``, or ``"cv"``: ``folds`` fits per lam.
    - ``"validation"``: one fit per lam, scored on a share of the rows, or on rows of your own (the paper's rule).

    The search goes from the smallest lam to the largest. A recipe with a method
    ``resume(params, X, y, *, sample_weight=None)``, such as :class:`vhat.fit.Minimum`, starts each fit at the minimum
    of the previous lam. A fold never starts from a fit that was trained on its held-out rows. Any other recipe starts
    from its own first parameters each time. (From the largest lam to the smallest, a network would start with its units
    decayed to zero and find poorer minima: on one-dimensional data, at the middle of the grid, with up to twice the
    objective.)

    **Units.** y is used without scaling. The score of a linear model scales with y, and the choice does not change. The
    meaning of a network's lam depends on the unit of y, as its weights do: standardise y first
    (``vhat.NetworkRegressor`` does). The default grid refuses responses that are not of order one.

    Args:
        recipe: A recipe of :mod:`vhat.fit`, whose own ``weight_decay`` is replaced; or a function from lam to a
            recipe, for a training loop of your own.
        X: Rows.
        y: Responses, (n,) or (n, outputs).
        grid: Lams above 0, in any order. None takes eleven, two per decade, up to a tenth of the mean squared
            gradient of a prediction at the first parameters.
        by: How rows are held out.
        folds: Number of folds of cross-validation.
        validation: For ``by="validation"``: the share to hold out, or separate rows ``(X_val, y_val)``.
        score: ``"winkler"`` or ``"mse"``.
        delta: Probability of a miss that the scored intervals claim.
        noise: Standard deviation of y; None estimates it in every fit.
        sample_weight: Row weights, in the fits and in the mean score.
        seed: Seed of splits and first parameters; the same seed gives the same choice.

    Returns:
        The lam, the model with this lam and the whole curve. A lam without a score is infinite there, with the reason.

    Raises:
        InputError: When the data or an option cannot be used, or there are too few rows.
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
    check_choice("by", by, tuple(_METHODS))
    method = _METHODS[by]
    check_count("seed", seed)
    scoring = Scoring(score, delta, noise, seed)
    table = check_table(X, y, sample_weight)
    recipes = family(recipe)
    if isinstance(recipe, NetworkRecipe):
        weights = None if table.weight is None else [table.weight]
        check_fits(recipe.network, table.X, table.y, seeds=[seed], sample_weights=weights)
    parts = split_table(table, method, folds, validation, seed)
    lams = default_grid(recipe, table, seed) if grid is None else check_grid(grid)
    paths = [Path(recipes, part.train, part.share, seed) for part in parts]
    search = Search(parts, paths, scoring, lams, f"{scoring.words}, {method.replace('_', '-')}")
    with search.curve_on_interruption():
        search.run()
        trained = search.trained(Path(recipes, table, 1.0, seed))
    curve = search.curve()
    caveat = curve.edge or curve.doubt
    if caveat:
        warnings.warn(caveat, SelectionWarning, stacklevel=outside())
    trained.workspace.decay_chosen = True
    return Selection(float(lams[curve.best]), trained, curve, method)


def split_table(table: Table, by: str, folds: int, validation: Any, seed: int) -> list[Part]:
    """Return the training sets with the rows on which they are scored; see :func:`choose_weight_decay`."""
    if by == "leave_one_out":
        return all_rows(table)
    if by == "cross_validation":
        return in_folds(table, folds, seed)
    if isinstance(validation, int | float | np.number):
        return held_out_share(table, float(validation), seed)
    return fresh_rows(table, validation)
