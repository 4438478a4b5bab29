"""The quick starts of the README run as they are printed."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import vhat

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.DOTALL)
NAMES = ["trained", "torch", "jax", "scipy", "recipe", "table"]


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
