"""Which of a model's parameters count as trained: by name, by the path of a part of the model, or by a predicate."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vhat.errors import InputError

__all__ = ["ALL", "LAST", "Selection", "close_to", "listed", "select", "under"]

Selection = str | Iterable[str] | Callable[[str], bool]
"""What ``parameters=`` takes."""

ALL = "all"
LAST = "last"

_LISTED = 12
"""Names that a message lists; a network may have hundreds."""


def select(parameters: Selection, names: Sequence[str], separator: str) -> tuple[str, ...]:
    """Return the names that a selection holds, in the order of the model.

    Args:
        parameters: Names, or paths of parts of the model such as ``"head"``, or one of them; or a function of a name
            that says whether it is trained.
        names: The names of all parameters of the model.
        separator: What stands between the parts of a name.

    Raises:
        InputError: For a name that the model does not have, and where nothing is selected.
    """
    if callable(parameters):
        found = {name for name in names if _verdict(parameters, name)}
    else:
        wanted = [parameters] if isinstance(parameters, str) else _names(parameters)
        found = {name for each in wanted for name in _matching(each, names, separator)}
    if not found:
        raise InputError(f"parameters selects nothing. The model has {listed(names)}.")
    return tuple(name for name in names if name in found)


def under(name: str, path: str, separator: str) -> bool:
    """Return whether a parameter has this name, or belongs to the part of the model with this path."""
    return name == path or name.startswith(path + separator)


def listed(names: Sequence[str]) -> str:
    """List names for a message, the first few of many."""
    some = ", ".join(names[:_LISTED])
    return some if len(names) <= _LISTED else f"{some} and {len(names) - _LISTED} more"


def close_to(name: str, names: Sequence[str], separator: str) -> str:
    """Return the words "Did you mean ...?" with a space before them, or nothing where no name is alike."""
    parts = {separator.join(each.split(separator)[:depth]) for each in names for depth in range(1, 9)}
    near = difflib.get_close_matches(name, sorted(parts | set(names)), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def _names(parameters: Any) -> list[str]:
    try:
        wanted = list(parameters)
    except TypeError:
        wanted = [parameters]
    strange = [each for each in wanted if not isinstance(each, str)]
    if strange:
        raise InputError(
            f"parameters has {strange[0]!r}, a {type(strange[0]).__name__}; give 'all', 'last', names of parameters, "
            "or a function of a name that returns True or False."
        )
    return wanted


def _matching(path: str, names: Sequence[str], separator: str) -> list[str]:
    found = [name for name in names if under(name, path, separator)]
    if not found:
        raise InputError(
            f"the model has no parameter {path!r}, and no part of that path.{close_to(path, names, separator)} It has "
            f"{listed(names)}."
        )
    return found


def _verdict(predicate: Callable[[str], bool], name: str) -> bool:
    try:
        return bool(predicate(name))
    except Exception as error:
        raise InputError(f"parameters({name!r}) failed: {type(error).__name__}: {error}") from error
