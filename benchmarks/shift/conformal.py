"""Conformal prediction around the same networks: plain, normalised, weighted, by cross-validation and by quantiles."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from benchmarks.early_stopping import Pinball, Recipe, Rows, Stack, train
from benchmarks.shift.bands import DELTA, Band, conformal_quantile, tuned_spread
from benchmarks.shift.splits import Shift

FOLDS = 5
NEIGHBOURS = 5
RIDGE = 1.0
"""Inverse penalty of the logistic regression, scikit-learn's own default."""


@dataclass(frozen=True)
class Predictions:
    """What the five networks of a split predict.

    Attributes:
        validation: (networks, rows), like the others.
        calibration: At the calibration rows.
        test: At the test rows, inside and then outside.
    """

    validation: np.ndarray
    calibration: np.ndarray
    test: np.ndarray

    def mean(self) -> Predictions:
        """Return the predictions of the ensemble, as one network."""
        return Predictions(*(f.mean(axis=0, keepdims=True) for f in (self.validation, self.calibration, self.test)))


def split_conformal(split: Shift, stack: Stack) -> Band:
    """MAPIE's split conformal prediction around each network."""
    began = time.process_time()
    X = split.X("inside", "outside")
    ends = []
    for network in range(len(stack.stopped)):
        rival = SplitConformalRegressor(_Prefit(stack, network), confidence_level=1 - DELTA, prefit=True)
        rival.conformalize(*split.rows["calibration"])
        ends.append(rival.predict_interval(X)[1][:, :, 0])
    seconds = (time.process_time() - began) / len(ends)
    lower, upper = np.moveaxis(np.stack(ends), 2, 0)
    return Band((lower + upper) / 2, (upper - lower) / 2, seconds)


def by_distance(split: Shift, f: Predictions) -> Band:
    """Scores divided by a spread that grows with the mean distance to the nearest training rows."""
    began = time.process_time()
    near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(split.X("train"))
    parts = (split.X("validation"), split.X("calibration"), split.X("inside", "outside"))
    signal = [near.kneighbors(X)[0].mean(axis=1) for X in parts]
    shared = time.process_time() - began
    halves = [_normalised(split, one, signal) for one in _each(f)]
    seconds = shared + (time.process_time() - began - shared) / len(halves)
    return Band(f.test, np.stack(halves), seconds)


def by_ensemble(split: Shift, f: Predictions, training: float) -> Band:
    """Scores around the mean of the networks, divided by a spread that grows with their standard deviation."""
    began = time.process_time()
    signal = [part.std(axis=0, ddof=1) for part in (f.validation, f.calibration, f.test)]
    mean = f.mean()
    half = _normalised(split, mean, signal)
    return Band(mean.test, half[None], training + time.process_time() - began)


def _each(f: Predictions) -> list[Predictions]:
    return [
        Predictions(f.validation[i : i + 1], f.calibration[i : i + 1], f.test[i : i + 1]) for i in range(len(f.test))
    ]


def _normalised(split: Shift, f: Predictions, signal: list[np.ndarray]) -> np.ndarray:
    errors = split.y("validation") - f.validation[0]
    at_calibration, at_test = tuned_spread(errors, signal[0], signal[1:])
    scores = np.abs(split.y("calibration") - f.calibration[0]) / at_calibration
    half: np.ndarray = conformal_quantile(scores) * at_test
    return half


def weighted(split: Shift, f: Predictions) -> Band:
    """Weighted conformal prediction (Tibshirani et al. 2019), the likelihood ratio by logistic regression.

    The inputs of the test rows outside are known to it; those inside keep the plain quantile. Inputs and their squares
    are regressed on, for a gap is no half-space. Where the weighted quantile is infinite, the largest score is taken.
    """
    began = time.process_time()
    pool, outside = split.X("train", "validation", "calibration"), split.X("outside")
    ratio = make_pipeline(
        PolynomialFeatures(2, interaction_only=False, include_bias=False),
        StandardScaler(),
        LogisticRegression(C=RIDGE, max_iter=2000),
    ).fit(np.concatenate([pool, outside]), np.repeat([0, 1], [len(pool), len(outside)]))
    w_cal = np.exp(ratio.decision_function(split.X("calibration")))
    w_out = np.exp(ratio.decision_function(outside))
    scores = np.abs(split.y("calibration") - f.calibration)
    half = np.empty_like(f.test)
    inside = len(split.y("inside"))
    half[:, :inside] = conformal_quantile(scores)
    infinite = 0.0
    for network, own in enumerate(scores):
        order = np.argsort(own)
        below = np.cumsum(w_cal[order])
        # The smallest score at which calibration rows have 1 - delta of all weight, that of the test row included.
        rank = np.searchsorted(below, (1 - DELTA) * (below[-1] + w_out))
        infinite += np.mean(rank >= len(own)) / len(scores)
        half[network, inside:] = own[order][np.minimum(rank, len(own) - 1)]
    seconds = (time.process_time() - began) / len(scores)
    return Band(f.test, half, seconds, f"infinite, cut to the largest score: {100 * infinite:.0f}% of rows outside")


def quantile_regression(split: Shift, recipe: Recipe, seeds: list[int]) -> Band:
    """Conformalised quantile regression (Romano et al. 2019): networks of the same size under the pinball loss."""
    began = time.process_time()
    rows = (Rows(*split.rows["train"]), Rows(*split.rows["validation"]))
    stack = train(replace(recipe, outputs=2), *rows, seeds, Pinball((DELTA / 2, 1 - DELTA / 2)))
    low, high = np.moveaxis(np.sort(stack.predict(split.X("calibration")), axis=2), 2, 0)
    y = split.y("calibration")
    widen = conformal_quantile(np.maximum(low - y, y - high))
    low, high = np.moveaxis(np.sort(stack.predict(split.X("inside", "outside")), axis=2), 2, 0)
    # A negative correction can close an interval: it is then empty, and counts as a point.
    half = np.maximum((high - low) / 2 + widen, 0.0)
    return Band((low + high) / 2, half, (time.process_time() - began) / len(seeds))


def cross(split: Shift, recipe: Recipe, seed: int) -> Band:
    """MAPIE's CV+: training and calibration rows in folds; the validation rows stop every network."""
    began = time.process_time()
    X, y = split.X("train", "calibration"), split.y("train", "calibration")
    whole = len(y) // FOLDS * FOLDS  # folds of one size are trained side by side
    X, y = X[:whole], y[:whole]
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    kept = np.stack([fitted for fitted, _ in folds.split(X)])
    stack = train(recipe, Rows(X[kept], y[kept]), Rows(*split.rows["validation"]), [seed] * FOLDS)
    known = {X[rows].tobytes(): network for network, rows in enumerate(kept)}
    rival = CrossConformalRegressor(_Folds(stack, known), confidence_level=1 - DELTA, method="plus", cv=folds)
    rival.fit_conformalize(X, y)
    ends = rival.predict_interval(split.X("inside", "outside"))[1][:, :, 0]
    return Band(ends.mean(axis=1)[None], np.diff(ends, axis=1).T / 2, time.process_time() - began)


class _Prefit(RegressorMixin, BaseEstimator):
    """A trained network as scikit-learn has estimators."""

    def __init__(self, stack: Stack, network: int) -> None:
        self.stack = stack
        self.network = network
        self.fitted_ = True

    def fit(self, X: Any, y: Any) -> _Prefit:  # noqa: ARG002  (trained already)
        return self

    def predict(self, X: Any) -> np.ndarray:
        found: np.ndarray = self.stack.predict(X)[self.network]
        return found


class _Folds(RegressorMixin, BaseEstimator):
    """Networks that are trained already, each known by its training rows; the mean of all for any other rows."""

    def __init__(self, stack: Stack, known: dict[bytes, int]) -> None:
        self.stack = stack
        self.known = known

    def __sklearn_clone__(self) -> _Folds:
        return _Folds(self.stack, self.known)

    def fit(self, X: Any, y: Any) -> _Folds:  # noqa: ARG002  (trained already)
        self.network_ = self.known.get(np.asarray(X).tobytes())
        return self

    def predict(self, X: Any) -> np.ndarray:
        found = self.stack.predict(X)
        return found.mean(axis=0) if self.network_ is None else found[self.network_]
