"""The user's arrays (leaves) within a flat parameter vector."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

__all__ = ["leaf_rows", "leaf_slices"]


def leaf_rows(g: Any, leaves: Sequence[tuple[int, ...]]) -> list[tuple[Any, ...]]:
    """Split gradient rows (k, p) by leaf into 1-tuples of arrays (k, size)."""
    return [(g[:, where],) for where in leaf_slices(leaves)]


def leaf_slices(leaves: Sequence[tuple[int, ...]]) -> list[slice]:
    """Return the slice of each leaf in the flat vector."""
    stops = np.cumsum([0, *(int(np.prod(shape)) for shape in leaves)]).tolist()
    return [slice(start, stop) for start, stop in pairwise(stops)]
