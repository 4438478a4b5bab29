"""The kernel ``F F'`` of compressed gradients as a sum of terms, each a product of kernels of two factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

__all__ = ["GRAM_ROWS", "KernelTerm", "kernel_terms"]

GRAM_ROWS = 512
"""Rows of a kernel computed together."""
_PROPORTIONAL_RTOL = 1e-14
"""Relative tolerance for two arrays to count as proportional: dividing by the decay in another order changes the last
digit."""


@dataclass(frozen=True)
class KernelTerm:
    """``(v v') o (plain + u u')``, the kernel of leaves that share the factor v; ``o`` is the entrywise product.

    A dense layer is such a case: the gradient in its bias is a factor of the gradient in its weight matrix.

    Attributes:
        shared: v, (rows, b).
        other: u, (rows, a), of a leaf with gradients ``u (x) v``; None without such a leaf.
        plain: ``sum c^2`` over plain leaves with gradients ``c v``.
    """

    shared: np.ndarray
    other: np.ndarray | None
    plain: float = 0.0

    def product(self, start: int, stop: int, *, single: bool = False) -> np.ndarray:
        """Return rows ``start`` to ``stop`` of the kernel, up to the diagonal, in double or in single precision."""
        found = _inner_products(self.shared, start, stop, single)
        if self.other is None:
            found *= self.plain
            return found
        weight = _inner_products(self.other, start, stop, single)
        weight += self.plain
        found *= weight
        return found

    def with_plain_leaf(self, rows: np.ndarray) -> KernelTerm | None:
        """Return the term with a plain leaf added; None if its rows are a multiple of neither factor."""
        c = _multiple(rows, self.shared)
        if c is not None:
            return replace(self, plain=self.plain + c**2)
        # A term without plain leaves is symmetric in u and v: the leaf may share u instead.
        if self.plain == 0 and self.other is not None:
            c = _multiple(rows, self.other)
            if c is not None:
                return KernelTerm(self.other, self.shared, c**2)
        return None


def _inner_products(rows: np.ndarray, start: int, stop: int, single: bool) -> np.ndarray:
    """Return the inner products of rows ``start`` to ``stop`` with all rows before ``stop``."""
    before = rows[:stop].astype(np.float32) if single else rows[:stop]
    found: np.ndarray = before[start:] @ before.T
    return found


def kernel_terms(parts: Sequence[tuple[np.ndarray, ...]]) -> list[KernelTerm]:
    """Return the terms of the kernel: one per factored leaf, plain leaves merged into a term that shares a factor."""
    terms = [KernelTerm(part[1], part[0]) for part in parts if len(part) == 2]
    for part in parts:
        if len(part) == 1:
            _add_plain_leaf(terms, part[0])
    return terms


def _add_plain_leaf(terms: list[KernelTerm], rows: np.ndarray) -> None:
    """Merge a plain leaf into the first term that shares a factor with it, or append a term for it."""
    for k, term in enumerate(terms):
        merged = term.with_plain_leaf(rows)
        if merged is not None:
            terms[k] = merged
            return
    terms.append(KernelTerm(rows, None, 1.0))


def _multiple(rows: np.ndarray, of: np.ndarray) -> float | None:
    """Return c if ``rows`` equal ``c of`` to the last digits, else None."""
    if rows.shape != of.shape or not of.any():
        return None
    at = np.unravel_index(np.argmax(np.abs(of)), of.shape)
    c = float(rows[at] / of[at])
    # The first eight rows decide most cases without a pass over all of them.
    for part in (slice(8), slice(None)):
        if not np.allclose(rows[part], c * of[part], rtol=_PROPORTIONAL_RTOL, atol=0):
            return None
    return c
