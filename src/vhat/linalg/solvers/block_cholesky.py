"""Blocked Cholesky factorisation in place, for matrices too large for LAPACK's wrappers with 32-bit sizes.

The lower triangle of a C-ordered matrix is factorised block by block. NumPy multiplies the blocks, with 64-bit sizes,
and LAPACK factorises only the diagonal blocks. ``spotrf`` on a matrix of 40,000 rows, 6.4 GB, ended with a segmentation
fault; 20,000 rows worked.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.blas import strsm
from scipy.linalg.lapack import spotrf

__all__ = ["factorise", "solve"]

BLOCK = 1024
"""Rows of a block: large enough for fast products, small relative to the matrix."""


def factorise(matrix: np.ndarray, block: int = BLOCK) -> bool:
    """Overwrite the lower triangle of a float32 matrix by L with ``L L' = matrix``.

    Returns:
        Whether the matrix was positive definite to rounding; if not, its contents are invalid.
    """
    parts = _block_slices(len(matrix), block)
    for i, rows in enumerate(parts):
        # Left-looking: L_ij = (A_ij - sum_k<j L_ik L_jk') L_jj^-T, then the block on the diagonal.
        for columns in parts[:i]:
            before = slice(0, columns.start)
            matrix[rows, columns] -= matrix[rows, before] @ matrix[columns, before].T
            matrix[rows, columns] = _solve_block(matrix[columns, columns], matrix[rows, columns].T, transposed=False).T
        before = slice(0, rows.start)
        square = matrix[rows, rows] - matrix[rows, before] @ matrix[rows, before].T
        factor, info = spotrf(square, lower=1, clean=1)
        if info != 0 or not np.all(np.isfinite(np.diagonal(factor))):
            return False
        matrix[rows, rows] = factor
    return True


def solve(factor: np.ndarray, b: np.ndarray, block: int = BLOCK) -> np.ndarray:
    """Return ``(L L')^-1 b`` for float32 columns b, (N, k), with L from :func:`factorise`; b is overwritten."""
    parts = _block_slices(len(factor), block)
    # Forward substitution with L, then backward substitution with L', block by block.
    for rows in parts:
        b[rows] -= factor[rows, : rows.start] @ b[: rows.start]
        b[rows] = _solve_block(factor[rows, rows], b[rows], transposed=False)
    for rows in reversed(parts):
        b[rows] = _solve_block(factor[rows, rows], b[rows], transposed=True)
        b[: rows.start] -= factor[rows, : rows.start].T @ b[rows]
    return b


def _block_slices(size: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, size)) for start in range(0, size, block)]


def _solve_block(lower: np.ndarray, b: np.ndarray, *, transposed: bool) -> np.ndarray:
    """Return ``L^-1 b``, or ``L'^-1 b``, for one diagonal block."""
    found: np.ndarray = strsm(1.0, lower, b, lower=1, trans_a=int(transposed))
    return found
