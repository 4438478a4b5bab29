"""Validation rows and the penalty of a linearised model, as parts of a document."""

from __future__ import annotations

from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import numpy as np

from vhat.errors import InputError, StoreError, VhatError
from vhat.models.linear_head import HeadAutodiff
from vhat.models.problem import Problem
from vhat.schema import build
from vhat.store import pandas_frames
from vhat.store.document import Document
from vhat.store.match_model import Brought, check_reference, refer
from vhat.variance.ridge_refit import RidgeRefit
from vhat.variance.validation import Validation, check_validation

__all__ = ["describe_refit", "describe_validation", "restore_refit", "restore_validation"]


def describe_validation(rows: Validation, problem: Problem, room: ModuleType, data: str) -> Document:
    """Describe validation rows: themselves, or their shapes and checksums.

    Args:
        rows: The rows.
        problem: The training problem, in the units of the user.
        room: The module that knows the framework's problems.
        data: ``"copy"`` or ``"reference"``.
    """
    y = rows.targets[:, 0] if problem.squeeze else rows.targets
    return {
        "repeated": rows.repeated,
        "X": _inputs(rows, problem, room) if data == "copy" else refer(_arrays(rows, problem, room)),
        "y": y if data == "copy" else refer([y]),
    }


def restore_validation(
    saved: Document | None, data: str, problem: Problem, room: ModuleType, brought: Brought
) -> Validation | None:
    """Return the validation rows that a document describes, or None where there are none.

    Raises:
        StoreError: When they have to be brought and are not, or are others.
        InputError: When they are brought without need.
    """
    if saved is None or data == "copy":
        if brought.validation is not None:
            why = (
                "were saved with the model"
                if saved
                else "were not part of it: call with_validation() of what is loaded"
            )
            raise InputError(f"the validation rows {why}. Leave validation= out.")
        if saved is None:
            return None
        inputs = _restored_inputs(saved["X"], problem)
        targets = np.asarray(saved["y"], dtype=np.float64).reshape(len(saved["y"]), -1)
        return Validation(inputs, targets, saved["repeated"])
    if brought.validation is None:
        raise StoreError(
            "only a reference to the validation rows was saved. Give load(..., data=(X, y), validation=(X_val, y_val))."
        )
    try:
        rows = check_validation(problem, brought.validation)
    except VhatError as error:
        raise StoreError(f"the validation rows given cannot take the place of those saved: {error}") from error
    check_reference("validation X", _arrays(rows, problem, room), saved["X"])
    check_reference("validation y", [rows.targets[:, 0] if problem.squeeze else rows.targets], saved["y"])
    return rows


def _inputs(rows: Validation, problem: Problem, room: ModuleType) -> Any:
    """Return the inputs to be saved: as they were given or, for a last layer, the layer's own inputs."""
    if isinstance(problem.autodiff, HeadAutodiff):
        return rows.inputs[0]
    return room.inputs(_beside(rows, problem))


def _arrays(rows: Validation, problem: Problem, room: ModuleType) -> list[np.ndarray]:
    """Return the arrays whose checksums stand for the inputs."""
    if isinstance(problem.autodiff, HeadAutodiff):
        return [rows.inputs[0]]
    found: list[np.ndarray] = room.rows(_beside(rows, problem))
    return found


def _beside(rows: Validation, problem: Problem) -> Problem:
    """Return the problem on the validation rows: the framework's module describes the inputs of a problem."""
    return replace(problem, X=rows.inputs, targets=rows.targets, weights=np.ones(rows.rows))


def _restored_inputs(X: Any, problem: Problem) -> Any:
    """Return saved inputs as checked ones; those of a last layer are saved as the layer's own inputs."""
    if isinstance(problem.autodiff, HeadAutodiff):
        return (np.asarray(X, dtype=np.float64),)
    return problem.inputs(_as_given(X, problem))


def _as_given(X: Any, problem: Problem) -> Any:
    """Return saved inputs as the front ends take test inputs: pandas objects again, rows last for ``curve_fit``."""
    if problem.scaling is not None or problem.autodiff.framework != "numpy":
        return X
    X = pandas_frames.from_document(X) if isinstance(X, dict) else X
    return np.moveaxis(X, 0, -1) if getattr(problem.autodiff, "rows_last", False) else X


def describe_refit(refit: RidgeRefit) -> Document:
    """Describe the penalty of a linearised model, and how it was found."""
    return {field.name: getattr(refit, field.name) for field in fields(refit)}


def restore_refit(saved: Document | None) -> RidgeRefit | None:
    """Make the penalty again."""
    return None if saved is None else build(RidgeRefit, saved)
