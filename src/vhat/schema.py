"""Check that plain data read from a file has the entries and types that a class declares."""

from __future__ import annotations

import builtins
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np

from vhat.errors import StoreError

__all__ = ["build", "check"]

T = TypeVar("T")


def build(kind: type[T], saved: Any, **given: Any) -> T:
    """Return a dataclass made from saved fields.

    Args:
        kind: The dataclass.
        saved: Its fields by name.
        given: Fields that were not saved. They take precedence.

    Raises:
        StoreError: For fields that are missing, unknown, or not of the declared type.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Step:
        ...     size: float
        >>> build(Step, {"size": 0.5})
        Step(size=0.5)
        >>> build(Step, {"size": "large"})
        Traceback (most recent call last):
        ...
        vhat.errors.StoreError: the saved Step is malformed: its entry size is 'large' and not a float.
    """
    if not isinstance(saved, Mapping):
        raise StoreError(f"the saved {kind.__name__} is malformed: it is {reprlib.repr(saved)} and no record.")
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    for name in saved:
        if name not in known:
            raise StoreError(f"the saved {kind.__name__} is malformed: it has an unknown entry {reprlib.repr(name)}.")
    for name, field in known.items():
        optional = field.default is not MISSING or field.default_factory is not MISSING
        if name not in saved and name not in given and not optional:
            raise StoreError(f"the saved {kind.__name__} is malformed: it has no entry {name}.")
    _check_types(kind, {name: value for name, value in saved.items() if name not in given})
    return kind(**{**saved, **given})


def check(kind: Any, saved: Any, what: str) -> None:
    """Check that a document has the entries and types of a :class:`typing.TypedDict`.

    Entries that the TypedDict does not name are allowed: a later version may have written them.

    Args:
        kind: The TypedDict.
        saved: The document.
        what: The name of the document in messages.

    Raises:
        StoreError: Naming the entry.
    """
    assert is_typeddict(kind)
    if not isinstance(saved, Mapping):
        raise StoreError(f"the saved {what} is malformed: it is {reprlib.repr(saved)} and no record.")
    missing = sorted(_required(kind) - set(saved))
    if missing:
        raise StoreError(f"the saved {what} is malformed: it has no entry {missing[0]}.")
    _check_types(kind, saved, what)


def _required(kind: Any) -> set[str]:
    """Return the entries that a TypedDict does not mark as ``NotRequired``.

    ``__required_keys__`` ignores these marks in a module whose annotations are strings.
    """
    hints = get_type_hints(kind, localns=_Names(vars(sys.modules[kind.__module__])), include_extras=True)
    return {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}


def _check_types(kind: type, saved: Mapping[str, Any], what: str = "") -> None:
    """Check the types of the saved entries that a class declares."""
    for name, hint in _hints(kind).items():
        if name in saved and not _fits(saved[name], hint):
            wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
            raise StoreError(
                f"the saved {what or kind.__name__} is malformed: its entry {name} is {reprlib.repr(saved[name])} and "
                f"not a {wanted}."
            )


class _Names(dict[str, Any]):
    """The names of a module. A name that it imports for type checkers only is replaced by ``Any``."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def _hints(kind: type) -> dict[str, Any]:
    """Return the declared types of a class, by the names of its entries."""
    return get_type_hints(kind, localns=_Names(vars(sys.modules[kind.__module__])))


def _fits(value: Any, hint: Any) -> bool:  # noqa: PLR0911  (one return per kind of type)
    """Return whether a value is of a declared type."""
    if hint is Any:
        return True
    if is_typeddict(hint):
        entries = _hints(hint).items()
        return isinstance(value, dict) and all(name in value and _fits(value[name], part) for name, part in entries)
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if hint is float:
        return type(value) in (int, float) and _is_float(value)
    if hint in (int, bool, str, NoneType):
        return type(value) is hint
    if hint is np.ndarray:
        return isinstance(value, np.ndarray) and value.dtype.kind in "fiubMmU"
    if origin in (list, tuple) and isinstance(value, origin):
        if origin is list or parts[1:] == (...,):
            return all(_fits(each, parts[0]) for each in value)
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if origin is dict and isinstance(value, dict):
        return all(_fits(key, parts[0]) and _fits(each, parts[1]) for key, each in value.items())
    if origin is not None:
        return origin not in (list, tuple, dict)
    return not isinstance(hint, type) or isinstance(value, hint)


def _is_float(value: float) -> bool:
    """Return whether a number is a float, or an integer that a float can hold."""
    return isinstance(value, float) or abs(value) <= sys.float_info.max
