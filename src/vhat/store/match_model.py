"""Whether the model, loss and data that come with ``load`` are those that were saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.checks import check_memory
from vhat.errors import InputError, StoreError, name_rows
from vhat.models.problem import Problem
from vhat.store.document import Document, digest

__all__ = ["Brought", "check_probe", "check_reference", "describe_output", "probe", "refer"]

_PROBES = 64
"""Training rows whose predictions are kept."""


@dataclass(frozen=True)
class Brought:
    """What the caller of ``load`` gives beside the directory.

    Attributes:
        model: The function or module, or None.
        loss: The loss, where it was a function.
        data: ``(X, y)``, where only a reference to them was kept.
        memory: Budget in bytes, or None.
        output: Which part of what the model returns is the prediction, where that was a function.
        validation: ``(X, y)`` that training did not fit, where only a reference to them was kept.
    """

    model: Any = None
    loss: Any = None
    data: Any = None
    memory: float | None = None
    output: Any = None
    validation: Any = None

    def required(self, what: str) -> Any:
        """Return the model.

        Raises:
            StoreError: When there is none, saying what it has to be.
        """
        if self.model is None:
            raise StoreError(f"the model is your own code, which is not saved. Give load(..., model={what}).")
        return self.model

    def loss_for(self, saved: str) -> Any:
        """Return the loss, ``"half_mse"`` or the caller's function.

        Raises:
            StoreError: When it is missing or was another.
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
            saved: What :func:`describe_output` gave; empty for a model that was saved before there was such an option.

        Raises:
            StoreError: When it is missing, or was another.
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
        """Return the budget: the caller's, else the saved one unless less is free on this machine."""
        return min(saved, check_memory(None)) if self.memory is None else check_memory(self.memory)

    def rows(self) -> tuple[Any, Any]:
        """Return X and y where a reference was saved.

        Raises:
            StoreError: When they are missing.
            InputError: When they are not a pair.
        """
        if self.data is None:
            raise StoreError("only a reference to the training data was saved. Give load(..., data=(X, y)).")
        if not isinstance(self.data, tuple) or len(self.data) != 2:
            raise InputError("data must be the pair (X, y) of training inputs and responses.")
        return self.data


def describe_output(output: Any) -> Document:
    """Describe which part of what the model returns is the prediction; a function has to be given again."""
    return {"function": callable(output), "part": None if callable(output) else output}


def refer(arrays: Any) -> Document:
    """Describe data that are not kept themselves: their shapes and their SHA-256.

    Args:
        arrays: A document of arrays.
    """
    return {"shapes": _shapes(arrays), "sha256": digest(arrays)}


def _shapes(arrays: Any) -> list[tuple[int, ...]]:
    parts = arrays if isinstance(arrays, list) else [arrays]
    return [np.shape(part) for part in parts if isinstance(part, np.ndarray)]


def check_reference(name: str, arrays: Any, saved: Document) -> None:
    """Refuse data that are not those of the reference.

    Raises:
        StoreError: Saying whether shapes or values differ.
    """
    found, wanted = _shapes(arrays), saved["shapes"]
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


def probe(problem: Problem) -> Document:
    """Note what the model predicts on a few training rows, and what the loss says of them."""
    rows = np.unique(np.linspace(0, problem.n - 1, _PROBES).round().astype(np.int64))
    loss = problem.loss_derivatives
    return {
        "rows": rows,
        "prediction": problem.fitted_values[rows],
        "loss": loss.value[rows],
        "slope": loss.first[rows],
    }


def check_probe(problem: Problem, saved: Document, *, whose: str) -> None:
    """Refuse a model or a loss that does not give on the probe rows what it gave when it was saved.

    Other machines round otherwise, so a little is allowed, each output at its own scale.

    Raises:
        StoreError: Naming the rows.
    """
    rows, loss = saved["rows"], problem.loss_derivatives
    tolerance = 1e-4 if problem.facts().narrow_casts else 1e-8
    wrong = _differs(problem.fitted_values[rows], saved["prediction"], tolerance)
    if wrong.any():
        raise StoreError(
            f"{whose} is not the one that was saved: at the same parameters it predicts otherwise in training "
            f"{name_rows(rows[wrong])} of {len(rows)} compared. Give the one that was fitted."
        )
    wrong = _differs(loss.value[rows], saved["loss"], 10 * tolerance) | _differs(
        loss.first[rows], saved["slope"], 10 * tolerance
    )
    if wrong.any():
        raise StoreError(
            f"the loss given is not the one that was saved: it differs in training {name_rows(rows[wrong])} of "
            f"{len(rows)} compared. Give the one that was minimised."
        )


def _differs(found: np.ndarray, saved: np.ndarray, tolerance: float) -> np.ndarray:
    gap = np.abs(found - saved) > tolerance * np.max(np.abs(saved), axis=0)
    return gap.reshape(len(gap), -1).any(axis=1)
