"""Read Parquet files with pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError, MissingPackage
from vhat.tables.files.cells import Chunk

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ParquetFile", "arrow", "column_values", "open_parquet", "read_row_group", "row_groups"]


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file; see :class:`vhat.tables.files.TableFile`."""

    path: Path
    schema: pyarrow.Schema
    rows: int

    @property
    def name(self) -> str:
        """The path, for messages."""
        return str(self.path)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.schema.names)

    @property
    def rereadable(self) -> bool:
        """True: the file can be opened again."""
        return True

    @property
    def types(self) -> dict[str, Any]:
        """The type of each column, a type of pyarrow."""
        return dict(zip(self.schema.names, self.schema.types, strict=True))

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield some columns, ``rows`` rows at a time.

        A batch of pyarrow may end with a row group. Batches are therefore joined until they fill a chunk.
        """
        pyarrow, parquet = arrow()
        batches: list[Any] = []
        start = 0  # rows that earlier chunks hold
        try:
            with parquet.ParquetFile(self.path) as file:
                if not file.schema_arrow.equals(self.schema):
                    raise InputError(f"{self.name} was changed while it was read: it has other columns now. Ask again.")
                for batch in file.iter_batches(batch_size=rows, columns=list(columns)):
                    batches.append(batch)
                    while sum(map(len, batches)) >= rows:
                        table = pyarrow.Table.from_batches(batches)
                        yield self._chunk(table.slice(0, rows), columns, start)
                        batches = table.slice(rows).to_batches()
                        start += rows
            if sum(map(len, batches)):
                yield self._chunk(pyarrow.Table.from_batches(batches), columns, start)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{self.name} cannot be read as Parquet: {error}.") from None

    def count(self) -> int:
        """Return the number of rows, which the file states."""
        return self.rows

    def _chunk(self, table: pyarrow.Table, columns: Sequence[str], start: int) -> Chunk:
        """Return rows as a chunk; ``start`` rows come before them in the file."""
        values = {name: column_values(table.column(name)) for name in columns}
        return Chunk(values, np.arange(start + 1, start + 1 + len(table)), "row", self.name)


def column_values(column: Any) -> np.ndarray:
    """Return the values of a column unchanged, (rows,).

    The dtype is that of the column for numbers and booleans without missing values, and object for the rest.
    """
    pyarrow, _ = arrow()
    kinds = pyarrow.types
    known = (kinds.is_floating, kinds.is_integer, kinds.is_boolean)
    if not column.null_count and any(is_kind(column.type) for is_kind in known):
        values: np.ndarray = column.to_numpy()
        return values
    # As floats with NaN, an integer above 2^53 would change and a missing value could not be told from NaN.
    return np.fromiter(column.to_pylist(), dtype=object, count=len(column))


def open_parquet(path: Path) -> ParquetFile:
    """Read the columns, their types and the number of rows of a Parquet file."""
    pyarrow, parquet = arrow()
    try:
        with parquet.ParquetFile(path) as file:
            return ParquetFile(path, file.schema_arrow, int(file.metadata.num_rows))
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}.") from None


def row_groups(path: Path) -> list[int]:
    """Return the number of rows of each row group of a Parquet file."""
    pyarrow, parquet = arrow()
    try:
        with parquet.ParquetFile(path) as file:
            return [int(file.metadata.row_group(at).num_rows) for at in range(file.num_row_groups)]
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}.") from None


def read_row_group(path: Path, group: int, columns: Sequence[str]) -> Chunk:
    """Read some columns of one row group of a Parquet file; row numbers count from the beginning of the file."""
    pyarrow, parquet = arrow()
    try:
        with parquet.ParquetFile(path) as file:
            start = sum(int(file.metadata.row_group(at).num_rows) for at in range(group))
            table = file.read_row_group(group, columns=list(columns))
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}.") from None
    values = {name: column_values(table.column(name)) for name in columns}
    return Chunk(values, np.arange(start + 1, start + 1 + len(table)), "row", str(path))


def arrow() -> tuple[Any, Any]:
    """Return the packages ``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        MissingPackage: If pyarrow is not installed; the message says how to install it.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackage(
            'Parquet files need pyarrow. Install it: pip install "vhat[parquet]", or use CSV.'
        ) from error
    return pyarrow, parquet
