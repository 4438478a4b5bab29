"""Trees with conformal intervals: what many would use for a table if they had no network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from vhat.errors import MissingPackage
from vhat.fit.many_fits import Recipe
from vhat.fit.splits import check_table
from vhat.methods.conformal import Conformal, FittedConformal, unit_of

__all__ = ["GradientBoosting", "RandomForest", "TreeRegressor"]


@dataclass(frozen=True)
class GradientBoosting:
    """Boosted trees as scikit-learn has them, with conformal intervals for a new response (MAPIE).

    The recipe is not used. Nothing is tuned.

    Attributes:
        kind: ``"cv+"`` or ``"split"``, as in :class:`vhat.methods.Conformal`.
        share: The share of rows that ``"split"`` keeps from training.
        folds: How many parts ``"cv+"`` makes.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 60)[:, None]
        >>> y = x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0])
        >>> GradientBoosting().fit(None, x, y).interval([[0.0]], delta=0.1, target="observation").bound
        'CV+, gradient boosting'
    """

    kind: Literal["split", "cv+"] = "cv+"
    share: float = 0.5
    folds: int = 5

    def __post_init__(self) -> None:
        Conformal(self.kind, self.share, self.folds)

    def fit(self, recipe: Recipe | None, X: Any, y: Any, *, seed: int = 0) -> FittedConformal:  # noqa: ARG002
        """Train on parts of the rows, and on all of them.

        Args:
            recipe: Not used.
            X: Rows, (n, columns).
            y: Responses, one output.
            seed: Draws which rows are kept.

        Raises:
            InputError: For several outputs, or fewer rows than parts.
            MissingPackage: When MAPIE or scikit-learn is not installed.
        """
        return _fitted("gradient boosting", _boosting, Conformal(self.kind, self.share, self.folds), X, y, seed)


@dataclass(frozen=True)
class RandomForest:
    """A random forest as scikit-learn has it, with conformal intervals for a new response (MAPIE).

    The recipe is not used. Nothing is tuned.

    Attributes:
        kind: ``"cv+"`` or ``"split"``, as in :class:`vhat.methods.Conformal`.
        share: The share of rows that ``"split"`` keeps from training.
        folds: How many parts ``"cv+"`` makes.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 60)[:, None]
        >>> y = x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0])
        >>> RandomForest().fit(None, x, y).interval([[0.0]], delta=0.1, target="observation").bound
        'CV+, random forest'
    """

    kind: Literal["split", "cv+"] = "cv+"
    share: float = 0.5
    folds: int = 5

    def __post_init__(self) -> None:
        Conformal(self.kind, self.share, self.folds)

    def fit(self, recipe: Recipe | None, X: Any, y: Any, *, seed: int = 0) -> FittedConformal:  # noqa: ARG002
        """Train on parts of the rows, and on all of them: see :meth:`GradientBoosting.fit`."""
        return _fitted("random forest", _forest, Conformal(self.kind, self.share, self.folds), X, y, seed)


@dataclass(eq=False)
class TreeRegressor:
    """A scikit-learn regressor that is trained in units of its own, and is trained once on the same rows.

    Attributes:
        make: Makes the regressor.
        unit: What responses and predictions are divided by.
        trained: The regressors so far, by the rows that they saw.
        fitted_: That of the last ``fit``.
    """

    make: Callable[[], Any]
    unit: float
    trained: dict[bytes, Any] = field(default_factory=dict, repr=False)
    fitted_: Any = field(default=None, repr=False)

    def __sklearn_clone__(self) -> TreeRegressor:
        """Return one without a model that shares what was trained."""
        return replace(self, fitted_=None)

    def fit(self, X: np.ndarray, y: np.ndarray) -> TreeRegressor:
        """Train on these rows."""
        key = X.tobytes() + y.tobytes()
        if key not in self.trained:
            self.trained[key] = self.make().fit(X, y)
        self.fitted_ = self.trained[key]
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return predictions, (m,)."""
        return np.asarray(self.fitted_.predict(X))


def _fitted(name: str, make: Callable[[int], Any], conformal: Conformal, X: Any, y: Any, seed: int) -> FittedConformal:
    table = check_table(X, y)
    regressor = TreeRegressor(partial(make, seed), unit_of(table.y))
    return conformal.around(regressor, table, seed=seed, name=name)


def _boosting(seed: int) -> Any:
    return _ensemble().HistGradientBoostingRegressor(random_state=seed)


def _forest(seed: int) -> Any:
    return _ensemble().RandomForestRegressor(random_state=seed)


def _ensemble() -> Any:
    try:
        from sklearn import ensemble
    except ImportError as error:
        raise MissingPackage(
            'these trees are scikit-learn\'s, which is not installed. Install it: pip install "vhat[methods]".'
        ) from error
    return ensemble
