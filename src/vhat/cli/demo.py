"""The command ``vhat demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vhat.cli.application import command
from vhat.cli.options import Seed
from vhat.cli.terminal import console

_PAGE_WIDTH = 110
"""Characters per line of the output in a file: the table of the audit needs more than the 80 of rich."""


@command("vhat demo --out demo")
def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the picture; created if it does not exist.")
    ] = Path("demo"),
    seed: Seed = 0,
) -> None:
    """Show an example: fit a network to about 100 points with a gap, certify the minimum, and draw the band."""
    from vhat.study.demo import show

    show(out, seed=seed, console=console(page=_PAGE_WIDTH))
