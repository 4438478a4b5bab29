"""``vhat report``."""

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
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("report.html"),
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Table that training did not see, to judge the intervals by; by default what --hold-out kept apart.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The target's column in that table, and its name on the page; the model's by default.",
        ),
    ] = None,
    unit: Annotated[str | None, typer.Option(metavar="TEXT", help="The unit of the target, for the axes.")] = None,
    delta: Annotated[
        float, typer.Option(metavar="NUMBER", help="Probability of a miss: 0.05 asks for 95% confidence.")
    ] = 0.05,
    noise: Noise = None,
    max_unsupported: Annotated[
        float, typer.Option(metavar="SHARE", help="Above this unsupported share a prediction is listed as abstained.")
    ] = 0.5,
    refits: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", min=0, help="Refits under redrawn responses, which probe whether the minimum is followed."
        ),
    ] = 0,
    seed: Seed = 0,
    separator: Separator = None,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Write one HTML file about a model: its audit, intervals, calibration, and what its predictions lean on.

    The file is complete: it opens without a network, on a phone, in the dark, and on paper.
    """
    from vhat.cli import saved_models
    from vhat.cli.advice import AUDIT, in_options
    from vhat.estimator import report as reported
    from vhat.estimator.sketch_of import refuse_sketched
    from vhat.report import Options, refuse_existing

    for option, text in (("--unit", unit), ("--target", target)):
        checked_text(option, text)
    refuse_existing(out, force=force)
    level = noise_level(noise)
    network = saved_models.load(directory)
    refuse_sketched(network, "vhat report")
    pair, rows = None, None
    if held_out is not None:
        with silence(quiet):
            kept = read_held_out(network, held_out, held_out_target(network, target), separator)
        pair, rows = (kept.X if hasattr(network, "feature_names_in_") else kept.X.to_numpy(), kept.y), kept.names
    name = f"{target or network.target_name_ or 'y'}" + (f" ({unit})" if unit else "")
    with silence(quiet), warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # rows of the table were counted where it was read
        options = Options(
            delta, pair, name, level, max_unsupported, refits, seed, rows, partial(in_options, names=AUDIT)
        )
        written = reported.write(network, out, options, force=force)
    if not quiet:
        note(
            f"Written to {written} ({written.stat().st_size / 1024:,.0f} kB). Open it in a browser; it fetches nothing."
        )
