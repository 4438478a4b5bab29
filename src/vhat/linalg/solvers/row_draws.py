"""Standard normal draws over the training rows, each by its own number and that of a block of rows.

A draw is the same whatever else is drawn with it, in whichever blocks its rows are asked for, and on whichever machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["RowDraws"]

_STREAM = 0x5E7C
"""Sets the draws apart from those of a user who seeds a generator by the same number."""
_BLOCK_ROWS = 1024
"""Rows, one an output, that one generator draws."""


@dataclass(frozen=True)
class RowDraws:
    """Draws z over n training rows of K outputs.

    Attributes:
        seed: Draws them.
        kind: Which set of them.
        n: Training rows.
        outputs: K.
    """

    seed: int
    kind: int
    n: int
    outputs: int

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[slice]:
        """Cut rows ``start`` to ``stop`` where the blocks of the generators end."""
        end = self.n if stop is None else stop
        step = max(1, _BLOCK_ROWS // self.outputs)
        while start < end:
            following = min(start // step * step + step, end)
            yield slice(start, following)
            start = following

    def of(self, numbers: range, rows: slice) -> np.ndarray:
        """Return draws of these numbers over rows of one block, (k, rows, K)."""
        step = max(1, _BLOCK_ROWS // self.outputs)
        begin = rows.start // step * step
        shape = (min(step, self.n - begin), self.outputs)
        whole = np.stack([self.vector(number, begin, shape) for number in numbers])
        return whole[:, rows.start - begin : rows.stop - begin]

    def vector(self, number: int, at: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return one draw of a shape."""
        return np.random.default_rng([_STREAM, self.seed, self.kind, number, at]).standard_normal(shape)
