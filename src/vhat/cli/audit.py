"""``vhat audit``."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Annotated

import typer

from vhat.cli.advice import AUDIT, in_options
from vhat.cli.application import CANNOT_ANSWER, command
from vhat.cli.audit_warnings import look_at
from vhat.cli.options import Json, Model, Noise, Quiet, noise_level
from vhat.cli.terminal import print_json, show, silence

if TYPE_CHECKING:
    from rich.table import Table

    from vhat.evidence.audit import Audit, Line

_COLOURS = {"holds": "green", "fails": "bold red", "undecided": "yellow", "assumed": "cyan", "noted": "dim"}


@command("vhat audit model")
def audit(
    directory: Model,
    refits: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", min=0, help="Refits under redrawn responses, which probe whether the minimum is followed."
        ),
    ] = 0,
    noise: Noise = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check what the intervals of a model assume, one line an assumption.

    The exit code is 0 when nothing that can be tested fails, and 3 otherwise.
    """
    from vhat.cli import saved_models

    level = noise_level(noise)
    with silence(quiet):
        found = saved_models.load(directory).audit(noise=level, refits=refits)
    if json:
        print_json({"holds": found.holds, "lines": [vars(line) for line in found]})
    else:
        show(_shown(found))
    if not found.holds:
        raise typer.Exit(CANNOT_ANSWER)


def _shown(found: Audit) -> Table:
    """The audit for a terminal of any width: the verdicts in a column of their own, the words beneath the numbers."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=f"Audit: {look_at(found)}", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    table.add_column(no_wrap=True)
    table.add_column()
    for line in found:
        words = in_options(". ".join(filter(None, (line.meaning, line.remedy))), AUDIT)
        told = f"[bold]{line.name}[/]{escape(_measured(line))}\n[dim]{escape(words[:1].upper() + words[1:])}[/]"
        table.add_row(f"[{_COLOURS[line.verdict]}]{line.verdict}[/]", told)
    return table


def _measured(line: Line) -> str:
    if isnan(line.value):
        return ""
    return f"  {line.value:.3g}" + ("" if isnan(line.threshold) else f" against {line.threshold:.3g}")
