"""``vhat report``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vhat.cli.application import command
from vhat.cli.options import Force, Model, Noise, Quiet, Seed, Separator, noise_level
from vhat.cli.terminal import note, silence
from vhat.errors import InputError, TableWarning

if TYPE_CHECKING:
    from vhat.cli.training_rows import Rows
    from vhat.estimator import NetworkRegressor


@command("vhat report model --held-out test.csv --out report.html")
def report(
    directory: Model,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("report.html"),
    held_out: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Table that training did not see, to judge the intervals by."),
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
    from vhat.estimator import report as reported
    from vhat.report import Options, refuse_existing

    refuse_existing(out, force=force)
    level = noise_level(noise)
    network = saved_models.load(directory)
    pair, rows = None, None
    if held_out is not None:
        with silence(quiet):
            kept = _read(network, held_out, _target(network, target), separator)
        pair, rows = (kept.X if hasattr(network, "feature_names_in_") else kept.X.to_numpy(), kept.y), kept.names
    name = f"{target or network.target_name_ or 'y'}" + (f" ({unit})" if unit else "")
    with silence(quiet), warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # rows of the table were counted where it was read
        options = Options(delta, pair, name, level, max_unsupported, refits, seed, rows)
        written = reported.write(network, out, options, force=force)
    if not quiet:
        note(
            f"Written to {written} ({written.stat().st_size / 1024:,.0f} kB). Open it in a browser; it fetches nothing."
        )


def _target(network: NetworkRegressor, asked: str | None) -> str:
    """Return the column of held-out rows that holds what was observed.

    Raises:
        InputError: When neither the user nor the model names it, and when it is a column that the model takes.
    """
    called = network.target_name_
    if asked is None:
        if called is None:
            raise InputError("--held-out needs --target: the column of that table that holds what was observed.")
        return called
    if asked in map(str, getattr(network, "feature_names_in_", ())):
        raise InputError(f"--target {asked} is among the columns that the model takes. Name the one that it predicts.")
    return asked


def _read(network: NetworkRegressor, held_out: str, target: str, separator: str | None) -> Rows:
    """Return the held-out rows, with the columns that the model takes."""
    from vhat.cli import saved_models
    from vhat.cli.predict_stream import Tally
    from vhat.cli.training_rows import Rows
    from vhat.tables.files import open_table, read_all, require_columns

    table = open_table(held_out, separator)
    called = network.target_name_
    named = "which the model was fitted to (--target names another)"
    require_columns(table, [target], named if target == called else "which --target names")
    if called is not None and target != called:
        note(
            f"warning: the model was fitted to {called!r} and is judged by {target!r}. Unless that is the same "
            "quantity in the same unit, the calibration on the page means nothing."
        )
    names = list(saved_models.input_columns(network, table))
    chunk = read_all(table, [*names, target])
    tally = Tally()
    rows = Rows.judging(network, chunk, names, target, tally.filled)
    tally.note_moved(network, chunk, rows.X)
    for sentence in [*tally.told_moved(table), *rows.told(network, tally.filled, table.name)]:
        note(sentence)
    return rows
