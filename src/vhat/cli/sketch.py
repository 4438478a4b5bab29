"""The command ``vhat sketch``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vhat.cli.application import command
from vhat.cli.options import Force, Json, Model, Quiet
from vhat.cli.terminal import note, print_json, silence


@command("vhat sketch model --out deployed")
def sketch(
    directory: Model,
    out: Annotated[Path, typer.Option(metavar="DIRECTORY", help="A new or empty directory to save it to.")],
    probes: Annotated[
        int, typer.Option(metavar="NUMBER", help="Number of random probes, for a model of more than 2,000 parameters.")
    ] = 256,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the random probes.")] = 0,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Make a copy of a model without its training rows, for deployment.

    It gives the same intervals: exactly for up to 2,000 parameters, by random probes for larger models.

    vhat predict and vhat calibrate accept it like a model. It holds parameters, noise level, calibration and audit, and
    no row of the training table. The cost of an interval does not depend on the number of training rows.
    """
    from vhat.cli import saved_models
    from vhat.estimator.sketch_of import sketch_of

    saved_models.check_place(out, force=force)
    network = saved_models.load(directory)
    with silence(quiet):
        made = network.sketch(probes, seed=seed)
        made.save(out)
        saved = sketch_of(made)
        assert saved is not None
        drawn = saved.probes
        how = "exactly as the model has them" if drawn is None else f"with V from {drawn:,} random probes"
        note(f"Saved {out}: intervals {how}, without the training rows of {directory}.")
    if json:
        print_json({"sketch": str(out), "model": str(directory), "probes": drawn})
