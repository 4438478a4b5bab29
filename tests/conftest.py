"""Test-wide settings: compiled programs are kept between runs, and dropped before they fill the memory."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import tempfile
from pathlib import Path

import jax
import matplotlib as mpl

mpl.use("Agg")
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job would not have

# One directory a process of a checkout: a program that another has written half of would be read as if it were whole.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
_CHECKOUT = hashlib.sha256(str(Path(__file__).resolve()).encode()).hexdigest()[:8]
_PROGRAMS = Path(tempfile.gettempdir()) / f"vhat-test-xla-{_CHECKOUT}-{_WORKER}"
jax.config.update("jax_compilation_cache_dir", str(_PROGRAMS))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class _Programs:
    """Drops compiled programs whenever they have taken another ``step`` bytes: a run of all tests makes thousands."""

    step = 1.5e9

    def __init__(self) -> None:
        self.limit = 2.5e9

    def pytest_runtest_teardown(self, nextitem) -> None:
        if nextitem is not None and _resident() > self.limit:
            jax.clear_caches()
            gc.collect()
            self.limit = max(self.limit, _resident() + self.step)


def _resident() -> float:
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else 0.0


def pytest_configure(config) -> None:
    config.pluginmanager.register(_Programs())
