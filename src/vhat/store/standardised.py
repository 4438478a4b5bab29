"""Save and restore problems on standardised data: the scaling, and the document of the framework's own adapter."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from vhat.checks import as_numbers, match_columns
from vhat.errors import StoreError
from vhat.models.problem import Problem
from vhat.models.scaling import Scaling
from vhat.schema import build
from vhat.store import network
from vhat.store.document import Document
from vhat.store.match_model import Supplied

__all__ = ["describe", "input_arrays", "inputs", "model_name", "move", "parameters", "rebuild"]


def _adapter(framework: str) -> ModuleType:
    return import_module(f"vhat.store.{framework}")


def _restoring_adapter(model: Document, rows: int) -> ModuleType:
    """Return the adapter that restores a saved model. Small networks are restored in NumPy, also if JAX fitted them."""
    if model["framework"] == "jax" and network.is_computed_in_numpy(model["base"], rows):
        return network
    return _adapter(model["framework"])


def describe(problem: Problem) -> Document:
    """Describe the standardised model, the scaling and the columns."""
    framework = problem.autodiff.framework
    scaling = asdict(_scaling(problem))
    columns = scaling.pop("columns")
    return {
        "framework": "jax" if framework == "network" else framework,  # both adapters write the same document
        "base": _adapter(framework).describe(problem),
        "scaling": scaling,
        "columns": columns,
    }


def _scaling(problem: Problem) -> Scaling:
    assert problem.scaling is not None
    return problem.scaling


def parameters(problem: Problem) -> Any:
    """Return the parameters in the form of the framework's own adapter."""
    return _adapter(problem.autodiff.framework).parameters(problem)


def inputs(problem: Problem) -> np.ndarray:
    """Return the training inputs, in the user's units."""
    X: np.ndarray = problem.X
    return X


def input_arrays(problem: Problem) -> list[np.ndarray]:
    """Return the training inputs, for their checksum."""
    return [problem.X]


def rebuild(saved: Document, params: Any, X: Any, y: Any, supplied: Supplied) -> Problem:
    """Standardise the data as for the fit, and build the problem by the framework's own adapter.

    Args:
        saved: The document. Its entries ``model``, ``weight_decay`` and ``sample_weight`` are used.
        params: The result of :func:`parameters`.
        X: Training inputs, in the user's units.
        y: Training responses, in the user's units.
        supplied: The caller's options.
    """
    model = saved["model"]
    scaling = build(Scaling, model["scaling"], columns=model["columns"])
    X = as_numbers("X", match_columns("X", X, model["columns"]))
    y = as_numbers("y", y)
    _check_shapes(scaling, y.reshape(len(y), -1).shape[1])
    adapter = _restoring_adapter(model, len(X))
    base = adapter.rebuild({**saved, "model": model["base"]}, params, scaling.inputs(X), scaling.responses(y), supplied)
    return replace(base, X=X, targets=y.reshape(len(y), -1), scaling=scaling)


def _check_shapes(scaling: Scaling, outputs: int) -> None:
    """Check that a scaling has one number for each kept column, and one for each response.

    Raises:
        StoreError: If an array has another shape, which may broadcast and give wrong numbers.
    """
    per_column = ("kept", "center", "spread", "power", "power_center", "power_spread", "lower", "upper")
    shapes = dict.fromkeys(per_column, (scaling.kept.size,)) | dict.fromkeys(("shift", "unit"), (outputs,))
    for name, shape in shapes.items():
        values = getattr(scaling, name)
        if values is not None and values.shape != shape:
            raise StoreError(
                f"the saved Scaling is malformed: {name} has shape {values.shape}, where {shape} is needed."
            )


def move(problem: Problem, to: Any) -> Problem:
    """Return the problem at other saved parameters."""
    moved: Problem = _adapter(problem.autodiff.framework).move(problem, to)
    return moved


def model_name(model: Document) -> str:
    """Return the name of the model in messages."""
    if model["base"].get("network") is not None:
        return network.model_name(model["base"])
    name: str = _adapter(model["framework"]).model_name(model["base"])
    return name
