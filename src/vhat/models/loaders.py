"""Loaders in the place of test, validation or calibration rows, for models of any framework.

Rows in files (:class:`vhat.tables.rows.Rows`) are loaded, all of them. Rows of torch DataLoaders and Datasets come in
the order of the dataset, whatever the loader shuffles, and are checked as those of training are
(:mod:`vhat.models.torch.data_loader`). What a batch holds is decided by the training inputs: of as many parts as these
have, all are inputs; of one more, the last is the response.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vhat.errors import InputError
from vhat.tables.rows import Rows

if TYPE_CHECKING:
    from vhat.models.problem import Problem

__all__ = ["is_loader", "read_inputs", "read_pair", "structure_of"]


class _Structure(NamedTuple):
    """How the training inputs were given.

    Attributes:
        kind: "one", "tuple" or "dict".
        names: One name an array; for a dict, its keys.
    """

    kind: str
    names: tuple[str, ...]


def is_loader(x: Any) -> bool:
    """Whether ``x`` is a torch DataLoader or Dataset, or rows in files; torch is not imported to find out."""
    if isinstance(x, Rows):
        return True
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(x, data.DataLoader | data.Dataset)


def read_inputs(problem: Problem, x: Any) -> Any:
    """Return test inputs in the structure of the training inputs; what is no loader is returned as it is.

    Args:
        problem: The training problem.
        x: Inputs, or a loader of inputs, or of inputs and responses.

    Raises:
        InputError: For a loader whose batches are not shaped like the training inputs, or whose rows change.
    """
    return _read(problem, x)[0] if is_loader(x) else x


def read_pair(problem: Problem, X: Any, y: Any = None, call: str = "(X, y)") -> tuple[Any, Any]:
    """Return inputs and responses; what is no loader is returned as it is.

    Args:
        problem: The training problem.
        X: Inputs, or a loader of inputs and responses.
        y: Responses; None with a loader.
        call: What messages say to give in place of a loader, such as ``"calibrate(X_cal, y_cal)"``.

    Raises:
        InputError: For a loader without responses, one with responses beside it, or one that cannot be read.
    """
    if not is_loader(X):
        return X, y
    if y is not None:
        raise InputError(
            f"a {type(X).__name__} brings its responses, in the order of its dataset; leave the responses beside it "
            f"out, or give arrays, {call}."
        )
    inputs, targets = _read(problem, X)
    if targets is None:
        raise InputError(
            f"the {type(X).__name__} yields inputs without responses. Let it yield (x, y), name the target= of Rows, "
            f"or give arrays, {call}."
        )
    return inputs, targets


def _read(problem: Problem, source: Any) -> tuple[Any, Any]:
    """Return inputs and responses of every row; None in the place of responses that there are none of."""
    if isinstance(source, Rows):
        return source.load(problem.memory)
    from torch.utils import data

    from vhat.models.torch.arrays import to_array
    from vhat.models.torch.data_loader import read_loader

    structure = _structure(problem)
    key = getattr(problem.autodiff, "target_key", None)
    loader = copy.copy(source) if isinstance(source, data.DataLoader) else data.DataLoader(source, batch_size=256)
    collate = loader.collate_fn
    bare: list[bool] = []

    def prepared(items: Any) -> Any:
        inputs, target = _separated(collate(items), structure, key)
        bare.append(target is None)
        return inputs, _no_target(inputs) if target is None else target

    loader.collate_fn = prepared
    inputs, target = read_loader(loader, None, problem.memory)
    targets = None if any(bare) else to_array(target)
    if problem.autodiff.framework == "torch" and problem.scaling is None:
        return inputs, targets
    if isinstance(inputs, Mapping):
        return {name: to_array(part) for name, part in inputs.items()}, targets
    return tuple(map(to_array, inputs)) if isinstance(inputs, tuple) else to_array(inputs), targets


def _structure(problem: Problem) -> _Structure:
    """Return how the training inputs were given."""
    known = getattr(problem.autodiff, "input_structure", None)
    if problem.scaling is None and known is not None:
        return _Structure(*known)
    return structure_of(problem.X)


def structure_of(X: Any) -> _Structure:
    """Return how inputs were given."""
    if isinstance(X, Mapping):
        return _Structure("dict", tuple(map(str, X)))
    if isinstance(X, tuple | list):
        return _Structure("tuple", tuple(f"input {number}" for number in range(len(X))))
    return _Structure("one", ("x",))


def _no_target(inputs: Any) -> Any:
    """Return a target of no columns, one row an observation."""
    import torch

    parts = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    first = parts[0] if isinstance(parts, tuple | list) else parts
    return torch.empty(len(first) if getattr(first, "ndim", 0) else 0, 0)


def _separated(batch: Any, structure: _Structure, target_key: str | None) -> tuple[Any, Any]:
    """Return the inputs of a batch in the structure of training, and its responses or None.

    Raises:
        InputError: Saying what the batch holds and what the model was fitted on.
    """
    if isinstance(batch, Mapping):
        return _from_dict(batch, structure, target_key)
    if isinstance(batch, tuple | list):
        return _from_parts(batch, structure, target_key)
    return (batch, None) if structure.kind == "one" else _refuse(batch, structure)


def _from_parts(batch: Sequence[Any], structure: _Structure, target_key: str | None) -> tuple[Any, Any]:
    """Return the inputs and the responses of a batch of several parts."""
    count = len(batch)
    if count == 1:
        return _separated(batch[0], structure, target_key)
    if count == 2 and isinstance(batch[0], Mapping | tuple | list):  # ({...}, y) and ((x1, x2), y)
        inputs, target = _separated(batch[0], structure, target_key)
        return (inputs, batch[1]) if target is None else _refuse(batch, structure)
    wanted = len(structure.names)
    if structure.kind == "one" and count == 2:
        return batch[0], batch[1]
    if structure.kind == "tuple" and count in (wanted, wanted + 1):
        return tuple(batch[:wanted]), None if count == wanted else batch[wanted]
    return _refuse(batch, structure)


def _from_dict(batch: Mapping[str, Any], structure: _Structure, target_key: str | None) -> tuple[Any, Any]:
    """Return the training inputs of a dict batch; the one key that is left is the response."""
    others = [key for key in batch if key not in structure.names]
    if structure.kind != "dict" or any(name not in batch for name in structure.names):
        return _refuse(batch, structure)
    if len(others) > 1 and target_key not in others:
        raise InputError(
            f"the DataLoader yields dicts with keys {list(batch)}; the model was fitted on {list(structure.names)}. Of "
            f"{others}, at most one can be the response: leave the others out."
        )
    inputs = {name: batch[name] for name in structure.names}
    if not others:
        return inputs, None
    return inputs, batch[target_key if target_key in others else others[0]]


def _refuse(batch: Any, structure: _Structure) -> Any:
    if isinstance(batch, Mapping):
        came = f"dicts with keys {list(batch)}"
    elif isinstance(batch, tuple | list):
        came = f"batches of {len(batch)} parts"
    else:
        came = f"batches that are one {type(batch).__name__}"
    form = {
        "one": "one array: let it yield x or (x, y)",
        "tuple": f"a tuple of {len(structure.names)} arrays: let it yield these, or these and y",
        "dict": f"a dict with keys {list(structure.names)}: let it yield such dicts, or (dict, y)",
    }[structure.kind]
    raise InputError(f"the DataLoader yields {came}; the model was fitted on {form}.")
