"""``vhat calibrate``."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from vhat.cli.application import CANNOT_ANSWER, command
from vhat.cli.held_out import held_out_target, read_held_out
from vhat.cli.options import Json, Model, Quiet, Separator
from vhat.cli.terminal import note, print_json, silence
from vhat.errors import CalibrationWarning

_SOURCES = {
    "split": "{rows:,} held-out rows of {table}",
    "loo": "{rows:,} training rows, each left out in turn",
    "cv": "{rows:,} training rows, each by a refit without its fifth of them",
}


@command("vhat calibrate model held_out.csv")
def calibrate(
    directory: Model,
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="Table that training did not see; without, the training rows left out."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The target's column in that table; the model's by default.")
    ] = None,
    separator: Separator = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Calibrate the intervals of new observations by held-out rows, and save that with the model.

    vhat predict --interval observation then covers as often as it says for rows that are drawn like these, bias
    included. Rows that training saw are refused. Without DATA the model goes back to leave-one-out, which vhat fit has
    done already.
    """
    from vhat.cli import saved_models
    from vhat.estimator import calibration

    network = saved_models.load(directory)
    with silence(quiet):
        if data is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)  # it is said below
                network.calibrate()
        else:
            rows = read_held_out(network, data, held_out_target(network, target), separator)
            inputs = rows.X if hasattr(network, "feature_names_in_") else rows.X.to_numpy()
            calibration.calibrate(network, inputs, rows.y, rows.names)
        network.save(directory)
        found = network.calibrated_
        if found is None:
            note(f"warning: leave-one-out cannot calibrate this model: {network.not_calibrated_}.")
            raise typer.Exit(CANNOT_ANSWER)
        by = _SOURCES[found.source].format(rows=len(found.scores), table=data)
        note(f"Calibrated {directory} by {by}; delta from {found.finest:.3g} up. {found.guarantee}")
    if json:
        print_json(
            {"model": str(directory), "source": found.source, "rows": len(found.scores), "smallest_delta": found.finest}
        )
