"""Format rows as lines of CSV with pyarrow: the bytes of Python's csv module, about five times as fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["lines_of"]

_MANY_ROWS = 2048
"""Rows from which formatting saves more time than importing pyarrow takes, a third of a second."""
_LEAST = 1e-4
"""Magnitude below which ``repr`` writes an exponent."""
_MOST = 1e10
"""Magnitude from which pyarrow writes an exponent."""
_FEW_ODD = 0.1
"""Share of numbers with another form in ``repr``, above which ``repr`` formats the whole column."""


def lines_of(columns: Mapping[str, np.ndarray], separator: str) -> str | None:
    """Return rows as lines of CSV; None if the csv module must write them, or pyarrow is not installed.

    Args:
        columns: Columns of equal length.
        separator: The character between cells.
    """
    few = len(next(iter(columns.values()))) < _MANY_ROWS
    if few or len(columns) < 2:  # the csv module quotes an empty cell that is alone in its row
        return None
    try:
        import pyarrow
        from pyarrow import compute
    except ImportError:
        return None
    cells = []
    try:
        for values in columns.values():
            texts = _texts(values, separator)
            if texts is None:
                return None
            cells.append(texts)
        # With the line end in the last cell, the buffer of the array holds the text of the file.
        cells[-1] = compute.binary_join_element_wise(cells[-1], "\n", "")
        lines = compute.binary_join_element_wise(*cells, separator)
    except (pyarrow.ArrowException, UnicodeEncodeError):  # more than 2 GiB of text, or a lone surrogate
        return None
    return _joined(lines)


def _joined(lines: Any) -> str:
    """Return the texts of an array, joined: the buffer of a string array holds them one after another."""
    _, offsets, text = lines.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return str(memoryview(text)[int(ends[0]) : int(ends[-1])], "utf-8")


def _texts(values: np.ndarray, separator: str) -> Any:
    """Return a column as a string array of pyarrow; None if a cell must be quoted, or is neither text nor number."""
    import pyarrow

    if values.dtype == np.float64:
        return _numbers(values)
    if values.dtype.kind in "iu":
        return pyarrow.array(values).cast(pyarrow.string())
    cells = values.tolist()
    if set(map(type, cells)) != {str}:
        return None
    everything = "".join(cells)
    if any(sign in everything for sign in (separator, '"', "\r", "\n")):  # such cells are quoted
        return None
    return pyarrow.array(cells, pyarrow.string())


def _numbers(values: np.ndarray) -> Any:
    """Return floats as text in the shortest form that reads back as the same float, which is that of ``repr``.

    The digits of pyarrow are those of ``repr``. Its form differs for whole numbers (10 for 10.0), for NaN and infinity,
    and where one of the two writes an exponent. Such numbers are formatted by ``repr``.
    """
    import pyarrow
    from pyarrow import compute

    magnitude = np.abs(values)
    with np.errstate(invalid="ignore"):
        same_form = (magnitude >= _LEAST) & (magnitude < _MOST) & (np.trunc(values) != values)
    odd = ~same_form
    if odd.mean() > _FEW_ODD:
        return pyarrow.array([repr(value) for value in values.tolist()], pyarrow.string())
    texts = pyarrow.array(values).cast(pyarrow.string())
    if not odd.any():
        return texts
    own = pyarrow.array([repr(value) for value in values[odd].tolist()], pyarrow.string())
    return compute.replace_with_mask(texts, pyarrow.array(odd), own)
