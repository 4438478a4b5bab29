"""The command ``vhat calibrate``."""

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
    "cv": "{rows:,} training rows, each predicted by a refit without its fifth of them",
}
"""The rows of a calibration in words, by ``Calibrated.source``."""


@command("vhat calibrate model held_out.csv")
def calibrate(
    directory: Model,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]",
            help="Table of rows that training did not use; without it, the training rows, left out in turn.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of the target in that table; by default that of the model."),
    ] = None,
    separator: Separator = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Calibrate the intervals for new observations on held-out rows, and save the calibration with the model.

    Intervals of vhat predict --interval observation then cover as often as stated, for new rows from the same
    population as these rows. This includes the bias of the model. Rows that were used in training are refused. Without
    DATA, the model returns to the leave-one-out calibration that vhat fit has made.
    """
    from vhat.cli import saved_models
    from vhat.estimator import calibration

    network = saved_models.load(directory)
    with silence(quiet):
        if data is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)  # the note below says the same
                network.calibrate()
        else:
            rows = read_held_out(network, data, held_out_target(network, target), separator)
            inputs = rows.X if hasattr(network, "feature_names_in_") else rows.X.to_numpy()
            calibration.calibrate(network, inputs, rows.y, rows.names)
        network.save(directory)
        calibrated = network.calibrated_
        if calibrated is None:
            note(f"warning: leave-one-out cannot calibrate this model: {network.not_calibrated_}.")
            raise typer.Exit(CANNOT_ANSWER)
        rows_used = len(calibrated.scores)
        source = _SOURCES[calibrated.source].format(rows=rows_used, table=data)
        note(f"Calibrated {directory} by {source}; delta from {calibrated.finest:.3g} up. {calibrated.guarantee}")
    if json:
        print_json(
            {
                "model": str(directory),
                "source": calibrated.source,
                "rows": rows_used,
                "smallest_delta": calibrated.finest,
            }
        )
