"""Division of rows into chunks of few different sizes, so that few shapes are compiled."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

__all__ = ["chunk", "chunk_sizes", "first_rows", "joined", "pad"]


def chunk_sizes(n: int, most: int) -> tuple[int, int]:
    """Return the number of chunks and the number of rows in each, for n rows.

    Rows are rounded up to a multiple of 8, or of an eighth of ``most`` if there are several chunks, so that few shapes
    are compiled.

    Args:
        n: Number of rows.
        most: Largest number of rows in a chunk, a power of two.
    """
    chunks = -(-n // most)
    rows = -(-n // chunks)
    multiple = max(1, most // 8) if n > most else min(8, most)
    return chunks, -(-rows // multiple) * multiple


def chunk(array: np.ndarray, chunks: int, rows: int, *, fill: str = "repeat") -> np.ndarray:
    """Reshape (n, ...) to (chunks, rows, ...) with padding: the last row repeated, or zeros with ``fill="zero"``.

    Repeated rows are valid inputs of the model; zeros are for weights and derivatives, so that padding adds nothing.
    """
    missing = chunks * rows - len(array)
    if fill == "repeat":
        padded = pad(array, chunks * rows)
    else:
        padded = np.concatenate([array, np.zeros((missing, *array.shape[1:]))])
    return padded.reshape(chunks, rows, *array.shape[1:])


def joined(chunks: Any, n: int) -> np.ndarray:
    """Return chunked results, (chunks, rows, K), as (n, K) without the padding."""
    array = np.asarray(chunks)
    return array.reshape(-1, array.shape[-1])[:n]


def pad(array: np.ndarray, rows: int) -> np.ndarray:
    """Return the array with its last row repeated up to ``rows`` rows."""
    return np.concatenate([array, np.repeat(array[-1:], rows - len(array), axis=0)])


def first_rows(inputs: Any, rows: int) -> Any:
    """Return the first ``rows`` rows, padded with copies of the last row if there are fewer."""
    return jax.tree.map(lambda leaf: pad(leaf[:rows], rows), inputs)
