"""One model under load gives the same numbers to everybody, and takes no more memory for it; full sizes by hand."""

from __future__ import annotations

import pytest

from tests.hostile import load

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", load.PARTS)
def test_a_small_load(part):
    if part == "requests":
        pytest.importorskip("fastapi")
        pytest.importorskip("uvicorn")
    run, small, _ = load.PARTS[part]
    assert run(small)
