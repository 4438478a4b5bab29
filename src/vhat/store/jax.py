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
from vhat.models.networks import Network
from vhat.models.problem import Problem
from vhat.store.document import Document, is_plain
from vhat.store.match_model import Brought
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
        "dtype": autodiff.dtype,
    }


def _autodiff(problem: Problem) -> JaxAutodiff:
    return cast(JaxAutodiff, problem.autodiff)


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
    if not is_plain(problem.X):
        raise StoreError(
            "X is a tree with nodes other than dicts, lists and tuples, which cannot be kept. Save with "
            "data='reference', or fit to plain containers."
        )
    return problem.X


def rows(problem: Problem) -> list[np.ndarray]:
    """The arrays of the training inputs, for their checksum."""
    return list(jax.tree.leaves(problem.X))


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
    predict, params = _predict_and_params(model, at, brought)
    with jax.enable_x64(True):
        _, layout, fixed, _ = trees.flatten(params)
    problem = jax_problem(
        predict,
        params,
        X,
        y,
        weight_decay=layout.unflatten(saved["weight_decay"], fixed),
        loss=brought.loss_for(model["loss"]),
        memory=brought.memory,
    )
    autodiff = replace(_autodiff(problem), dtype=model["dtype"], leaf_columns=model["columns"])
    return replace(problem, autodiff=autodiff, weights=saved["sample_weight"])


def move(problem: Problem, to: Any) -> Problem:
    """Return the problem at other saved parameters."""
    own = jax.tree.structure(to) == _autodiff(problem).model.layout.treedef
    leaves = jax.tree.leaves(to) if own else to.values()
    trained = [np.ravel(leaf) for leaf in leaves if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"]
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
