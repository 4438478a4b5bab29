"""Save and restore validation rows and the penalty of a linearised model, as parts of a document."""

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
from vhat.store.match_model import Supplied, check_reference, describe_reference
from vhat.variance.ridge_refit import RidgeRefit
from vhat.variance.validation import Validation, check_validation

__all__ = ["describe_refit", "describe_validation", "restore_refit", "restore_validation"]


def describe_validation(rows: Validation, problem: Problem, adapter: ModuleType, data: str) -> Document:
    """Return validation rows as a document: the rows themselves, or their shapes and checksums.

    Args:
        rows: The rows.
        problem: The training problem, in the units of the user.
        adapter: The module that saves and restores this kind of problem; see :mod:`vhat.store.fitted`.
        data: ``"copy"`` or ``"reference"``.
    """
    y = rows.targets[:, 0] if problem.squeeze else rows.targets
    copy = data == "copy"
    return {
        "repeated": rows.repeated,
        "X": _inputs(rows, problem, adapter) if copy else describe_reference(_arrays(rows, problem, adapter)),
        "y": y if copy else describe_reference([y]),
    }


def restore_validation(
    saved: Document | None, data: str, problem: Problem, adapter: ModuleType, supplied: Supplied
) -> Validation | None:
    """Return the validation rows that a document describes, or None if it has none.

    Args:
        saved: The result of :func:`describe_validation`, or None.
        data: ``"copy"`` or ``"reference"``: how the rows were saved.
        problem: The training problem, restored.
        adapter: The module that saves and restores this kind of problem.
        supplied: What the caller of ``load`` gave.

    Raises:
        StoreError: If the caller has to supply the rows and does not, or supplies other rows.
        InputError: If the caller supplies rows that are not needed.
    """
    if saved is None or data == "copy":
        if supplied.validation is not None:
            if saved:
                why = "were saved with the model"
            else:
                why = "were not part of it: call with_validation() of what is loaded"
            raise InputError(f"the validation rows {why}. Leave validation= out.")
        if saved is None:
            return None
        inputs = _restored_inputs(saved["X"], problem)
        targets = np.asarray(saved["y"], dtype=np.float64).reshape(len(saved["y"]), -1)
        return Validation(inputs, targets, saved["repeated"])
    if supplied.validation is None:
        raise StoreError(
            "only a reference to the validation rows was saved. Give load(..., data=(X, y), validation=(X_val, y_val))."
        )
    try:
        rows = check_validation(problem, supplied.validation)
    except VhatError as error:
        raise StoreError(f"the validation rows given cannot take the place of those saved: {error}") from error
    check_reference("validation X", _arrays(rows, problem, adapter), saved["X"])
    check_reference("validation y", [rows.targets[:, 0] if problem.squeeze else rows.targets], saved["y"])
    return rows


def _inputs(rows: Validation, problem: Problem, adapter: ModuleType) -> Any:
    """Return the inputs to be saved: those of the user or, for a model of its last layer, those of the layer."""
    if isinstance(problem.autodiff, HeadAutodiff):
        return rows.inputs[0]
    return adapter.inputs(_validation_problem(rows, problem))


def _arrays(rows: Validation, problem: Problem, adapter: ModuleType) -> list[np.ndarray]:
    """Return the arrays from which the checksum of the inputs is computed."""
    if isinstance(problem.autodiff, HeadAutodiff):
        return [rows.inputs[0]]
    found: list[np.ndarray] = adapter.input_arrays(_validation_problem(rows, problem))
    return found


def _validation_problem(rows: Validation, problem: Problem) -> Problem:
    """Return the problem with the validation rows as its data, because an adapter describes the inputs of a problem."""
    return replace(problem, X=rows.inputs, targets=rows.targets, weights=np.ones(rows.rows))


def _restored_inputs(X: Any, problem: Problem) -> Any:
    """Return saved inputs in the form that the problem computes with; those of a last layer are saved in that form."""
    if isinstance(problem.autodiff, HeadAutodiff):
        return (np.asarray(X, dtype=np.float64),)
    return problem.inputs(_as_given(X, problem))


def _as_given(X: Any, problem: Problem) -> Any:
    """Return saved inputs in the form of test inputs: pandas objects restored, and rows last for ``curve_fit``."""
    if problem.scaling is not None or problem.autodiff.framework != "numpy":
        return X
    X = pandas_frames.from_document(X) if isinstance(X, dict) else X
    return np.moveaxis(X, 0, -1) if getattr(problem.autodiff, "rows_last", False) else X


def describe_refit(refit: RidgeRefit) -> Document:
    """Return the penalty of a linearised model, and how it was found, as a document."""
    return {field.name: getattr(refit, field.name) for field in fields(refit)}


def restore_refit(saved: Document | None) -> RidgeRefit | None:
    """Return the penalty that a document describes."""
    return None if saved is None else build(RidgeRefit, saved)
