"""Memory: sizes in words, the largest problem that fits, and the peak of a piece of work."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

__all__ = ["Peak", "in_words", "most_allowed"]

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def in_words(size: float) -> str:
    """Return a number of bytes as text with three digits.

    Examples:
        >>> in_words(3.234e11), in_words(1.35e8), in_words(4e4)
        ('323 GB', '135 MB', '0.04 MB')
    """
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def most_allowed(most: int, allowed: Callable[[int], bool]) -> int:
    """Return the largest number up to ``most`` that is allowed, if all smaller ones are too; 0 if none is.

    Examples:
        >>> most_allowed(100, lambda rows: 8 * rows**2 <= 1000)
        11
    """
    return bisect_right(range(1, most + 1), False, key=lambda number: not allowed(number))


class Peak:
    """Peak resident memory since this object was created, above the memory at that time."""

    def __init__(self) -> None:
        try:
            _RESET.write_bytes(b"5")  # reset the peak (Linux)
            self._before = _read("VmRSS")
        except OSError:
            self._before = float("nan")

    def megabytes(self) -> float:
        """Return the peak in units of 10^6 bytes; NaN if the system does not give it."""
        try:
            return (_read("VmHWM") - self._before) / 1e6
        except OSError:
            return float("nan")


def _read(name: str) -> float:
    for line in _STATUS.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return 1024.0 * float(line.split()[1])
    raise OSError(f"{_STATUS} has no {name}")
