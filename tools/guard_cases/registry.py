"""The list of cases, and how one is run."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from guard_cases.kits import FRAMEWORKS, Kit, make_kit
from guard_cases.record import Entry, Record, Step

__all__ = ["case", "names", "run"]

Case = Callable[[Record, Kit], None]
_CASES: dict[str, Case] = {}


def case(*frameworks: str) -> Callable[[Case], Case]:
    """Register a function as one case of each framework; of every framework where none is named."""

    def register(function: Case) -> Case:
        for framework in frameworks or FRAMEWORKS:
            _CASES[f"{framework}/{function.__name__}"] = function
        return function

    return register


def names(pattern: str = "*") -> list[str]:
    """Return the names of the cases that match a shell pattern, those of one framework together.

    A pattern without a slash is matched with the name of the function alone: ``ridge`` is ``*/ridge``.
    """
    from guard_cases import jax_only, numpy_only, shared, torch_only  # noqa: F401  (importing registers their cases)

    full = pattern if "/" in pattern or pattern == "*" else f"*/{pattern}"
    found = [name for name in _CASES if fnmatchcase(name, full)]
    return sorted(found, key=lambda name: FRAMEWORKS.index(framework_of(name)))


def framework_of(name: str) -> str:
    """Return the framework of a case."""
    return name.partition("/")[0]


def run(name: str) -> dict[str, Entry]:
    """Run one case. An exception that it raises outside its steps is recorded like those inside them."""
    names()
    record = Record()
    try:
        _CASES[name](record, make_kit(framework_of(name)))
    except Exception as error:
        Step(record.entries, "case").failed(error)
    return record.entries
