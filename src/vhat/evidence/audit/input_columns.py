"""The training inputs as columns of numbers, with their names where the front end knows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from vhat.models.linear_head import HeadAutodiff
from vhat.models.problem import Problem
from vhat.models.tangent import TangentAutodiff

__all__ = ["input_columns", "is_last_layer", "note_on_features", "one_array"]


def one_array(problem: Problem, inputs: Any) -> np.ndarray:
    """Return checked inputs as one array of numbers, rows first.

    Raises:
        TypeError: When they are several arrays.
        ValueError: When they are not numbers.
    """
    if isinstance(inputs, tuple | list) and len(inputs) == 1:
        inputs = inputs[0]
    if isinstance(inputs, dict | tuple | list):
        raise TypeError(f"a {type(inputs).__name__} of {len(inputs)} parts")
    native = hasattr(inputs, "columns") or isinstance(inputs, np.ndarray)
    array = np.asarray(inputs) if native else problem.numpy(inputs)
    if array.dtype.kind not in "fiub":
        array = array.astype(np.float64)
    return array


def input_columns(problem: Problem) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every column of the training inputs with its name in words.

    Yields nothing where the inputs are several arrays, have more than two axes, or are not numbers; the numerical
    columns of a data frame; and the features of a last layer.
    """
    if hasattr(problem.X, "select_dtypes"):
        numbers = problem.X.select_dtypes(include=["number", "bool"])
        for name in numbers.columns:
            yield f"column {name}", np.asarray(numbers[name], dtype=np.float64)
        return
    try:
        array = one_array(problem, problem.X)
    except (TypeError, ValueError):
        return
    if array.ndim > 2:
        return
    table = array.reshape(problem.n, -1).astype(np.float64)
    names = problem.columns
    features = is_last_layer(problem)
    for j in range(table.shape[1]):
        if names is not None and len(names) == table.shape[1]:
            word = f"column {names[j]}"
        elif features:
            word = f"feature {j} of the last layer (counted from 0)"
        elif table.shape[1] == 1:
            word = "the input"
        else:
            word = f"column {j} (counted from 0)"
        yield word, table[:, j]


def is_last_layer(problem: Problem) -> bool:
    """Whether the inputs of the problem are the features of a last layer."""
    autodiff = problem.autodiff
    if isinstance(autodiff, TangentAutodiff):
        autodiff = autodiff.base.autodiff
    return isinstance(autodiff, HeadAutodiff)


def note_on_features(problem: Problem) -> str:
    """Return a sentence, after a space, on groups of rows along features of a last layer; empty for other models."""
    if not is_last_layer(problem):
        return ""
    return " Features of the last layer are outputs of the layers before it: the model's own inputs were not tested."
