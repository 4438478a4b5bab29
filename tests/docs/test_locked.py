"""The lock of the test environment and the list of licences name what pyproject.toml asks for."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "test.lock"
HASHES = r"(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+"
ENTRY = re.compile(rf"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?: ;[^\\]*)? \\\n{HASHES}")


@pytest.fixture(scope="module")
def licences():
    spec = importlib.util.spec_from_file_location("licences", ROOT / "tools" / "licences.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked():
    """Name and version of every entry; whatever is no entry with a hash is left over."""
    left = LOCK.read_text()
    found = {}
    while entry := ENTRY.match(left):
        found[entry["name"]] = entry["version"]
        left = left[entry.end() :]
    return found, left


def test_every_line_of_the_lock_is_a_version_with_hashes():
    found, left = locked()
    assert left == ""
    assert len(found) > 100


def test_the_lock_has_what_the_test_environment_asks_for(licences):
    found, _ = locked()
    asked = licences.requirements() + [
        name for extra in ("torch", "test", "lint") for name in licences.requirements(extra)
    ]
    assert set(asked) <= set(found)
    makefile = (ROOT / "Makefile").read_text()
    assert f"torch=={found['torch']}" in makefile


def test_the_list_of_licences_names_every_dependency(licences):
    listed = set(re.findall(r"^\| ([a-z0-9-]+) \| \S", (ROOT / "LICENSES.md").read_text(), re.MULTILINE))
    asked = licences.requirements() + [name for extra in licences.OPTIONAL for name in licences.requirements(extra)]
    assert set(asked) <= listed


def test_a_licence_is_what_the_package_states(licences):
    assert licences.licence("numpy").startswith("BSD-3-Clause")
    assert "numpy" in licences.closure(["scipy"])
    assert licences.closure(["no-such-package"]) == []
