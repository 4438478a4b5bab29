"""Excel files, by pandas: the first sheet, whose first row names the columns."""

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
_PACKAGES = {"odf": "odfpy"}
_FIRST = 2
"""The row of the sheet that holds the first row of data, as Excel counts."""


@dataclass(frozen=True, eq=False)
class ExcelFile:
    """A sheet, which is read at once; see :class:`vhat.tables.files.TableFile`."""

    path: Path
    frame: pd.DataFrame = field(repr=False)

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.path)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(self.frame.columns)

    @property
    def rereadable(self) -> bool:
        """Return True: the rows are in memory."""
        return True

    @property
    def types(self) -> Mapping[str, Any]:
        """None: cells of one column may have several."""
        return {}

    def chunks(self, columns: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Hand out some columns, ``rows`` rows at a time."""
        for begin in range(0, len(self.frame), rows):
            part = self.frame.iloc[begin : begin + rows]
            values = {name: part[name].to_numpy(dtype=object) for name in columns}
            yield Chunk(values, np.asarray(part.index) + _FIRST, "row", self.name)

    def count(self) -> int:
        """Return the number of rows."""
        return len(self.frame)


def open_excel(path: Path) -> ExcelFile:
    """Read the first sheet of an Excel file; rows without any cell are left out.

    Raises:
        MissingPackage: When the package that reads such files is not installed.
        InputError: When the file cannot be read.
    """
    import pandas as pd

    needed = _ENGINES[path.suffix.lower()]
    try:
        frame = pd.read_excel(path, header=None, dtype=object, engine=needed)
    except ImportError as error:
        package = _PACKAGES.get(needed, needed)
        raise MissingPackage(
            f"{path.suffix} files need {package}. Install it: pip install {package}, or save the sheet as CSV."
        ) from error
    except Exception as error:  # every engine has errors of its own
        raise InputError(
            f"{path} cannot be read as an Excel file: {str(error).rstrip('.')}. Save the sheet as CSV."
        ) from None
    if frame.empty:
        raise InputError(f"{path} is empty. The first row of its first sheet must name the columns.")
    names = ["" if pd.isna(name) else str(name).strip() for name in frame.iloc[0]]
    rows = frame.iloc[1:].reset_index(drop=True).set_axis(names, axis=1)
    return ExcelFile(path, rows.dropna(how="all"))
