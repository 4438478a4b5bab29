"""Standard normal draws over the training rows, seeded by the number of the draw and of a block of rows.

A draw does not depend on the other draws, on the blocks in which its rows are requested, or on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["RowDraws"]

_STREAM = 0x5E7C
"""First entry of the seed: separates the draws from those of a user who seeds a generator with the same number."""
_BLOCK_ROWS = 1024
"""Rows times outputs drawn by one generator."""


@dataclass(frozen=True)
class RowDraws:
    """Draws z over n training rows with K outputs.

    Attributes:
        seed: The seed.
        kind: Number of an independent set of draws.
        n: Number of training rows.
        outputs: K.
    """

    seed: int
    kind: int
    n: int
    outputs: int

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[slice]:
        """Split rows ``start`` to ``stop`` at the ends of the generators' blocks."""
        end = self.n if stop is None else stop
        step = max(1, _BLOCK_ROWS // self.outputs)
        while start < end:
            following = min(start // step * step + step, end)
            yield slice(start, following)
            start = following

    def of(self, numbers: range, rows: slice) -> np.ndarray:
        """Return the draws with these numbers over rows of one block, (k, rows, K)."""
        step = max(1, _BLOCK_ROWS // self.outputs)
        begin = rows.start // step * step
        shape = (min(step, self.n - begin), self.outputs)
        whole = np.stack([self.vector(number, begin, shape) for number in numbers])
        return whole[:, rows.start - begin : rows.stop - begin]

    def vector(self, number: int, at: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return one draw of shape ``shape`` for the block that begins at row ``at``."""
        return np.random.default_rng([_STREAM, self.seed, self.kind, number, at]).standard_normal(shape)
