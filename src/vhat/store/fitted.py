"""A fitted model as a document, and from a document to the parts of a fitted model."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np

from vhat.checks import check_choice
from vhat.errors import InputError, StoreError, VhatError
from vhat.models.tangent import TangentAutodiff, tangent_problem
from vhat.schema import check
from vhat.store import directory
from vhat.store.document import Document, shaped
from vhat.store.match_model import Brought, check_probe, check_reference, probe, refer
from vhat.store.records import (
    describe_factorisation,
    describe_polished,
    restore_polished,
)
from vhat.store.validation import describe_refit, describe_validation, restore_refit, restore_validation

if TYPE_CHECKING:
    from vhat.evidence.minimise import Polished
    from vhat.fitted.model import FittedModel
    from vhat.models.problem import Problem
    from vhat.variance.ridge_refit import RidgeRefit
    from vhat.variance.validation import Validation

__all__ = ["KIND", "Restored", "describe", "restore", "save"]

KIND = "fitted model"


class _Saved(TypedDict):
    """The entries of a document, of which the framework's module knows the inner structure."""

    framework: str
    model: dict[str, Any]
    parameters: Any
    given: Any
    polished: dict[str, Any] | None
    weight_decay: np.ndarray
    sample_weight: np.ndarray
    noise_shape: np.ndarray
    memory: int
    data: Literal["copy", "reference"]
    X: Any
    y: Any
    probe: _Probe
    factorisation: dict[str, Any] | None
    penalty_shift: NotRequired[np.ndarray | None]
    decay_chosen: NotRequired[bool]
    validation: NotRequired[dict[str, Any] | None]
    refit: NotRequired[dict[str, Any] | None]
    calibration: NotRequired[dict[str, Any] | None]


class _Probe(TypedDict):
    rows: np.ndarray
    prediction: np.ndarray
    loss: np.ndarray
    slope: np.ndarray


class Restored(NamedTuple):
    """The parts of a fitted model that was saved, from which :func:`vhat.fitted.construct.assemble` makes it again.

    Attributes:
        problem: The training problem at the saved parameters.
        noise_shape: Relative noise of each row and output, (n, K).
        polished: The record of its polish, or None.
        given: The problem at the parameters before the polish, or None.
        factorisation: The document of a saved matrix or kernel, or None.
        decay_chosen: Whether the weight decay was chosen with the training responses.
        validation: Rows that training did not fit, or None.
        refit: The penalty of a linearised model, or None; the problem is then that of the linearisation.
    """

    problem: Problem
    noise_shape: Any
    polished: Polished | None
    given: Problem | None
    factorisation: Document | None
    decay_chosen: bool = False
    validation: Validation | None = None
    refit: RidgeRefit | None = None


def save(
    fitted: FittedModel,
    folder: str | os.PathLike[str],
    *,
    data: str = "copy",
    factorisation: bool = False,
    calibration: Document | None = None,
) -> None:
    """Save a fitted model, with a calibration: see :meth:`vhat.FittedModel.save` and :meth:`vhat.Calibrated.save`."""
    document = describe(fitted, data=data, factorisation=factorisation)
    directory.write(folder, KIND, document | {"calibration": calibration})


def describe(fitted: FittedModel, *, data: str = "copy", factorisation: bool = False) -> Document:
    """Return a fitted model as a document, for a directory of its own or within a larger document.

    Args:
        fitted: The fitted model.
        data: ``"copy"`` keeps the training data, ``"reference"`` their shapes and checksums.
        factorisation: Whether to keep the matrix or kernel that has been worked out.

    Raises:
        StoreError: When something about the model cannot be kept.
    """
    check_choice("data", data, ("copy", "reference"))
    problem = fitted.problem
    refit, rows = fitted.workspace.refit, fitted.workspace.validation
    if isinstance(problem.autodiff, TangentAutodiff):  # the model that was linearised is kept, and the penalty
        problem = problem.autodiff.origin(problem)
    own = getattr(problem.autodiff, "stored_as", problem.autodiff.framework)
    framework = own if problem.scaling is None else "standardised"
    room = _room(framework)
    with problem.scope():
        targets = problem.targets[:, 0] if problem.squeeze else problem.targets
        return {
            "framework": framework,
            "model": room.describe(problem),
            "parameters": room.point(problem),
            "given": None if fitted.given is None else room.point(fitted.given),
            "polished": None if fitted.polished is None else describe_polished(fitted.polished),
            "weight_decay": problem.numpy(problem.decay),
            "sample_weight": problem.weights,
            "penalty_shift": None if problem.shift is None else problem.numpy(problem.shift),
            "noise_shape": fitted.workspace.shape,
            "decay_chosen": fitted.workspace.decay_chosen,
            "memory": problem.memory,
            "data": data,
            "X": room.inputs(problem) if data == "copy" else refer(room.rows(problem)),
            "y": targets if data == "copy" else refer([targets]),
            "probe": probe(problem),
            "factorisation": describe_factorisation(fitted.workspace) if factorisation else None,
            "validation": None if rows is None else describe_validation(rows, problem, room, data),
            "refit": None if refit is None else describe_refit(refit),
        }


def restore(saved: Document, brought: Brought | None = None) -> Restored:
    """Return the parts of the fitted model that a document describes.

    Args:
        saved: What :func:`describe` gave.
        brought: What the document cannot hold: the caller's code, or data.

    Raises:
        StoreError: When what was brought is not what was saved, or the document is malformed.
        InputError: For options that cannot be used.
    """
    check(_Saved, saved, KIND)
    brought = Brought() if brought is None else brought
    brought = replace(brought, memory=brought.budget(saved["memory"]))
    room = _room(saved["framework"])
    start = _rebuilt(room, saved, brought)
    moved = saved["given"] is not None
    problem = room.move(start, saved["parameters"]) if moved else start
    _check_shapes(saved, problem)
    with problem.scope():
        check_probe(problem, saved["probe"], whose=room.whose(saved["model"]))
        polished = None if saved["polished"] is None else restore_polished(saved["polished"], problem)
        validation = restore_validation(saved.get("validation"), saved["data"], problem, room, brought)
        refit = restore_refit(saved.get("refit"))
        if refit is not None:
            decay = refit.weight_decay
            if decay.shape != (problem.p,) or not np.all(np.isfinite(decay) & (decay > 0)):
                raise StoreError(
                    f"the saved penalty of the linearisation, of shape {decay.shape}, is not one positive number a "
                    f"parameter, of which there are {problem.p:,}."
                )
            problem = tangent_problem(problem, problem.native(refit.weight_decay))
    return Restored(
        problem,
        saved["noise_shape"],
        polished,
        start if moved else None,
        saved["factorisation"],
        saved.get("decay_chosen", False),
        validation,
        refit,
    )


def _check_shapes(saved: Document, problem: Problem) -> None:
    """Refuse arrays of other lengths than the problem has rows, outputs and parameters."""
    shaped("sample_weight", saved["sample_weight"], (problem.n,), least=0.0)
    shaped("weight_decay", saved["weight_decay"], (problem.p,), least=0.0)
    shaped("noise_shape", saved["noise_shape"], (problem.n, problem.outputs), least=0.0)
    if saved.get("penalty_shift") is not None:
        shaped("penalty_shift", saved["penalty_shift"], (problem.p,))
    shaped("parameters", problem.numpy(problem.theta), (problem.p,))


def _room(framework: str) -> ModuleType:
    """The module that knows a framework's problems; a framework is imported only where one of its models is met."""
    if framework not in ("jax", "torch", "torch_last_layer", "numpy", "network", "standardised"):
        raise StoreError(f"a model of framework {framework!r} cannot be saved or loaded; jax, torch and numpy can.")
    return import_module(f"vhat.store.{framework}")


def _rebuilt(room: ModuleType, saved: Document, brought: Brought) -> Problem:
    """Return the problem at the parameters that were given to the door, its data checked.

    Raises:
        StoreError: Also where the door refuses the model or the data.
    """
    copied = saved["data"] == "copy"
    if copied and brought.data is not None:
        raise InputError("the training data were saved with the model. Leave data= out.")
    X, y = (saved["X"], saved["y"]) if copied else brought.rows()
    at = saved["parameters"] if saved["given"] is None else saved["given"]
    try:
        problem: Problem = room.rebuild(saved, at, X, y, brought)
    except StoreError:
        raise
    except VhatError as error:
        what = "the model given" if copied else "the model or the data given"
        raise StoreError(f"{what} cannot take the place of what was saved: {error}") from error
    if not copied:
        check_reference("X", room.rows(problem), saved["X"])
        check_reference("y", [problem.targets[:, 0] if problem.squeeze else problem.targets], saved["y"])
    shift = saved.get("penalty_shift")
    if shift is None:
        return problem
    with problem.scope():
        return replace(problem, shift=problem.native(shift))
