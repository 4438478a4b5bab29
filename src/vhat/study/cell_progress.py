"""Progress inside a cell: reports of the cell's process, and their display by the run that started it."""

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
"""Start of those lines on standard error that are reports. The ASCII record separator occurs in no message."""
_REPORT_SECONDS = 0.5
"""Least time between two reports of one cell, in seconds."""
_LINE_SECONDS = 60.0
"""Least time between two lines about one cell without a terminal, in seconds."""
_TRAINING_LABELS = ("AdamW", "Adam", "warm-up")
"""Labels of the progress bars that count chunks of training steps."""


@dataclass(frozen=True)
class Report:
    """Progress of a cell.

    Attributes:
        fits: Number of fits done.
        of: Number of fits of the cell.
        doing: The current task, with its own steps.
        share: Share of the training that is done, between 0 and 1.
        left: Estimated time for the rest of the training, in seconds, without the intervals that follow; None while it
            is not known.
    """

    fits: int
    of: int
    doing: str
    share: float
    left: float | None

    def __str__(self) -> str:
        """Return the progress as one line of text."""
        parts = [f"{self.fits} of {self.of} fits done", self.doing]
        if self.left is not None:
            parts.append(f"about {duration(self.left)} of training left")
        return ", ".join(parts)


class FitCounter:
    """A listener to the progress bars of one cell, which turns their steps into reports.

    Args:
        fits: Number of fits of the cell.
        report: Called with a report, at most twice a second.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, fits: int, report: Callable[[Report], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._of = fits
        self._report = report
        self._clock = clock
        self._done = 0
        self._chunk = 0  # last chunk of the current fit
        self._trained = 0.0  # number of fits trained here; cached fits took no time
        self._began = clock()
        self._last = -float("inf")

    def __call__(self, label: str, step: int, total: int, note: str) -> None:
        """Update the counts after one step of one progress bar, and report them.

        Args:
            label: Label of the bar.
            step: Number of the step.
            total: Number of steps; 0 if it is not known.
            note: Text beside the bar.
        """
        share = self._share_after(label, step, total)
        now = self._clock()
        if now - self._last < _REPORT_SECONDS:
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

    def _share_after(self, label: str, step: int, total: int) -> float:
        """Update the counts, and return the share of the training that is done."""
        if label in _TRAINING_LABELS and total:
            if step <= self._chunk:  # a new fit has begun
                self._done = min(self._done + 1, self._of - 1)
                self._chunk = 0
            self._trained += (step - self._chunk) / total
            self._chunk = step
            return (self._done + step / total) / self._of
        if label == "fits":
            self._done = max(self._of - total + step, step)
            self._chunk = 0
            return self._done / self._of
        # Another task comes after the training of the current fit, if one has begun.
        begun = 1 if self._chunk else 0
        return min(self._done + begun, self._of) / self._of


def send(report: Report, to: TextIO) -> None:
    """Write a report as one line that :func:`parse` reads."""
    to.write(f"{_MARK}{json.dumps(asdict(report))}\n")
    to.flush()


def parse(line: str) -> Report | None:
    """Return the report in a line; None for any other line."""
    if not line.startswith(_MARK):
        return None
    try:
        return Report(**json.loads(line.removeprefix(_MARK)))
    except (ValueError, TypeError):  # the line is incomplete: the process was killed
        return None


class Display:
    """Shows the running cells: a progress bar for each on a terminal, otherwise a line per minute.

    Args:
        say: Called with each line.
        live: Whether to show bars; None shows them if standard error is a terminal.
    """

    def __init__(self, say: Callable[[str], None], live: bool | None = None) -> None:
        self._say = say
        self._live = sys.stderr.isatty() if live is None else live
        self._lock = threading.Lock()  # every cell reports from its own thread
        self._last_line: dict[str, float] = {}  # time of the last line of each cell
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
        """Start to show a cell."""
        with self._lock:
            self._last_line[key] = time.monotonic()
            if self._bars is not None:
                self._tasks[key] = self._bars.add_task(key, total=1.0, note="begins")

    def show(self, key: str, report: Report) -> None:
        """Show the progress of a cell."""
        with self._lock:
            if self._bars is not None:
                if key in self._tasks:
                    self._bars.update(self._tasks[key], completed=report.share, note=str(report))
                return
            now = time.monotonic()
            if now - self._last_line.get(key, now) >= _LINE_SECONDS:
                self._last_line[key] = now
                self._say(f"{key}: {report}")

    def end(self, key: str) -> None:
        """Stop showing a cell."""
        with self._lock:
            self._last_line.pop(key, None)
            task = self._tasks.pop(key, None)
            if self._bars is not None and task is not None:
                self._bars.remove_task(task)


def duration(seconds: float) -> str:
    """Return a time in seconds as short text.

    Examples:
        >>> duration(20.4), duration(150.0), duration(7300.0)
        ('20 s', '2 min', '2 h 2 min')
    """
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
