"""How much memory this process may still take: free pages, less if its address space or its container has a limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["free_memory"]

_CGROUPS = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60
"""Bytes above which a limit is none: version 1 of control groups writes a number just below 2^63."""


def free_memory() -> int:
    """Return the bytes of memory that nothing uses and that this process may use."""
    return max(0, min(_free_pages(), _free_address_space(), _free_in_container()))


def _free_pages() -> int:
    import psutil

    found = psutil.virtual_memory()
    # Linux counts the cache of files as available and gives it back only under pressure: the budget leaves it alone.
    # macOS keeps next to nothing free and counts what it gives back at once as available; on Windows both are one.
    return int(found.free if sys.platform.startswith("linux") else found.available)


def _free_address_space() -> int:
    """Return what is left of the limit of ``ulimit -v``."""
    import psutil

    process = psutil.Process()
    if not hasattr(process, "rlimit"):  # Windows and macOS
        return _UNLIMITED
    limit = process.rlimit(psutil.RLIMIT_AS)[0]
    if limit == psutil.RLIM_INFINITY:
        return _UNLIMITED
    return int(limit - process.memory_info().vms)


def _free_in_container() -> int:
    """Return what is left of the limit of the control group that this process is in, on Linux."""
    left = [_UNLIMITED]
    for group in _control_groups():
        try:
            most = (group.folder / group.limit).read_text(encoding="utf-8").strip()
            used = int((group.folder / group.used).read_text(encoding="utf-8")) - _file_cache(group.folder)
        except (OSError, ValueError):  # no such limit here
            continue
        if most != "max" and int(most) < _UNLIMITED:
            left.append(int(most) - used)
    return min(left)


class _Group(NamedTuple):
    """A control group: its folder, and the names of the files with its limit and its use."""

    folder: Path
    limit: str
    used: str


def _control_groups() -> list[_Group]:
    """Return this process's control groups and those above them."""
    try:
        lines = _CGROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root, names = _MOUNTED, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = _MOUNTED / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = root / path.strip("/")
        folders = [own, *(folder for folder in own.parents if folder.is_relative_to(root))]
        found += [_Group(folder, *names) for folder in folders]
    return found


def _file_cache(folder: Path) -> int:
    """Return the cached files that are counted as used and given back when memory runs short."""
    for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0
