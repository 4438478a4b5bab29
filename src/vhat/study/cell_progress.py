"""Progress inside a cell: what the process of a cell reports, and how the run that started it shows it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Display", "FitCounter", "Report", "duration", "parse", "send"]

_MARK = "\x1evhat progress "
"""Begins the lines of standard error that are reports; the ASCII record separator is in no message."""
_PAUSE = 0.5
"""Seconds between two reports of one cell."""
_QUIET = 60.0
"""Seconds between two lines about one cell where there is no terminal."""
_TRAINING = ("AdamW", "Adam", "warm-up")
"""Labels of the bars that count chunks of training steps."""


@dataclass(frozen=True)
class Report:
    """How far a cell is.

    Attributes:
        fits: Fits done.
        of: Fits of the cell.
        doing: What is under way, with its own steps.
        share: Share of the training that is done, between 0 and 1.
        left: Seconds that the rest of the training takes at this speed, without the intervals that follow; None while
            that is not known.
    """

    fits: int
    of: int
    doing: str
    share: float
    left: float | None

    def __str__(self) -> str:
        """One line."""
        parts = [f"{self.fits} of {self.of} fits done", self.doing]
        if self.left is not None:
            parts.append(f"about {duration(self.left)} of training left")
        return ", ".join(parts)


class FitCounter:
    """A listener to the bars of one cell, which makes reports of them.

    Args:
        fits: How many fits the cell has.
        report: Where reports go, no more than two a second.
        clock: Seconds, for the time that is left.
    """

    def __init__(
        self, fits: int, report: Callable[[Report], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._of = fits
        self._report = report
        self._clock = clock
        self._done = 0
        self._chunk = 0  # of the fit under way
        self._trained = 0.0  # fits trained here; those that were loaded took no time
        self._began = clock()
        self._last = -float("inf")

    def __call__(self, label: str, step: int, total: int, note: str) -> None:
        """Take in one step of one bar."""
        if label in _TRAINING and total:
            if step <= self._chunk:  # a new fit has begun
                self._done = min(self._done + 1, self._of - 1)
                self._chunk = 0
            self._trained += (step - self._chunk) / total
            self._chunk = step
            share = (self._done + step / total) / self._of
        elif label == "fits":
            self._done = max(self._of - total + step, step)
            self._chunk = 0
            share = self._done / self._of
        else:
            share = min(self._done + (1 if self._chunk else 0), self._of) / self._of
        now = self._clock()
        if now - self._last < _PAUSE:
            return
        self._last = now
        of = f"/{total}" if total else ""
        doing = f"{label} {step}{of}"
        if note:
            doing = f"{doing}, {note}"
        left = None
        if self._trained > 0 and share < 1:
            left = (now - self._began) / self._trained * (1 - share) * self._of
        self._report(Report(self._done, self._of, doing, share, left))


def send(report: Report, to: TextIO) -> None:
    """Write a report as one line, for :func:`parse`."""
    to.write(f"{_MARK}{json.dumps(asdict(report))}\n")
    to.flush()


def parse(line: str) -> Report | None:
    """Return the report that a line holds; None for any other line."""
    if not line.startswith(_MARK):
        return None
    try:
        return Report(**json.loads(line.removeprefix(_MARK)))
    except (ValueError, TypeError):  # cut off by a kill
        return None


class Display:
    """Shows the cells under way: a bar for each on a terminal, elsewhere a line a minute.

    Args:
        say: Where lines go.
        live: Whether to show bars; None asks whether standard error is a terminal.
    """

    def __init__(self, say: Callable[[str], None], live: bool | None = None) -> None:
        self._say = say
        self._live = sys.stderr.isatty() if live is None else live
        self._lock = threading.Lock()  # cells report from threads of their own
        self._said: dict[str, float] = {}
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Display:
        if self._live:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns: tuple[Any, ...] = (
                TextColumn("{task.description}"),
                BarColumn(20),
                TextColumn("{task.fields[note]}"),
            )
            self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, key: str) -> None:
        """Take up a cell."""
        with self._lock:
            self._said[key] = time.monotonic()
            if self._bars is not None:
                self._tasks[key] = self._bars.add_task(key, total=1.0, note="begins")

    def show(self, key: str, report: Report) -> None:
        """Show how far a cell is."""
        with self._lock:
            if self._bars is not None:
                if key in self._tasks:
                    self._bars.update(self._tasks[key], completed=report.share, note=str(report))
                return
            now = time.monotonic()
            if now - self._said.get(key, now) >= _QUIET:
                self._said[key] = now
                self._say(f"{key}: {report}")

    def end(self, key: str) -> None:
        """Let go of a cell."""
        with self._lock:
            self._said.pop(key, None)
            task = self._tasks.pop(key, None)
            if self._bars is not None and task is not None:
                self._bars.remove_task(task)


def duration(seconds: float) -> str:
    """Write seconds as a person would.

    Examples:
        >>> duration(20.4), duration(150.0), duration(7300.0)
        ('20 s', '2 min', '2 h 2 min')
    """
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
