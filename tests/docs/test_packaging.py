"""What is shipped: one version everywhere, the files that are not Python, lower bounds that can be installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import vhat

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _requirements(*arguments):
    command = [sys.executable, str(ROOT / "tools" / "requirements.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == vhat.__version__ == citation["version"]
    assert citation["license"] == PROJECT["license"]


def test_every_dependency_has_a_lower_bound_and_no_upper_one():
    lowest = {line.split("==")[0] for line in _requirements("minimum")}
    for asked in PROJECT["dependencies"]:
        assert asked.split(">=")[0] in lowest
        assert "<" not in asked
        assert "!=" not in asked


def test_the_lowest_versions_are_those_declared():
    lowest = dict(line.split("==") for line in _requirements("minimum"))
    declared = dict(asked.split(">=") for asked in PROJECT["dependencies"])
    assert declared.items() <= lowest.items()
    assert lowest["torch"] == PROJECT["optional-dependencies"]["torch"][0].split(">=")[1]


def test_the_extra_keeps_an_installed_torch_and_the_one_that_make_pins():
    """An exact version in the extra would replace a user's newer one, and a GPU build by another."""
    (asked,) = map(Requirement, PROJECT["optional-dependencies"]["torch"])
    assert {each.operator for each in asked.specifier} == {">="}
    pinned = re.findall(r"pip install .*torch==(\S+)", (ROOT / "Makefile").read_text())
    assert pinned == ["2.13.0"]
    assert asked.specifier.contains(pinned[0])


def test_the_docs_are_made_with_pinned_versions():
    asked = _requirements("extra", "docs")
    assert asked == PROJECT["optional-dependencies"]["docs"]
    assert all("==" in each for each in asked)


@pytest.mark.slow
def test_the_wheel_and_the_sdist_hold_every_file_of_the_package(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "from setuptools.build_meta import *; build_wheel('dist'); build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    kept = {path.relative_to(source / "src").as_posix() for path in (source / "src" / "vhat").rglob("*.*")}
    wanted = {name for name in kept if not name.endswith((".pyc", ".pyi"))}
    assert {"vhat/py.typed", "vhat/report/page/page.html", "vhat/report/page/style.css"} <= wanted
    (wheel,) = (source / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        assert wanted <= held
        assert {name for name in held if name.startswith("vhat/")} <= wanted
        (entry,) = (name for name in held if name.endswith("entry_points.txt"))
        assert "vhat = vhat.cli:app" in archive.read(entry).decode()
    (sdist,) = (source / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1].removeprefix("src/") for name in archive.getnames() if "/" in name}
    assert wanted <= names
    assert {"LICENSE", "pyproject.toml", "README.md"} <= names
