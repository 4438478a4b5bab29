"""The pages for people who work on the project name files, folders, commands and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md")
PACKAGE = ROOT / "src" / "vhat"
MADE = ("site/", ".venv/", "dist/", "demo/band.png")
"""What a command makes, and a clean copy of the project does not have."""

_PATH = re.compile(r"(?<![\w./-])((?:[\w.*-]+/)+[\w.*-]*|[\w*-]+\.(?:py|md|toml|yml|json|cff))(?![\w/])")


def _code(page):
    """The spans of code of a page that stand inside its sentences."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def _exists(name):
    """Whether a path of the project ends so; pages shorten those of the package."""
    return bool("*" not in name and (ROOT / name).exists()) or any(PACKAGE.glob(f"**/{name.rstrip('/')}"))


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page):
    named = {name for span in _code(page) for name in _PATH.findall(span)} - set(MADE)
    missing = sorted(name for name in named if not _exists(name))
    assert not missing, missing


def test_the_drawing_names_paths_that_exist():
    drawing = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    named = {name for label in re.findall(r'class="m"[^>]*>([^<]+)<', drawing) for name in _PATH.findall(label)}
    assert len(named) > 15
    missing = sorted(name for name in named if not _exists(name))
    assert not missing, missing


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_every_target_of_make_that_a_page_names_exists(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    asked = {name for span in _code(page) for name in re.findall(r"\bmake ([\w-]+)", span)}
    assert asked <= targets, asked - targets


def test_the_architecture_names_every_package_once():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## The packages")[2].partition("\n## ")[0]
    named = [
        name for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)/?`", row)
    ]
    held = [path for path in (ROOT / "src" / "vhat").iterdir() if not path.name.startswith(("_", "py."))]
    assert sorted(named) == sorted(path.stem for path in held)
