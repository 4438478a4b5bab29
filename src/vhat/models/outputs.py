"""Selection of the prediction in a model's return value by ``output=``: a key, an index, an attribute or a function.

The functions here serve all frameworks: any object with a shape and a dtype counts as an array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from vhat.errors import InputError, ModelError

__all__ = ["SelectedOutput", "check_output", "describe_returned", "flatten_remedy", "is_array", "part_of", "select"]

_MAX_LISTED = 8
"""Number of parts of a return value that a message lists."""


def check_output(output: Any) -> None:
    """Raise unless ``output`` is None, a key or an attribute, an index, or a function.

    Raises:
        InputError: Naming the allowed kinds.
    """
    if output is None or callable(output) or isinstance(output, str):
        return
    if isinstance(output, bool) or not isinstance(output, int):
        raise InputError(
            f"output={output!r} is not known. Give the key or attribute of the prediction (output='logits'), its index "
            "in a tuple (output=0), or a function of what the model returns (output=lambda out: out['logits'][:, 0])."
        )


def is_array(value: Any) -> bool:
    """Return whether a value is an array of some framework."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def select(output: Any, returned: Any, whose: str = "the module") -> Any:
    """Return the prediction from a model's return value.

    Args:
        output: None, a key or attribute, an index, or a function.
        returned: The return value of the model.
        whose: Name of the model in messages.

    Raises:
        ModelError: If there is no such part, or it is not an array. Lists the parts that exist.
    """
    if output is None:
        found = returned
    elif callable(output):
        found = output(returned)
    else:
        found = part_of(output, returned, whose)
    if is_array(found):
        return found
    raise ModelError(_not_an_array(output, returned, found, whose))


@dataclass(frozen=True)
class SelectedOutput:
    """A function ``predict(params, X)`` with a selected output. Equal instances share compiled functions.

    Attributes:
        predict: The user's function.
        output: A key or attribute, an index, or a function of the return value; None for all of it.
    """

    predict: Callable[..., Any]
    output: Any

    def __call__(self, params: Any, X: Any) -> Any:
        """Return the prediction."""
        return select(self.output, self.predict(params, X), "predict")


def part_of(output: str | int, returned: Any, whose: str) -> Any:
    """Return the part of a model's return value with this key, attribute or index.

    Raises:
        ModelError: If there is no such part. Lists the parts that exist.
    """
    if is_array(returned):
        column = 0 if isinstance(output, str) else output
        raise ModelError(
            f"output={output!r} names a part, and {whose} returns one array of shape {tuple(returned.shape)}. Leave "
            f"output out, or give a function such as output=lambda out: out[:, {column}]."
        )
    if isinstance(returned, Mapping) and output in returned:
        return returned[output]
    if isinstance(output, int) and isinstance(returned, tuple | list) and -len(returned) <= output < len(returned):
        return returned[output]
    if isinstance(output, str) and not output.startswith("_") and hasattr(returned, output):
        return getattr(returned, output)
    raise ModelError(
        f"output={output!r} is not in what {whose} returned: {describe_returned(returned)}."
        f"{_suggest_array_part(returned)}"
    )


def _not_an_array(output: Any, returned: Any, found: Any, whose: str) -> str:
    """Return the message for a prediction that is not an array, with the parts that exist and a remedy."""
    if returned is None:
        return f"{whose} returned None; it must return the prediction."
    if output is None:
        remedy = _suggest_array_part(returned) or " Choose the prediction by a function: output=lambda out: ..."
        return f"{whose} returned {describe_returned(returned)}.{remedy}"
    if callable(output):
        return f"the function output= returned {describe_returned(found)}; it must return one array."
    return f"output={output!r} is {describe_returned(found)}, not an array. Give a function: output=lambda out: ..."


def _suggest_array_part(returned: Any) -> str:
    """Return a remedy that selects the first part that is an array; empty where no part is one."""
    for name, value in _parts(returned):
        if is_array(value):
            return f" Choose the prediction by output=, such as output={name!r}."
    return ""


def describe_returned(value: Any) -> str:
    """Describe a return value and its parts, for messages."""
    name = type(value).__name__
    kind = f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"
    parts = [f"{key!r}{_describe_part(part)}" for key, part in _parts(value)]
    if not parts:
        return kind
    if isinstance(value, Mapping):
        noun = "keys"
    elif _is_plain_sequence(value):
        noun = "parts"
    else:
        noun = "fields"
    more = f" and {len(parts) - _MAX_LISTED} more" if len(parts) > _MAX_LISTED else ""
    return f"{kind} with the {noun} {', '.join(parts[:_MAX_LISTED])}{more}"


def _describe_part(part: Any) -> str:
    return f" of shape {tuple(part.shape)}" if is_array(part) else f" ({type(part).__name__})"


def _is_plain_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list) and not hasattr(value, "_fields")


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """Return (name, part) pairs, with the key, index or attribute by which ``output=`` selects the part."""
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
    """Return a remedy for a prediction with more than two axes, the first of them the rows; else an empty string.

    Args:
        shape: Shape of the prediction.
        n: Number of rows.
        output: The user's ``output=``.
        returned: The return value of the model.
    """
    if len(shape) < 3 or shape[0] != n:
        return ""
    if callable(output):
        return f" Let output= return shape ({n}, outputs)."
    if output is None:
        part = "out"
    elif isinstance(returned, Mapping | tuple | list):
        part = f"out[{output!r}]"
    else:
        part = f"out.{output}"
    return f" Give output=lambda out: {part}.reshape({part}.shape[0], -1)."
