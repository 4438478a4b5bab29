"""Whatever call to the operating system fails or is the last of a process: the old document or the new one, whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="saves are forked")


def outcome(folder, *ways):
    command = [sys.executable, "-m", "tests.store.cut_saver", str(folder), *ways]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    return json.loads(ended.stdout)


@pytest.mark.core
def test_a_full_disk_or_a_kill_at_any_call_leaves_the_old_or_the_new(tmp_path):
    found = outcome(tmp_path, "ENOSPC", "kill")
    assert not found["wrong"]
    assert found["calls"]["over kill"] > 25, "the calls of a save are not seen any more"
    assert found["calls"]["first kill"] > 20
    assert found["calls"]["read kill"] > 3


@pytest.mark.slow
def test_errors_and_interrupts_at_any_call_leave_the_old_or_the_new(tmp_path):
    assert not outcome(tmp_path, "EIO", "EINTR", "interrupt")["wrong"]
