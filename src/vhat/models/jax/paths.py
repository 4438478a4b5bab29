"""Names for the leaves of a pytree of parameters, and options that refer to leaves by name.

The name of a leaf is its path, keys joined by slashes: ``"params/Dense_1/kernel"`` for
``params["params"]["Dense_1"]["kernel"]``, ``"layers/2/weight"`` for ``model.layers[2].weight``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from vhat.errors import InputError
from vhat.models.selection import ALL, Selection, did_you_mean, listed, select, under

__all__ = ["completed", "leaf_paths", "selected_paths"]

_SEPARATOR = "/"


def leaf_paths(params: Any) -> list[str]:
    """Return the name of every leaf, in the order of the tree."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return [jax.tree_util.keystr(path, simple=True, separator=_SEPARATOR) for path, _ in leaves]


def selected_paths(parameters: Selection, names: list[str]) -> tuple[str, ...] | None:
    """Return the names of the leaves that count as trained; None for all floating-point leaves.

    Args:
        parameters: ``"all"``, names of leaves or of subtrees, or a predicate of a name.
        names: The names of the floating-point leaves.

    Raises:
        InputError: For names that do not exist.
    """
    if isinstance(parameters, str) and parameters == ALL:
        return None
    return select(parameters, names, _SEPARATOR)


def completed(weight_decay: Any, params: Any) -> Any:
    """Return the decay as a pytree prefix of params, with 0 for keys and leaves that a mapping does not name.

    Args:
        weight_decay: A number, a pytree prefix of params from whose dicts keys may be missing, or a mapping from names
            with slashes.
        params: The parameters.
    """
    if isinstance(weight_decay, Mapping) and any(isinstance(key, str) and _SEPARATOR in key for key in weight_decay):
        return _by_path(weight_decay, params)
    if type(weight_decay) is dict and type(params) is dict and weight_decay:
        filled = {key: completed(weight_decay.get(key, 0.0), value) for key, value in params.items()}
        return filled | {key: value for key, value in weight_decay.items() if key not in params}
    return weight_decay


def _by_path(weight_decay: Mapping[str, Any], params: Any) -> Any:
    """Return a decay that is given by names as a tree with the structure of params."""
    names = leaf_paths(params)
    for path in weight_decay:
        if not any(under(name, str(path), _SEPARATOR) for name in names):
            suggestion = did_you_mean(str(path), names, _SEPARATOR)
            raise InputError(
                f"weight_decay names {path!r}, which params does not have.{suggestion} It has {listed(names)}."
            )

    def decay(name: str) -> Any:
        # The longest matching path applies: a leaf's own name before its innermost subtree.
        paths = [path for path in weight_decay if under(name, path, _SEPARATOR)]
        return np.asarray(weight_decay[max(paths, key=len)]) if paths else 0.0

    leaves = [decay(name) for name in names]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)
