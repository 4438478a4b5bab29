"""Check that the model, loss and data given to ``load`` are those of the saved model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.checks import check_memory
from vhat.errors import InputError, StoreError, name_rows
from vhat.models.problem import Problem
from vhat.store.document import Document, digest

__all__ = ["Supplied", "check_probe", "check_reference", "describe_output", "describe_probe", "describe_reference"]

_PROBES = 64
"""Number of training rows whose predictions are saved, and compared on load."""
_TOLERANCE = 1e-8
"""Largest difference of two predictions, relative to the largest saved one of their output: another machine rounds
differently."""
_TOLERANCE_FLOAT32 = 1e-4
"""The same for a model that computes in single precision inside."""
_LOSS_FACTOR = 10
"""The tolerance of losses and their slopes is this multiple of that of predictions."""


@dataclass(frozen=True)
class Supplied:
    """What the caller of ``load`` supplies beside the directory.

    Attributes:
        model: The function or module, or None.
        loss: The loss, if it was a function.
        data: ``(X, y)``, if only a reference to them was saved.
        memory: Budget in bytes, or None.
        output: The function that selects the prediction from what the model returns, if that was a function.
        validation: Validation rows ``(X, y)``, if only a reference to them was saved.
    """

    model: Any = None
    loss: Any = None
    data: Any = None
    memory: float | None = None
    output: Any = None
    validation: Any = None

    def required(self, what: str) -> Any:
        """Return the model.

        Args:
            what: What the model has to be, for the message.

        Raises:
            StoreError: If there is none.
        """
        if self.model is None:
            raise StoreError(f"the model is your own code, which is not saved. Give load(..., model={what}).")
        return self.model

    def loss_for(self, saved: str) -> Any:
        """Return the loss: the name that was saved, or the caller's function.

        Raises:
            StoreError: If it is missing, or is not the one that was saved.
        """
        if saved in ("half_mse", "gaussian_nll"):
            if self.loss is not None and self.loss != saved:
                name = "the squared error" if saved == "half_mse" else "the Gaussian negative log-likelihood"
                raise StoreError(f"the model was saved with {name} as its loss. Leave loss= out.")
            return saved
        if not callable(self.loss):
            raise StoreError("the loss is your own code, which is not saved. Give load(..., loss=your function).")
        return self.loss

    def output_for(self, saved: Document) -> Any:
        """Return the output: the one that was saved, or the caller's function.

        Args:
            saved: The result of :func:`describe_output`; empty for a model that was saved before this option existed.

        Raises:
            StoreError: If it is missing, or is not the one that was saved.
        """
        if not saved.get("function", False):
            part = saved.get("part")
            if self.output not in (None, part):
                raise StoreError(f"the model was saved with output={part!r}. Leave output= out.")
            return part
        if not callable(self.output):
            raise StoreError("the output was your own function, which is not saved. Give load(..., output=function).")
        return self.output

    def budget(self, saved: int) -> int:
        """Return the memory budget in bytes: the caller's, or the saved one limited to what is free here."""
        if self.memory is None:
            return min(saved, check_memory(None))
        return check_memory(self.memory)

    def rows(self) -> tuple[Any, Any]:
        """Return X and y, for a model that was saved with a reference to them.

        Raises:
            StoreError: If they are missing.
            InputError: If they are not a pair.
        """
        if self.data is None:
            raise StoreError("only a reference to the training data was saved. Give load(..., data=(X, y)).")
        if not isinstance(self.data, tuple) or len(self.data) != 2:
            raise InputError("data must be the pair (X, y) of training inputs and responses.")
        return self.data


def describe_output(output: Any) -> Document:
    """Describe which part of the model's result is the prediction. A function has to be given to ``load`` again."""
    return {"function": callable(output), "part": None if callable(output) else output}


def describe_reference(arrays: Any) -> Document:
    """Describe data that are not saved themselves by their shapes and their SHA-256.

    Args:
        arrays: The data as a document.
    """
    return {"shapes": _shapes(arrays), "sha256": digest(arrays)}


def _shapes(arrays: Any) -> list[tuple[int, ...]]:
    parts = arrays if isinstance(arrays, list) else [arrays]
    return [np.shape(part) for part in parts if isinstance(part, np.ndarray)]


def check_reference(name: str, arrays: Any, saved: Document) -> None:
    """Check that data are those of a reference.

    Args:
        name: The name of the data in messages.
        arrays: The data as a document.
        saved: The result of :func:`describe_reference`.

    Raises:
        StoreError: Saying whether shapes or values differ.
    """
    found = _shapes(arrays)
    wanted = saved["shapes"]
    if found != wanted:
        raise StoreError(
            f"the {name} given has shape {_listed(found)}; the model was fitted to {_listed(wanted)}. Give its "
            "training data."
        )
    if digest(arrays) != saved["sha256"]:
        raise StoreError(
            f"the {name} given is not the one that the model was fitted to: the values, their order or their type "
            "differ (SHA-256). Give the training data as they were."
        )


def _listed(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes)) or "no array"


def describe_probe(problem: Problem) -> Document:
    """Return predictions and losses of a few training rows, to recognise the model and the loss on load."""
    rows = np.unique(np.linspace(0, problem.n - 1, _PROBES).round().astype(np.int64))
    loss = problem.loss_derivatives
    return {
        "rows": rows,
        "prediction": problem.fitted_values[rows],
        "loss": loss.value[rows],
        "slope": loss.first[rows],
    }


def check_probe(problem: Problem, saved: Document, *, model_name: str) -> None:
    """Check that model and loss give the saved values on the probe rows, up to rounding at the scale of each output.

    Args:
        problem: The problem with the model and the loss that were given.
        saved: The result of :func:`describe_probe`.
        model_name: The name of the model in messages.

    Raises:
        StoreError: Naming the rows that differ.
    """
    rows = saved["rows"]
    loss = problem.loss_derivatives
    tolerance = _TOLERANCE_FLOAT32 if problem.facts().narrow_casts else _TOLERANCE
    wrong = _differing_rows(problem.fitted_values[rows], saved["prediction"], tolerance)
    if wrong.any():
        raise StoreError(
            f"{model_name} is not the one that was saved: at the same parameters it predicts otherwise in training "
            f"{name_rows(rows[wrong])} of {len(rows)} compared. Give the one that was fitted."
        )
    wrong_value = _differing_rows(loss.value[rows], saved["loss"], _LOSS_FACTOR * tolerance)
    wrong_slope = _differing_rows(loss.first[rows], saved["slope"], _LOSS_FACTOR * tolerance)
    wrong = wrong_value | wrong_slope
    if wrong.any():
        raise StoreError(
            f"the loss given is not the one that was saved: it differs in training {name_rows(rows[wrong])} of "
            f"{len(rows)} compared. Give the one that was minimised."
        )


def _differing_rows(found: np.ndarray, saved: np.ndarray, tolerance: float) -> np.ndarray:
    """Return a mask of the rows in which an output differs by more than the tolerance at the scale of that output."""
    gap = np.abs(found - saved) > tolerance * np.max(np.abs(saved), axis=0)
    return gap.reshape(len(gap), -1).any(axis=1)
