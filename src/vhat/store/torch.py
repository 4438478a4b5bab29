"""Save and restore torch problems: the tensors are saved, and restored into a copy of the user's module."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, TypedDict, cast

import numpy as np
import torch

from vhat.errors import StoreError
from vhat.models.problem import Problem
from vhat.models.selection import ALL
from vhat.models.torch import torch_problem
from vhat.models.torch.autodiff import TorchAutodiff, unwrapped
from vhat.models.torch.model import TorchModel
from vhat.models.torch.read_state import read_state
from vhat.models.torch.state import State
from vhat.models.torch.variance_head import GAUSSIAN_NLL
from vhat.schema import check
from vhat.store.document import Document
from vhat.store.match_model import Supplied, describe_output

__all__ = [
    "check_tensors",
    "describe",
    "describe_module",
    "input_arrays",
    "inputs",
    "model_name",
    "module_of",
    "move",
    "parameters",
    "rebuild",
    "with_tensors",
]


class _Module(TypedDict):
    """Entries of a saved module that are checked before they are used."""

    fixed: dict[str, np.ndarray]
    loss: str
    columns: tuple[Any, ...]
    dtype: str


def describe(problem: Problem) -> Document:
    """Describe the module: its class, the tensors that training did not change, and the form of its inputs."""
    return describe_module(_autodiff(problem))


def describe_module(autodiff: TorchAutodiff) -> Document:
    """Describe a module as a function of its trained parameters."""
    model = autodiff.model
    state = model.state
    return {
        "class": type(model.module).__qualname__,
        "fixed": {name: _array(value) for name, value in state.fixed.items()},
        "frozen": state.frozen,
        "selected": state.selected,
        "loss": _loss(autodiff),
        "target_key": autodiff.target_key,
        "output": describe_output(model.output if autodiff.head is None else autodiff.head.output),
        "variance_head": None if autodiff.head is None else autodiff.head.kind,
        "columns": model.layout.columns,
        "dtype": state.dtype,
    }


def _loss(autodiff: TorchAutodiff) -> str:
    """Return the name of the loss, or ``"function"`` for the user's own."""
    if autodiff.head is not None:
        return GAUSSIAN_NLL
    return "half_mse" if isinstance(autodiff.named_loss, str) else "function"


def _autodiff(problem: Problem) -> TorchAutodiff:
    return cast(TorchAutodiff, problem.autodiff)


def _model(problem: Problem) -> TorchModel:
    return _autodiff(problem).model


def parameters(problem: Problem) -> dict[str, np.ndarray]:
    """Return the trained parameters by name."""
    return {name: _array(value) for name, value in _model(problem).state.split(problem.theta).items()}


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.detach().numpy(force=True))


def inputs(problem: Problem) -> Any:
    """Return the training inputs as a document: an array, or a tuple or dict of arrays, as the module takes them."""
    parts = input_arrays(problem)
    layout = _model(problem).layout
    if layout.kind == "dict":
        return dict(zip(layout.names, parts, strict=True))
    return tuple(parts) if layout.kind == "tuple" else parts[0]


def input_arrays(problem: Problem) -> list[np.ndarray]:
    """Return the arrays of the training inputs, for their checksum."""
    return [_array(part) for part in problem.X]


def rebuild(saved: Document, params: dict[str, np.ndarray], X: Any, y: Any, supplied: Supplied) -> Problem:
    """Build the problem from a copy of the module with the saved tensors in it, with the checks of ``from_torch``.

    Args:
        saved: The document. Its entries ``model``, ``weight_decay`` and ``sample_weight`` are used.
        params: The result of :func:`parameters`.
        X: Training inputs.
        y: Training responses; None with a DataLoader.
        supplied: The caller's module and options.
    """
    model = saved["model"]
    check(_Module, model, "module")
    module = module_of(model, supplied)
    selection = tuple(params) if model.get("selected") else ALL
    state, theta = read_state(module, selection)
    variance_head = model.get("variance_head")
    if variance_head is not None:  # parameters that only the variance depends on were fixed
        state = state.hold([name for name in state.names if name not in model["fixed"]], {}, state.split(theta))
    check_tensors(state, model, params)
    problem = torch_problem(
        with_tensors(module, {**params, **model["fixed"]}, state.device),
        _tensors(X),
        y,
        weight_decay=0.0,
        loss=supplied.loss_for(model["loss"]),
        target_key=model["target_key"],
        parameters=selection,
        output=supplied.output_for(model.get("output", {})),
        variance_head=variance_head or "log_variance",
        memory=supplied.memory,
    )
    built = _model(problem)
    if len(model["columns"]) != len(built.layout.names):
        raise StoreError(f"the saved module is malformed: it names columns of {len(model['columns'])} inputs.")
    function = replace(
        built,
        state=replace(built.state, dtype=model["dtype"]),
        layout=replace(built.layout, columns=model["columns"]),
    )
    autodiff = replace(_autodiff(problem), model=function)
    decay = autodiff.arrays.native(saved["weight_decay"])
    return replace(problem, autodiff=autodiff, decay=decay, weights=saved["sample_weight"])


def module_of(model: Document, supplied: Supplied) -> Any:
    """Return the caller's module.

    Raises:
        StoreError: If there is none.
    """
    module = unwrapped(supplied.required(f"module, a torch.nn.Module of class {model['class']} in eval() mode"))
    if not isinstance(module, torch.nn.Module):
        raise StoreError(f"model is a {type(module).__name__}; give a torch.nn.Module of class {model['class']}.")
    return module


def move(problem: Problem, to: dict[str, np.ndarray]) -> Problem:
    """Return the problem at other saved parameters."""
    state = _model(problem).state
    parts = []
    for name in state.names:
        tensor = to[name]
        if name in state.slots:  # only some rows of this tensor are parameters
            tensor = tensor[_array(state.slots[name].rows)]
        parts.append(np.ravel(tensor))
    return problem.at(np.concatenate(parts))


def model_name(_: Document) -> str:
    """Return the name of the model in messages."""
    return "the module given"


def check_tensors(state: State, model: Document, params: dict[str, np.ndarray]) -> None:
    """Check that the tensors of a module have the saved names, shapes and roles.

    Args:
        state: The tensors of the module that was given.
        model: The saved description of the module.
        params: The saved parameters by name.

    Raises:
        StoreError: Naming the tensors that differ.
    """
    trained = dict(zip(state.names, state.shapes, strict=True))
    fixed = {name: tuple(tensor.shape) for name, tensor in state.fixed.items()}
    roles = (
        ("trained parameters", trained, params),
        ("buffers and frozen parameters", fixed, model["fixed"]),
    )
    for what, found, tensors in roles:
        wanted = {name: value.shape for name, value in tensors.items()}
        missing = [f"{name} {shape}" for name, shape in wanted.items() if found.get(name) != shape]
        unknown = [f"{name} {shape}" for name, shape in found.items() if wanted.get(name) != shape]
        if missing or unknown:
            raise StoreError(
                f"the module given does not have the structure of the one that was saved ({model['class']}): among its "
                f"{what}, missing {', '.join(missing) or 'nothing'}, unknown {', '.join(unknown) or 'nothing'}. Make "
                "it with the same options, and freeze the same parameters."
            )
    if state.names != tuple(params):
        raise StoreError("the module given registers its parameters in another order than the one that was saved.")


def with_tensors(module: Any, tensors: dict[str, np.ndarray], device: Any) -> Any:
    """Return a copy of the module that holds these tensors, in their own dtype. Tied parameters stay tied."""
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        raise StoreError(f"the module given cannot be copied: {type(error).__name__}: {error}") from error
    with torch.inference_mode(False), torch.no_grad():
        for name, tensor in (*copied.named_parameters(), *copied.named_buffers()):
            tensor.data = torch.from_numpy(tensors[name]).to(device, copy=True)
    return copied


def _tensors(X: Any) -> Any:
    """Return arrays as tensors with the same order of axes in memory, and inputs of another kind unchanged."""
    if isinstance(X, np.ndarray) and X.dtype.kind in "fiub":
        return torch.from_numpy(X)
    if isinstance(X, tuple):
        return tuple(map(_tensors, X))
    if type(X) is dict:
        return {name: _tensors(part) for name, part in X.items()}
    return X
