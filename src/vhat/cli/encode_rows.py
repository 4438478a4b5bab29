"""Encode new rows as inputs of a model, chunk by chunk, and count cells that the training table does not explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vhat.errors import InputError, calling_rows

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from vhat.estimator import NetworkRegressor
    from vhat.tables.columns import Columns, Encoded
    from vhat.tables.files import Chunk
    from vhat.tables.row_names import RowNames

__all__ = ["Filled", "encode_rows"]


@dataclass
class Filled:
    """Cells that had to be filled in, over all chunks of a table: missing cells and levels that training never saw.

    Attributes:
        cells: By status and column: the number of rows, and the name of the first row.
    """

    cells: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def note(self, encoded: Encoded, names: RowNames) -> None:
        """Count the filled cells of some rows.

        Args:
            encoded: The rows, encoded.
            names: The names of the rows in messages.
        """
        from vhat.tables.columns import MISSING, UNKNOWN

        for status, found in ((MISSING, encoded.missing), (UNKNOWN, encoded.unknown)):
            for name, rows in found.items():
                count, first = self.cells.get((status, name), (0, names[int(rows.argmax())]))
                self.cells[status, name] = (count + int(rows.sum()), first)

    def warnings(self, columns: Columns, table: str, rows: int) -> list[str]:
        """Return one warning per column with filled cells.

        Args:
            columns: The columns of the model.
            table: The name of the table in messages.
            rows: The number of its rows.
        """
        warnings = []
        for (status, name), (count, first) in self.cells.items():
            text = (
                f"warning: column {name!r} {_CAUSES[status]} in {_row_count(count, rows)} of {table} "
                f"(first in {first}): {_replacement(columns, name)}, and the interval does not allow for this. The "
                f"status of such rows is {status!r}."
            )
            if count == rows > 1:
                text += " Check that it is the column of the training table."
            warnings.append(text)
        return warnings


def _row_count(count: int, rows: int) -> str:
    """Return a number of rows in words."""
    if count == rows > 1:
        return f"all {rows:,} rows"
    return "1 row" if count == 1 else f"{count:,} rows"


_CAUSES = {
    "missing cell": "is missing, as in no training row,",
    "unknown level": "holds a level that training never saw",
}
"""Why a cell was filled in, by the status of its row."""


def _replacement(columns: Columns, name: str) -> str:
    """Return a clause that says what replaces such a cell."""
    from vhat.tables.columns.kinds import Category

    column = columns[name]
    if not isinstance(column, Category):
        return "the median of the training rows replaces it"
    if column.rest:
        return "such rows are predicted like those of the rare levels"
    return "an average level replaces it"


def encode_rows(
    network: NetworkRegressor, chunk: Chunk, names: Sequence[str], filled: Filled
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return rows encoded as inputs of a model, and the status of each row, empty where nothing was filled in.

    Args:
        network: The model.
        chunk: Rows as they are in the file.
        names: The columns that the model takes.
        filled: The record of filled cells, which is updated.

    Raises:
        InputError: For cells that cannot be read, with the place of the first one.
    """
    import numpy as np
    import pandas as pd

    from vhat.cli.training_rows import frame_of, row_names
    from vhat.tables.columns import Wording

    columns = network.columns_
    if columns is None or columns.plain:
        try:  # numbers without gaps need no encoding
            numbers = pd.DataFrame(chunk.numbers(names), columns=list(names))
        except InputError:
            if columns is None:
                raise
        else:
            return numbers, np.full(len(numbers), "", dtype=object)
    called = row_names(chunk)
    with calling_rows(called):
        encoded = columns.encode(frame_of(chunk, names), Wording(chunk.table, command=True))
    filled.note(encoded, called)
    return pd.DataFrame(encoded.numbers, columns=list(encoded.names)), encoded.status
