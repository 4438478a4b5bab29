"""Conversion of Flax nnx modules, which hold their own parameters, to a function and a pytree of parameters."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from vhat.errors import InputError, ModelError

__all__ = ["arguments", "is_nnx", "split_module"]

_SIGNATURES = "from_jax takes (predict, params, X, y), or (net, X, y) for a Flax nnx module"


def is_nnx(model: Any) -> bool:
    """Return whether this is a Flax nnx module. Does not import Flax."""
    nnx = sys.modules.get("flax.nnx")  # a module exists only if the user has imported it
    return nnx is not None and isinstance(model, nnx.Module)


@dataclass(frozen=True, eq=False)
class NnxPredict:
    """``predict(params, X)`` of an nnx module, with its structure and its other variables held fixed.

    Attributes:
        graph: The structure of the module.
        rest: Variables that are not parameters: batch statistics, counts and keys of random numbers.
    """

    graph: Any
    rest: Any

    def __call__(self, params: Any, X: Any) -> Any:
        """Return the output of the module with these parameters."""
        from flax import nnx

        return nnx.merge(self.graph, params, self.rest)(X)


def split_module(net: Any) -> tuple[NnxPredict, Any]:
    """Return an nnx module as ``predict(params, X)`` and its parameters (``nnx.Param``).

    Raises:
        ModelError: Where dropout or batch normalisation is in training mode.
    """
    from flax import nnx

    training = [
        f"{'.'.join(map(str, path)) or 'the module itself'} ({type(part).__name__})"
        for path, part in nnx.iter_modules(net)
        if _in_training_mode(part)
    ]
    if training:
        raise ModelError(
            f"the module is in training mode, where {', '.join(training)} behave differently: call net.eval() first."
        )
    found: Any = nnx.split(net, nnx.Param, ...)
    graph, params, rest = found
    return NnxPredict(graph, rest), params


def _in_training_mode(part: Any) -> bool:
    """Return whether a part of a module is in training mode and behaves differently there."""
    if getattr(part, "use_running_average", None) is False:  # batch normalisation
        return True
    # dropout; at rate 0 it is the identity
    return getattr(part, "deterministic", None) is False and bool(getattr(part, "rate", 1.0))


def arguments(predict: Any, params: Any, X: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Return function, parameters and data from the arguments ``(predict, params, X, y)`` or ``(net, X, y)``.

    Raises:
        InputError: If an argument is missing, or parameters are given in addition to an nnx module.
    """
    if not is_nnx(predict):
        if y is None:
            raise InputError(f"y is missing: {_SIGNATURES}.")
        return predict, params, X, y
    if params is not None and y is not None:
        raise InputError(
            "a Flax nnx module holds its own parameters: give from_jax(net, X, y), and nnx.update(net, params) first "
            "for others."
        )
    if params is not None:
        X, y = params, X  # the positional arguments of from_jax(net, X, y)
    if X is None or y is None:
        raise InputError(f"X or y is missing: {_SIGNATURES}.")
    function, own = split_module(predict)
    return function, own, X, y
