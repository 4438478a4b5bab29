"""The command ``vhat``: numerical libraries are imported by the commands that need them, not for help."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vhat.errors import VhatError
from vhat.study.commands import app as study

__all__ = ["app"]


class _Sentences(TyperGroup):
    """A command group in which an error of the library is one sentence and exit code 2, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; let errors through untouched under ``--debug``."""
        try:
            return super().invoke(ctx)
        except VhatError as error:
            if ctx.params.get("debug"):
                raise
            print(f"vhat: {error}", file=sys.stderr)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Sentences,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Confidence intervals for the predictions of any differentiable regression model.",
)


def _version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        from importlib.metadata import version

        print(f"vhat {version('vhat')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Hold the options of every command; their work is done by their callbacks and by the group."""


app.add_typer(study, name="study")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the picture; made where it does not exist.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Draws the truth, the data and the network.")] = 0,
) -> None:
    """Fit a network to about 100 points with a gap, certify the minimum, and draw its confidence band."""
    from rich.console import Console

    from vhat.demo import show

    # A file or a pipe has no width of its own; rich's 80 columns would squeeze the audit.
    show(out, seed=seed, console=Console(width=None if sys.stdout.isatty() else 110))


if __name__ == "__main__":
    app()
