"""Turn a fitted model into a document, and a document into the parts of a fitted model.

The code of each framework is in an adapter, one per kind of problem: the modules ``jax``, ``torch``,
``torch_last_layer``, ``numpy``, ``network`` and ``standardised`` of this package. Each has the functions

- ``describe(problem)``: the model, without parameters and data;
- ``parameters(problem)``: its parameters;
- ``inputs(problem)`` and ``input_arrays(problem)``: the training inputs as a document, and as arrays for a checksum;
- ``rebuild(saved, params, X, y, supplied)``: the problem that a document describes;
- ``move(problem, to)``: the problem at other saved parameters;
- ``model_name(model)``: the name of the model in messages.
"""

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
from vhat.store.document import Document, check_array
from vhat.store.match_model import Supplied, check_probe, check_reference, describe_probe, describe_reference
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
"""The kind of document in the directory of a saved model."""


class _Saved(TypedDict):
    """Entries of a document. The structure of ``model``, ``parameters``, ``given`` and ``X`` is up to the adapter."""

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
    """Predictions and losses of a few training rows, by which the model is recognised."""

    rows: np.ndarray
    prediction: np.ndarray
    loss: np.ndarray
    slope: np.ndarray


class Restored(NamedTuple):
    """The parts of a saved model, from which :func:`vhat.fitted.construct.assemble` makes the fitted model.

    Attributes:
        problem: The training problem at the saved parameters.
        noise_shape: Relative noise of each row and output, (n, outputs).
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
    """Save a fitted model and its calibration: see :meth:`vhat.FittedModel.save` and :meth:`vhat.Calibrated.save`."""
    document = describe(fitted, data=data, factorisation=factorisation)
    directory.write(folder, KIND, document | {"calibration": calibration})


def describe(fitted: FittedModel, *, data: str = "copy", factorisation: bool = False) -> Document:
    """Return a fitted model as a document, for a directory of its own or within a larger document.

    Args:
        fitted: The fitted model.
        data: ``"copy"`` saves the training data, ``"reference"`` their shapes and checksums only.
        factorisation: Whether to save the matrix or kernel that has been computed.

    Raises:
        StoreError: If a part of the model cannot be saved.
    """
    check_choice("data", data, ("copy", "reference"))
    problem = fitted.problem
    refit = fitted.workspace.refit
    validation = fitted.workspace.validation
    if isinstance(problem.autodiff, TangentAutodiff):  # a linearisation is saved as the model itself and the penalty
        problem = problem.autodiff.origin(problem)
    kind = _adapter_name(problem)
    adapter = _adapter(kind)
    copy = data == "copy"
    with problem.scope():
        targets = problem.targets[:, 0] if problem.squeeze else problem.targets
        return {
            "framework": kind,
            "model": adapter.describe(problem),
            "parameters": adapter.parameters(problem),
            "given": None if fitted.given is None else adapter.parameters(fitted.given),
            "polished": None if fitted.polished is None else describe_polished(fitted.polished),
            "weight_decay": problem.numpy(problem.decay),
            "sample_weight": problem.weights,
            "penalty_shift": None if problem.shift is None else problem.numpy(problem.shift),
            "noise_shape": fitted.workspace.shape,
            "decay_chosen": fitted.workspace.decay_chosen,
            "memory": problem.memory,
            "data": data,
            "X": adapter.inputs(problem) if copy else describe_reference(adapter.input_arrays(problem)),
            "y": targets if copy else describe_reference([targets]),
            "probe": describe_probe(problem),
            "factorisation": describe_factorisation(fitted.workspace) if factorisation else None,
            "validation": None if validation is None else describe_validation(validation, problem, adapter, data),
            "refit": None if refit is None else describe_refit(refit),
        }


def _adapter_name(problem: Problem) -> str:
    """Return the name of the adapter that saves a problem."""
    if problem.scaling is not None:
        return "standardised"
    return getattr(problem.autodiff, "stored_as", problem.autodiff.framework)


def restore(saved: Document, supplied: Supplied | None = None) -> Restored:
    """Return the parts of the fitted model that a document describes.

    Args:
        saved: The result of :func:`describe`.
        supplied: The caller's code or data, which the document does not hold.

    Raises:
        StoreError: If the code or data are not those of the saved model, or the document is malformed.
        InputError: For options that cannot be used.
    """
    check(_Saved, saved, KIND)
    supplied = Supplied() if supplied is None else supplied
    supplied = replace(supplied, memory=supplied.budget(saved["memory"]))
    adapter = _adapter(saved["framework"])
    # A polished model is rebuilt at the parameters that the user gave, and then moved to the polished ones.
    given = _rebuild(adapter, saved, supplied)
    polished_since = saved["given"] is not None
    problem = adapter.move(given, saved["parameters"]) if polished_since else given
    _check_shapes(saved, problem)
    with problem.scope():
        check_probe(problem, saved["probe"], model_name=adapter.model_name(saved["model"]))
        polished = None if saved["polished"] is None else restore_polished(saved["polished"], problem)
        validation = restore_validation(saved.get("validation"), saved["data"], problem, adapter, supplied)
        refit = restore_refit(saved.get("refit"))
        if refit is not None:
            _check_penalty(refit, problem)
            problem = tangent_problem(problem, problem.native(refit.weight_decay))
    return Restored(
        problem,
        saved["noise_shape"],
        polished,
        given if polished_since else None,
        saved["factorisation"],
        saved.get("decay_chosen", False),
        validation,
        refit,
    )


def _check_penalty(refit: RidgeRefit, problem: Problem) -> None:
    """Check that the saved penalty of a linearisation is one positive number per parameter."""
    decay = refit.weight_decay
    if decay.shape != (problem.p,) or not np.all(np.isfinite(decay) & (decay > 0)):
        raise StoreError(
            f"the saved penalty of the linearisation, of shape {decay.shape}, is not one positive number a "
            f"parameter, of which there are {problem.p:,}."
        )


def _check_shapes(saved: Document, problem: Problem) -> None:
    """Check that saved arrays have one entry per row, output or parameter of the problem."""
    check_array("sample_weight", saved["sample_weight"], (problem.n,), least=0.0)
    check_array("weight_decay", saved["weight_decay"], (problem.p,), least=0.0)
    check_array("noise_shape", saved["noise_shape"], (problem.n, problem.outputs), least=0.0)
    if saved.get("penalty_shift") is not None:
        check_array("penalty_shift", saved["penalty_shift"], (problem.p,))
    check_array("parameters", problem.numpy(problem.theta), (problem.p,))


def _adapter(framework: str) -> ModuleType:
    """Return the module that saves and restores a kind of problem. It imports the framework, so it is imported last."""
    if framework not in ("jax", "torch", "torch_last_layer", "numpy", "network", "standardised"):
        raise StoreError(f"a model of framework {framework!r} cannot be saved or loaded; jax, torch and numpy can.")
    return import_module(f"vhat.store.{framework}")


def _rebuild(adapter: ModuleType, saved: Document, supplied: Supplied) -> Problem:
    """Return the problem at the parameters that the user gave, before any polish, with its data checked.

    Raises:
        StoreError: Also if the model or the data are refused by the checks that ``from_torch`` and its neighbours make.
    """
    copied = saved["data"] == "copy"
    if copied and supplied.data is not None:
        raise InputError("the training data were saved with the model. Leave data= out.")
    X, y = (saved["X"], saved["y"]) if copied else supplied.rows()
    params = saved["parameters"] if saved["given"] is None else saved["given"]
    try:
        problem: Problem = adapter.rebuild(saved, params, X, y, supplied)
    except StoreError:
        raise
    except VhatError as error:
        what = "the model given" if copied else "the model or the data given"
        raise StoreError(f"{what} cannot take the place of what was saved: {error}") from error
    if not copied:
        check_reference("X", adapter.input_arrays(problem), saved["X"])
        check_reference("y", [problem.targets[:, 0] if problem.squeeze else problem.targets], saved["y"])
    shift = saved.get("penalty_shift")
    if shift is None:
        return problem
    with problem.scope():
        return replace(problem, shift=problem.native(shift))
