"""Errors of a model on evaluation rows, beside those of two simple models: the training mean and boosted trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.models.problem import Problem
from vhat.report.evaluation_rows import EvaluationRows
from vhat.report.numbers import plain

__all__ = ["Accuracy", "Baselines", "accuracy", "baseline_errors", "baselines", "r2"]

MIN_ROWS = 100
"""Least number of training rows for boosted trees. A leaf has 20 rows or more, so that fewer rows give few leaves."""
MAX_CELLS = 2_000_000
"""Largest training table for boosted trees, in cells (rows times columns). This many take about two CPU seconds."""
_FOLDS = 5
"""Folds of the cross-validation of boosted trees on the training rows."""


@dataclass(frozen=True, eq=False)
class Baselines:
    """Predictions of simple models at the evaluation rows, shape (m, outputs) each.

    Attributes:
        mean: The mean of the training responses; at a left-out row, the mean of the other rows.
        trees: Boosted trees, at left-out rows by cross-validation; None if they were not fitted.
        trees_note: How the trees were fitted, or why not.
    """

    mean: np.ndarray
    trees: np.ndarray | None
    trees_note: str


@dataclass(frozen=True)
class Accuracy:
    """Errors of one output on the evaluation rows, in the unit of the response.

    Attributes:
        rows: The number m of rows with a prediction. All numbers here are over these rows.
        r2: R^2 of the model.
        rms: Root mean square error of the model.
        mean_rms: Root mean square error of the mean of the training responses.
        mean_r2: R^2 of that mean, 0 or less.
        trees_rms: Root mean square error of boosted trees; NaN if they were not fitted.
        trees_r2: R^2 of boosted trees.
        bias: Mean of response minus prediction.
        bias_error: Standard error of ``bias`` if the model is right: ``sd sqrt(1/m + 1/n)``. The term 1/m is the noise
            of these rows, the term 1/n that of the mean level, which was fitted to n training rows.
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
        """Return the numbers as plain data."""
        return {name: plain(value) for name, value in vars(self).items()}


def r2(observed: np.ndarray, prediction: np.ndarray) -> float:
    """Return ``R^2 = 1 - sum (y - f)^2 / sum (y - mean y)^2``; NaN if all responses are the same."""
    total = float(np.sum((observed - observed.mean()) ** 2))
    if total == 0:
        return float("nan")
    return 1 - float(np.sum((observed - prediction) ** 2)) / total


def accuracy(evaluation: EvaluationRows, others: Baselines, training_rows: int, k: int) -> Accuracy | None:
    """Return the errors of output k, or None if no row has a prediction."""
    kept = np.isfinite(evaluation.prediction[:, k])
    if not np.any(kept):
        return None
    observed = evaluation.observed[kept, k]
    prediction = evaluation.prediction[kept, k]
    mean = others.mean[kept, k]
    trees = np.full(len(observed), np.nan) if others.trees is None else others.trees[kept, k]
    residual = observed - prediction
    spread = float(np.std(residual, ddof=1)) if len(residual) > 1 else float("nan")
    return Accuracy(
        rows=len(observed),
        r2=r2(observed, prediction),
        rms=_rms(residual),
        mean_rms=_rms(observed - mean),
        mean_r2=r2(observed, mean),
        trees_rms=_rms(observed - trees),
        trees_r2=r2(observed, trees),
        bias=float(np.mean(residual)),
        bias_error=spread * float(np.sqrt(1 / len(observed) + 1 / training_rows)),
    )


def baselines(problem: Problem, values: np.ndarray, evaluation: EvaluationRows, seed: int) -> Baselines:
    """Predict the evaluation rows by the training mean and by boosted trees.

    Args:
        problem: The model with its training data.
        values: Its training inputs, (n, columns).
        evaluation: The rows to predict.
        seed: Seed of the folds and of the trees.
    """
    weights = problem.weights
    total = float(np.sum(weights))
    level = np.sum(weights[:, None] * problem.targets, axis=0)
    if evaluation.index is None:
        mean = np.broadcast_to(level / total, evaluation.observed.shape)
    else:
        # The mean without row i is (sum_j w_j y_j - w_i y_i) / (sum_j w_j - w_i).
        own = weights[evaluation.index, None]
        mean = (level - own * evaluation.observed) / np.maximum(total - own, np.finfo(float).tiny)
    reason = _no_trees(values)
    if reason:
        return Baselines(mean, None, reason)
    columns = [_trees(values, problem.targets[:, k], weights, evaluation, seed) for k in range(problem.outputs)]
    method = "fitted to the same training rows" if evaluation.index is None else f"{_FOLDS}-fold cross-validation"
    return Baselines(mean, np.stack(columns, axis=1), method)


def baseline_errors(
    values: np.ndarray, targets: np.ndarray, weights: np.ndarray, rows: np.ndarray, observed: np.ndarray, seed: int
) -> tuple[float, float]:
    """Return the root mean square errors of the training mean and of boosted trees on held-out rows.

    Args:
        values: Training inputs, (n, columns).
        targets: Training responses, (n,).
        weights: The weight of each training row, (n,).
        rows: Inputs of the held-out rows, (m, columns).
        observed: Their responses, (m,).
        seed: Seed of the trees.

    Returns:
        Both errors. That of the trees is NaN if they are not fitted: few rows, many cells, or no scikit-learn.
    """
    mean = _rms(observed - np.average(targets, weights=weights))
    if _no_trees(values):
        return mean, float("nan")
    return mean, _rms(observed - _boosted(values, targets, weights, rows, seed))


def _no_trees(values: np.ndarray) -> str:
    """Return the reason why boosted trees are not fitted; empty if they are."""
    if len(values) < MIN_ROWS:
        return f"boosted trees are not fitted to fewer than {MIN_ROWS} rows"
    if values.size > MAX_CELLS:
        return f"boosted trees are not fitted to more than {MAX_CELLS:,} cells"
    try:
        import sklearn.ensemble  # noqa: F401
    except ImportError:
        return 'boosted trees are scikit-learn\'s, which is not installed: pip install "vhat[sklearn]"'
    return ""


def _trees(
    values: np.ndarray, targets: np.ndarray, weights: np.ndarray, evaluation: EvaluationRows, seed: int
) -> np.ndarray:
    """Return predictions of boosted trees at the evaluation rows, (m,)."""
    if evaluation.index is None:
        return _boosted(values, targets, weights, evaluation.values, seed)
    prediction = np.full(len(targets), np.nan)
    order = np.random.default_rng(seed).permutation(len(targets))
    for fold in np.array_split(order, _FOLDS):
        kept = np.setdiff1d(order, fold)
        prediction[fold] = _boosted(values[kept], targets[kept], weights[kept], values[fold], seed)
    return prediction[evaluation.index]


def _boosted(values: np.ndarray, targets: np.ndarray, weights: np.ndarray, rows: np.ndarray, seed: int) -> np.ndarray:
    """Fit boosted trees to some rows, and return their predictions at others."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    # scikit-learn computes the gradients in float32. Standardised responses keep their digits, and the trees do not
    # depend on the unit of the response.
    center = float(np.mean(targets))
    unit = float(np.std(targets)) or 1.0
    equal = bool(np.all(weights == weights[0]))
    model = HistGradientBoostingRegressor(random_state=seed)
    model.fit(values, (targets - center) / unit, sample_weight=None if equal else weights)
    return center + unit * np.asarray(model.predict(rows))


def _rms(residual: np.ndarray) -> float:
    return float(np.sqrt(np.mean(residual**2)))
