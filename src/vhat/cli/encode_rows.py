"""New rows as a model sees them, chunk by chunk, and what is to be said of them."""

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
    """Cells of which training knew nothing, over all chunks of a table.

    Attributes:
        cells: By status and column, in how many rows, and where first.
    """

    cells: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def note(self, encoded: Encoded, names: RowNames) -> None:
        """Count the cells of some rows, which have these names."""
        from vhat.tables.columns import MISSING, UNKNOWN

        for status, found in ((MISSING, encoded.missing), (UNKNOWN, encoded.unknown)):
            for name, rows in found.items():
                count, first = self.cells.get((status, name), (0, names[int(rows.argmax())]))
                self.cells[status, name] = (count + int(rows.sum()), first)

    def told(self, columns: Columns, table: str, rows: int) -> list[str]:
        """Say of each column what was done.

        Args:
            columns: How the model reads columns.
            table: What the table is called.
            rows: How many rows it has.
        """
        return [
            f"warning: column {name!r} {_WHAT[status]} in {_of(count, rows)} of {table} (first in {first}): "
            f"{_rule(columns, name)}, and the interval does not know. The status says {status!r}."
            + (" Check that it is the column of the training table." if count == rows > 1 else "")
            for (status, name), (count, first) in self.cells.items()
        ]


def _of(count: int, rows: int) -> str:
    if count == rows > 1:
        return f"all {rows:,} rows"
    return "1 row" if count == 1 else f"{count:,} rows"


_WHAT = {"missing cell": "is missing, as in no training row,", "unknown level": "holds a level that training never saw"}


def _rule(columns: Columns, name: str) -> str:
    """Say what stands in for such a cell."""
    from vhat.tables.columns.kinds import Category

    column = columns[name]
    if isinstance(column, Category):
        return "such rows are predicted as the rare levels are" if column.rest else "an average level stands in for it"
    return "the median of training stands in for it"


def encode_rows(
    network: NetworkRegressor, chunk: Chunk, names: Sequence[str], filled: Filled
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return rows as the model sees them, and what is to be said of each: a status, or nothing.

    Args:
        network: The model.
        chunk: Rows as they stand in the file.
        names: The columns that the model takes.
        filled: Where cells are noted of which training knew nothing.

    Raises:
        InputError: For cells that cannot be read, naming the first one's place.
    """
    import numpy as np
    import pandas as pd

    from vhat.cli.training_rows import frame_of, row_names
    from vhat.tables.columns import Wording

    columns = network.columns_
    if columns is None or columns.plain:
        try:  # numbers without gaps need no reading
            numbers = pd.DataFrame(chunk.numbers(names), columns=list(names))
        except InputError:
            if columns is None:
                raise
        else:
            return numbers, np.full(len(numbers), "", dtype=object)
    called = row_names(chunk)
    with calling_rows(called):
        found = columns.encode(frame_of(chunk, names), Wording(chunk.table, command=True))
    filled.note(found, called)
    return pd.DataFrame(found.numbers, columns=list(found.names)), found.status
