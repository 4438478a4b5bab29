"""Which part of what a model returns is the prediction: ``output=``, a key, an index, an attribute or a function.

The same for every framework: an array is anything that has a shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from vhat.errors import InputError, ModelError

__all__ = ["Chosen", "check_output", "describe_returned", "flatten_remedy", "is_array", "part_of", "select"]

_SHOWN = 8
"""Parts of an output that a message lists at most."""


def check_output(output: Any) -> None:
    """Refuse an ``output`` that is neither None, a key or an attribute, an index, nor a function.

    Raises:
        InputError: Naming what it may be.
    """
    if output is None or callable(output) or isinstance(output, str):
        return
    if isinstance(output, bool) or not isinstance(output, int):
        raise InputError(
            f"output={output!r} is not known. Give the key or attribute of the prediction (output='logits'), its index "
            "in a tuple (output=0), or a function of what the model returns (output=lambda out: out['logits'][:, 0])."
        )


def is_array(value: Any) -> bool:
    """Whether a value is an array of some framework."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def select(output: Any, returned: Any, whose: str = "the module") -> Any:
    """Return the prediction in what a model returned.

    Args:
        output: None, a key or attribute, an index, or a function.
        returned: What the model returned.
        whose: What messages call the model.

    Raises:
        ModelError: Listing the parts there are, where this one is not among them.
    """
    if output is None:
        found = returned
    elif callable(output):
        found = output(returned)
    else:
        found = part_of(output, returned, whose)
    if is_array(found):
        return found
    raise ModelError(_no_array(output, returned, found, whose))


@dataclass(frozen=True)
class Chosen:
    """``predict(params, X)`` of which a part is the prediction. Equal ones share compilations.

    Attributes:
        predict: The user's function.
        output: None, a key or attribute, an index, or a function.
    """

    predict: Callable[..., Any]
    output: Any

    def __call__(self, params: Any, X: Any) -> Any:
        """Return the prediction."""
        return select(self.output, self.predict(params, X), "predict")


def part_of(output: str | int, returned: Any, whose: str) -> Any:
    """Return one named or numbered part of what a model returned.

    Raises:
        ModelError: Listing the parts there are.
    """
    if is_array(returned):
        call = "output=lambda out: out[:, 0]" if isinstance(output, str) else f"output=lambda out: out[:, {output}]"
        raise ModelError(
            f"output={output!r} names a part, and {whose} returns one array of shape {tuple(returned.shape)}. Leave "
            f"output out, or give a function such as {call}."
        )
    if isinstance(returned, Mapping) and output in returned:
        return returned[output]
    if isinstance(output, int) and isinstance(returned, tuple | list) and -len(returned) <= output < len(returned):
        return returned[output]
    if isinstance(output, str) and not output.startswith("_") and hasattr(returned, output):
        return getattr(returned, output)
    raise ModelError(
        f"output={output!r} is not in what {whose} returned: {describe_returned(returned)}.{_advice(returned)}"
    )


def _no_array(output: Any, returned: Any, found: Any, whose: str) -> str:
    """Say that the prediction is no array, what there is, and the call that works."""
    if returned is None:
        return f"{whose} returned None; it must return the prediction."
    if output is None:
        return f"{whose} returned {describe_returned(returned)}.{_advice(returned) or _BY_FUNCTION}"
    if callable(output):
        return f"the function output= returned {describe_returned(found)}; it must return one array."
    return f"output={output!r} is {describe_returned(found)}, not an array. Give a function: output=lambda out: ..."


_BY_FUNCTION = " Choose the prediction by a function: output=lambda out: ..."


def _advice(returned: Any) -> str:
    """Return the call that works, where some part is an array."""
    part = next((name for name, value in _parts(returned) if is_array(value)), None)
    return "" if part is None else f" Choose the prediction by output=, such as output={part!r}."


def describe_returned(value: Any) -> str:
    """Describe a value and the parts that it has."""
    name = type(value).__name__
    kind = f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"
    parts = [f"{key!r}{_shape(part)}" for key, part in _parts(value)]
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    if not parts:
        return kind
    what = "keys" if isinstance(value, Mapping) else "parts" if _is_plain_sequence(value) else "fields"
    return f"{kind} with the {what} {', '.join(parts[:_SHOWN])}{more}"


def _shape(part: Any) -> str:
    return f" of shape {tuple(part.shape)}" if is_array(part) else f" ({type(part).__name__})"


def _is_plain_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list) and not hasattr(value, "_fields")


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """Return the parts of a value by the key, index or attribute under which ``output=`` finds them."""
    if isinstance(value, Mapping):
        return list(value.items())
    if hasattr(value, "_fields"):  # a named tuple
        return [(name, getattr(value, name)) for name in value._fields]
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if is_dataclass(value):
        return [(each.name, getattr(value, each.name)) for each in fields(value)]
    return [(name, part) for name, part in getattr(value, "__dict__", {}).items() if not name.startswith("_")]


def flatten_remedy(shape: tuple[int, ...], n: int, output: Any, returned: Any) -> str:
    """Say how a prediction with more than two axes is brought to two, where its first axis is that of the rows."""
    if len(shape) < 3 or shape[0] != n:
        return ""
    if callable(output):
        return f" Let output= return shape ({n}, outputs)."
    part = "out"
    if output is not None:
        part = f"out[{output!r}]" if isinstance(returned, Mapping | tuple | list) else f"out.{output}"
    return f" Give output=lambda out: {part}.reshape({part}.shape[0], -1)."
