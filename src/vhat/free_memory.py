"""Free memory for this process, within the limits of its address space and its container."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["free_memory"]

_CGROUPS = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60
"""Bytes above which a limit means no limit: version 1 of control groups reports a number just below 2^63."""


def free_memory() -> int:
    """Return the bytes of unused memory that this process may allocate."""
    return max(0, min(_free_pages(), _free_address_space(), _free_in_container()))


def _free_pages() -> int:
    """Return the bytes of unused memory of the machine."""
    import psutil

    found = psutil.virtual_memory()
    # Linux counts the file cache as available, but releases it only under pressure: do not count on it. macOS keeps
    # almost no memory free, and "available" is what it releases at once. On Windows both are equal.
    return int(found.free if sys.platform.startswith("linux") else found.available)


def _free_address_space() -> int:
    """Return the unused bytes of the limit of ``ulimit -v``."""
    import psutil

    process = psutil.Process()
    if not hasattr(process, "rlimit"):  # Windows and macOS
        return _UNLIMITED
    limit = process.rlimit(psutil.RLIMIT_AS)[0]
    if limit == psutil.RLIM_INFINITY:
        return _UNLIMITED
    return int(limit - process.memory_info().vms)


def _free_in_container() -> int:
    """Return the unused bytes of the limit of this process's control group, on Linux."""
    remaining = [_UNLIMITED]
    for group in _control_groups():
        try:
            limit = (group.folder / group.limit).read_text(encoding="utf-8").strip()
            used = int((group.folder / group.used).read_text(encoding="utf-8")) - _file_cache(group.folder)
        except (OSError, ValueError):  # this group has no limit
            continue
        if limit != "max" and int(limit) < _UNLIMITED:
            remaining.append(int(limit) - used)
    return min(remaining)


class _Group(NamedTuple):
    """A control group: its folder, and the names of the files with its limit and its usage."""

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
            root = _MOUNTED
            names = ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):  # version 1
            root = _MOUNTED / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = root / path.strip("/")
        folders = [own, *(folder for folder in own.parents if folder.is_relative_to(root))]
        found += [_Group(folder, *names) for folder in folders]
    return found


def _file_cache(folder: Path) -> int:
    """Return the bytes of cached files, which count as used but are released if memory is short."""
    for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0
