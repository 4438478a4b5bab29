"""What a plan says it will take is what is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plan_memory import CASES


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("case", CASES)
def test_memory_is_planned_within_a_factor_of_one_and_a_half(case):
    command = [sys.executable, "-m", "tests.plan_memory", case]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": ""}
    root = Path(__file__).parent.parent
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root, env=environment)
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["solver"] == case.split(",")[0]
    assert 1 / 1.5 <= found["planned"] / found["taken"] <= 1.5, found
