"""Orderly exit on signals, closed streams and full disks: temporary files are removed, and errors are explained."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from vhat.errors import InputError

__all__ = [
    "CLOSED_PIPE",
    "drop_failed_output",
    "drop_output",
    "explain_output_errors",
    "fill_closed_streams",
    "signals_as_exits",
]

CLOSED_PIPE = 141
"""Exit code 128 + SIGPIPE, as shells report it for a program whose reader has gone: ``vhat predict ... | head -1``."""
_ENDING = ("SIGTERM", "SIGHUP")
"""Signals that end the program. Windows has only the first."""


@contextmanager
def signals_as_exits() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit with the code 128 + signal, so that temporary files are removed.

    A signal that is ignored (``nohup``), or that another library handles, is left alone.
    """

    def exit_by_signal(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the removal of temporary files
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    handled: list[int] = []
    with suppress(ValueError):  # only the main thread may set handlers
        for number in numbers:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, exit_by_signal)
                handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def fill_closed_streams() -> None:
    """Open the null device in place of standard streams that are closed (``>&-``).

    Otherwise the next file that is opened gets the number of a closed stream, and whatever a library prints is written
    to that file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open until the end)


@contextmanager
def explain_output_errors() -> Iterator[None]:
    """Flush standard output after the block, and turn a full disk or a closed stream into an InputError.

    Raises:
        InputError: If standard output cannot be written.
        BrokenPipeError: If the reader of a pipe has gone.
    """
    if sys.stdout is None:
        raise InputError(
            "standard output is closed, so that there is nowhere to print to. Send it to a file or a pipe."
        )
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        remedy = "Print elsewhere."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "The disk is full: make room, or print elsewhere."
        raise InputError(f"standard output cannot be written: {error.strerror or error}. {remedy}") from None


def drop_failed_output() -> None:
    """Flush standard output, and discard its buffer if it cannot be written."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        drop_output()


def drop_output() -> None:
    """Send the buffer of standard output to the null device. Python would otherwise fail on it again at its exit."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
