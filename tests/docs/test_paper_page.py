"""The page that goes through the paper names objects and tests that exist, and owns up to what is missing."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module

import pytest

from tests.docs.test_docs import DOCS

ROOT = DOCS.parent
PAGE = (DOCS / "paper.md").read_text(encoding="utf-8")
HEADER = ("in the paper", "here", "tested in", "remarks")
MISSING = "not implemented"


def rows():
    """Return the cells of every row of the page's tables."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return [row for row in cells if row != HEADER and not set(row[0]) <= {"-"}]


def found(name):
    """Return a dotted name, importing as many of its parts as are modules."""
    parts = name.split(".")
    value, path = import_module(parts[0]), parts[0]
    for part in parts[1:]:
        path = f"{path}.{part}"
        try:
            value = getattr(value, part)
        except AttributeError:
            value = import_module(path)
    return value


@cache
def functions_of(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_table_has_the_same_four_columns():
    assert PAGE.count("| in the paper | here | tested in | remarks |") >= 7
    assert all(len(row) == len(HEADER) for row in rows())
    assert len(rows()) > 60


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:50])
def test_a_row_names_what_exists_or_says_that_there_is_nothing(row):
    _, here, tested, _ = row
    if here == MISSING:
        assert tested == ""
        return
    names = re.findall(r"`(vhat[\w.]*)`", here)
    assert names
    assert re.sub(r"`[^`]*`", "", here).replace(",", "").strip() == ""
    for name in names:
        assert found(name) is not None
    tests = re.findall(r"`(tests/[^`]+)`", tested)
    assert tests
    for test in tests:
        path, _, function = test.partition("::")
        assert (ROOT / path).exists(), path
        assert not function or function in functions_of(path), test


def test_names_in_remarks_exist():
    for *_, remark in rows():
        for name in re.findall(r"`(vhat\.[\w.]+)`", remark):
            assert found(name) is not None


def test_every_slip_that_a_row_names_is_on_the_list():
    listed = {int(number) for number in re.findall(r"^(\d+)\. ", PAGE, re.MULTILINE)}
    assert listed == set(range(1, len(listed) + 1))
    for *_, remark in rows():
        for slip in re.findall(r"slips? ([\d and]+)", remark):
            assert {int(number) for number in re.findall(r"\d+", slip)} <= listed


def test_every_numbered_statement_of_the_paper_has_a_row():
    stated = [row[0] for row in rows()]
    counts = {"theorem": 4, "lemma": 9, "proposition": 3, "algorithm": 2, "definition": 1}
    for kind, count in counts.items():
        for number in range(1, count + 1):
            assert any(name.startswith(f"{kind} {number}") for name in stated), f"{kind} {number}"
