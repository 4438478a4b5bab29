"""Read Excel files with pandas: the first sheet, with the names of the columns in its first row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.errors import InputError, MissingPackage
from vhat.tables.files.cells import Chunk

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ExcelFile", "open_excel"]

_ENGINES: dict[str, Literal["openpyxl", "xlrd", "odf"]] = {
    ".xlsx": "openpyxl",
    ".xlsm": "openpyxl",
    ".xls": "xlrd",
    ".ods": "odf",
}
"""The engine of pandas that reads each kind of file."""
_PACKAGES = {"odf": "odfpy"}
"""The package to install for an engine whose package has another name."""
_FIRST_ROW = 2
"""Number of the first row of data in the sheet, as Excel counts rows."""


@dataclass(frozen=True, eq=False)
class ExcelFile:
    """A sheet that is held in memory; see :class:`vhat.tables.files.TableFile`."""

    path: Path
    frame: pd.DataFrame = field(repr=False)

    @property
    def name(self) -> str:
        """The path, for messages."""
        return str(self.path)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.frame.columns)

    @property
    def rereadable(self) -> bool:
        """True: the rows are in memory."""
        return True

    @property
    def types(self) -> Mapping[str, Any]:
        """Empty: the cells of one column may have several types."""
        return {}

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield some columns, ``rows`` rows at a time."""
        for begin in range(0, len(self.frame), rows):
            part = self.frame.iloc[begin : begin + rows]
            values = {name: part[name].to_numpy(dtype=object) for name in columns}
            yield Chunk(values, np.asarray(part.index) + _FIRST_ROW, "row", self.name)

    def count(self) -> int:
        """Return the number of rows."""
        return len(self.frame)


def open_excel(path: Path) -> ExcelFile:
    """Read the first sheet of an Excel file; rows without any value are left out.

    Raises:
        MissingPackage: When the package that reads such files is not installed.
        InputError: When the file cannot be read.
    """
    import pandas as pd

    engine = _ENGINES[path.suffix.lower()]
    try:
        frame = pd.read_excel(path, header=None, dtype=object, engine=engine)
    except ImportError as error:
        package = _PACKAGES.get(engine, engine)
        raise MissingPackage(
            f"{path.suffix} files need {package}. Install it: pip install {package}, or save the sheet as CSV."
        ) from error
    except Exception as error:  # each engine raises errors of its own
        raise InputError(
            f"{path} cannot be read as an Excel file: {str(error).rstrip('.')}. Save the sheet as CSV."
        ) from None
    if frame.empty:
        raise InputError(f"{path} is empty. The first row of its first sheet must name the columns.")
    names = ["" if pd.isna(name) else str(name).strip() for name in frame.iloc[0]]
    # The index counts rows of data from 0; dropping empty rows keeps it, so that it still tells the row of the sheet.
    rows = frame.iloc[1:].reset_index(drop=True).set_axis(names, axis=1)
    return ExcelFile(path, rows.dropna(how="all"))
