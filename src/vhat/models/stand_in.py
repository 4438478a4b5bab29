"""The model on made-up rows in place of its training rows: enough to check inputs, predict and differentiate."""

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

__all__ = ["stand_in"]

_ROWS = 3
"""Made-up rows: a model that drops an axis of length one is not mistaken for one with another shape."""


def stand_in(problem: Problem) -> Problem:
    """Return the problem with no training row in it.

    Its rows are the means of the columns over all training rows, over the even and over the odd ones, so that they lie
    where the model is defined; columns that are not floating-point numbers hold their first value where it is constant,
    else zero. Predictions and gradients are those of the model; the linearisation of a model has the same ones.
    """
    if isinstance(problem.autodiff, TangentAutodiff):
        problem = problem.autodiff.origin(problem)
    autodiff = problem.autodiff
    X = _made_up(problem, problem.X)
    if isinstance(autodiff, HeadAutodiff):
        sample = _made_up(problem, autodiff.sample)
        autodiff = replace(autodiff, sample=sample, base=_referenced(autodiff.base, sample))
    else:
        autodiff = _referenced(autodiff, X)
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


def _referenced(autodiff: Any, rows: Any) -> Any:
    """Return the model with its reference predictions on made-up rows, where it has some on training rows."""
    referenced_on = getattr(autodiff, "referenced_on", None)
    return autodiff if referenced_on is None else referenced_on(rows)


def _with_rounded_range(scaling: Scaling | None) -> Scaling | None:
    """Return the scaling with the ranges of columns rounded outward to half standard deviations.

    The extremes themselves are values of training rows.
    """
    if scaling is None or scaling.lower is None or scaling.upper is None:
        return scaling
    step = scaling.spread / 2
    lower = scaling.center - step * np.ceil((scaling.center - scaling.lower) / step)
    upper = scaling.center + step * np.ceil((scaling.upper - scaling.center) / step)
    return replace(scaling, lower=lower, upper=upper)


def _made_up(problem: Problem, rows: Any) -> Any:
    """Return made-up rows in the structure of others."""
    if isinstance(rows, Mapping):
        return type(rows)({name: _made_up(problem, part) for name, part in rows.items()})  # type: ignore[call-arg]
    if type(rows) in (tuple, list):
        return type(rows)(_made_up(problem, part) for part in rows)
    if hasattr(rows, "iloc"):
        return _frame(rows)
    if not hasattr(rows, "dtype"):
        raise InputError(
            f"a sketch needs inputs that are arrays, or tuples, lists and dicts of them; these hold a "
            f"{type(rows).__qualname__}."
        )
    made = _means(np.asarray(problem.numpy(rows) if not isinstance(rows, np.ndarray) else rows))
    return _like(rows, made)


def _means(values: np.ndarray) -> np.ndarray:
    """Return three rows: the mean of all rows, of the even ones and of the odd ones."""
    parts = (values, values[::2], values[1::2]) if len(values) >= 4 else (values, values, values)
    first = values[0]
    constant = np.all(values == first, axis=0)  # whose mean may be off by rounding
    if np.issubdtype(values.dtype, np.floating):
        made = [np.where(constant, first, part.mean(axis=0)) for part in parts]
    else:
        made = [np.where(constant, first, np.zeros_like(first))] * _ROWS
    return np.stack(made).astype(values.dtype)


def _frame(rows: Any) -> Any:
    """Return made-up rows of a pandas object, of the same columns and types."""
    made = rows.iloc[[0] * _ROWS].reset_index(drop=True)
    columns = [rows] if rows.ndim == 1 else [rows[name] for name in rows.columns]
    try:
        values = [_means(column.to_numpy()) for column in columns]
    except TypeError as error:
        raise InputError(f"a sketch needs inputs that are numbers: {error}.") from None
    if rows.ndim == 1:
        made[:] = values[0]
        return made
    for name, column in zip(rows.columns, values, strict=True):
        made[name] = column
    return made


def _like(rows: Any, made: np.ndarray) -> Any:
    """Return made-up rows as an array of the same library, type and device."""
    if isinstance(rows, np.ndarray):
        return made
    if type(rows).__module__.startswith("torch"):
        import torch

        return torch.as_tensor(made).to(dtype=rows.dtype, device=rows.device)
    import jax.numpy as jnp

    return jnp.asarray(made, dtype=rows.dtype)
