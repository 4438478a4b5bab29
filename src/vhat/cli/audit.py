"""The command ``vhat audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vhat.cli.advice import AUDIT, in_options
from vhat.cli.application import CANNOT_ANSWER, command
from vhat.cli.audit_warnings import summary
from vhat.cli.options import Json, Model, Noise, Quiet, noise_level
from vhat.cli.terminal import print_json, show, silence

if TYPE_CHECKING:
    from rich.table import Table

    from vhat.evidence.audit import Audit, Line

_STYLES = {"holds": "green", "fails": "bold red", "undecided": "yellow", "assumed": "cyan", "noted": "dim"}


@command("vhat audit model")
def audit(
    directory: Model,
    refits: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            min=0,
            help="Number of refits to perturbed targets, to test whether the fit moves with the noise as assumed.",
        ),
    ] = 0,
    noise: Noise = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check the assumptions behind the intervals of a model, one line per assumption.

    The exit code is 0 if no assumption that can be tested fails, and 3 otherwise.
    """
    from vhat.cli import saved_models

    level = noise_level(noise)
    with silence(quiet):
        audit = saved_models.load(directory).audit(noise=level, refits=refits)
    if json:
        print_json({"holds": audit.holds, "lines": [vars(line) for line in audit]})
    else:
        show(_table(audit))
    if not audit.holds:
        raise typer.Exit(CANNOT_ANSWER)


def _table(audit: Audit) -> Table:
    """Return the audit as a table: the verdict in one column; name, value and explanation in the other."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=f"Audit: {summary(audit)}", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    table.add_column(no_wrap=True)
    table.add_column()
    for line in audit:
        words = in_options(". ".join(filter(None, (line.meaning, line.remedy))), AUDIT)
        explanation = words[:1].upper() + words[1:]
        text = f"[bold]{line.name}[/]{escape(_value(line))}\n[dim]{escape(explanation)}[/]"
        table.add_row(f"[{_STYLES[line.verdict]}]{line.verdict}[/]", text)
    return table


def _value(line: Line) -> str:
    """Return the value of a line and its threshold, as far as it has them."""
    value, threshold = line.numbers
    if not value:
        return ""
    if not threshold:
        return f"  {value}"
    return f"  {value} against {threshold}"
