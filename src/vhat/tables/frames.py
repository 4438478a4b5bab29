"""Convert data frames of other libraries to pandas and back: polars, Arrow, modin, cudf.

narwhals does it, and is imported only for such a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vhat.errors import InputError, MissingPackage

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["as_pandas", "in_library", "in_library_of"]

_LIBRARIES = ("polars", "pyarrow", "modin", "cudf")
"""Libraries whose frames are converted, by the name of their top module."""


def as_pandas(table: Any) -> Any:
    """Return a data frame or series of another library as one of pandas; anything else as it is.

    Raises:
        InputError: For a lazy frame.
        MissingPackage: Where narwhals is not installed.
    """
    if _library(table) is None:
        return table
    import pandas as pd

    nw = _narwhals()
    try:
        found = nw.from_native(table, eager_only=True, allow_series=True)
    except TypeError:
        raise InputError(
            f"a {type(table).__module__.split('.')[0]} {type(table).__name__} is not a table whose rows are there. "
            "Give a data frame; a lazy one after collect()."
        ) from None
    if isinstance(found, nw.Series):
        return pd.Series(found.to_numpy(), name=found.name or None)
    columns = {name: _column(found.get_column(name)) for name in found.columns}
    return pd.DataFrame(columns, columns=list(found.columns))


def _column(column: Any) -> Any:
    """Return the values of a column; categories stay categories, with all of their levels."""
    import pandas as pd

    nw = _narwhals()
    if column.dtype in (nw.Categorical, nw.Enum):
        levels = column.cat.get_categories().to_list()
        return pd.Categorical(column.cast(nw.String).to_list(), categories=levels)
    return column.to_numpy()


def in_library_of(table: Any, frame: pd.DataFrame) -> Any:
    """Return a data frame of pandas in the library of a table; unchanged for a table of pandas and for an array."""
    library = _library(table)
    return frame if library is None else in_library(library, frame)


def in_library(library: str, frame: pd.DataFrame) -> Any:
    """Return a data frame of pandas, without its index, as one of another library: ``"polars"`` or ``"pyarrow"``.

    Raises:
        MissingPackage: Where the library, or narwhals, is not installed.
    """
    columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    try:
        return _narwhals().from_dict(columns, backend=library).to_native()
    except ImportError as error:
        raise MissingPackage(f"{library} is not installed. Install it: pip install {library}.") from error


def _library(table: Any) -> str | None:
    """Return the library of a table that is converted; None for any other object."""
    name = type(table).__module__.split(".")[0]
    return name if name in _LIBRARIES else None


def _narwhals() -> Any:
    try:
        import narwhals
    except ImportError as error:
        raise MissingPackage(
            "tables of polars and Arrow are read by narwhals, which is not installed. Install it: "
            'pip install "vhat[sklearn]", or pip install narwhals. Or give a data frame of pandas.'
        ) from error
    return narwhals
