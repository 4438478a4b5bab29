"""``vhat audit``."""

from __future__ import annotations

import re
from math import isnan
from typing import TYPE_CHECKING, Annotated

import typer

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
        words = _in_options(". ".join(filter(None, (line.meaning, line.remedy))))
        told = f"[bold]{line.name}[/]{escape(_measured(line))}\n[dim]{escape(words[:1].upper() + words[1:])}[/]"
        table.add_row(f"[{_COLOURS[line.verdict]}]{line.verdict}[/]", told)
    return table


_OPTIONS = {
    "audit(refits=10)": "--refits 10",
    " Where training was stopped early, fitted.linearised(validation=(X, y)) takes the network as it is. Where it was "
    "to reach a minimum, train longer or call fitted.polish().": " Fit with --recipe minimum.",
    "fitted.linearised(validation=(X, y)) takes the model as it is.": "Fit with --activation tanh and --recipe "
    "minimum.",
    " Pass the optimiser's weight_decay all the same: linearised() takes its proportions between parameters only, and "
    "finds the size of lam itself.": "",
    "bound='asymptotic'": "--bound asymptotic",
    'Give noise=, one number per row; or fit with sample_weight=1/noise^2 and noise="weights".': "Add a "
    "column of 1/noise^2, fit with --weights COLUMN, and give --noise weights.",
    "fitted.calibrate(...)": "vhat calibrate",
    "noise=": "--noise",
    "weight_decay": "--weight-decay",
}
"""What is Python in a line's advice, and what it is called here."""
_PYTHON = re.compile("|".join(map(re.escape, _OPTIONS)))


def _in_options(advice: str) -> str:
    """Name the options of the command line in advice that is written for Python."""
    return _PYTHON.sub(lambda found: _OPTIONS[found[0]], advice)


def _measured(line: Line) -> str:
    if isnan(line.value):
        return ""
    return f"  {line.value:.3g}" + ("" if isnan(line.threshold) else f" against {line.threshold:.3g}")
