"""List the licences of what vhat installs, as the installed packages state them.

python tools/licences.py                  # prints the page
python tools/licences.py LICENSES.md      # writes it
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
OPTIONAL = ("torch", "sklearn", "parquet", "methods", "study")
"""Extras that a user may install; those for tests, lint and documentation are not shipped with anything."""
_NAME = re.compile(r"^[A-Za-z0-9._-]+")
_LONGEST = 60
"""Characters of a licence field; longer ones are the text of the licence itself."""


def requirements(extra: str | None = None) -> list[str]:
    """Return the names of what vhat requires itself, or what an extra adds to it."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    asked = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    return [_name(each) for each in asked]


def closure(names: list[str]) -> list[str]:
    """Return packages and what they require in turn, without extras, as far as it is installed; sorted."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in found or not _installed(name):
            continue
        found.add(name)
        asked = metadata.requires(name) or []
        left += [_name(each) for each in asked if "extra ==" not in each]
    return sorted(found)


def licence(name: str) -> str:
    """Return the licence that a package states: its expression, its classifiers, or the first line of its text."""
    said = metadata.metadata(name)
    if expression := said.get("License-Expression"):
        return str(expression)
    classifiers = [each.split(" :: ")[-1] for each in said.get_all("Classifier") or [] if each.startswith("License ::")]
    if classifiers and classifiers != ["OSI Approved"]:
        return "; ".join(dict.fromkeys(classifiers))
    lines = (said.get("License") or "").strip().splitlines()
    if lines and len(lines[0]) <= _LONGEST:
        return lines[0]
    return "see its files"


def page() -> str:
    """Return the list as Markdown."""
    own = closure(requirements())
    parts = [
        "# Licences of dependencies",
        "",
        "vhat itself is under the MIT licence (`LICENSE`). It contains no code of the packages below: pip installs",
        "them beside it, each under its own licence. Made by `python tools/licences.py LICENSES.md` from what",
        "the packages state. The torch of this list is the build for CPUs; the default one for Linux also brings",
        "CUDA libraries, under licences of NVIDIA's own.",
        "",
        "## Always installed",
        "",
        *_table(own),
    ]
    for extra in OPTIONAL:
        more = [name for name in closure(requirements(extra)) if name not in own]
        parts += ["", f"## With `vhat[{extra}]`", "", *_table(more)]
    return "\n".join(parts) + "\n"


def _table(names: list[str]) -> list[str]:
    return ["| package | licence |", "|---|---|", *(f"| {name} | {licence(name)} |" for name in names)]


def _name(requirement: str) -> str:
    found = _NAME.match(requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            print(page(), end="")
        case [place]:
            Path(place).write_text(page(), encoding="utf-8")
        case _:
            sys.exit(__doc__)
