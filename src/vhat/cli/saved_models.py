"""Load saved models, check where to save them, and find the columns that they take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vhat.errors import InputError

if TYPE_CHECKING:
    from vhat.estimator import NetworkRegressor
    from vhat.tables.files import TableFile

__all__ = ["check_place", "input_columns", "load"]


def load(directory: Path) -> NetworkRegressor:
    """Load a model that ``vhat fit`` saved.

    Raises:
        StoreError: If there is none, or it is something else, was saved by a newer version, or is damaged.
    """
    from vhat.estimator import NetworkRegressor

    return NetworkRegressor.load(directory)


def check_place(directory: Path, *, force: bool) -> None:
    """Check that a model can be saved to a directory, before training starts.

    Raises:
        InputError: If it is a file, holds something else, or holds a model and ``force`` is not given.
    """
    if directory.exists() and not directory.is_dir():
        raise InputError(f"--out {directory} is a file; a model is saved as a directory. Give another name.")
    if (directory / "vhat.json").exists():
        if not force:
            raise InputError(f"--out {directory} holds a model already. Give another name, or --force to replace it.")
    elif directory.exists() and any(directory.iterdir()):
        raise InputError(f"--out {directory} is not empty and holds no model. Give a new directory.")


def input_columns(network: NetworkRegressor, table: TableFile) -> tuple[str, ...]:
    """Return the columns of a table that the model takes, in the order of training: by name, or all if it has no names.

    Raises:
        InputError: Naming the missing columns.
    """
    from vhat.tables.files import require_columns

    names = getattr(network, "feature_names_in_", None)
    if names is not None:
        needed = tuple(map(str, names)) if network.columns_ is None else network.columns_.needed
        require_columns(table, needed, "which the model was trained with")
        return needed
    if len(table.columns) != network.n_features_in_:
        raise InputError(
            f"the model was trained with {network.n_features_in_} columns without names, and {table.name} has "
            f"{len(table.columns)}. Give a table with these columns alone, in the order of the training table."
        )
    return table.columns
