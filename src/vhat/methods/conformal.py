"""Conformal prediction by MAPIE: split, and CV+."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from vhat.checks import as_numbers, check_choice, check_count, check_finite
from vhat.errors import InputError, MissingPackage
from vhat.fit.many_fits import Recipe
from vhat.fit.splits import Table, check_table
from vhat.intervals.interval import Interval
from vhat.level import level_text
from vhat.methods.base.method import Claim, Limits, Target, check_level, check_question, fit_once, make_interval
from vhat.methods.base.requirements import require_one_output

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["Conformal", "FittedConformal", "RecipeRegressor", "Regressor", "unit_of"]

_STREAM = 22


@dataclass(frozen=True)
class Conformal:
    """Intervals for a new response that take their width from the misses on rows that a fit has not seen (MAPIE).

    Attributes:
        kind: ``"split"``: train on some rows, and take the width from the others; ``"cv+"``: train without each of
            ``folds`` parts of the rows in turn, which uses every row for both.
        share: The share of rows that ``"split"`` keeps from training.
        folds: How many parts ``"cv+"`` makes.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Minimum, Network
        >>> x = np.linspace(-1, 1, 60)[:, None]
        >>> recipe = Minimum(Network((1, 1)), weight_decay=1e-3)
        >>> fit = Conformal().fit(recipe, x, x[:, 0] + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]], delta=0.1, target="observation").bound
        'split conformal'
    """

    kind: Literal["split", "cv+"] = "split"
    share: float = 0.5
    folds: int = 5

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("split", "cv+"))
        check_level("share", self.share, zero=False)
        check_count("folds", self.folds, least=2)

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> FittedConformal:
        """Train: once for ``"split"``, once for each fold and once on all rows for ``"cv+"``.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``, with one output.
            X: Rows, as one array.
            y: Responses.
            seed: Draws which rows are kept, and the training's first parameters.

        Raises:
            InputError: For several outputs, or fewer rows than parts.
            MissingPackage: When MAPIE is not installed.
        """
        table = check_table(X, y)
        regressor = RecipeRegressor(recipe, seed, table.y.shape[1:], unit_of(table.y))
        return self.around(regressor, table, seed=seed, name="Conformal")

    def around(self, regressor: Regressor, table: Table, *, seed: int, name: str) -> FittedConformal:
        """Do the same with a regressor in place of a recipe; ``name`` is what messages call the method."""
        _mapie()
        check_count("seed", seed)
        require_one_output(table.y.size // len(table), name)
        kept = round(self.share * len(table)) if self.kind == "split" else len(table)
        if (self.kind == "split" and not 0 < kept < len(table)) or len(table) < self.folds:
            raise InputError(f"{len(table)} rows are too few for {self}: some part of them would be empty.")
        order = np.random.default_rng([seed, _STREAM]).permutation(len(table))
        fit = FittedConformal(self, table, np.sort(order[:kept]), regressor, seed, name)
        if self.kind == "split":
            train = np.sort(order[kept:])
            regressor.fit(table.X[train], table.y[train].reshape(-1) / regressor.unit)
        else:
            fit.conformed(0.5)
        return fit


def unit_of(y: np.ndarray) -> float:
    """Return a power of two of the size of the responses, by which MAPIE's numbers are divided: it knows no units."""
    largest = float(np.abs(y).max()) or 1.0
    return 2.0 ** math.ceil(math.log2(largest))


class Regressor(Protocol):
    """What MAPIE trains and asks: scikit-learn's ``fit`` and ``predict``, and a way to clone it.

    Attributes:
        unit: What responses and predictions are divided by.
    """

    unit: float

    def __sklearn_clone__(self) -> Any:
        """Return one that is not fitted."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Any:
        """Train on these rows."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return predictions, (m,)."""


def _mapie() -> Any:
    try:
        from mapie import regression
    except ImportError as error:
        raise MissingPackage(
            'Conformal is by MAPIE, which is not installed. Install it: pip install "vhat[methods]", or pip install '
            "mapie. Split conformal intervals without it: fitted.calibrate(X_cal, y_cal)."
        ) from error
    return regression


@dataclass(eq=False)
class RecipeRegressor:
    """A recipe as scikit-learn's tools want it: ``fit`` and ``predict``. What was trained once is not trained again.

    Attributes:
        recipe: The recipe.
        seed: The seed of every training.
        columns: The shape of one response.
        unit: What responses and predictions are divided by.
        trained: The models so far, by the rows that they saw.
        fitted_: The model of the last ``fit``.
    """

    recipe: Recipe
    seed: int
    columns: tuple[int, ...]
    unit: float
    trained: dict[bytes, FittedModel] = field(default_factory=dict, repr=False)
    fitted_: FittedModel | None = field(default=None, repr=False)

    def __sklearn_clone__(self) -> RecipeRegressor:
        """Return one without a model that shares what was trained."""
        return replace(self, fitted_=None)

    def fit(self, X: np.ndarray, y: np.ndarray) -> RecipeRegressor:
        """Train on these rows."""
        key = X.tobytes() + y.tobytes()
        if key not in self.trained:
            responses = (self.unit * y).reshape(len(y), *self.columns)
            self.trained[key] = fit_once(self.recipe, X, responses, self.seed)
        self.fitted_ = self.trained[key]
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return predictions, (m,)."""
        assert self.fitted_ is not None
        return np.asarray(self.fitted_.predict(X).reshape(len(X)) / self.unit)


@dataclass(frozen=True, eq=False)
class FittedConformal:
    """Fitted models, and the rows whose misses give the width.

    Attributes:
        options: The options.
        table: All rows.
        rows: The rows whose misses are used: those kept from training, or all.
        regressor: The models, as MAPIE sees them.
        seed: The seed of the folds.
        name: What messages and intervals call the method.
    """

    options: Conformal
    table: Table = field(repr=False)
    rows: np.ndarray = field(repr=False)
    regressor: Regressor = field(repr=False)
    seed: int
    name: str = "Conformal"

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute an interval for a new response at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss; with ``"cv+"`` twice that is what is proved.
            target: ``"observation"``; a conformal interval says nothing of the mean.

        Raises:
            InputError: For ``target="mean"``, or a delta too small for so few rows.
        """
        why = "It covers a new response, noise and all; for the mean use vhat.methods.Proposed."
        delta = check_question(f"{self.name}({self.options.kind!r})", delta, target, only="observation", why=why)
        m, level = len(self.rows), 1 - delta
        if m * min(1 - level, level) < 1:  # MAPIE's own condition, in its own rounding
            raise InputError(
                f"{m} rows are too few for delta={delta:g}: the interval would be infinite. They allow a delta of "
                f"{1.006 / m:.3g} or more. Ask for that, or give at least {math.ceil(1 / delta)} rows to the width."
            )
        points = as_numbers("x", x)
        check_finite("x", points)
        conformed = self.conformed(delta)
        # of CV+ the center is the fit to all rows (None: no mean over the folds)
        center, found = conformed.predict_interval(points, *(() if self.options.kind == "split" else (None,)))
        unit = self.regressor.unit
        limits = Limits(unit * found[:, 0, 0], unit * found[:, 1, 0])
        return make_interval(
            self._claim, unit * center, limits, delta=delta, target=target, x=x, guarantee=self._sentence(delta)
        )

    def conformed(self, delta: float) -> Any:
        """Return MAPIE's regressor at this level, in which nothing is trained that has been trained before."""
        regression = _mapie()
        level, y = 1 - delta, self.table.y.reshape(-1) / self.regressor.unit
        if self.options.kind == "split":
            split = regression.SplitConformalRegressor(self.regressor, confidence_level=level, prefit=True)
            return split.conformalize(self.table.X[self.rows], y[self.rows])
        from sklearn.model_selection import KFold

        folds = KFold(self.options.folds, shuffle=True, random_state=self.seed)
        cross = regression.CrossConformalRegressor(self.regressor, confidence_level=level, method="plus", cv=folds)
        return cross.fit_conformalize(self.table.X, y)

    @property
    def _claim(self) -> Claim:
        kind = "split conformal" if self.options.kind == "split" else "CV+"
        return Claim(kind if self.name == "Conformal" else f"{kind}, {self.name}", "", "", ())

    def _sentence(self, delta: float) -> str:
        n, m, folds = len(self.table), len(self.rows), self.options.folds
        assumed = (
            "assumed: all rows and the new one exchangeable (the same population, no shift); nothing is assumed of the "
            "model, its minimum or its noise."
        )
        if self.options.kind == "split":
            return (
                f"A new response at one point is missed with probability at most {delta:g}, bias included, in the mean "
                f"over draws of the {m} rows kept from training and of the new one together, not for each x nor for "
                f"these rows given; {assumed}"
            )
        slack = min(2 * (1 - 1 / folds) / (n / folds + 1), (1 - folds / n) / (folds + 1))
        return (
            f"Nominal {level_text(delta)} for a new response at one point, bias included; proved is a miss with "
            f"probability at most {min(2 * delta + slack, 1):.3g} (2 delta, and what {folds} folds of {n} rows cost), "
            "in the mean over draws of all rows and of the new one together, not for each x, by training in which the "
            f"order of rows does not matter; {assumed}"
        )
