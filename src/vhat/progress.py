"""Progress of long work: a bar on a terminal once it takes more than a moment, silence everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["bar", "steps_shown"]

_PATIENCE = 2.0


@contextmanager
def bar(label: str, total: int, patience: float = _PATIENCE) -> Iterator[Callable[[str], None]]:
    """Yield ``advance(note)``, to be called once a step.

    The bar appears only when standard error is a terminal and the work has lasted ``patience`` seconds.
    """
    if not sys.stderr.isatty():
        yield lambda _note: None
        return
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(*Progress.get_default_columns(), "{task.fields[note]}", console=Console(stderr=True))
    task = progress.add_task(label, total=total, note="")
    began, shown = time.monotonic(), False

    def advance(note: str) -> None:
        nonlocal shown
        if not shown and time.monotonic() - began > patience:
            progress.start()
            shown = True
        progress.update(task, advance=1, note=note)

    try:
        yield advance
    finally:
        if shown:
            progress.stop()


@contextmanager
def steps_shown(label: str) -> Iterator[Callable[[int, float, float], None]]:
    """Yield a callback ``(step, objective, relative_gradient)`` for minimisers whose end is not known beforehand."""
    with bar(label, total=0) as advance:
        yield lambda step, objective, relative: advance(
            f"step {step}, objective {objective:.6g}, gradient {relative:.1e}"
        )
