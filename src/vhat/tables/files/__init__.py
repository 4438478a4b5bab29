"""Read and write tables in files (CSV, Parquet, Excel) in chunks, so that a file may be larger than memory."""

from __future__ import annotations

from vhat.tables.files.cells import Chunk
from vhat.tables.files.read import STANDARD_INPUT, TableFile, open_table, read_all, require_columns
from vhat.tables.files.write import check_output, open_output

__all__ = [
    "STANDARD_INPUT",
    "Chunk",
    "TableFile",
    "check_output",
    "open_output",
    "open_table",
    "read_all",
    "require_columns",
]
