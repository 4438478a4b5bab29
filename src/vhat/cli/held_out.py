"""Tables of held-out rows, for the commands that judge or calibrate a model by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vhat.cli.terminal import note
from vhat.errors import InputError

if TYPE_CHECKING:
    from vhat.cli.training_rows import Rows
    from vhat.estimator import NetworkRegressor

__all__ = ["held_out_target", "read_held_out"]


def held_out_target(network: NetworkRegressor, asked: str | None) -> str:
    """Return the column of held-out rows that holds what was observed.

    Raises:
        InputError: When neither the user nor the model names it, and when it is a column that the model takes.
    """
    called = network.target_name_
    if asked is None:
        if called is None:
            raise InputError(
                "--target is needed: the model does not say which column of the held-out table holds what was observed."
            )
        return called
    if asked in map(str, getattr(network, "feature_names_in_", ())):
        raise InputError(f"--target {asked} is among the columns that the model takes. Name the one that it predicts.")
    return asked


def read_held_out(network: NetworkRegressor, held_out: str, target: str, separator: str | None) -> Rows:
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
    tally.count_moved(network, chunk, rows.X)
    tally.count_far(network, chunk, rows.X)
    for sentence in [
        *tally.moved_warnings(table),
        *tally.far_warnings(table),
        *rows.told(network, tally.filled, table.name),
    ]:
        note(sentence)
    return rows
