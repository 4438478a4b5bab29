"""Save and restore computed results of a fitted model: the record of its polish, and its matrices and kernel."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any, Literal, TypedDict

import numpy as np

from vhat.errors import VhatWarning, outside
from vhat.evidence.minimise.polish import Polished
from vhat.linalg.curvature.definiteness import Definiteness
from vhat.linalg.solvers.curvature_root import Root
from vhat.linalg.solvers.jacobian_factors import Features, Leaf, Structure
from vhat.linalg.solvers.kernel import Kernel
from vhat.models.problem import Problem
from vhat.schema import build, check
from vhat.store.document import Document, check_array
from vhat.variance.workspace import Workspace

__all__ = ["describe_factorisation", "describe_polished", "restore_factorisation", "restore_polished"]

_CURVATURES = ("hessian", "ggn")


class _Record(TypedDict):
    definiteness: dict[str, Any]


class _Factorisation(TypedDict):
    scale: np.ndarray | None
    matrices: dict[Literal["hessian", "ggn"], np.ndarray]
    signs: dict[Literal["hessian", "ggn"], dict[str, Any]]
    kernel: dict[str, Any] | None


def describe_polished(record: Polished) -> Document:
    """Return the record of a polish as a document, without the polished problem, which is saved apart."""
    definiteness = _describe_definiteness(record.definiteness, record.problem)
    return _fields(record, "problem") | {"definiteness": definiteness}


def restore_polished(document: Document, problem: Problem) -> Polished:
    """Return the record that a document describes.

    Args:
        document: The result of :func:`describe_polished`.
        problem: The polished problem.
    """
    check(_Record, document, "record of a polish")
    definiteness = _restore_definiteness(document["definiteness"], problem)
    return build(Polished, document, problem=problem, definiteness=definiteness)


def describe_factorisation(work: Workspace) -> Document:
    """Return what the workspace has computed so far as a document: matrices, kernel, and certificates of definiteness.

    Warns:
        VhatWarning: If there is no matrix and no kernel yet, so that nothing expensive can be saved.
    """
    matrices = {c: work.kept(("matrix", c)) for c in _CURVATURES}
    signs = {c: work.kept(("definite", c)) for c in _CURVATURES}
    kernel = work.kept("kernel")
    scale = work.kept("scale")
    if kernel is None and all(matrix is None for matrix in matrices.values()):
        warnings.warn(
            "factorisation=True keeps nothing: this model has no matrix or kernel yet. Ask for an interval first; a "
            "model that is solved by vhat.Primal, vhat.Nystrom or vhat.CG never has one.",
            VhatWarning,
            stacklevel=outside(),
        )
    return {
        "scale": None if scale is None else work.problem.numpy(scale),
        "matrices": {c: matrix for c, matrix in matrices.items() if matrix is not None},
        "signs": {c: _describe_definiteness(sign, work.problem) for c, sign in signs.items() if sign is not None},
        "kernel": None if kernel is None else _describe_kernel(kernel),
    }


def restore_factorisation(document: Document, work: Workspace) -> None:
    """Put saved matrices, kernel and certificates into a workspace, so that they are not computed again."""
    problem = work.problem
    check(_Factorisation, document, "factorisation")
    square = (problem.p, problem.p)
    found: dict[Any, Any] = {
        ("matrix", c): check_array("matrix", matrix, square) for c, matrix in document["matrices"].items()
    }
    found |= {("definite", c): _restore_definiteness(sign, problem) for c, sign in document["signs"].items()}
    if document["scale"] is not None:
        found["scale"] = problem.native(check_array("scale", document["scale"], (problem.p,)))
    if document["kernel"] is not None:
        found["kernel"] = _restore_kernel(document["kernel"], problem)
    for key, value in found.items():
        work.keep(key, lambda value=value: value)  # type: ignore[misc]  # the default binds this value, not the last


def _fields(record: Any, *without: str) -> Document:
    """Return the fields of a dataclass by name, except some."""
    return {field.name: getattr(record, field.name) for field in fields(record) if field.name not in without}


def _describe_definiteness(sign: Definiteness, problem: Problem) -> Document:
    return _fields(sign, "vector") | {"vector": problem.numpy(sign.vector)}


def _restore_definiteness(document: Document, problem: Problem) -> Definiteness:
    vector = check_array("eigenvector", document["vector"], (problem.p,))
    return build(Definiteness, document, vector=problem.native(vector))


def _describe_kernel(kernel: Kernel) -> Document:
    leaves = tuple(_fields(leaf) for leaf in kernel.structure.leaves)
    return _fields(kernel, "problem") | {
        "root": _fields(kernel.root),
        "structure": _fields(kernel.structure) | {"leaves": leaves},
        "features": _fields(kernel.features, "structure"),
    }


def _restore_kernel(document: Document, problem: Problem) -> Kernel:
    leaves = tuple(build(Leaf, leaf) for leaf in document["structure"]["leaves"])
    structure = build(Structure, document["structure"], leaves=leaves)
    # Kernels that were saved earlier also have a "name", which nothing reads.
    kernel = {name: value for name, value in document.items() if name not in ("structure", "name")}
    return build(
        Kernel,
        kernel,
        problem=problem,
        root=build(Root, document["root"]),
        features=build(Features, document["features"], structure=structure),
    )
