"""The cells of a column as text, and which of them are missing."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["MISSING_WORDS", "dtype_kind", "is_plain", "present_texts", "texts_of"]

MISSING_WORDS = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "?", "."})
"""What stands for a missing number or date, in small letters."""


def dtype_kind(column: Any) -> str:
    """Return ``"number"``, ``"time"``, ``"duration"``, ``"category"`` or ``"text"``, by the type of a column alone."""
    if str(column.dtype) == "category":
        return "category"
    return {"f": "number", "i": "number", "u": "number", "b": "number", "M": "time", "m": "duration"}.get(
        getattr(column.dtype, "kind", "O"), "text"
    )


def texts_of(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the cells as text without blanks at the ends, and which of them are empty.

    Args:
        column: A pandas Series of any type.
    """
    empty = column.isna().to_numpy(dtype=bool)
    cells = ["" if gone else _text(value) for value, gone in zip(column, empty, strict=True)]
    texts = np.fromiter(cells, dtype=object, count=len(cells))
    return texts, texts == ""


def _text(value: Any) -> str:
    """Write whole floats as whole numbers: a gap turns the codes 1, 2 of a column into 1.0, 2.0."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def present_texts(texts: np.ndarray) -> np.ndarray:
    """Return which cells hold something, where words such as NA stand for nothing."""
    return np.fromiter((text.lower() not in MISSING_WORDS for text in texts), dtype=bool, count=len(texts))


def is_plain(texts: Any) -> bool:
    """Whether these are texts that may be left to ``float``, which also reads 1_000 and the digits of every script."""
    try:
        joined = "".join(texts)
    except TypeError:  # objects of a Parquet file
        return False
    return joined.isascii() and "_" not in joined
