"""Test-wide settings: compiled programs are shared between tests and between processes."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from pathlib import Path

import jax
import matplotlib as mpl

mpl.use("Agg")
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job would not have
jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / "vhat-test-xla"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

_MOST_RESIDENT = 2.5e9
"""Bytes after which compiled programs are dropped: a run of all tests compiles thousands."""


def pytest_runtest_teardown(nextitem):
    if nextitem is not None and _resident() > _MOST_RESIDENT:
        jax.clear_caches()
        gc.collect()


def _resident() -> float:
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0.0
