"""Progress of long work: a bar on a terminal if it takes more than two seconds, no output elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any, Literal

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
    "overall",
    "steps_shown",
]

_PATIENCE = 2.0
"""Seconds before a bar appears."""

Listener = Callable[[str, int, int, str], None]
"""Called with the label of a bar, its step, its total (0 if unknown) and the note."""
_outer: ContextVar[Listener | None] = ContextVar("outer", default=None)
"""Receives the progress of bars inside the bar on the terminal, which shows only one."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
"""Receives the progress of all bars in place of the terminal."""


@dataclass
class LossRecord:
    """The objective during the last training: a descent, and the polish that follows it.

    Attributes:
        losses: The objective after each step, or after each chunk of steps that are compiled together.
        steps: Number of steps.
        polished: Whether the last steps were those of a polish; a second polish begins another training.
    """

    losses: list[float] = field(default_factory=list)
    steps: int = 0
    polished: bool = False


_record: ContextVar[LossRecord | None] = ContextVar("record", default=None)
"""The record to which minimisers write their objective."""


@contextmanager
def loss_recorded() -> Iterator[LossRecord]:
    """Yield a record to which minimisers within the block write their objective."""
    record = LossRecord()
    entered = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(entered)


def note_descent(losses: Sequence[float] = (), steps: int = 0) -> None:
    """Start the record of another descent, with its losses and steps so far."""
    record = _record.get()
    if record is not None:
        record.losses = list(losses)
        record.steps = steps
        record.polished = False


def note_loss(loss: float) -> None:
    """Record the objective after one step."""
    record = _record.get()
    if record is not None:
        record.losses.append(float(loss))
        record.steps += 1


def _begin_polish() -> None:
    """Start the record of a polish: it continues that of a descent, but not that of another polish."""
    record = _record.get()
    if record is not None:
        if record.polished:
            record.losses = []
            record.steps = 0
        record.polished = True


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Call ``listener`` at every step of every bar instead of showing it, for work with its terminal elsewhere."""
    entered = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(entered)


def announce(text: str) -> None:
    """Print a line about long work that begins, on a terminal only."""
    if _on_terminal():
        print(text, file=sys.stderr)


def _on_terminal() -> bool:
    """Return whether standard error is a terminal; it is None in a Windows program without a console."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def bar(label: str, total: int, patience: float = _PATIENCE) -> Iterator[Callable[[str], None]]:
    """Yield ``advance(note)``, to be called once per step; ``total`` is 0 if the number of steps is unknown.

    The bar appears only if standard error is a terminal and the work has lasted ``patience`` seconds, also in the
    middle of a step. A bar inside a bar is shown as a note on the outer one.
    """
    receiver = _listener.get() or _outer.get()
    if receiver is not None:
        steps = count(1)
        yield lambda note: receiver(label, next(steps), total, note)
        return
    if not _on_terminal():
        yield lambda _note: None
        return
    with _shown(label, total, patience) as update, _inner(lambda *inside: update(note=_note_of(*inside))):
        yield lambda note: update(advance=1, note=note)


@contextmanager
def overall(label: str, parts: Mapping[str, float], patience: float = _PATIENCE) -> Iterator[None]:
    """Show one bar, with the remaining time, for work that consists of several bars inside the block.

    Args:
        label: Text before the bar.
        parts: Share of the work for the bars of each label, in their order. If several bars have the same label, each
            takes half of the remaining share, because their number is unknown.
        patience: As in :func:`bar`.
    """
    if _listener.get() is not None or _outer.get() is not None or not _on_terminal():
        yield
        return
    position = _Position(parts)
    with _shown(label, 1, patience) as update:

        def advance(inside: str, step: int, total: int, note: str) -> None:
            if inside in parts:  # other bars are short, and their notes would only flicker
                update(completed=position.after(inside, step, total), note=_note_of(inside, step, total, note))

        with _inner(advance):
            yield
        update(completed=1, note="")


class _Position:
    """Completed share of work that consists of several bars."""

    def __init__(self, parts: Mapping[str, float]) -> None:
        total = sum(parts.values())
        ends = list(accumulate(share / total for share in parts.values()))
        self._spans = {name: (start, end) for name, start, end in zip(parts, [0.0, *ends], ends, strict=False)}
        self._label = ""
        self._last_step = 0
        # The interval of the whole that the current bar fills.
        self._start = 0.0
        self._length = 0.0
        self._done = 0.0

    def after(self, label: str, step: int, total: int) -> float:
        """Return the completed share after a step of a bar."""
        start, end = self._spans[label]
        if label != self._label:
            self._start = start
            self._length = (end - start) / 2
        elif step <= self._last_step:  # another bar with the same label
            self._start = self._start + self._length
            self._length = self._length / 2
        self._label = label
        self._last_step = step
        self._done = max(self._done, self._start + self._length * min(step / max(total, 1), 1.0))
        return self._done


def _note_of(label: str, step: int, total: int, note: str) -> str:
    """Return the note on the outer bar for a step of an inner bar."""
    of_total = f"/{total}" if total else ""
    position = f"{label} {step}{of_total}"
    return f"{position}, {note}" if note else position


@contextmanager
def _inner(advance: Listener) -> Iterator[None]:
    """Send the progress of the bars within the block to ``advance``."""
    entered = _outer.set(advance)
    try:
        yield
    finally:
        _outer.reset(entered)


@contextmanager
def _shown(label: str, total: int, patience: float) -> Iterator[Callable[..., None]]:
    """Yield the function that updates a new bar on the terminal."""
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(*Progress.get_default_columns(), "{task.fields[note]}", console=Console(stderr=True))
    task = progress.add_task(label, total=total or None, note="")
    appearance = _Appearance(progress, patience)

    def update(**changes: Any) -> None:
        appearance.wait()
        progress.update(task, **changes)

    try:
        yield update
    finally:
        appearance.end()


class _Appearance:
    """Starts a bar after its patience; if a step lasts longer than that, from a thread of a timer."""

    def __init__(self, progress: RichProgress, patience: float) -> None:
        self._progress = progress
        self._patience = patience
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._state: Literal["waiting", "shown", "over"] = "waiting"
        self._timer = threading.Timer(patience, self._start)
        self._timer.daemon = True  # must not keep the program from ending
        self._timer.start()

    def wait(self) -> None:
        """Start the bar if its patience is over."""
        if self._state == "waiting" and time.monotonic() - self._began > self._patience:
            self._start()

    def end(self) -> None:
        """Stop the bar, and never start it again."""
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
    """Yield a callback ``(step, objective, relative_gradient)`` for minimisers with an unknown number of steps."""
    _begin_polish()
    with bar(label, total=0) as advance:

        def show(step: int, objective: float, relative: float) -> None:
            note_loss(objective)
            advance(f"step {step}, objective {objective:.6g}, gradient {relative:.1e}")

        yield show
