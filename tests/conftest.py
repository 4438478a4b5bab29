"""Settings of the whole test suite: its tiers, and a cache of compiled programs for each worker."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import jax
import matplotlib as mpl

from tests import compiled_programs, tiers

mpl.use("Agg")
# A shell's background job ignores Ctrl-C; the tests of interruption need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

CACHE = compiled_programs.own_directory()
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class _Programs:
    """Drop compiled programs whenever they have taken another ``step`` bytes: all tests together make thousands."""

    step = 1.5e9

    def __init__(self) -> None:
        self.limit = 2.5e9

    def pytest_runtest_teardown(self, nextitem) -> None:
        if nextitem is not None and _resident() > self.limit:
            jax.clear_caches()
            gc.collect()
            self.limit = max(self.limit, _resident() + self.step)


def _resident() -> float:
    """Return the resident memory of this process in bytes, or 0 where the system does not tell."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return 0.0
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pytest_addoption(parser) -> None:
    tiers.add_options(parser)


def pytest_configure(config) -> None:
    config.pluginmanager.register(_Programs())
    if config.getoption("record"):
        config.pluginmanager.register(tiers.Recorder(Path(config.getoption("record"))))


def pytest_collection_modifyitems(config, items) -> None:
    kept, left = tiers.select(items, config.getoption("tier"), config.getoption("slice"))
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_sessionfinish(session) -> None:
    # Workers of pytest-xdist end before the process that started them.
    if not hasattr(session.config, "workerinput"):
        compiled_programs.share()
