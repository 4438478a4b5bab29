"""Conversion of a user's inputs to a tuple of tensors with a common leading axis."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from vhat.checks import as_real, check_finite, column_names, match_columns
from vhat.errors import InputError
from vhat.models.torch.arrays import refuse_without_numbers, to_array

__all__ = ["Layout", "Rows", "check_rows", "preserved_rng", "read_rows"]

Rows = tuple[Any, ...]
"""The inputs of a module in the order of its layout: tensors with the rows on their leading axis."""

Kind = Literal["one", "tuple", "dict"]


@dataclass(frozen=True)
class Layout:
    """Structure of the training inputs.

    Attributes:
        kind: "one" (a single tensor), "tuple" or "dict".
        names: Name of each tensor in messages; for a dict, its keys.
        features: Shape of one row of each tensor.
        floating: Whether each tensor holds real numbers (as float64) or integer codes (unchanged).
        columns: Column names of each tensor that was a data frame, None for the others.
    """

    kind: Kind
    names: tuple[str, ...]
    features: tuple[tuple[int, ...], ...]
    floating: tuple[bool, ...]
    columns: tuple[tuple[Any, ...] | None, ...]


def read_rows(X: Any, device: Any) -> tuple[Layout, Rows]:
    """Return the layout of training inputs, and copies of them as float64 tensors (integers keep their dtype).

    Raises:
        InputError: When they are empty, not numbers, not finite, or have different numbers of rows.
    """
    kind, names, values = _unpack(X, "X")
    rows = tuple(_tensor(name, value, device) for name, value in zip(names, values, strict=True))
    _check_lengths(names, rows)
    for name, value in zip(names, rows, strict=True):
        check_finite(name, to_array(value))
    features = tuple(tuple(value.shape[1:]) for value in rows)
    floating = tuple(value.is_floating_point() for value in rows)
    return Layout(kind, names, features, floating, tuple(map(column_names, values))), rows


def check_rows(x: Any, layout: Layout, device: Any, target_key: str | None = None) -> Rows:
    """Check test inputs against the layout of the training inputs and return them as tensors.

    Raises:
        InputError: When their structure, row shape or dtype differs from that of training, or values are not finite.
    """
    if layout.kind == "dict":
        x = _select(x, layout, target_key)
    kind, names, values = _unpack(x, "x")
    if kind != layout.kind or len(values) != len(layout.names):
        raise InputError(
            f"x is {_describe(kind, len(values))} but the model was fitted on "
            f"{_describe(layout.kind, len(layout.names))}. Give test inputs in the structure of the training inputs."
        )
    values = tuple(map(match_columns, names, values, layout.columns))
    rows = tuple(_tensor(name, value, device) for name, value in zip(names, values, strict=True))
    rows = tuple(map(_check_row_shape, names, rows, layout.features, layout.floating))
    _check_lengths(names, rows)
    for name, value in zip(names, rows, strict=True):
        check_finite(name, to_array(value))
    return rows


@contextmanager
def preserved_rng(device: Any = None) -> Iterator[None]:
    """Restore the global random states of torch, NumPy and Python on exit."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    python_state = random.getstate()
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def _unpack(X: Any, label: str) -> tuple[Kind, tuple[str, ...], tuple[Any, ...]]:
    """Return the structure of inputs, the names of their parts, and the parts."""
    if isinstance(X, Mapping):
        if not X or not all(isinstance(key, str) for key in X):
            raise InputError(f"{label} has keys {list(X)}; give a dict of the module's inputs by name.")
        return "dict", tuple(X), tuple(X.values())
    if isinstance(X, tuple | list) and X and all(isinstance(part, torch.Tensor | np.ndarray) for part in X):
        return "tuple", tuple(f"{label}[{index}]" for index in range(len(X))), tuple(X)
    return "one", (label,), (X,)


def _tensor(name: str, value: Any, device: Any) -> Any:
    """Return a copy of one part of the inputs as a tensor: floats as float64, integers in their own dtype."""
    if isinstance(value, torch.Tensor):
        refuse_without_numbers(name, value)
    elif isinstance(value, Mapping | str | bytes):
        raise InputError(f"{name} is a {type(value).__name__}; give a tensor or an array of numbers.")
    else:
        array = as_real(name, value)
        value = torch.tensor(array.astype(np.float64) if "float" in array.dtype.name else array)
    if value.is_complex():
        raise InputError(f"{name} is complex; give real numbers.")
    if value.ndim == 0:
        raise InputError(f"{name} is a single number; give one row per observation along the leading axis.")
    dtype = torch.float64 if value.is_floating_point() else value.dtype
    with torch.inference_mode(False):  # autograd cannot record a tensor that was created in inference mode
        return value.detach().to(device=device, dtype=dtype, copy=True)


def _check_lengths(names: tuple[str, ...], rows: Rows) -> None:
    lengths = [len(value) for value in rows]
    if len(set(lengths)) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in zip(names, lengths, strict=True))
        raise InputError(f"the inputs have different numbers of rows ({listed}).")
    if lengths[0] == 0:
        raise InputError(f"{names[0]} has no rows; give at least one.")


def _check_row_shape(name: str, value: Any, features: tuple[int, ...], floating: bool) -> Any:
    """Return a test input in the dtype of training; raise if the shape of its rows or its dtype does not fit."""
    if tuple(value.shape) == features:
        raise InputError(
            f"{name} has shape {tuple(value.shape)}, which is one row without its leading axis. Give x[None]."
        )
    if tuple(value.shape[1:]) != features:
        raise InputError(
            f"{name} has shape {tuple(value.shape)}, so rows of shape {tuple(value.shape[1:])}; the model was "
            f"fitted on rows of shape {features}."
        )
    if floating and not value.is_floating_point():
        return value.to(torch.float64)
    if value.is_floating_point() and not floating:
        raise InputError(f"{name} holds real numbers; the model was fitted on integer codes. Give integers.")
    return value


def _select(x: Any, layout: Layout, target_key: str | None) -> Any:
    """Return the entries of a dict of test inputs in the order of training, without the responses."""
    if not isinstance(x, Mapping):
        raise InputError(f"x is a {type(x).__name__}; the model was fitted on a dict with keys {list(layout.names)}.")
    missing = [name for name in layout.names if name not in x]
    unknown = [key for key in x if key not in layout.names and key != target_key]
    if missing or unknown:
        raise InputError(
            f"x has keys {list(x)}; the model was fitted on {list(layout.names)} "
            f"(missing: {missing or 'none'}, unknown: {unknown or 'none'})."
        )
    return {name: x[name] for name in layout.names}


def _describe(kind: str, count: int) -> str:
    return {"one": "one array", "tuple": f"a tuple of {count} arrays", "dict": f"a dict of {count} arrays"}[kind]
