"""Split conformal prediction and CV+, by MAPIE."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from vhat.checks import as_numbers, check_choice, check_count, check_finite
from vhat.errors import InputError
from vhat.fit.many_fits import Recipe
from vhat.fit.splits import Table
from vhat.level import level_text
from vhat.methods.base.answering import Answer, BaseFitted, Question
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Claim, Target
from vhat.methods.base.limits import Limits
from vhat.methods.base.method import check_level, check_question, fit_once
from vhat.methods.base.requirements import require_one_output, require_package

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["Conformal", "FittedConformal", "RecipeRegressor", "Regressor", "unit_of"]

_STREAM = 22
"""Number of this method's stream of random numbers."""
_SMALLEST_DELTA_MARGIN = 1.006
"""Safety factor on the suggested delta ``1/rows``: rounded to three digits it is still large enough."""


@dataclass(frozen=True)
class Conformal(BaseMethod["FittedConformal"]):
    """Intervals for a new response whose width comes from residuals on held-out rows (MAPIE).

    There is no interval for the mean. The model must have one output. With ``"cv+"`` the proved bound on the
    probability of a miss is about ``2 delta``.

    Attributes:
        kind: ``"split"``: train on some rows, and take the width from the others; ``"cv+"``: train without each of
            ``folds`` folds in turn, which uses every row for both.
        share: Share of the rows that ``"split"`` holds out from training.
        folds: Number of folds of ``"cv+"``.

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

    def _fit(self, data: Training) -> FittedConformal:
        table = data.table()
        regressor = RecipeRegressor(data.recipe, data.seed, table.y.shape[1:], unit_of(table.y))
        return self.fit_regressor(regressor, table, seed=data.seed, name="Conformal")

    def fit_regressor(self, regressor: Regressor, table: Table, *, seed: int, name: str) -> FittedConformal:
        """Fit with a regressor in place of a recipe.

        Args:
            regressor: The regressor, not fitted.
            table: Rows and responses.
            seed: Seed of the split or the folds.
            name: Name of the method, for messages.

        Raises:
            InputError: When there are several outputs, or too few rows.
            MissingPackage: When MAPIE is not installed.
        """
        _mapie()
        check_count("seed", seed)
        require_one_output(table.y.size // len(table), name)
        n = len(table)
        split = self.kind == "split"
        held_out = round(self.share * n) if split else n
        if (split and not 0 < held_out < n) or n < self.folds:
            raise InputError(f"{n} rows are too few for {self}: some part of them would be empty.")
        order = np.random.default_rng([seed, _STREAM]).permutation(n)
        fit = FittedConformal(self, table, np.sort(order[:held_out]), regressor, seed, name)
        if split:
            train = np.sort(order[held_out:])
            regressor.fit(table.X[train], table.y[train].reshape(-1) / regressor.unit)
        else:
            # Train all folds now, at any level: the regressor caches them for every later delta.
            fit.calibrate_regressor(0.5)
        return fit


def unit_of(y: np.ndarray) -> float:
    """Return the power of two next above the largest response.

    MAPIE gets the responses divided by this unit, because its tolerances are absolute. A power of two adds no rounding.
    """
    largest = float(np.abs(y).max()) or 1.0
    return 2.0 ** math.ceil(math.log2(largest))


class Regressor(Protocol):
    """The interface that MAPIE needs: scikit-learn's ``fit`` and ``predict``, and a way to clone it.

    Attributes:
        unit: Responses and predictions are divided by this number.
    """

    unit: float

    def __sklearn_clone__(self) -> Any:
        """Return an unfitted copy."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Any:
        """Train on these rows."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return predictions, (m,)."""


def _mapie() -> Any:
    """Import and return ``mapie.regression``."""
    return require_package(
        "mapie.regression",
        'Conformal is by MAPIE, which is not installed. Install it: pip install "vhat[methods]", or pip install '
        "mapie. Split conformal intervals without it: fitted.calibrate(X_cal, y_cal).",
    )


@dataclass(eq=False)
class RecipeRegressor:
    """A recipe with scikit-learn's ``fit`` and ``predict``, which caches the model of every training set.

    Attributes:
        recipe: The recipe.
        seed: Seed of every training.
        columns: Shape of one response.
        unit: Responses and predictions are divided by this number.
        trained: Cache of fitted models, keyed by the bytes of their training rows.
        fitted_: The model of the last ``fit``.
    """

    recipe: Recipe
    seed: int
    columns: tuple[int, ...]
    unit: float
    trained: dict[bytes, FittedModel] = field(default_factory=dict, repr=False)
    fitted_: FittedModel | None = field(default=None, repr=False)

    def __sklearn_clone__(self) -> RecipeRegressor:
        """Return an unfitted copy that shares the cache of trained models."""
        return replace(self, fitted_=None)

    def fit(self, X: np.ndarray, y: np.ndarray) -> RecipeRegressor:
        """Train on these rows, or take their model from the cache."""
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
class FittedConformal(BaseFitted):
    """Fitted models, and the rows whose residuals give the width.

    Attributes:
        options: The options.
        table: All rows.
        rows: Numbers of the rows whose residuals are used: those held out, or all.
        regressor: The models, as a regressor for MAPIE.
        seed: Seed of the folds.
        name: Name of the method, for messages and intervals.
    """

    options: Conformal
    table: Table = field(repr=False)
    rows: np.ndarray = field(repr=False)
    regressor: Regressor = field(repr=False)
    seed: int
    name: str = "Conformal"

    def _check(self, delta: float, target: Target) -> float:
        why = "It covers a new response, noise and all; for the mean use vhat.methods.Proposed."
        return check_question(f"{self.name}({self.options.kind!r})", delta, target, only="observation", why=why)

    def _answer(self, asked: Question) -> Answer:
        """Compute limits for a new response."""
        delta = asked.delta
        m = len(self.rows)
        level = 1 - delta
        if m * min(1 - level, level) < 1:  # MAPIE's own condition, written so that it rounds alike
            raise InputError(
                f"{m} rows are too few for delta={delta:g}: the interval would be infinite. They allow a delta of "
                f"{_SMALLEST_DELTA_MARGIN / m:.3g} or more. Ask for that, or give at least {math.ceil(1 / delta)} rows "
                "to the width."
            )
        points = as_numbers("x", asked.x)
        check_finite("x", points)
        calibrated = self.calibrate_regressor(delta)
        if self.options.kind == "split":
            center, found = calibrated.predict_interval(points)
        else:
            # None: no mean over the folds, so that the center is the fit to all rows.
            center, found = calibrated.predict_interval(points, None)
        unit = self.regressor.unit
        # MAPIE returns (points, 2, levels).
        limits = Limits(unit * found[:, 0, 0], unit * found[:, 1, 0])
        return Answer(self._claim, unit * center, limits, of="observation", guarantee=self._sentence(delta))

    def calibrate_regressor(self, delta: float) -> Any:
        """Return MAPIE's regressor calibrated for this delta; cached models are not trained again."""
        regression = _mapie()
        level = 1 - delta
        y = self.table.y.reshape(-1) / self.regressor.unit
        if self.options.kind == "split":
            split = regression.SplitConformalRegressor(self.regressor, confidence_level=level, prefit=True)
            return split.conformalize(self.table.X[self.rows], y[self.rows])
        from sklearn.model_selection import KFold

        folds = KFold(self.options.folds, shuffle=True, random_state=self.seed)
        cross = regression.CrossConformalRegressor(self.regressor, confidence_level=level, method="plus", cv=folds)
        return cross.fit_conformalize(self.table.X, y)

    @property
    def _claim(self) -> Claim:
        name = "split conformal" if self.options.kind == "split" else "CV+"
        if self.name != "Conformal":
            name = f"{name}, {self.name}"
        return Claim(name, "", "", ())  # the guarantee has a sentence of its own

    def _sentence(self, delta: float) -> str:
        assumed = (
            "assumed: all rows and the new one exchangeable (the same population, no shift); nothing is assumed of the "
            "model, its minimum or its noise."
        )
        if self.options.kind == "split":
            return (
                f"A new response at one point is missed with probability at most {delta:g}, bias included, in the mean "
                f"over draws of the {len(self.rows)} rows kept from training and of the new one together, not for each "
                f"x nor for these rows given; {assumed}"
            )
        n = len(self.table)
        folds = self.options.folds
        # Barber et al. (2021), Theorem 4: what CV+ with few folds may lose beyond 2 delta.
        slack = min(2 * (1 - 1 / folds) / (n / folds + 1), (1 - folds / n) / (folds + 1))
        return (
            f"Nominal {level_text(delta)} for a new response at one point, bias included; proved is a miss with "
            f"probability at most {min(2 * delta + slack, 1):.3g} (2 delta, and what {folds} folds of {n} rows cost), "
            "in the mean over draws of all rows and of the new one together, not for each x, by training in which the "
            f"order of rows does not matter; {assumed}"
        )
