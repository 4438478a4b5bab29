"""The README is short; its quick starts run as they are printed, its links lead somewhere, its numbers are measured."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import vhat

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
NAMES = ["trained", "table", "curve"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "block"), list(zip(NAMES, BLOCKS, strict=True)), ids=NAMES)
def test_the_quick_start_runs_and_prints_intervals(name, block, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error", vhat.VhatWarning)
        exec(compile(block, f"README {name}", "exec"), {})
    printed = capsys.readouterr().out
    assert "Interval: " in printed
    assert "WHICH THEY ARE NOT" not in printed
    if name == "trained":
        assert "beware" not in printed


def test_it_is_read_in_five_minutes():
    assert len(README.split()) < 1200


def test_every_link_and_picture_is_a_file_of_the_repository():
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert len(targets) > 20
    for target in targets:
        assert (ROOT / target).exists(), target


def _comparison():
    """The rows of the table that compares vhat with others: each names its source in the last cell."""
    table = README.partition("## How it compares")[2].partition("\n## ")[0]
    return [line for line in table.splitlines() if line.startswith("| ") and "](benchmarks/" in line]


@pytest.mark.parametrize("row", _comparison(), ids=lambda row: row.split("|")[1].strip()[:30])
def test_every_number_of_the_comparison_is_in_the_page_that_its_row_names(row):
    source = re.findall(r"\]\((benchmarks/[^)]+)\)", row)[0]
    text = (ROOT / source).read_text(encoding="utf-8")
    said = re.findall(r"\d+\.\d+", row)
    assert said
    for number in said:
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", text), f"{number} is no longer in {source}"


def test_the_comparison_says_where_vhat_loses():
    assert sum("**" in row for row in _comparison()) >= 3
