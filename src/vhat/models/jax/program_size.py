"""How many bytes a traced program writes, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

__all__ = ["written_bytes"]

_CALLS = ("jit", "pjit", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")
"""Operations that give what the last operation of their program gives."""


def written_bytes(jaxpr: Any) -> int:
    """Return the bytes of all that the operations of a program give: what its derivative may have to keep.

    An operation that holds a program of its own counts as that program as well, once for every turn of a loop whose
    length is known. Operations that are fused never write what they give, so that this is more than is taken.
    """
    total = 0
    for equation in jaxpr.eqns:
        turns = equation.params.get("length", 1)
        total += turns * sum(map(written_bytes, _programs(equation)))
        total += 0 if equation.primitive.name in _CALLS else sum(_bytes(variable.aval) for variable in equation.outvars)
    return total


def _programs(equation: Any) -> Iterator[Any]:
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "jaxpr")):
        if hasattr(value, "jaxpr"):
            yield value.jaxpr
        elif hasattr(value, "eqns"):
            yield value


def _bytes(aval: Any) -> int:
    return int(aval.size) * int(aval.dtype.itemsize) if hasattr(aval, "dtype") and hasattr(aval, "size") else 0
