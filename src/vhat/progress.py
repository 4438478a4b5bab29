"""Progress of long work: a bar on a terminal once it takes more than a moment, silence everywhere else."""

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

Listener = Callable[[str, int, int, str], None]
"""Called with the label of a bar, its step, its total (0 where it is not known) and the note."""
_outer: ContextVar[Listener | None] = ContextVar("outer", default=None)
"""How work within a bar tells its progress there: a terminal has room for one bar."""
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
        yield lambda note: outer(label, next(steps), total, note)
        return
    if not _on_terminal():
        yield lambda _note: None
        return
    with _shown(label, total, patience) as update, _inner(lambda *inside: update(note=_told(*inside))):
        yield lambda note: update(advance=1, note=note)


@contextmanager
def overall(label: str, parts: Mapping[str, float], patience: float = _PATIENCE) -> Iterator[None]:
    """Show one bar, with the time left, for work that consists of several bars; the block advances it by them.

    Args:
        label: What is written before the bar.
        parts: The share of the work that the bars of each label are, in their order. Where several bars of one label
            follow one another, each is given half of what is left of its share: how many there are is not known.
        patience: As in :func:`bar`.
    """
    if _listener.get() is not None or _outer.get() is not None or not _on_terminal():
        yield
        return
    position = _Position(parts)
    with _shown(label, 1, patience) as update:

        def advance(inside: str, step: int, total: int, note: str) -> None:
            if inside in parts:  # others last a moment each: their notes would only flicker
                update(completed=position.after(inside, step, total), note=_told(inside, step, total, note))

        with _inner(advance):
            yield
        update(completed=1, note="")


class _Position:
    """How much of some work is done, told by the steps of the bars within it."""

    def __init__(self, parts: Mapping[str, float]) -> None:
        whole = sum(parts.values())
        ends = list(accumulate(share / whole for share in parts.values()))
        self._spans = {name: (start, end) for name, start, end in zip(parts, [0.0, *ends], ends, strict=False)}
        self._label = ""
        self._last = 0
        self._start = 0.0
        self._room = 0.0
        self._done = 0.0

    def after(self, label: str, step: int, total: int) -> float:
        """Return the share that is done after a step of a bar."""
        start, end = self._spans[label]
        if label != self._label:
            self._start, self._room = start, (end - start) / 2
        elif step <= self._last:  # another bar of this label
            self._start, self._room = self._start + self._room, self._room / 2
        self._label, self._last = label, step
        self._done = max(self._done, self._start + self._room * min(step / max(total, 1), 1.0))
        return self._done


def _told(label: str, step: int, total: int, note: str) -> str:
    """Return the note that a bar within a bar is."""
    of = f"/{total}" if total else ""
    return f"{label} {step}{of}, {note}" if note else f"{label} {step}{of}"


@contextmanager
def _inner(advance: Listener) -> Iterator[None]:
    """Have the bars within the block tell their progress to ``advance``."""
    entered = _outer.set(advance)
    try:
        yield
    finally:
        _outer.reset(entered)


@contextmanager
def _shown(label: str, total: int, patience: float) -> Iterator[Callable[..., None]]:
    """Yield the function that updates a new bar of the terminal."""
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
