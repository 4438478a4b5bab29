"""Read the cells of a column as text, and tell which of them are missing."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["MISSING_WORDS", "dtype_kind", "is_plain", "present_texts", "texts_of"]

MISSING_WORDS = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "?", "."})
"""Texts that stand for a missing number or date, in lower case."""
_KIND_OF_DTYPE = {"f": "number", "i": "number", "u": "number", "b": "number", "M": "time", "m": "duration"}
"""Kind of a column by the one-letter kind of its NumPy dtype; every other letter is text."""


def dtype_kind(column: Any) -> str:
    """Return ``"number"``, ``"time"``, ``"duration"``, ``"category"`` or ``"text"``, by the dtype of a column alone."""
    if str(column.dtype) == "category":
        return "category"
    letter = getattr(column.dtype, "kind", "O")
    return _KIND_OF_DTYPE.get(letter, "text")


def texts_of(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the cells as text without surrounding blanks, and which of them are empty.

    Args:
        column: A pandas Series of any type.

    Returns:
        The texts, (rows,) of dtype object, and a mask of the empty ones, (rows,).
    """
    missing = column.isna().to_numpy(dtype=bool)
    cells = ["" if is_missing else _as_text(value) for value, is_missing in zip(column, missing, strict=True)]
    texts = np.fromiter(cells, dtype=object, count=len(cells))
    return texts, texts == ""


def _as_text(value: Any) -> str:
    """Write a cell as text; whole floats as integers, because a gap turns the codes 1, 2 of a column into 1.0, 2.0."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def present_texts(texts: np.ndarray) -> np.ndarray:
    """Return which cells hold a value; words such as NA count as missing."""
    return np.fromiter((text.lower() not in MISSING_WORDS for text in texts), dtype=bool, count=len(texts))


def is_plain(texts: Any) -> bool:
    """Return whether ``float`` may read these texts: it also accepts 1_000 and the digits of every script."""
    try:
        joined = "".join(texts)
    except TypeError:  # cells of a Parquet file need not be text
        return False
    return joined.isascii() and "_" not in joined
