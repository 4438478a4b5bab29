"""Reading of test, validation or calibration rows from loaders, for models of any framework.

Rows in files (:class:`vhat.tables.rows.Rows`) are loaded completely. Rows of torch DataLoaders and Datasets are read
in the order of the dataset, even if the loader shuffles, with the checks for training rows
(:mod:`vhat.models.torch.data_loader`).

The training inputs determine how a batch is split. If the batch has as many parts as the training inputs, all parts
are inputs; if it has one more, the last part is the response.
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
    """Structure of the training inputs.

    Attributes:
        kind: "one" (a single array), "tuple" or "dict".
        names: One name per array; for a dict, its keys.
    """

    kind: str
    names: tuple[str, ...]


def is_loader(x: Any) -> bool:
    """Return whether ``x`` is a torch DataLoader or Dataset, or rows in files. Does not import torch."""
    if isinstance(x, Rows):
        return True
    data = sys.modules.get("torch.utils.data")  # a loader exists only if the user has imported it
    return data is not None and isinstance(x, data.DataLoader | data.Dataset)


def read_inputs(problem: Problem, x: Any) -> Any:
    """Return test inputs, read from a loader into the structure of the training inputs, or ``x`` if it is no loader.

    Args:
        problem: The training problem.
        x: Inputs, or a loader of inputs, or of inputs and responses.

    Raises:
        InputError: For a loader whose batches are not shaped like the training inputs, or whose rows change.
    """
    return _read(problem, x)[0] if is_loader(x) else x


def read_pair(problem: Problem, X: Any, y: Any = None, call: str = "(X, y)") -> tuple[Any, Any]:
    """Return inputs and responses, read from a loader, or ``X`` and ``y`` if X is no loader.

    Args:
        problem: The training problem.
        X: Inputs, or a loader of inputs and responses.
        y: Responses; None with a loader.
        call: The call with arrays that messages suggest, such as ``"calibrate(X_cal, y_cal)"``.

    Raises:
        InputError: For a loader without responses, one given together with responses, or one that cannot be read.
    """
    if not is_loader(X):
        return X, y
    if y is not None:
        raise InputError(
            f"a {type(X).__name__} contains the responses, in the order of its dataset; leave out the second argument, "
            f"or give arrays, {call}."
        )
    inputs, targets = _read(problem, X)
    if targets is None:
        raise InputError(
            f"the {type(X).__name__} yields inputs without responses. Let it yield (x, y), name the target= of Rows, "
            f"or give arrays, {call}."
        )
    return inputs, targets


def _read(problem: Problem, source: Any) -> tuple[Any, Any]:
    """Return the inputs and the responses of all rows of a loader; None for missing responses."""
    if isinstance(source, Rows):
        return source.load(problem.memory)
    from vhat.models.torch.arrays import to_array
    from vhat.models.torch.data_loader import as_loader, read_loader

    structure = _structure_of_training(problem)
    target_key = getattr(problem.autodiff, "target_key", None)
    loader = copy.copy(as_loader(source))  # its collate_fn is replaced below
    collate = loader.collate_fn
    without_target: list[bool] = []  # one entry per batch

    def collate_and_split(items: Any) -> Any:
        inputs, target = _split(collate(items), structure, target_key)
        without_target.append(target is None)
        # read_loader expects pairs of inputs and targets.
        return inputs, _empty_target(inputs) if target is None else target

    loader.collate_fn = collate_and_split
    inputs, target = read_loader(loader, None, problem.memory)
    targets = None if any(without_target) else to_array(target)
    if problem.autodiff.framework == "torch" and problem.scaling is None:
        return inputs, targets
    if isinstance(inputs, Mapping):
        return {name: to_array(part) for name, part in inputs.items()}, targets
    if isinstance(inputs, tuple):
        return tuple(map(to_array, inputs)), targets
    return to_array(inputs), targets


def _structure_of_training(problem: Problem) -> _Structure:
    """Return the structure of the training inputs as the user gave them."""
    known = getattr(problem.autodiff, "input_structure", None)
    if problem.scaling is None and known is not None:
        return _Structure(*known)
    return structure_of(problem.X)


def structure_of(X: Any) -> _Structure:
    """Return the structure of inputs."""
    if isinstance(X, Mapping):
        return _Structure("dict", tuple(map(str, X)))
    if isinstance(X, tuple | list):
        return _Structure("tuple", tuple(f"input {number}" for number in range(len(X))))
    return _Structure("one", ("x",))


def _empty_target(inputs: Any) -> Any:
    """Return a target with one row per row of the inputs and no columns."""
    import torch

    parts = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    first = parts[0] if isinstance(parts, tuple | list) else parts
    rows = len(first) if getattr(first, "ndim", 0) else 0
    return torch.empty(rows, 0)


def _split(batch: Any, structure: _Structure, target_key: str | None) -> tuple[Any, Any]:
    """Split a batch into inputs with the structure of the training inputs, and responses or None.

    Raises:
        InputError: Naming the contents of the batch and the structure of the training inputs.
    """
    if isinstance(batch, Mapping):
        return _split_dict(batch, structure, target_key)
    if isinstance(batch, tuple | list):
        return _split_parts(batch, structure, target_key)
    if structure.kind == "one":
        return batch, None
    return _refuse(batch, structure)


def _split_parts(batch: Sequence[Any], structure: _Structure, target_key: str | None) -> tuple[Any, Any]:
    """Split a batch that is a tuple or list."""
    count = len(batch)
    if count == 1:
        return _split(batch[0], structure, target_key)
    if count == 2 and isinstance(batch[0], Mapping | tuple | list):  # ({...}, y) and ((x1, x2), y)
        inputs, target = _split(batch[0], structure, target_key)
        return (inputs, batch[1]) if target is None else _refuse(batch, structure)
    input_count = len(structure.names)
    if structure.kind == "one" and count == 2:
        return batch[0], batch[1]
    if structure.kind == "tuple" and count == input_count:
        return tuple(batch), None
    if structure.kind == "tuple" and count == input_count + 1:
        return tuple(batch[:input_count]), batch[input_count]
    return _refuse(batch, structure)


def _split_dict(batch: Mapping[str, Any], structure: _Structure, target_key: str | None) -> tuple[Any, Any]:
    """Split a batch that is a dict. The only key that is not a training input is the response."""
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
    """Raise for a batch that does not have the structure of the training inputs."""
    if isinstance(batch, Mapping):
        actual = f"dicts with keys {list(batch)}"
    elif isinstance(batch, tuple | list):
        actual = f"batches of {len(batch)} parts"
    else:
        actual = f"batches that are one {type(batch).__name__}"
    expected = {
        "one": "one array: let it yield x or (x, y)",
        "tuple": f"a tuple of {len(structure.names)} arrays: let it yield these, or these and y",
        "dict": f"a dict with keys {list(structure.names)}: let it yield such dicts, or (dict, y)",
    }[structure.kind]
    raise InputError(f"the DataLoader yields {actual}; the model was fitted on {expected}.")
