"""Selection of the trained parameters by ``parameters=``: names, paths of parts of the model, or a predicate."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vhat.errors import InputError

__all__ = ["ALL", "LAST", "Selection", "did_you_mean", "listed", "select", "under"]

Selection = str | Iterable[str] | Callable[[str], bool]
"""Type of ``parameters=``."""

ALL = "all"
LAST = "last"

_MAX_LISTED = 12
"""Number of names that a message lists; a network may have hundreds."""
_MAX_DEPTH = 8
"""Number of parts of a name up to which its leading paths are suggested."""


def select(parameters: Selection, names: Sequence[str], separator: str) -> tuple[str, ...]:
    """Return the names of the selected parameters, in the order of the model.

    Args:
        parameters: Names of parameters or paths of parts of the model such as ``"head"``, one or several; or a
            predicate that takes a name and returns whether the parameter is trained.
        names: The names of all parameters of the model.
        separator: Separator between the parts of a name.

    Raises:
        InputError: For a name that the model does not have, and for an empty selection.
    """
    selected: set[str] = set()
    if callable(parameters):
        selected.update(name for name in names if _call_predicate(parameters, name))
    else:
        paths = [parameters] if isinstance(parameters, str) else _as_names(parameters)
        for path in paths:
            selected.update(_matching(path, names, separator))
    if not selected:
        raise InputError(f"parameters selects nothing. The model has {listed(names)}.")
    return tuple(name for name in names if name in selected)


def under(name: str, path: str, separator: str) -> bool:
    """Return whether a parameter has the name ``path``, or belongs to the part of the model with that path."""
    return name == path or name.startswith(path + separator)


def listed(names: Sequence[str]) -> str:
    """Join names for a message, truncated to the first ``_MAX_LISTED``."""
    first = ", ".join(names[:_MAX_LISTED])
    if len(names) <= _MAX_LISTED:
        return first
    return f"{first} and {len(names) - _MAX_LISTED} more"


def did_you_mean(name: str, names: Sequence[str], separator: str) -> str:
    """Return " Did you mean ...?" with the most similar name or path, or an empty string if none is similar."""
    candidates = set(names)
    for each in names:
        parts = each.split(separator)
        candidates.update(separator.join(parts[:depth]) for depth in range(1, _MAX_DEPTH + 1))
    near = difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def _as_names(parameters: Any) -> list[str]:
    """Return ``parameters=`` as a list of strings."""
    try:
        names = list(parameters)
    except TypeError:  # not iterable
        names = [parameters]
    for each in names:
        if not isinstance(each, str):
            raise InputError(
                f"parameters has {each!r}, a {type(each).__name__}; give 'all', 'last', names of parameters, or a "
                "function of a name that returns True or False."
            )
    return names


def _matching(path: str, names: Sequence[str], separator: str) -> list[str]:
    """Return the names under a path; raise if there is none."""
    found = [name for name in names if under(name, path, separator)]
    if not found:
        raise InputError(
            f"the model has no parameter {path!r}, and no part of that path.{did_you_mean(path, names, separator)} It "
            f"has {listed(names)}."
        )
    return found


def _call_predicate(predicate: Callable[[str], bool], name: str) -> bool:
    try:
        return bool(predicate(name))
    except Exception as error:
        raise InputError(f"parameters({name!r}) failed: {type(error).__name__}: {error}") from error
