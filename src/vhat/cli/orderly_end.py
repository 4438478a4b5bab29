"""How the program ends when the system ends it: signals clean up as errors do, and closed streams are no accident."""

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
    "occupied_streams",
    "output_in_words",
    "signals_as_exits",
]

CLOSED_PIPE = 141
"""128 + SIGPIPE: what a shell reports of a program whose reader has gone, as in ``vhat predict ... | head -1``."""
_ENDING = ("SIGTERM", "SIGHUP")


@contextmanager
def signals_as_exits() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit with 128 + the signal, so that temporary files are removed.

    A signal that is ignored (``nohup``) or handled by somebody else is left as it is.
    """

    def leave(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one must not stop the cleaning up
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    taken: list[int] = []
    with suppress(ValueError):  # only the main thread may set handlers
        for number in numbers:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, leave)
                taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def occupied_streams() -> None:
    """Open the null device in place of standard streams that are closed (``>&-``).

    The next file that is opened would get the number of a closed stream, and with it whatever a library prints.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open until the end)


@contextmanager
def output_in_words() -> Iterator[None]:
    """Print inside the block; a full disk or a closed stream is said in words, a closed pipe is left to the caller.

    Raises:
        InputError: When standard output cannot be written.
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
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "The disk is full: make room, or print elsewhere." if full else "Print elsewhere."
        raise InputError(f"standard output cannot be written: {error.strerror or error}. {remedy}") from None


def drop_failed_output() -> None:
    """Drop what is in the buffer of standard output, where it cannot be written."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        drop_output()


def drop_output() -> None:
    """Send what is still in the buffer of standard output nowhere: Python would fail on it once more at its end."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
