"""Tree ensembles with conformal intervals: the usual choice for tabular data without a network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from vhat.errors import InputError
from vhat.methods.base.fitting import MethodWithoutRecipe, Training
from vhat.methods.base.requirements import require_package
from vhat.methods.conformal import Conformal, FittedConformal

__all__ = ["ConformalTrees", "GradientBoosting", "RandomForest", "TreeRegressor"]

_DIGITS = 10
"""Decimals to which responses are rounded before training, in units of their root mean square."""


@dataclass(frozen=True)
class ConformalTrees(MethodWithoutRecipe[FittedConformal]):
    """A tree ensemble of scikit-learn, with conformal intervals for a new response (MAPIE).

    The recipe is not used. Nothing is tuned. A subclass gives ``name`` and ``make``.

    Attributes:
        name: Name of the method, for messages and intervals.
        kind: ``"cv+"`` or ``"split"``, as in :class:`vhat.methods.Conformal`.
        share: Share of the rows that ``"split"`` holds out from training.
        folds: Number of folds of ``"cv+"``.
    """

    name: ClassVar[str]
    kind: Literal["split", "cv+"] = "cv+"
    share: float = 0.5
    folds: int = 5

    def __post_init__(self) -> None:
        self._conformal()

    def _conformal(self) -> Conformal:
        """Return the conformal method with the same options, which checks them."""
        return Conformal(self.kind, self.share, self.folds)

    @staticmethod
    @abstractmethod
    def make(seed: int) -> Any:
        """Return an unfitted scikit-learn regressor."""

    def _fit(self, data: Training) -> FittedConformal:
        table = data.table()
        if table.X.ndim != 2:
            raise InputError(f"{self.name} needs a table, (rows, columns); X has shape {table.X.shape}.")
        unit = float(np.sqrt(np.mean(table.y**2))) or 1.0
        regressor = TreeRegressor(partial(self.make, data.seed), unit)
        return self._conformal().fit_regressor(regressor, table, seed=data.seed, name=self.name)


@dataclass(frozen=True)
class GradientBoosting(ConformalTrees):
    """Boosted trees of scikit-learn, with conformal intervals for a new response (MAPIE).

    The recipe is not used. Nothing is tuned.

    Attributes:
        kind: ``"cv+"`` or ``"split"``, as in :class:`vhat.methods.Conformal`.
        share: Share of the rows that ``"split"`` holds out from training.
        folds: Number of folds of ``"cv+"``.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 60)[:, None]
        >>> y = x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0])
        >>> GradientBoosting().fit(None, x, y).interval([[0.0]], delta=0.1, target="observation").bound
        'CV+, gradient boosting'
    """

    name: ClassVar[str] = "gradient boosting"

    @staticmethod
    def make(seed: int) -> Any:
        """Return scikit-learn's histogram gradient boosting."""
        return _ensemble().HistGradientBoostingRegressor(random_state=seed)


@dataclass(frozen=True)
class RandomForest(ConformalTrees):
    """A random forest of scikit-learn, with conformal intervals for a new response (MAPIE).

    The recipe is not used. Nothing is tuned. The options are those of :class:`vhat.methods.GradientBoosting`.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 60)[:, None]
        >>> y = x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0])
        >>> RandomForest().fit(None, x, y).interval([[0.0]], delta=0.1, target="observation").bound
        'CV+, random forest'
    """

    name: ClassVar[str] = "random forest"

    @staticmethod
    def make(seed: int) -> Any:
        """Return scikit-learn's random forest."""
        return _ensemble().RandomForestRegressor(random_state=seed)


@dataclass(eq=False)
class TreeRegressor:
    """A scikit-learn regressor of scaled responses, which caches the regressor of every training set.

    Attributes:
        make: Returns an unfitted regressor.
        unit: Responses and predictions are divided by this number.
        trained: Cache of fitted regressors, keyed by the bytes of their training rows.
        fitted_: The regressor of the last ``fit``.
    """

    make: Callable[[], Any]
    unit: float
    trained: dict[bytes, Any] = field(default_factory=dict, repr=False)
    fitted_: Any = field(default=None, repr=False)

    def __sklearn_clone__(self) -> TreeRegressor:
        """Return an unfitted copy that shares the cache of trained models."""
        return replace(self, fitted_=None)

    def fit(self, X: np.ndarray, y: np.ndarray) -> TreeRegressor:
        """Train on these rows, or take their regressor from the cache."""
        # A rounding error can move a split of a tree. Rounding the responses makes the trees independent of the unit
        # of y.
        responses = np.round(y, _DIGITS)
        key = X.tobytes() + responses.tobytes()
        if key not in self.trained:
            self.trained[key] = self.make().fit(X, responses)
        self.fitted_ = self.trained[key]
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return predictions, (m,).

        Raises:
            InputError: When the points do not have the columns of the training rows.
        """
        columns = self.fitted_.n_features_in_
        if X.ndim != 2 or X.shape[1] != columns or not len(X):
            raise InputError(
                f"x has shape {X.shape}; the training rows have {columns} columns. Give (points, {columns}), at least "
                "one row."
            )
        return np.asarray(self.fitted_.predict(X))


def _ensemble() -> Any:
    """Import and return ``sklearn.ensemble``."""
    return require_package(
        "sklearn.ensemble",
        'these trees are scikit-learn\'s, which is not installed. Install it: pip install "vhat[methods]".',
    )
