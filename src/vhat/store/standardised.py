"""Problems on standardised data: the room of the framework that fitted them, and how to get there and back."""

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
from vhat.store.match_model import Brought

__all__ = ["describe", "inputs", "move", "point", "rebuild", "rows", "whose"]


def _room(framework: str) -> ModuleType:
    return import_module(f"vhat.store.{framework}")


def _room_of(model: Document, count: int) -> ModuleType:
    """The module that makes a saved model again: small networks in NumPy, whoever saved them."""
    if model["framework"] == "jax" and network.serves(model["base"], count):
        return network
    return _room(model["framework"])


def describe(problem: Problem) -> Document:
    """Describe the standardised model, the scaling and the columns."""
    framework = problem.autodiff.framework
    scaling = asdict(_scaling(problem))
    columns = scaling.pop("columns")
    return {
        "framework": "jax" if framework == "network" else framework,  # one kind of document for both
        "base": _room(framework).describe(problem),
        "scaling": scaling,
        "columns": columns,
    }


def _scaling(problem: Problem) -> Scaling:
    assert problem.scaling is not None
    return problem.scaling


def point(problem: Problem) -> Any:
    """The parameters, as the framework keeps them."""
    return _room(problem.autodiff.framework).point(problem)


def inputs(problem: Problem) -> np.ndarray:
    """The training inputs, in the user's units."""
    X: np.ndarray = problem.X
    return X


def rows(problem: Problem) -> list[np.ndarray]:
    """The training inputs, for their checksum."""
    return [problem.X]


def rebuild(saved: Document, at: Any, X: Any, y: Any, brought: Brought) -> Problem:
    """Standardise the data as they were, and take them and the saved parameters through the framework's door again.

    Args:
        saved: The document, of which ``model``, ``weight_decay`` and ``sample_weight`` are read.
        at: The parameters, as :func:`point` gave them.
        X: Training inputs, in the user's units.
        y: Training responses, in the user's units.
        brought: The caller's options.
    """
    model = saved["model"]
    scaling = build(Scaling, model["scaling"], columns=model["columns"])
    for name in ("lower", "upper"):
        limits = getattr(scaling, name)
        if limits is not None and limits.shape != scaling.kept.shape:
            raise StoreError(
                f"the saved Scaling is malformed: {name} has shape {limits.shape}, of {len(scaling.kept)} columns."
            )
    X, y = as_numbers("X", match_columns("X", X, model["columns"])), as_numbers("y", y)
    base = _room_of(model, len(X)).rebuild(
        {**saved, "model": model["base"]}, at, scaling.inputs(X), scaling.responses(y), brought
    )
    return replace(base, X=X, targets=y.reshape(len(y), -1), scaling=scaling)


def move(problem: Problem, to: Any) -> Problem:
    """Return the problem at other saved parameters."""
    moved: Problem = _room(problem.autodiff.framework).move(problem, to)
    return moved


def whose(model: Document) -> str:
    """What messages call the model."""
    if model["base"].get("network") is not None:
        return network.whose(model["base"])
    text: str = _room(model["framework"]).whose(model["base"])
    return text
