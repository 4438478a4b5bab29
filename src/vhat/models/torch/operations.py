"""Arguments and results of torch operations, as their schemas describe them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

__all__ = ["Call", "memory_of", "results_of"]


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a torch operation.

    Attributes:
        name: The name of the operation without its namespace and without the underscore of its in-place form.
        arguments: The arguments by their names in the schema.
        memory: Keys of the memory of the tensors in each argument.
        written: The tensors that the operation writes to.
        views: Whether all results are views of arguments that the operation does not write to.
    """

    name: str
    arguments: dict[str, Any]
    memory: dict[str, list[int]]
    written: list[Any]
    views: bool

    @staticmethod
    def of(func: Any, args: Any, kwargs: Any) -> Call:
        """Return the description of a call."""
        schema = func._schema
        arguments = {**dict(zip([each.name for each in schema.arguments], args, strict=False)), **kwargs}
        written = []
        for each in schema.arguments:
            if each.alias_info is not None and each.alias_info.is_write and each.name in arguments:
                written.append(arguments[each.name])
        aliases = [each.alias_info for each in schema.returns]
        return Call(
            name=str(schema.name.removeprefix("aten::").removesuffix("_")),
            arguments=arguments,
            memory={name: memory_of(value) for name, value in arguments.items()},
            written=tensors_in(written),
            views=bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases),
        )


def results_of(call: Call, output: Any) -> tuple[list[Any], list[Any], list[int]]:
    """Return the tensors among the results of a call, these and the tensors that it wrote to, and their memory."""
    results = tensors_in(output)
    changed = [*results, *call.written]
    return results, changed, memory_of(changed)


def tensors_in(values: Any) -> list[Any]:
    """Return the tensors in a nested structure."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def memory_of(values: Any) -> list[int]:
    """Return a key of the memory of each tensor in a nested structure.

    The keys of views are equal. A key is valid while some tensor keeps the memory alive.
    """
    return [int(tensor.untyped_storage()._cdata) for tensor in tensors_in(values)]
