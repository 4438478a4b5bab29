"""How well a model predicts, beside two that anyone could have had: the mean of the responses and boosted trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.models.problem import Problem
from vhat.report.judged_rows import JudgedRows
from vhat.report.numbers import plain

__all__ = ["Accuracy", "Baselines", "accuracy", "baseline_errors", "baselines", "r2"]

LEAST_ROWS = 100
"""Training rows that boosted trees need here: a leaf holds 20, so that fewer give trees of two or three leaves."""
MOST_CELLS = 2_000_000
"""Cells of the training table that boosted trees are fitted to, some two CPU seconds; larger tables are left alone."""
_FOLDS = 5


@dataclass(frozen=True, eq=False)
class Baselines:
    """Predictions at the judged rows that do not come from the model, (m, K).

    Attributes:
        mean: The mean of the training responses; for left-out rows, of the others.
        trees: Boosted trees, for left-out rows by cross-validation; None where there are none.
        said: Why there are none, or how they were made.
    """

    mean: np.ndarray
    trees: np.ndarray | None
    said: str


@dataclass(frozen=True)
class Accuracy:
    """Errors of one output on the judged rows, in the unit of the response.

    Attributes:
        rows: How many rows have a prediction; the others are left out of all numbers here.
        r2: Share of the variance of these responses that is explained.
        rms: Root mean square error of the model.
        mean_rms: Of the mean of the training responses.
        mean_r2: Its share, 0 or less.
        trees_rms: Of boosted trees; NaN where there are none.
        trees_r2: Their share.
        bias: Mean of response minus prediction.
        bias_error: The standard error of that where the model is right: ``sd sqrt(1/m + 1/n)``. The first part is the
            noise of these rows, the second that of the level which n training rows have set.
    """

    rows: int
    r2: float
    rms: float
    mean_rms: float
    mean_r2: float
    trees_rms: float
    trees_r2: float
    bias: float
    bias_error: float

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: plain(value) for name, value in vars(self).items()}


def r2(observed: np.ndarray, prediction: np.ndarray) -> float:
    """Return ``1 - sum (y - f)^2 / sum (y - mean y)^2``, NaN where the responses do not differ."""
    total = float(np.sum((observed - observed.mean()) ** 2))
    return 1 - float(np.sum((observed - prediction) ** 2)) / total if total > 0 else float("nan")


def accuracy(judges: JudgedRows, others: Baselines, training_rows: int, k: int) -> Accuracy | None:
    """Return the errors of output k, or None where no row has a prediction."""
    kept = np.isfinite(judges.prediction[:, k])
    if not np.any(kept):
        return None
    observed = judges.observed[kept, k]
    prediction = judges.prediction[kept, k]
    mean = others.mean[kept, k]
    trees = np.full(len(observed), np.nan) if others.trees is None else others.trees[kept, k]
    missed = observed - prediction
    spread = float(np.std(missed, ddof=1)) if len(missed) > 1 else float("nan")
    return Accuracy(
        len(observed),
        r2(observed, prediction),
        _rms(missed),
        _rms(observed - mean),
        r2(observed, mean),
        _rms(observed - trees),
        r2(observed, trees),
        float(np.mean(missed)),
        spread * float(np.sqrt(1 / len(observed) + 1 / training_rows)),
    )


def baselines(problem: Problem, values: np.ndarray, judges: JudgedRows, seed: int) -> Baselines:
    """Predict the judged rows without the model.

    Args:
        problem: The model with its training data.
        values: Its training inputs, (n, columns).
        judges: The rows to predict.
        seed: Seed of the folds and of the trees.
    """
    weights = problem.weights
    total = float(np.sum(weights))
    level = np.sum(weights[:, None] * problem.targets, axis=0)
    if judges.index is None:
        mean = np.broadcast_to(level / total, judges.observed.shape)
    else:
        own = weights[judges.index, None]
        mean = (level - own * judges.observed) / np.maximum(total - own, np.finfo(float).tiny)
    reason = _no_trees(values)
    if reason:
        return Baselines(mean, None, reason)
    columns = [_trees(values, problem.targets[:, k], weights, judges, seed) for k in range(problem.outputs)]
    how = "fitted to the same training rows" if judges.index is None else f"{_FOLDS}-fold cross-validation"
    return Baselines(mean, np.stack(columns, axis=1), how)


def baseline_errors(
    values: np.ndarray, targets: np.ndarray, weights: np.ndarray, asked: np.ndarray, observed: np.ndarray, seed: int
) -> tuple[float, float]:
    """Return the root mean square errors of the training mean and of boosted trees on rows that are kept apart.

    Args:
        values: Training inputs, (n, columns).
        targets: Training responses, (n,).
        weights: How much each training row counts, (n,).
        asked: Inputs of the rows kept apart, (m, columns).
        observed: Their responses, (m,).
        seed: Seed of the trees.

    Returns:
        Both errors; NaN for the trees where they are not fitted (few rows, many cells, no scikit-learn).
    """
    mean = _rms(observed - np.average(targets, weights=weights))
    if _no_trees(values):
        return mean, float("nan")
    return mean, _rms(observed - _boosted(values, targets, weights, asked, seed))


def _no_trees(values: np.ndarray) -> str:
    """Return why boosted trees are not fitted; empty where they are."""
    if len(values) < LEAST_ROWS:
        return f"boosted trees are not fitted to fewer than {LEAST_ROWS} rows"
    if values.size > MOST_CELLS:
        return f"boosted trees are not fitted to more than {MOST_CELLS:,} cells"
    try:
        import sklearn.ensemble  # noqa: F401
    except ImportError:
        return 'boosted trees are scikit-learn\'s, which is not installed: pip install "vhat[sklearn]"'
    return ""


def _trees(values: np.ndarray, targets: np.ndarray, weights: np.ndarray, judges: JudgedRows, seed: int) -> np.ndarray:
    """Return predictions of boosted trees at the judged rows, (m,)."""
    if judges.index is None:
        return _boosted(values, targets, weights, judges.values, seed)
    found = np.full(len(targets), np.nan)
    order = np.random.default_rng(seed).permutation(len(targets))
    for fold in np.array_split(order, _FOLDS):
        kept = np.setdiff1d(order, fold)
        found[fold] = _boosted(values[kept], targets[kept], weights[kept], values[fold], seed)
    return found[judges.index]


def _boosted(values: np.ndarray, targets: np.ndarray, weights: np.ndarray, asked: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingRegressor

    # Their gradients are float32: standardised responses keep the digits, and no unit changes the trees.
    middle = float(np.mean(targets))
    unit = float(np.std(targets)) or 1.0
    equal = bool(np.all(weights == weights[0]))
    model = HistGradientBoostingRegressor(random_state=seed)
    model.fit(values, (targets - middle) / unit, sample_weight=None if equal else weights)
    return middle + unit * np.asarray(model.predict(asked))


def _rms(missed: np.ndarray) -> float:
    return float(np.sqrt(np.mean(missed**2)))
