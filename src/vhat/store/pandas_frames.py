"""Save and restore pandas objects as documents, column by column and without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat.errors import StoreError
from vhat.store.document import Document

__all__ = ["as_document", "from_document"]


def as_document(data: Any) -> Document:
    """Return a Series or a DataFrame as a document.

    Raises:
        StoreError: Naming a column whose dtype cannot be saved.
    """
    if hasattr(data, "columns"):
        columns = [(name, _column(data.iloc[:, at], name)) for at, name in enumerate(data.columns)]
        return {"columns": columns, "column_name": data.columns.name, "index": _index(data.index)}
    return {"values": _column(data, data.name), "name": data.name, "index": _index(data.index)}


def from_document(document: Document) -> Any:
    """Return the Series or DataFrame that a document describes."""
    import pandas as pd

    index = _restore_index(document["index"])
    if "columns" not in document:
        return pd.Series(_restore_column(document["values"]).array, index=index, name=document["name"])
    parts = [_restore_column(column) for _, column in document["columns"]]
    frame = pd.DataFrame({at: part.array for at, part in enumerate(parts)}, index=index)
    frame.columns = pd.Index([name for name, _ in document["columns"]], name=document["column_name"])
    return frame


def _column(column: Any, name: Any) -> Document:
    import pandas as pd

    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "fiubcMm":
        return {"kind": "numbers", "values": column.to_numpy()}
    if isinstance(dtype, pd.CategoricalDtype):
        categories = _column(dtype.categories.to_series(), name)
        return {
            "kind": "categories",
            "values": np.asarray(column.cat.codes),
            "categories": categories,
            "ordered": dtype.ordered,
        }
    texts = list(column)
    if all(type(text) is str for text in texts):
        return {"kind": "text", "values": texts, "dtype": str(dtype)}
    raise StoreError(
        f"column {name!r} has dtype {dtype}, which cannot be kept. Convert it to numbers, text or categories before "
        "fitting."
    )


def _restore_column(document: Document) -> Any:
    import pandas as pd

    values = document["values"]
    if document["kind"] == "numbers":
        return pd.Series(values)
    if document["kind"] == "text":
        return pd.Series(values, dtype=document["dtype"])
    categories = pd.Index(_restore_column(document["categories"]))
    return pd.Series(pd.Categorical.from_codes(values, categories=categories, ordered=document["ordered"]))


def _index(index: Any) -> Document:
    import pandas as pd

    if isinstance(index, pd.MultiIndex):
        raise StoreError("the rows have an index of several levels, which cannot be kept. Use X.reset_index().")
    if type(index) is pd.RangeIndex:
        return {"range": (index.start, index.stop, index.step), "name": index.name}
    return {"values": _column(index.to_series(), "of the index"), "name": index.name}


def _restore_index(document: Document) -> Any:
    import pandas as pd

    if "range" in document:
        start, stop, step = document["range"]
        return pd.RangeIndex(start, stop, step, name=document["name"])
    return pd.Index(_restore_column(document["values"]), name=document["name"])
