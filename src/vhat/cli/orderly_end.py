"""Orderly exit on signals, closed streams and full disks: temporary files are removed, and errors are explained."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from vhat.errors import InputError

__all__ = [
    "CLOSED_PIPE",
    "STOPPED",
    "drop_failed_output",
    "drop_output",
    "explain_output_errors",
    "fill_closed_streams",
    "interrupts_as_exceptions",
    "interrupts_as_exits",
    "signals_as_exits",
]

CLOSED_PIPE = 141
"""Exit code 128 + SIGPIPE, as shells report it for a program whose reader has gone: ``vhat predict ... | head -1``."""
STOPPED = 130
"""Exit code 128 + SIGINT, as shells report it for a program that was stopped by Ctrl-C."""
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


@contextmanager
def interrupts_as_exits() -> Iterator[None]:
    """Let Ctrl-C end the process at once, until :func:`interrupts_as_exceptions` is called.

    While options are read, nothing has been written, and a KeyboardInterrupt may be lost: pydantic, which typer uses,
    prints it and goes on.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        interrupts_as_exceptions()


def interrupts_as_exceptions() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: Any) -> None:
    with suppress(OSError):
        os.write(2, b"vhat: stopped.\n")
    os._exit(STOPPED)


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
