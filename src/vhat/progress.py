"""Progress of long work: a bar on a terminal once it takes more than a moment, silence everywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

__all__ = ["Listener", "announce", "bar", "listen", "steps_shown"]

_PATIENCE = 2.0
_outer: ContextVar[Callable[[str], None] | None] = ContextVar("outer", default=None)
"""How work within a bar writes its note there: a terminal has room for one bar."""

Listener = Callable[[str, int, int, str], None]
"""Called with the label of a bar, its step, its total (0 where it is not known) and the note."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Call ``listener`` at every step of every bar, in place of showing it: for work whose terminal is elsewhere."""
    entered = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(entered)


def announce(text: str) -> None:
    """Say what long work is about to begin, on a terminal only."""
    if _on_terminal():
        print(text, file=sys.stderr)


def _on_terminal() -> bool:
    """Whether a person reads standard error; a Windows program without a console has none (``sys.stderr is None``)."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def bar(label: str, total: int, patience: float = _PATIENCE) -> Iterator[Callable[[str], None]]:
    """Yield ``advance(note)``, to be called once a step; ``total`` is 0 where the end is not known.

    The bar appears only when standard error is a terminal and the work has lasted ``patience`` seconds, also in the
    middle of a step. A bar within a bar is a note on the outer one.
    """
    listener = _listener.get()
    if listener is not None:
        taken = count(1)
        yield lambda note: listener(label, next(taken), total, note)
        return
    outer = _outer.get()
    if outer is not None:
        steps = count(1)
        of = f"/{total}" if total else ""
        yield lambda note: outer(f"{label} {next(steps)}{of}, {note}" if note else f"{label} {next(steps)}{of}")
        return
    if not _on_terminal():
        yield lambda _note: None
        return
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(*Progress.get_default_columns(), "{task.fields[note]}", console=Console(stderr=True))
    task = progress.add_task(label, total=total or None, note="")
    appearance = _Appearance(progress, patience)

    def show(note: str, steps: int = 0) -> None:
        appearance.wait()
        progress.update(task, advance=steps, note=note)

    entered = _outer.set(show)
    try:
        yield lambda note: show(note, 1)
    finally:
        _outer.reset(entered)
        appearance.end()


class _Appearance:
    """Starts a bar once its patience is over, from a thread of its own where a step lasts longer than that."""

    def __init__(self, progress: RichProgress, patience: float) -> None:
        self._progress = progress
        self._patience = patience
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._state: Literal["waiting", "shown", "over"] = "waiting"
        self._timer = threading.Timer(patience, self._start)
        self._timer.daemon = True  # a program that ends does not wait for it
        self._timer.start()

    def wait(self) -> None:
        """Show the bar if it is time."""
        if self._state == "waiting" and time.monotonic() - self._began > self._patience:
            self._start()

    def end(self) -> None:
        """Take the bar away for good."""
        self._timer.cancel()
        with self._lock:
            if self._state == "shown":
                self._progress.stop()
            self._state = "over"

    def _start(self) -> None:
        with self._lock:
            if self._state == "waiting":
                self._progress.start()
                self._state = "shown"


@contextmanager
def steps_shown(label: str) -> Iterator[Callable[[int, float, float], None]]:
    """Yield a callback ``(step, objective, relative_gradient)`` for minimisers whose end is not known beforehand."""
    with bar(label, total=0) as advance:
        yield lambda step, objective, relative: advance(
            f"step {step}, objective {objective:.6g}, gradient {relative:.1e}"
        )
