"""Printing: results go to standard output, everything else to standard error."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, Any

from vhat.cli.orderly_end import explain_output_errors

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = ["console", "facts", "note", "on_terminal", "print_json", "show", "silence", "write_utf8"]

_WIDTH = 100
"""Width of text in a file or a pipe, in characters."""


def console(page: int = _WIDTH) -> Console:
    """Return a console for standard output: of the width of the terminal, or of ``page`` characters elsewhere."""
    from rich.console import Console

    return Console(width=None if on_terminal() else page, highlight=False)


def write_utf8() -> None:
    """Encode standard output as UTF-8 in files and pipes, and replace characters that a terminal cannot show.

    Windows encodes files and pipes by a code page of 256 characters, in which names of columns, minus signs and frames
    of tables may be missing; printing these would raise an error. An encoding set by ``PYTHONIOENCODING`` is kept.
    """
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper) or os.environ.get("PYTHONIOENCODING"):
        return
    if stream.isatty():
        stream.reconfigure(errors="replace")
    else:
        stream.reconfigure(encoding="utf-8")


def show(content: RenderableType) -> None:
    """Print a table or text to standard output. In a file or a pipe, lines have no trailing blanks."""
    if on_terminal():
        console().print(content)
        return
    page = console()
    with page.capture() as captured:
        page.print(content)
    with explain_output_errors():
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def on_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def note(text: str) -> None:
    """Print a message to standard error."""
    from rich.console import Console

    page = Console(stderr=True, width=None if sys.stderr.isatty() else _WIDTH, highlight=False)
    with page.capture() as captured:
        page.print(text, markup=False)
    # print, not page.print: while a progress bar is shown, rich replaces sys.stderr and writes above the bar.
    print(captured.get(), end="", file=sys.stderr)


def facts(title: str, entries: Mapping[str, str]) -> Table:
    """Return a table of two columns: a name and a text per line."""
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
    """Print one JSON document. Numbers that are not finite become null."""
    with explain_output_errors():
        print(json.dumps(_plain(content), indent=2, ensure_ascii=False))


def _plain(content: Any) -> Any:
    """Return content of dicts, sequences and NumPy scalars in the types that JSON has."""
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if hasattr(content, "item"):  # a NumPy scalar
        content = content.item()
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


@contextmanager
def silence(wanted: bool) -> Iterator[None]:
    """Suppress notes, warnings and progress bars if ``wanted``. Errors are raised, and shown after the block."""
    if not wanted:
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield
