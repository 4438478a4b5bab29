"""JAX problems: the network by its options or the user's function, and parameters in their own tree."""

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
from vhat.store.match_model import Brought, describe_output
from vhat.store.network import network_of

__all__ = ["describe", "inputs", "move", "point", "rebuild", "rows", "whose"]


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
    """The function; where its last layer alone is the problem, the whole of it."""
    if isinstance(problem.autodiff, JaxHead):
        return problem.autodiff.base
    return cast(JaxAutodiff, problem.autodiff)


def _inputs(problem: Problem) -> Any:
    """The training inputs of the function."""
    return problem.autodiff.sample if isinstance(problem.autodiff, JaxHead) else problem.X


def point(problem: Problem) -> Any:
    """The parameters in their own tree; of a tree with nodes of other libraries, its arrays by path."""
    params = _params(problem)
    return params if is_plain(params) else _arrays(params, _autodiff(problem).model.layout)


def _params(problem: Problem) -> Any:
    autodiff = _autodiff(problem)
    fixed = tuple(np.asarray(leaf) for leaf in autodiff.fixed)
    return autodiff.model.layout.unflatten(np.asarray(problem.theta), fixed)


def _arrays(params: Any, layout: trees.Layout) -> dict[str, np.ndarray]:
    """The leaves that are arrays, by path."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    kinds = zip(leaves, layout.shapes, strict=True)
    return {
        jax.tree_util.keystr(path): np.asarray(leaf) for (path, leaf), kind in kinds if not isinstance(kind, trees.Held)
    }


def inputs(problem: Problem) -> Any:
    """The training inputs as a document.

    Raises:
        StoreError: When they are a tree with nodes of other libraries.
    """
    if not is_plain(_inputs(problem)):
        raise StoreError(
            "X is a tree with nodes other than dicts, lists and tuples, which cannot be kept. Save with "
            "data='reference', or fit to plain containers."
        )
    return _inputs(problem)


def rows(problem: Problem) -> list[np.ndarray]:
    """The arrays of the training inputs, for their checksum."""
    return list(jax.tree.leaves(_inputs(problem)))


def rebuild(saved: Document, at: Any, X: Any, y: Any, brought: Brought) -> Problem:
    """Take the model and the saved parameters through the door again.

    Args:
        saved: The document, of which ``model``, ``weight_decay`` and ``sample_weight`` are read.
        at: The parameters, as :func:`point` gave them.
        X: Training inputs.
        y: Training responses.
        brought: The caller's function and options.
    """
    model = saved["model"]
    if is_nnx(brought.model):
        brought = replace(brought, model=split_module(brought.model))
    predict, params = _predict_and_params(model, at, brought)
    selected = model.get("selected")
    with jax.enable_x64(True):
        _, layout, fixed, _ = trees.flatten(params, selected)
    problem = jax_problem(
        predict,
        params,
        X,
        y,
        weight_decay=layout.unflatten(saved["weight_decay"], fixed),
        loss=brought.loss_for(model["loss"]),
        parameters=_selection(model),
        output=brought.output_for(model.get("output", {})),
        memory=brought.memory,
    )
    columns = model["columns"]
    if not isinstance(columns, tuple) or not all(each is None or isinstance(each, tuple) for each in columns):
        raise StoreError("the saved model is malformed: its columns are no names of columns, one tuple a leaf.")
    autodiff = replace(_autodiff(problem), dtype=model["dtype"], leaf_columns=columns)
    if isinstance(problem.autodiff, JaxHead):
        return replace(problem, autodiff=replace(problem.autodiff, base=autodiff), weights=saved["sample_weight"])
    return replace(problem, autodiff=autodiff, weights=saved["sample_weight"])


def _selection(model: Document) -> Selection:
    """What was given as ``parameters``, as far as it matters."""
    if model.get("last"):
        return LAST
    selected: tuple[str, ...] | None = model.get("selected")
    return ALL if selected is None else selected


def move(problem: Problem, to: Any) -> Problem:
    """Return the problem at other saved parameters."""
    layout = _autodiff(problem).model.layout
    if jax.tree.structure(to) == layout.treedef:
        kinds = layout.shapes
        leaves = jax.tree.leaves(to)
    else:  # arrays by path
        kinds = tuple(kind for kind in layout.shapes if not isinstance(kind, trees.Held))
        leaves = list(to.values())
    trained = [np.ravel(leaf) for leaf, kind in zip(leaves, kinds, strict=True) if isinstance(kind, tuple)]
    with jax.enable_x64(True):
        return problem.at(jnp.asarray(np.concatenate(trained)))


def whose(model: Document) -> str:
    """What messages call the model."""
    return "the function given" if model["network"] is None else "the network that this version of vhat makes"


def _predict_and_params(model: Document, params: Any, brought: Brought) -> tuple[Any, Any]:
    if model["network"] is not None:
        network = network_of(model["network"])
        if brought.model is not None and brought.model != network:
            raise StoreError(f"the model is a network of vhat's own, {network}. Leave model= out.")
        return network, params
    if model["plain"]:
        predict = brought.required("predict, the function predict(params, X) that was fitted")
        if isinstance(predict, tuple):
            raise StoreError("model is a pair; the parameters were saved in their own structure. Give predict alone.")
        return predict, params
    pair = brought.required(
        "(predict, params), the function that was fitted and parameters of the same structure, whatever their values"
    )
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise StoreError(
            "the parameters were not plain dicts, lists and tuples of arrays, and their structure is code. Give "
            "model=(predict, params) with params of the same structure, such as a model newly made; its values are not "
            "used."
        )
    return pair[0], _filled(pair[1], params)


def _filled(template: Any, saved: dict[str, np.ndarray]) -> Any:
    """Put the saved arrays into a tree of the same structure."""
    with jax.enable_x64(True):
        _, layout, _, _ = trees.flatten(template)
    found = {path: leaf.shape for path, leaf in _arrays(template, layout).items()}
    wanted = {path: leaf.shape for path, leaf in saved.items()}
    if list(found.items()) != list(wanted.items()):
        gaps = sorted(set(found.items()) ^ set(wanted.items()))
        told = ", ".join(
            f"{path} {shape} ({'given' if found.get(path) == shape else 'saved'})" for path, shape in gaps[:6]
        )
        raise StoreError(
            f"the params given do not have the structure of those that were saved: {told or 'their order'}."
        )

    def fill(path: Any, leaf: Any) -> Any:
        return saved.get(jax.tree_util.keystr(path), leaf)

    return jax.tree_util.tree_map_with_path(fill, template)
