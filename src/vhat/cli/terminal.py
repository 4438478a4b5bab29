"""What commands print, and where: results on standard output, everything else on standard error."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, Any

from vhat.cli.orderly_end import output_in_words

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = ["console", "facts", "note", "on_terminal", "print_json", "show", "silence", "write_utf8"]

_WIDTH = 100
"""Of a file or a pipe, which have no width of their own."""


def console(page: int = _WIDTH) -> Console:
    """Return the terminal, or standard output as a page of that width."""
    from rich.console import Console

    return Console(width=None if on_terminal() else page, highlight=False)


def write_utf8() -> None:
    """Write standard output as UTF-8 into files and pipes, and no character that a terminal cannot show.

    Windows has a code page of 256 characters for files and pipes, in which names of columns, minus signs and frames of
    tables may be missing: printing them would end the program. Tables go to standard output as UTF-8 in any case. An
    encoding that ``PYTHONIOENCODING`` asks for is kept.
    """
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper) or os.environ.get("PYTHONIOENCODING"):
        return
    if stream.isatty():
        stream.reconfigure(errors="replace")
    else:
        stream.reconfigure(encoding="utf-8")


def show(content: RenderableType) -> None:
    """Print on the terminal, or as text without blanks at the ends of lines."""
    if on_terminal():
        console().print(content)
        return
    page = console()
    with page.capture() as captured:
        page.print(content)
    with output_in_words():
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def on_terminal() -> bool:
    """Whether a person is reading standard output."""
    return sys.stdout is not None and sys.stdout.isatty()


def note(text: str) -> None:
    """Say something that is no result, on standard error."""
    from rich.console import Console

    page = Console(stderr=True, width=None if sys.stderr.isatty() else _WIDTH, highlight=False)
    with page.capture() as captured:
        page.print(text, markup=False)
    # By print: while a progress bar is shown, rich has put itself in the place of sys.stderr and writes above the bar.
    print(captured.get(), end="", file=sys.stderr)


def facts(title: str, entries: Mapping[str, str]) -> Table:
    """Return what was done, one line a fact."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in entries.items():
        table.add_row(name, escape(text))
    return table


def print_json(content: Any) -> None:
    """Print one JSON document; what is not finite is null."""
    with output_in_words():
        print(json.dumps(_plain(content), indent=2, ensure_ascii=False))


def _plain(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if hasattr(content, "item"):  # a NumPy scalar
        content = content.item()
    return None if isinstance(content, float) and not math.isfinite(content) else content


@contextmanager
def silence(wanted: bool) -> Iterator[None]:
    """Keep notes, warnings and progress from standard error while ``wanted``; errors leave the block and are shown."""
    if not wanted:
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield
