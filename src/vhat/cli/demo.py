"""``vhat demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vhat.cli.application import command
from vhat.cli.options import Seed
from vhat.cli.terminal import console


@command("vhat demo --out demo")
def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the picture; made where it does not exist.")
    ] = Path("demo"),
    seed: Seed = 0,
) -> None:
    """Fit a network to about 100 points with a gap, certify the minimum, and draw its confidence band."""
    from vhat.study.demo import show

    show(out, seed=seed, console=console(page=110))  # rich's 80 columns would squeeze its audit
