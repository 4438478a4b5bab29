"""The rows of a table that a model learns from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vhat.cli.options import split
from vhat.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from vhat.tables.files import Chunk, TableFile
    from vhat.tables.row_names import RowNames

__all__ = ["Rows", "predictors"]


def predictors(table: TableFile, target: str, features: str | None, weights: str | None = None) -> list[str]:
    """Return the columns to learn from.

    Raises:
        InputError: For columns that are not there or have no name, and for the target among them.
    """
    from vhat.tables.files import require_columns

    require_columns(table, [target], "which --target names")
    if weights is not None:
        require_columns(table, [weights], "which --weights names")
    if features is None:
        names = [name for name in table.columns if name not in (target, weights)]
        if "" in names:
            raise InputError(
                f"{table.name}: column {table.columns.index('') + 1} has no name; pandas writes row numbers so. Name "
                "it or remove it, or say which columns to learn from: --features A,B,..."
            )
    else:
        names = list(dict.fromkeys(split(features, table.columns)))
        require_columns(table, names, "which --features names")
    if target in names:
        raise InputError(f"the target {target!r} is among the columns to learn from. Leave it out of --features.")
    if not names:
        raise InputError(f"{table.name} has no column to learn from beside the target {target!r}.")
    return names


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table to learn from or to judge by.

    Attributes:
        X: Inputs, with their names.
        y: The target.
        names: What the rows are called, as in messages about the table: by line or by row of the file.
        weights: How much each row counts, or None.
    """

    X: pd.DataFrame
    y: np.ndarray
    names: RowNames
    weights: np.ndarray | None = None

    @classmethod
    def read(cls, table: TableFile, names: list[str], target: str, weights: str | None = None) -> Rows:
        """Read a whole table.

        Raises:
            InputError: For no rows, and for what is not a finite number.
        """
        from vhat.tables.files import read_all

        wanted = [*names, target, *([] if weights is None else [weights])]
        return cls.of(read_all(table, wanted), names, target, weights)

    def counted(self) -> Rows:
        """The rows whose weight is not zero: no one learns from the others, or judges by them."""
        if self.weights is None or not self.weights.any():  # the fit refuses the latter in words
            return self
        return self._take(self.weights.nonzero()[0])

    @classmethod
    def of(cls, chunk: Chunk, names: list[str], target: str, weights: str | None = None) -> Rows:
        """Take rows that were read.

        Raises:
            InputError: For what is not a finite number.
        """
        import pandas as pd

        numbers = chunk.numbers([*names, target, *([] if weights is None else [weights])])
        X, y = pd.DataFrame(numbers[:, : len(names)], columns=names), numbers[:, len(names)]
        return cls(X, y, _names(chunk), None if weights is None else numbers[:, -1])

    def split(self, share: float, seed: int) -> tuple[Rows, Rows | None]:
        """Keep a random share of the rows apart.

        Raises:
            InputError: For a share that leaves nothing on one side.
        """
        import numpy as np

        if share == 0:
            return self, None
        count = round(share * len(self.y)) if 0 < share < 1 else 0
        if not 1 <= count <= len(self.y) - 2:
            raise InputError(f"--hold-out {share:g} of {len(self.y)} rows is no usable share; 0.2 keeps a fifth apart.")
        order = np.random.default_rng(seed).permutation(len(self.y))
        return self._take(np.sort(order[count:])), self._take(np.sort(order[:count]))

    def _take(self, rows: np.ndarray) -> Rows:
        weights = None if self.weights is None else self.weights[rows]
        return Rows(self.X.iloc[rows], self.y[rows], self.names.take(rows), weights)


def _names(chunk: Chunk) -> RowNames:
    from vhat.tables.row_names import RowNames

    counted = {"line": "as an editor counts them", "row": "counted from 1"}[chunk.noun]
    return RowNames(chunk.places, chunk.noun, f"their {chunk.noun} in {Path(chunk.table).name}, {counted}")
