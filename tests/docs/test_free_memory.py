"""The automatic memory budget keeps to limits of the address space and of containers, not only to free pages."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from vhat import free_memory as module
from vhat.checks import check_memory

GIGABYTE = 2**30


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Control groups as files of our own: ``write(path, name=text)`` makes one."""

    def write(folder, **files):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name.replace("_DOT_", ".")).write_text(f"{text}\n")

    monkeypatch.setattr(module, "_MOUNTED", tmp_path)
    monkeypatch.setattr(module, "_CGROUPS", tmp_path / "self")
    return write


def test_a_limit_of_version_2_counts_without_the_cache_of_files(groups):
    groups(".", self="0::/box/inner")
    groups("box/inner", memory_DOT_max="max", memory_DOT_current=5 * 10**8, memory_DOT_stat="anon 7\ninactive_file 0")
    stat = f"anon 1\ninactive_file {2 * 10**8}"
    groups("box", memory_DOT_max=10**9, memory_DOT_current=6 * 10**8, memory_DOT_stat=stat)
    assert module._free_in_container() == 6 * 10**8
    assert check_memory(None) <= 3 * 10**8


def test_a_limit_of_version_1_counts_and_none_is_none(groups):
    groups(".", self="4:memory:/box\n0::/")
    names = {"memory_DOT_limit_in_bytes": 3 * 10**9, "memory_DOT_usage_in_bytes": 10**9}
    groups("memory/box", **names, memory_DOT_stat=f"total_inactive_file {5 * 10**8}")
    assert module._free_in_container() == 25 * 10**8
    groups("memory/box", memory_DOT_limit_in_bytes=9223372036854771712)
    assert module._free_in_container() >= 2**60


def test_without_control_groups_free_pages_decide(groups):
    assert module._free_in_container() >= 2**60
    assert 0 < module.free_memory() <= psutil.virtual_memory().total


def test_what_is_used_beyond_a_limit_leaves_nothing_and_not_less(groups):
    groups(".", self="0::/box")
    groups("box", memory_DOT_max=10**6, memory_DOT_current=10**9, memory_DOT_stat="anon 1")
    assert module.free_memory() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of the address space")
def test_a_limit_of_the_address_space_counts():
    code = (
        "import resource; from vhat.free_memory import free_memory; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({2 * GIGABYTE}, {2 * GIGABYTE})); print(free_memory())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(run.stdout) < 2 * GIGABYTE
