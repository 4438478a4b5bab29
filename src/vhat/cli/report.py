"""The command ``vhat report``."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from vhat.cli.application import command
from vhat.cli.held_out import held_out_target, read_held_out
from vhat.cli.options import Force, Model, Noise, Quiet, Seed, Separator, checked_text, noise_level
from vhat.cli.terminal import note, silence
from vhat.errors import TableWarning


@command("vhat report model --held-out test.csv --out report.html")
def report(
    directory: Model,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file to write.")] = Path("report.html"),
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Table of rows that training did not use, to test the intervals; by default the rows of --hold-out.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of the target in that table, and its name on the page; by default that of the model.",
        ),
    ] = None,
    unit: Annotated[str | None, typer.Option(metavar="TEXT", help="Unit of the target, for the axes.")] = None,
    delta: Annotated[
        float, typer.Option(metavar="NUMBER", help="Probability of a miss: 0.05 asks for 95% confidence.")
    ] = 0.05,
    noise: Noise = None,
    max_unsupported: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Predictions with a larger unsupported share are listed as abstentions."),
    ] = 0.5,
    refits: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            min=0,
            help="Number of refits to perturbed targets, to test whether the fit moves with the noise as assumed.",
        ),
    ] = 0,
    seed: Seed = 0,
    separator: Separator = None,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Write an HTML report on a model: its audit, intervals, calibration, and the columns and rows that matter most.

    The report is one file. It needs no internet connection, adapts to phones and dark screens, and can be printed.
    """
    from vhat.cli import saved_models
    from vhat.cli.advice import AUDIT, in_options
    from vhat.estimator import report as estimator_report
    from vhat.estimator.sketch_of import refuse_sketched
    from vhat.report import Options, refuse_existing

    for option, text in (("--unit", unit), ("--target", target)):
        checked_text(option, text)
    refuse_existing(out, force=force)
    level = noise_level(noise)
    network = saved_models.load(directory)
    refuse_sketched(network, "vhat report")
    held_out_pair = None
    row_names = None
    if held_out is not None:
        with silence(quiet):
            rows = read_held_out(network, held_out, held_out_target(network, target), separator)
        inputs = rows.X if hasattr(network, "feature_names_in_") else rows.X.to_numpy()
        held_out_pair = (inputs, rows.y)
        row_names = rows.names
    name = target or network.target_name_ or "y"
    if unit:
        name = f"{name} ({unit})"
    with silence(quiet), warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # reading the table has printed the same warnings already
        options = Options(
            delta,
            held_out_pair,
            name,
            level,
            max_unsupported,
            refits,
            seed,
            row_names,
            partial(in_options, names=AUDIT),
        )
        written = estimator_report.write(network, out, options, force=force)
    if not quiet:
        size = written.stat().st_size / 1024
        note(f"Written to {written} ({size:,.0f} kB). Open it in a browser; no internet connection is needed.")
