"""Save and load a sketch: the model on placeholder rows, its roots, and the record of its fit."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import StoreError
from vhat.evidence.audit import Audit, Line
from vhat.intervals.fit_record import FitRecord
from vhat.linalg.curvature.definiteness import Definiteness
from vhat.models.problem import Problem
from vhat.schema import build
from vhat.sketch.roots import Roots
from vhat.store import directory
from vhat.store.document import Document
from vhat.store.fitted import describe, restore
from vhat.store.match_model import Supplied
from vhat.store.validation import describe_refit, restore_refit
from vhat.variance.noise import Noise
from vhat.variance.workspace import Chosen, Workspace

if TYPE_CHECKING:
    from vhat.sketch.sketch import Sketch

__all__ = ["KIND", "describe_sketch", "restore_sketch", "save_sketch"]

KIND = "sketch"
"""Kind of the content of a directory with a sketch."""


@dataclass(frozen=True, eq=False)
class _ModelOnly:
    """The attributes of a fitted model that :func:`vhat.store.fitted.describe` reads."""

    problem: Problem
    workspace: Workspace
    given: None = None
    polished: None = None


def save_sketch(sketch: Sketch, folder: str | os.PathLike[str], calibration: Document | None = None) -> None:
    """Save a sketch, with a calibration: see :meth:`vhat.Sketch.save` and :meth:`vhat.Calibrated.save`."""
    directory.write(folder, KIND, describe_sketch(sketch) | {"calibration": calibration})


def describe_sketch(sketch: Sketch) -> Document:
    """Return a sketch as a document, for a directory of its own or within a larger document."""
    problem = sketch.problem
    model = _ModelOnly(problem, Workspace(problem, np.ones_like(problem.targets)))
    return {
        "model": describe(model),  # type: ignore[arg-type]
        "roots": _fields(sketch.roots),
        "fit": _describe_fit(sketch.fit),
        "audit": None if sketch.audited is None else [vars(line) for line in sketch.audited],
        "row_digests": sketch.row_digests,
        "validation_digests": sketch.validation_digests,
    }


def restore_sketch(saved: Document, supplied: Supplied | None = None) -> Sketch:
    """Return the sketch that a document describes.

    Args:
        saved: The document of :func:`describe_sketch`.
        supplied: The caller's code, if the model is not one of the library's own networks.

    Raises:
        StoreError: If the code is not that of the saved model.
    """
    from vhat.sketch.sketch import Sketch

    lines = saved["audit"]
    problem = restore(saved["model"], supplied).problem
    roots = build(Roots, saved["roots"])
    fit = _restore_fit(saved["fit"])
    _check_shapes(problem, roots, fit)
    return Sketch(
        problem=problem,
        roots=roots,
        fit=fit,
        audited=None if lines is None else Audit(tuple(build(Line, line) for line in lines)),
        row_digests=saved["row_digests"],
        validation_digests=saved["validation_digests"],
    )


def _check_shapes(problem: Problem, roots: Roots, fit: FitRecord) -> None:
    """Check the shapes of saved arrays against those of the model.

    Raises:
        StoreError: For an entry of a wrong shape.
    """
    p = problem.p
    for name in ("variance", "supported", "rest", "energy"):
        root = getattr(roots, name)
        if root is not None and (root.ndim != 2 or root.shape[1] != p):
            raise StoreError(f"the saved sketch is malformed: its {name} has shape {root.shape} and not (rows, {p}).")
    K = problem.outputs
    vectors = [
        ("pull", roots.pull, p),
        ("slope", roots.slope, p),
        ("noise level", fit.noise.level, K),
        ("degrees of freedom", fit.noise.df, K),
        ("noise factor", fit.own_factor, K),
    ]
    for name, array, size in vectors:
        if array is not None and array.shape != (size,):
            raise StoreError(f"the saved sketch is malformed: its {name} has shape {array.shape} and not ({size},).")


def _describe_fit(fit: FitRecord) -> Document:
    definite = replace(fit.chosen.definite, vector=np.zeros(0))  # the eigenvector is not used after a load
    return _fields(fit) | {
        "chosen": _fields(fit.chosen) | {"definite": _fields(definite)},
        "noise": _fields(fit.noise),
        "refit": None if fit.refit is None else describe_refit(fit.refit),
    }


def _restore_fit(saved: Document) -> FitRecord:
    chosen = saved["chosen"]
    parts = {
        "chosen": build(Chosen, chosen, definite=build(Definiteness, chosen["definite"])),
        "noise": build(Noise, saved["noise"]),
        "refit": restore_refit(saved["refit"]),
    }
    return build(FitRecord, saved, **parts)


def _fields(record: Any) -> Document:
    return {field.name: getattr(record, field.name) for field in fields(record)}
