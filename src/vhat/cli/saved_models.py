"""Models on disk and the columns that they need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vhat.errors import InputError

if TYPE_CHECKING:
    from vhat.estimator import NetworkRegressor
    from vhat.tables.files import TableFile

__all__ = ["check_place", "input_columns", "load"]


def load(directory: Path) -> NetworkRegressor:
    """Load what ``vhat fit`` has saved.

    Raises:
        StoreError: When it is not there, is something else, was saved by a newer version, or is damaged.
    """
    from vhat.estimator import NetworkRegressor

    return NetworkRegressor.load(directory)


def check_place(directory: Path, *, force: bool) -> None:
    """Refuse a place for a model before anything is trained for it.

    Raises:
        InputError: For a file, for a directory that holds something else, and for a model without ``force``.
    """
    if directory.exists() and not directory.is_dir():
        raise InputError(f"--out {directory} is a file; a model is saved as a directory. Give another name.")
    if (directory / "vhat.json").exists():
        if not force:
            raise InputError(f"--out {directory} holds a model already. Give another name, or --force to replace it.")
    elif directory.exists() and any(directory.iterdir()):
        raise InputError(f"--out {directory} is not empty and holds no model. Give a new directory.")


def input_columns(network: NetworkRegressor, table: TableFile) -> tuple[str, ...]:
    """Return the columns of a table that the model takes, in its order: by name, or all where it knows no names.

    Raises:
        InputError: Naming the columns that are missing.
    """
    from vhat.tables.files import require_columns

    names = getattr(network, "feature_names_in_", None)
    if names is not None:
        known = tuple(str(name) for name in names) if network.columns_ is None else network.columns_.needed
        require_columns(table, known, "which the model was trained with")
        return known
    if len(table.columns) != network.n_features_in_:
        raise InputError(
            f"the model was trained with {network.n_features_in_} columns without names, and {table.name} has "
            f"{len(table.columns)}. Give a table with these columns alone, in the order of the training table."
        )
    return table.columns
