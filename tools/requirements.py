"""Requirements read off pyproject.toml, for environments that pip cannot make from it alone.

python tools/requirements.py extra docs    # what one extra asks for, without the package itself
python tools/requirements.py minimum       # every lower bound as an exact version: a constraints file
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
_BOUND = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?P<relation>>=|==)\s*(?P<version>[^,;\s]+)")


def extra(name: str) -> list[str]:
    """Return the requirements of one extra."""
    return list(_project()["optional-dependencies"][name])


def minimum() -> list[str]:
    """Return ``name==version`` for every lower bound, those of the extras too; the strictest where there are two."""
    project = _project()
    asked = [*project["dependencies"], *(each for group in project["optional-dependencies"].values() for each in group)]
    found: dict[str, str] = {}
    for bound in filter(None, map(_BOUND.match, asked)):
        found[bound["name"]] = max(found.get(bound["name"], "0"), bound["version"], key=_parts)
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _project() -> dict:
    return tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["extra", name]:
            print("\n".join(extra(name)))
        case ["minimum"]:
            print("\n".join(minimum()))
        case _:
            sys.exit(__doc__)
