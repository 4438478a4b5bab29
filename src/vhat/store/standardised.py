"""Problems on standardised data: the room of the framework that fitted them, and how to get there and back."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from vhat.checks import as_numbers, match_columns
from vhat.models.standardised import Scaling, StandardisedProblem
from vhat.store.document import Document
from vhat.store.match_model import Brought

__all__ = ["describe", "inputs", "move", "point", "rebuild", "rows", "whose"]


def _room(framework: str) -> ModuleType:
    return import_module(f"vhat.store.{framework}")


def describe(problem: StandardisedProblem) -> Document:
    """Describe the standardised model, the scaling and the columns."""
    framework = type(problem.base).__name__.removesuffix("Problem").lower()
    return {
        "framework": framework,
        "base": _room(framework).describe(problem.base),
        "scaling": asdict(problem.scaling),
        "columns": problem.columns,
    }


def point(problem: StandardisedProblem) -> Any:
    """The parameters, as the framework keeps them."""
    return _room(describe(problem)["framework"]).point(problem.base)


def inputs(problem: StandardisedProblem) -> np.ndarray:
    """The training inputs, in the user's units."""
    return problem.X


def rows(problem: StandardisedProblem) -> list[np.ndarray]:
    """The training inputs, for their checksum."""
    return [problem.X]


def rebuild(saved: Document, at: Any, X: Any, y: Any, brought: Brought) -> StandardisedProblem:
    """Standardise the data as they were, and take them and the saved parameters through the framework's door again.

    Args:
        saved: The document, of which ``model``, ``weight_decay`` and ``sample_weight`` are read.
        at: The parameters, as :func:`point` gave them.
        X: Training inputs, in the user's units.
        y: Training responses, in the user's units.
        brought: The caller's options.
    """
    model = saved["model"]
    scaling = Scaling(**model["scaling"])
    X, y = as_numbers("X", match_columns("X", X, model["columns"])), as_numbers("y", y)
    base = _room(model["framework"]).rebuild(
        {**saved, "model": model["base"]}, at, scaling.inputs(X), scaling.responses(y), brought
    )
    return StandardisedProblem(base, scaling, X, y.reshape(len(y), -1), model["columns"])


def move(problem: StandardisedProblem, to: Any) -> StandardisedProblem:
    """Return the problem at other saved parameters."""
    return replace(problem, base=_room(describe(problem)["framework"]).move(problem.base, to))


def whose(model: Document) -> str:
    """What messages call the model."""
    text: str = _room(model["framework"]).whose(model["base"])
    return text
