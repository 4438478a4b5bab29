"""MAPIE around scikit-learn's network: CV+ and split conformal, as its documentation advises."""

from __future__ import annotations

import numpy as np
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from sklearn.base import BaseEstimator, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

LAMS = 2.0 * np.logspace(-4, 0, 9)
"""Two a decade, the span that our own choice looks at; scikit-learn's ``alpha`` is n times lam."""
FOLDS = 10


class MapieTable:
    """A network of one hidden layer on a standardised table, with MAPIE's intervals for a new response."""

    def __init__(self, file: str, hidden: int = 32, iterations: int = 2000) -> None:
        with np.load(file) as kept:
            self.X, self.y, self.X_test = kept["X"], kept["y"], kept["X_test"]
        network = MLPRegressor(
            hidden_layer_sizes=(hidden,), activation="tanh", solver="lbfgs", max_iter=iterations, random_state=0
        )
        self.network = TransformedTargetRegressor(
            make_pipeline(StandardScaler(), network), transformer=StandardScaler()
        )

    def _tuned(self, X: np.ndarray, y: np.ndarray) -> BaseEstimator:
        """The network under the ``alpha`` that cross-validation chooses on these rows, not fitted."""
        grid = {"regressor__mlpregressor__alpha": len(y) * LAMS}
        search = GridSearchCV(self.network, grid, scoring="neg_mean_squared_error", cv=5, refit=False)
        search.fit(X, y)
        return clone(self.network).set_params(**search.best_params_)

    def cross(self, delta: float) -> list[list[float]]:
        """CV+ with ten folds, on all rows."""
        found = CrossConformalRegressor(
            self._tuned(self.X, self.y), confidence_level=1 - delta, method="plus", cv=FOLDS, random_state=0
        )
        found.fit_conformalize(self.X, self.y)
        return _ends(found.predict_interval(self.X_test)[1])

    def split(self, delta: float) -> list[list[float]]:
        """Split conformal, a quarter of the rows for calibration."""
        X, X_cal, y, y_cal = train_test_split(self.X, self.y, test_size=0.25, random_state=0)
        found = SplitConformalRegressor(self._tuned(X, y), confidence_level=1 - delta, prefit=False)
        found.fit(X, y).conformalize(X_cal, y_cal)
        return _ends(found.predict_interval(self.X_test)[1])


def _ends(intervals: np.ndarray) -> list[list[float]]:
    """Lower and upper ends from (points, 2, levels)."""
    return [intervals[:, 0, 0].tolist(), intervals[:, 1, 0].tolist()]
