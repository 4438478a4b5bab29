"""Progress of long work: a bar on a terminal once it takes more than a moment, silence everywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

__all__ = [
    "Listener",
    "LossRecord",
    "announce",
    "bar",
    "listen",
    "loss_recorded",
    "note_descent",
    "note_loss",
    "steps_shown",
]

_PATIENCE = 2.0
_outer: ContextVar[Callable[[str], None] | None] = ContextVar("outer", default=None)
"""How work within a bar writes its note there: a terminal has room for one bar."""

Listener = Callable[[str, int, int, str], None]
"""Called with the label of a bar, its step, its total (0 where it is not known) and the note."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@dataclass
class LossRecord:
    """The objective of the last training that was seen: a descent, and the polish that follows it.

    Attributes:
        losses: The objective after each step, or after each chunk of steps where many are compiled together.
        steps: How many steps were taken.
        polished: Whether the last steps were those of a polish: a second one begins another training.
    """

    losses: list[float] = field(default_factory=list)
    steps: int = 0
    polished: bool = False


_record: ContextVar[LossRecord | None] = ContextVar("record", default=None)


@contextmanager
def loss_recorded() -> Iterator[LossRecord]:
    """Yield a record that minimisers within the block write their objective to."""
    record = LossRecord()
    entered = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(entered)


def note_descent(losses: Sequence[float] = (), steps: int = 0) -> None:
    """Begin the record of another descent, with what is known of it."""
    record = _record.get()
    if record is not None:
        record.losses, record.steps, record.polished = list(losses), steps, False


def note_loss(loss: float) -> None:
    """Note the objective after one more step."""
    record = _record.get()
    if record is not None:
        record.losses.append(float(loss))
        record.steps += 1


def _begin_polish() -> None:
    record = _record.get()
    if record is not None:
        if record.polished:
            record.losses, record.steps = [], 0
        record.polished = True


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
    _begin_polish()
    with bar(label, total=0) as advance:

        def show(step: int, objective: float, relative: float) -> None:
            note_loss(objective)
            advance(f"step {step}, objective {objective:.6g}, gradient {relative:.1e}")

        yield show
