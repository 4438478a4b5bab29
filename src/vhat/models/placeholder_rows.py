"""Problems with placeholder rows in place of the training rows, to check inputs, predict and differentiate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vhat.errors import InputError
from vhat.models.linear_head import HeadAutodiff
from vhat.models.problem import Problem
from vhat.models.scaling import Scaling
from vhat.models.tangent import TangentAutodiff

__all__ = ["with_placeholder_rows"]

_ROWS = 3
"""Number of placeholder rows. More than one, because some models drop an axis of length one."""


def with_placeholder_rows(problem: Problem) -> Problem:
    """Return the problem with placeholder rows, without any training row.

    The rows are the means of the columns over all, over the even and over the odd training rows, so that they lie in
    the domain of the model. Columns that are not floating-point numbers hold their value if it is constant, else zero.
    Predictions and gradients are those of the model. A linearisation is replaced by its original model, which has the
    same predictions and gradients.
    """
    if isinstance(problem.autodiff, TangentAutodiff):
        problem = problem.autodiff.origin(problem)
    autodiff = problem.autodiff
    X = _placeholders(problem, problem.X)
    if isinstance(autodiff, HeadAutodiff):
        sample = _placeholders(problem, autodiff.sample)
        autodiff = replace(autodiff, sample=sample, base=_with_references(autodiff.base, sample))
    else:
        autodiff = _with_references(autodiff, X)
    return Problem(
        autodiff=autodiff,
        theta=problem.theta,
        decay=problem.decay,
        X=X,
        targets=_means(problem.targets),
        weights=np.ones(_ROWS),
        memory=problem.memory,
        scaling=_with_rounded_range(problem.scaling),
    )


def _with_references(autodiff: Any, rows: Any) -> Any:
    """Return the model with its reference predictions, if it has any, at placeholder rows."""
    referenced_on = getattr(autodiff, "referenced_on", None)
    return autodiff if referenced_on is None else referenced_on(rows)


def _with_rounded_range(scaling: Scaling | None) -> Scaling | None:
    """Return the scaling with the ranges of columns rounded outward to half standard deviations.

    The ranges themselves would reveal values of training rows.
    """
    if scaling is None or scaling.lower is None or scaling.upper is None:
        return scaling
    step = scaling.spread / 2
    lower = scaling.center - step * np.ceil((scaling.center - scaling.lower) / step)
    upper = scaling.center + step * np.ceil((scaling.upper - scaling.center) / step)
    return replace(scaling, lower=lower, upper=upper)


def _placeholders(problem: Problem, rows: Any) -> Any:
    """Return placeholder rows in the structure of training rows."""
    if isinstance(rows, Mapping):
        return type(rows)({name: _placeholders(problem, part) for name, part in rows.items()})  # type: ignore[call-arg]
    if type(rows) in (tuple, list):
        return type(rows)(_placeholders(problem, part) for part in rows)
    if hasattr(rows, "iloc"):
        return _frame(rows)
    if not hasattr(rows, "dtype"):
        raise InputError(
            f"a sketch needs inputs that are arrays, or tuples, lists and dicts of them; these hold a "
            f"{type(rows).__qualname__}."
        )
    means = _means(rows if isinstance(rows, np.ndarray) else np.asarray(problem.numpy(rows)))
    return _like(rows, means)


def _means(values: np.ndarray) -> np.ndarray:
    """Return three rows: the mean of all rows, of the even ones and of the odd ones."""
    parts = (values, values[::2], values[1::2]) if len(values) >= 4 else (values, values, values)
    first = values[0]
    constant = np.all(values == first, axis=0)  # the mean of such a column may differ from it by rounding
    if np.issubdtype(values.dtype, np.floating):
        rows = [np.where(constant, first, part.mean(axis=0)) for part in parts]
    else:
        rows = [np.where(constant, first, np.zeros_like(first))] * _ROWS
    return np.stack(rows).astype(values.dtype)


def _frame(rows: Any) -> Any:
    """Return placeholder rows of a pandas object, with the same columns and types."""
    placeholders = rows.iloc[[0] * _ROWS].reset_index(drop=True)
    columns = [rows] if rows.ndim == 1 else [rows[name] for name in rows.columns]
    try:
        values = [_means(column.to_numpy()) for column in columns]
    except TypeError as error:
        raise InputError(f"a sketch needs inputs that are numbers: {error}.") from None
    if rows.ndim == 1:
        placeholders[:] = values[0]
        return placeholders
    for name, column in zip(rows.columns, values, strict=True):
        placeholders[name] = column
    return placeholders


def _like(rows: Any, values: np.ndarray) -> Any:
    """Return values as an array of the same library, dtype and device as ``rows``."""
    if isinstance(rows, np.ndarray):
        return values
    if type(rows).__module__.startswith("torch"):
        import torch

        return torch.as_tensor(values).to(dtype=rows.dtype, device=rows.device)
    import jax.numpy as jnp

    return jnp.asarray(values, dtype=rows.dtype)
