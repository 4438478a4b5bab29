"""Save and restore JAX problems: a network by its options, a function of the user's by reference."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from vhat.errors import StoreError
from vhat.models.jax import jax_problem
from vhat.models.jax import pytrees as trees
from vhat.models.jax.autodiff import JaxAutodiff
from vhat.models.jax.last_layer import JaxHead
from vhat.models.jax.modules import is_nnx, split_module
from vhat.models.networks import Network
from vhat.models.problem import Problem
from vhat.models.selection import ALL, LAST, Selection
from vhat.store.document import Document, is_plain
from vhat.store.match_model import Supplied, describe_output
from vhat.store.network import network_of

__all__ = ["describe", "input_arrays", "inputs", "model_name", "move", "parameters", "rebuild"]

_MAX_LISTED = 6
"""Number of differing leaves that a message names."""


def describe(problem: Problem) -> Document:
    """Describe the model, without parameters and data."""
    autodiff = _autodiff(problem)
    predict = autodiff.model.predict.value
    return {
        "network": asdict(predict) if type(predict) is Network else None,
        "loss": "half_mse" if autodiff.model.loss is None else "function",
        "plain": is_plain(_params(problem)),
        "columns": autodiff.leaf_columns,
        "output": describe_output(autodiff.output),
        "dtype": autodiff.dtype,
        "selected": autodiff.selected,
        "last": isinstance(problem.autodiff, JaxHead),
    }


def _autodiff(problem: Problem) -> JaxAutodiff:
    """Return the automatic differentiation of the whole function, also if only its last layer is the problem."""
    if isinstance(problem.autodiff, JaxHead):
        return problem.autodiff.base
    return cast(JaxAutodiff, problem.autodiff)


def _inputs(problem: Problem) -> Any:
    """Return the training inputs of the whole function."""
    return problem.autodiff.sample if isinstance(problem.autodiff, JaxHead) else problem.X


def parameters(problem: Problem) -> Any:
    """Return the parameters in their own tree or, for a tree with nodes of other libraries, its arrays by path."""
    params = _params(problem)
    return params if is_plain(params) else _arrays(params, _autodiff(problem).model.layout)


def _params(problem: Problem) -> Any:
    autodiff = _autodiff(problem)
    fixed = tuple(np.asarray(leaf) for leaf in autodiff.fixed)
    return autodiff.model.layout.unflatten(np.asarray(problem.theta), fixed)


def _arrays(params: Any, layout: trees.Layout) -> dict[str, np.ndarray]:
    """Return the leaves that are arrays, by path."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    arrays = {}
    for (path, leaf), kind in zip(leaves, layout.shapes, strict=True):
        if not isinstance(kind, trees.Static):  # a Static leaf is no array, such as a function or a string
            arrays[jax.tree_util.keystr(path)] = np.asarray(leaf)
    return arrays


def inputs(problem: Problem) -> Any:
    """Return the training inputs as a document.

    Raises:
        StoreError: If they are a tree with nodes of other libraries.
    """
    if not is_plain(_inputs(problem)):
        raise StoreError(
            "X is a tree with nodes other than dicts, lists and tuples, which cannot be kept. Save with "
            "data='reference', or fit to plain containers."
        )
    return _inputs(problem)


def input_arrays(problem: Problem) -> list[np.ndarray]:
    """Return the arrays of the training inputs, for their checksum."""
    return list(jax.tree.leaves(_inputs(problem)))


def rebuild(saved: Document, params: Any, X: Any, y: Any, supplied: Supplied) -> Problem:
    """Build the problem from the model and the saved parameters, with the checks of ``from_jax``.

    Args:
        saved: The document. Its entries ``model``, ``weight_decay`` and ``sample_weight`` are used.
        params: The result of :func:`parameters`.
        X: Training inputs.
        y: Training responses.
        supplied: The caller's function and options.
    """
    model = saved["model"]
    if is_nnx(supplied.model):
        supplied = replace(supplied, model=split_module(supplied.model))
    predict, params = _predict_and_params(model, params, supplied)
    selected = model.get("selected")
    with jax.enable_x64(True):
        _, layout, fixed, _ = trees.flatten(params, selected)
    problem = jax_problem(
        predict,
        params,
        X,
        y,
        weight_decay=layout.unflatten(saved["weight_decay"], fixed),
        loss=supplied.loss_for(model["loss"]),
        parameters=_selection(model),
        output=supplied.output_for(model.get("output", {})),
        memory=supplied.memory,
    )
    columns = model["columns"]
    if not isinstance(columns, tuple) or not all(each is None or isinstance(each, tuple) for each in columns):
        raise StoreError("the saved model is malformed: its columns are no names of columns, one tuple a leaf.")
    autodiff = replace(_autodiff(problem), dtype=model["dtype"], leaf_columns=columns)
    if isinstance(problem.autodiff, JaxHead):
        return replace(problem, autodiff=replace(problem.autodiff, base=autodiff), weights=saved["sample_weight"])
    return replace(problem, autodiff=autodiff, weights=saved["sample_weight"])


def _selection(model: Document) -> Selection:
    """Return the option ``parameters`` of ``from_jax`` that selects the saved parameters."""
    if model.get("last"):
        return LAST
    names: tuple[str, ...] | None = model.get("selected")
    return ALL if names is None else names


def move(problem: Problem, to: Any) -> Problem:
    """Return the problem at other saved parameters."""
    layout = _autodiff(problem).model.layout
    if jax.tree.structure(to) == layout.treedef:
        kinds = layout.shapes
        leaves = jax.tree.leaves(to)
    else:  # the parameters were saved as arrays by path
        kinds = tuple(kind for kind in layout.shapes if not isinstance(kind, trees.Static))
        leaves = list(to.values())
    trained = [np.ravel(leaf) for leaf, kind in zip(leaves, kinds, strict=True) if isinstance(kind, tuple)]
    with jax.enable_x64(True):
        return problem.at(jnp.asarray(np.concatenate(trained)))


def model_name(model: Document) -> str:
    """Return the name of the model in messages."""
    return "the function given" if model["network"] is None else "the network that this version of vhat makes"


def _predict_and_params(model: Document, params: Any, supplied: Supplied) -> tuple[Any, Any]:
    if model["network"] is not None:
        network = network_of(model["network"])
        if supplied.model is not None and supplied.model != network:
            raise StoreError(f"the model is a network of vhat's own, {network}. Leave model= out.")
        return network, params
    if model["plain"]:
        predict = supplied.required("predict, the function predict(params, X) that was fitted")
        if isinstance(predict, tuple):
            raise StoreError("model is a pair; the parameters were saved in their own structure. Give predict alone.")
        return predict, params
    pair = supplied.required(
        "(predict, params), the function that was fitted and parameters of the same structure, whatever their values"
    )
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise StoreError(
            "the parameters were not plain dicts, lists and tuples of arrays, and their structure is code. Give "
            "model=(predict, params) with params of the same structure, such as a model newly made; its values are not "
            "used."
        )
    return pair[0], _fill_template(pair[1], params)


def _fill_template(template: Any, saved: dict[str, np.ndarray]) -> Any:
    """Return a tree of the structure of ``template`` with the saved arrays in it."""
    with jax.enable_x64(True):
        _, layout, _, _ = trees.flatten(template)
    found = {path: leaf.shape for path, leaf in _arrays(template, layout).items()}
    wanted = {path: leaf.shape for path, leaf in saved.items()}
    if list(found.items()) != list(wanted.items()):
        differing = sorted(set(found.items()) ^ set(wanted.items()))
        listed = []
        for path, shape in differing[:_MAX_LISTED]:
            side = "given" if found.get(path) == shape else "saved"
            listed.append(f"{path} {shape} ({side})")
        what = ", ".join(listed) or "their order"
        raise StoreError(f"the params given do not have the structure of those that were saved: {what}.")

    def fill(path: Any, leaf: Any) -> Any:
        return saved.get(jax.tree_util.keystr(path), leaf)

    return jax.tree_util.tree_map_with_path(fill, template)
