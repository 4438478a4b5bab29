"""NumPy problems and results of ``curve_fit``: parameters, and the steps from which differences start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from vhat.errors import StoreError
from vhat.models.numpy import numpy_problem
from vhat.models.numpy.autodiff import NumpyAutodiff
from vhat.models.numpy.model import CurveFit
from vhat.models.problem import Problem
from vhat.store import pandas_frames
from vhat.store.document import Document
from vhat.store.match_model import Brought

__all__ = ["describe", "inputs", "move", "point", "rebuild", "rows", "whose"]


def describe(problem: Problem) -> Document:
    """Describe the model, without parameters and data."""
    autodiff = _autodiff(problem)
    return {
        "curve_fit": isinstance(autodiff.model.predict, CurveFit),
        "columns": autodiff.rows_last,
        "jac": autodiff.model.jac is not None,
        "hess": autodiff.model.hess is not None,
        "loss": "half_mse" if autodiff.custom_loss is None else "function",
        "dtype": autodiff.seen.dtype,
    }


def _autodiff(problem: Problem) -> NumpyAutodiff:
    return cast(NumpyAutodiff, problem.autodiff)


def point(problem: Problem) -> Document:
    """The parameters; and the steps inherited from the way there, which decide the last digits of differences."""
    return {"theta": problem.theta, "steps": _autodiff(problem).start}


def inputs(problem: Problem) -> Any:
    """The training inputs as a document: an array, or the columns of a pandas object."""
    return pandas_frames.as_document(problem.X) if hasattr(problem.X, "iloc") else problem.X


def rows(problem: Problem) -> list[Any]:
    """The training inputs, for their checksum."""
    return [inputs(problem)]


def rebuild(saved: Document, at: Document, X: Any, y: Any, brought: Brought) -> Problem:
    """Take the functions and the saved parameters through the door again.

    Args:
        saved: The document, of which ``model``, ``weight_decay`` and ``sample_weight`` are read.
        at: The parameters, as :func:`point` gave them.
        X: Training inputs.
        y: Training responses.
        brought: The caller's functions and options.
    """
    model = saved["model"]
    predict, jac, hess = _functions(model, brought)
    if brought.data is not None and model["columns"]:  # as SciPy has it: rows along the last axis
        X = np.moveaxis(np.asarray(X), -1, 0)
    problem = numpy_problem(
        predict,
        at["theta"],
        pandas_frames.from_document(X) if isinstance(X, dict) else X,
        y,
        jac=jac,
        hess=hess,
        weight_decay=saved["weight_decay"],
        loss=brought.loss_for(model["loss"]),
        memory=brought.memory,
    )
    own = _autodiff(problem)
    autodiff = replace(own, seen=replace(own.seen, dtype=model["dtype"]), start=at["steps"])
    return replace(problem, autodiff=autodiff, weights=saved["sample_weight"])


def move(problem: Problem, to: Document) -> Problem:
    """Return the problem at other saved parameters."""
    autodiff = replace(_autodiff(problem), start=to["steps"])
    return replace(problem, autodiff=autodiff, theta=np.array(to["theta"]))


def whose(_: Document) -> str:
    """What messages call the model."""
    return "the function given"


def _functions(model: Document, brought: Brought) -> tuple[Any, Any, Any]:
    """Return predict, jac and hess: those that were there when the model was saved."""
    if model["curve_fit"]:
        f = brought.required("f, the function f(x, *params) that was fitted")
        if not callable(f):
            raise StoreError(f"model is a {type(f).__name__}; give the function f(x, *params) that was fitted.")
        return CurveFit(f, model["columns"]), None, None
    names = ["predict", *(name for name in ("jac", "hess") if model[name])]
    wanted = names[0] if len(names) == 1 else f"({', '.join(names)})"
    given = brought.required(f"{wanted}, as it was given to from_numpy")
    functions = given if isinstance(given, tuple) else (given,)
    if len(functions) != len(names) or not all(map(callable, functions)):
        raise StoreError(f"the model was saved with {', '.join(names)}. Give model={wanted}.")
    found = dict(zip(names, functions, strict=True))
    return found["predict"], found.get("jac"), found.get("hess")
