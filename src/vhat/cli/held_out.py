"""Read tables of held-out rows, for the commands that test or calibrate a model on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vhat.cli.terminal import note
from vhat.errors import InputError

if TYPE_CHECKING:
    from vhat.cli.training_rows import Rows
    from vhat.estimator import NetworkRegressor

__all__ = ["held_out_target", "read_held_out"]


def held_out_target(network: NetworkRegressor, target_option: str | None) -> str:
    """Return the column of the target in a table of held-out rows.

    Args:
        network: The model.
        target_option: The option ``--target``, or None.

    Raises:
        InputError: If neither the user nor the model names it, or if it is an input of the model.
    """
    if target_option is None:
        if network.target_name_ is None:
            raise InputError(
                "--target is needed: the model does not know which column of the held-out table is the target."
            )
        return network.target_name_
    if target_option in map(str, getattr(network, "feature_names_in_", ())):
        raise InputError(
            f"--target {target_option} is among the columns that the model takes. Name the one that it predicts."
        )
    return target_option


def read_held_out(network: NetworkRegressor, held_out: str, target: str, separator: str | None) -> Rows:
    """Return the held-out rows with the columns that the model takes, and print warnings about them.

    Rows far outside the training range are not among these: the test or calibration names them.

    Args:
        network: The model.
        held_out: The file of the rows.
        target: The column of the target.
        separator: The character between the columns of a CSV file, or None.
    """
    from vhat.cli import saved_models
    from vhat.cli.predict_stream import Tally
    from vhat.cli.training_rows import Rows
    from vhat.tables.files import open_table, read_all, require_columns

    table = open_table(held_out, separator)
    fitted_target = network.target_name_
    if target == fitted_target:
        require_columns(table, [target], "which the model was fitted to (--target names another)")
    else:
        require_columns(table, [target], "which --target names")
    if fitted_target is not None and target != fitted_target:
        note(
            f"warning: the model was fitted to {fitted_target!r} and is tested on {target!r}. Unless both are the same "
            "quantity in the same unit, the results for these rows mean nothing."
        )
    names = list(saved_models.input_columns(network, table))
    chunk = read_all(table, [*names, target])
    tally = Tally()
    rows = Rows.judging(network, chunk, names, target, tally.filled)
    tally.count_moved(network, chunk, rows.X)
    for text in [
        *tally.moved_warnings(table),
        *rows.warnings(network, tally.filled, table.name),
    ]:
        note(text)
    return rows
