"""A fitted model as a document, and from a document to a fitted model that gives the same intervals to the last bit."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from vhat.checks import check_choice
from vhat.errors import InputError, StoreError, VhatError
from vhat.fitted.model import FittedModel
from vhat.store import directory
from vhat.store.document import Document
from vhat.store.match_model import Brought, check_probe, check_reference, probe, refer
from vhat.store.records import (
    describe_factorisation,
    describe_polished,
    restore_factorisation,
    restore_polished,
)

__all__ = ["KIND", "describe", "load", "restore", "save"]

KIND = "fitted model"


def save(
    fitted: FittedModel,
    folder: str | os.PathLike[str],
    *,
    data: str = "copy",
    factorisation: bool = False,
) -> None:
    """Save a fitted model: see :meth:`vhat.FittedModel.save`."""
    directory.write(folder, KIND, describe(fitted, data=data, factorisation=factorisation))


def load(
    folder: str | os.PathLike[str],
    model: Any = None,
    *,
    loss: Any = None,
    data: Any = None,
    memory: float | None = None,
) -> FittedModel:
    """Load a fitted model that :meth:`vhat.FittedModel.save` has saved.

    Nothing in the directory is executed. A network of ``vhat.fit`` needs no more than the directory. A model that is
    your own code has to be given again; it is compared with what was saved: names and shapes of parameters, and
    predictions and loss on some training rows.

    Args:
        folder: The directory.
        model: What was fitted: for :func:`vhat.from_jax` ``predict``, or ``(predict, params)`` where params are not
            plain dicts, lists and tuples of arrays (an Equinox model; their values do not matter); for
            :func:`vhat.from_torch` a module of the same structure, whatever its weights (it is not changed); for
            :func:`vhat.from_numpy` ``predict`` or ``(predict, jac, hess)`` as far as they were given; for
            :func:`vhat.from_curve_fit` ``f``.
        loss: The loss, where it was a function.
        data: ``(X, y)``, where the model was saved with ``data="reference"``.
        memory: Budget in bytes; by default the one that was saved, or half of what is free now if that is less.

    Returns:
        The fitted model, with the intervals and the audit that it had: to the last bit with the same versions on the
        same kind of machine.

    Raises:
        StoreError: When there is no such model, it is newer, truncated or changed, or what was given does not match.
        InputError: For options that cannot be used.

    Examples:
        >>> import tempfile, numpy as np, vhat
        >>> x = np.arange(8.0)
        >>> line = lambda x, a, b: a + b * x
        >>> y = line(x, 1.0, 2.0) + 0.1 * np.cos(9 * x)
        >>> fitted = vhat.from_curve_fit(line, np.polyfit(x, y, 1)[::-1], x, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fitted.save(folder)
        ...     again = vhat.load(folder, model=line)
        >>> bool(np.all(again.interval([9.0]).upper == fitted.interval([9.0]).upper))
        True
    """
    return restore(directory.read(folder, KIND), Brought(model, loss, data, memory))


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
    problem: Any = fitted.problem
    framework = type(problem).__name__.removesuffix("Problem").lower()
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
            "sample_weight": problem.numpy(problem.weights),
            "noise_shape": fitted.workspace.shape,
            "memory": problem.memory,
            "data": data,
            "X": room.inputs(problem) if data == "copy" else refer(room.rows(problem)),
            "y": targets if data == "copy" else refer([targets]),
            "probe": probe(problem),
            "factorisation": describe_factorisation(fitted.workspace) if factorisation else None,
        }


def restore(saved: Document, brought: Brought | None = None) -> FittedModel:
    """Return the fitted model that a document describes.

    Args:
        saved: What :func:`describe` gave.
        brought: What the document cannot hold: the caller's code, or data.

    Raises:
        StoreError: When what was brought is not what was saved.
        InputError: For options that cannot be used.
    """
    brought = Brought() if brought is None else brought
    brought = replace(brought, memory=brought.budget(saved["memory"]))
    room = _room(saved["framework"])
    start = _rebuilt(room, saved, brought)
    moved = saved["given"] is not None
    problem = room.move(start, saved["parameters"]) if moved else start
    with problem.scope():
        check_probe(problem, saved["probe"], whose=room.whose(saved["model"]))
        polished = None if saved["polished"] is None else restore_polished(saved["polished"], problem)
        fitted = FittedModel(
            problem, noise_shape=saved["noise_shape"], polished=polished, given=start if moved else None
        )
        if saved["factorisation"] is not None:
            restore_factorisation(saved["factorisation"], fitted.workspace)
    return fitted


def _room(framework: str) -> ModuleType:
    """The module that knows a framework's problems; a framework is imported only where one of its models is met."""
    if framework not in ("jax", "torch", "numpy", "standardised"):
        raise StoreError(f"a model of framework {framework!r} cannot be saved or loaded; jax, torch and numpy can.")
    return import_module(f"vhat.store.{framework}")


def _rebuilt(room: ModuleType, saved: Document, brought: Brought) -> Any:
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
        problem = room.rebuild(saved, at, X, y, brought)
    except StoreError:
        raise
    except VhatError as error:
        what = "the model given" if copied else "the model or the data given"
        raise StoreError(f"{what} cannot take the place of what was saved: {error}") from error
    if not copied:
        check_reference("X", room.rows(problem), saved["X"])
        check_reference("y", [problem.targets[:, 0] if problem.squeeze else problem.targets], saved["y"])
    return problem
