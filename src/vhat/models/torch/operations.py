"""Arguments and results of torch operations, as their schemas describe them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

__all__ = ["base_name", "named_arguments", "returns_views", "storage_key", "tensors_in", "written_arguments"]


def base_name(func: Any) -> str:
    """Return the name of an operation without its namespace and without the underscore of its in-place form."""
    return str(func._schema.name.removeprefix("aten::").removesuffix("_"))


def named_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call by their names in the schema."""
    names = [each.name for each in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def written_arguments(func: Any, given: dict[str, Any]) -> list[Any]:
    """Return the arguments that an operation writes to, out of its arguments by name."""
    written = [each for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    return [given[each.name] for each in written if each.name in given]


def returns_views(func: Any) -> bool:
    """Return whether all results of an operation are views of its arguments that it does not write to."""
    aliases = [each.alias_info for each in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def tensors_in(values: Any) -> Iterator[Any]:
    """Yield the tensors in a nested structure."""
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def storage_key(tensor: Any) -> int:
    """Return a key of a tensor's memory, equal for its views. Valid while some tensor keeps the memory alive."""
    return int(tensor.untyped_storage()._cdata)
