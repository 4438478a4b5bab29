"""MAPIE around scikit-learn's network: CV+ and split conformal, as its documentation advises."""

from __future__ import annotations

from functools import cached_property

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
ALPHA = "regressor__mlpregressor__alpha"
FOLDS = 10


class MapieTable:
    """A network of one hidden layer on a standardised table, with MAPIE's intervals for a new response."""

    def __init__(self, file: str, hidden: int = 32, iterations: int = 500) -> None:
        with np.load(file) as kept:
            self.X, self.y, self.X_test = kept["X"], kept["y"], kept["X_test"]
        network = MLPRegressor(
            hidden_layer_sizes=(hidden,), activation="tanh", solver="lbfgs", max_iter=iterations, random_state=0
        )
        self.network = TransformedTargetRegressor(
            make_pipeline(StandardScaler(), network), transformer=StandardScaler()
        )

    @cached_property
    def _tuned(self) -> BaseEstimator:
        """The network under the lam that cross-validation chooses on the rows for training, not fitted."""
        X, _, y, _ = self._halves()
        grid = {ALPHA: len(y) * LAMS}
        search = GridSearchCV(self.network, grid, scoring="neg_mean_squared_error", cv=3, refit=False).fit(X, y)
        return clone(self.network).set_params(**{ALPHA: search.best_params_[ALPHA]})

    def _halves(self) -> list[np.ndarray]:
        """Rows for training, a quarter for calibration, and the responses of both."""
        return train_test_split(self.X, self.y, test_size=0.25, random_state=0)

    def cross(self, delta: float) -> list[list[float]]:
        """CV+ with ten folds, on all rows."""
        tuned = self._tuned
        found = CrossConformalRegressor(tuned, confidence_level=1 - delta, method="plus", cv=FOLDS, random_state=0)
        found.fit_conformalize(self.X, self.y)
        return _ends(found.predict_interval(self.X_test)[1])

    def split(self, delta: float) -> list[list[float]]:
        """Split conformal, a quarter of the rows for calibration."""
        X, X_cal, y, y_cal = self._halves()
        found = SplitConformalRegressor(self._tuned, confidence_level=1 - delta, prefit=False)
        found.fit(X, y).conformalize(X_cal, y_cal)
        return _ends(found.predict_interval(self.X_test)[1])


def _ends(intervals: np.ndarray) -> list[list[float]]:
    """Lower and upper ends from (points, 2, levels)."""
    return [intervals[:, 0, 0].tolist(), intervals[:, 1, 0].tolist()]
