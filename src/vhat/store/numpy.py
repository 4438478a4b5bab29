"""Save and restore NumPy problems and results of ``curve_fit``.

The functions are the user's code and are not saved; the parameters are, and the initial steps of finite differences.
"""

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
from vhat.store.match_model import Supplied

__all__ = ["describe", "input_arrays", "inputs", "model_name", "move", "parameters", "rebuild"]


def describe(problem: Problem) -> Document:
    """Describe the model, without parameters and data."""
    autodiff = _autodiff(problem)
    return {
        "curve_fit": isinstance(autodiff.model.predict, CurveFit),
        "columns": autodiff.rows_last,
        "jac": autodiff.model.jac is not None,
        "hess": autodiff.model.hess is not None,
        "loss": "half_mse" if autodiff.custom_loss is None else "function",
        "dtype": autodiff.facts.dtype,
    }


def _autodiff(problem: Problem) -> NumpyAutodiff:
    return cast(NumpyAutodiff, problem.autodiff)


def parameters(problem: Problem) -> Document:
    """Return the parameters and the initial steps of finite differences, which determine the last digits of these."""
    return {"theta": problem.theta, "steps": _autodiff(problem).start}


def inputs(problem: Problem) -> Any:
    """Return the training inputs as a document: an array, or the columns of a pandas object."""
    return pandas_frames.as_document(problem.X) if hasattr(problem.X, "iloc") else problem.X


def input_arrays(problem: Problem) -> list[Any]:
    """Return the training inputs, for their checksum."""
    return [inputs(problem)]


def rebuild(saved: Document, params: Document, X: Any, y: Any, supplied: Supplied) -> Problem:
    """Build the problem from the functions and the saved parameters, with the checks of ``from_numpy``.

    Args:
        saved: The document. Its entries ``model``, ``weight_decay`` and ``sample_weight`` are used.
        params: The result of :func:`parameters`.
        X: Training inputs.
        y: Training responses.
        supplied: The caller's functions and options.
    """
    model = saved["model"]
    predict, jac, hess = _functions(model, supplied)
    if supplied.data is not None and model["columns"]:  # the caller's X has its rows along the last axis, as in SciPy
        X = np.moveaxis(np.asarray(X), -1, 0)
    problem = numpy_problem(
        predict,
        params["theta"],
        pandas_frames.from_document(X) if isinstance(X, dict) else X,
        y,
        jac=jac,
        hess=hess,
        weight_decay=saved["weight_decay"],
        loss=supplied.loss_for(model["loss"]),
        memory=supplied.memory,
    )
    built = _autodiff(problem)
    autodiff = replace(built, facts=replace(built.facts, dtype=model["dtype"]), start=params["steps"])
    return replace(problem, autodiff=autodiff, weights=saved["sample_weight"])


def move(problem: Problem, to: Document) -> Problem:
    """Return the problem at other saved parameters."""
    autodiff = replace(_autodiff(problem), start=to["steps"])
    return replace(problem, autodiff=autodiff, theta=np.array(to["theta"]))


def model_name(_: Document) -> str:
    """Return the name of the model in messages."""
    return "the function given"


def _functions(model: Document, supplied: Supplied) -> tuple[Any, Any, Any]:
    """Return predict, jac and hess of the caller; a function that the saved model did not have is None."""
    if model["curve_fit"]:
        f = supplied.required("f, the function f(x, *params) that was fitted")
        if not callable(f):
            raise StoreError(f"model is a {type(f).__name__}; give the function f(x, *params) that was fitted.")
        return CurveFit(f, model["columns"]), None, None
    names = ["predict", *(name for name in ("jac", "hess") if model[name])]
    wanted = "predict" if names == ["predict"] else f"({', '.join(names)})"
    given = supplied.required(f"{wanted}, as it was given to from_numpy")
    functions = given if isinstance(given, tuple) else (given,)
    if len(functions) != len(names) or not all(map(callable, functions)):
        raise StoreError(f"the model was saved with {', '.join(names)}. Give model={wanted}.")
    found = dict(zip(names, functions, strict=True))
    return found["predict"], found.get("jac"), found.get("hess")
