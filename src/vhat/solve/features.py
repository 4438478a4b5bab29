"""Gradients of single predictions, compressed: rank-one factors where a leaf has them, plain rows elsewhere.

The gradient of one prediction in the weight matrix of a dense layer is an outer product ``u (x) w``, so two such
gradients have the inner product ``(u.u')(w.w')``. A kernel over n rows then costs ``n^2 (a + b)`` for an a x b leaf
and not ``n^2 a b``, and the rows cost ``a + b`` numbers to keep. Nothing needs to be known of layers: the factors are
read off the gradients, and a leaf that is not of rank one in some row is kept plain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vhat.problem import Problem

__all__ = ["Features", "NotRankOne", "Structure", "compress", "find_structure", "gram", "read_features"]

_BLOCK_BYTES = 2**26
_RANK_ONE = 1e-24
"""Share of a gradient's square outside its best rank-one part, above which a leaf is plain."""


@dataclass(frozen=True)
class Leaf:
    """One array of parameters within the flat vector.

    Attributes:
        start: Where it begins.
        stop: Where it ends.
        matrix: Its shape (a, b) if it is to be factored, else None.
        decay: lam of its entries: one number where it is factored, else one each.
    """

    start: int
    stop: int
    matrix: tuple[int, int] | None
    decay: np.ndarray

    @property
    def numbers(self) -> int:
        """How many numbers a row of it takes."""
        return sum(self.matrix) if self.matrix else self.stop - self.start


@dataclass(frozen=True)
class Structure:
    """How the parameters fall into leaves with decay, and which of them have none.

    Attributes:
        leaves: The leaves with decay.
        free: Flat positions without decay.
    """

    leaves: tuple[Leaf, ...]
    free: np.ndarray

    @property
    def numbers(self) -> int:
        """How many numbers a row of features takes."""
        return sum(leaf.numbers for leaf in self.leaves) + len(self.free)


@dataclass(frozen=True)
class Features:
    """Compressed gradients of some rows, divided by the root of the decay.

    Attributes:
        parts: For each leaf a pair of factors (rows, a), (rows, b), or a single (rows, size).
        free: Gradients in the parameters without decay, (rows, free).
    """

    parts: tuple[tuple[np.ndarray, ...], ...]
    free: np.ndarray

    def __len__(self) -> int:
        return len(self.free)


def find_structure(problem: Problem, plain: frozenset[int] = frozenset()) -> Structure:
    """Lay out the leaves: a matrix whose entries share one decay is a candidate for factoring.

    Args:
        problem: The training problem.
        plain: Leaves that are known not to be of rank one.
    """
    decay = problem.numpy(problem.decay)
    leaves, start = [], 0
    for number, shape in enumerate(problem.leaves):
        stop = start + int(np.prod(shape))
        lam = decay[start:stop]
        matrix = len(shape) == 2 and min(shape) > 1 and lam.size and lam[0] > 0 and np.ptp(lam) == 0
        if matrix and number not in plain:
            leaves.append(Leaf(start, stop, (shape[0], shape[1]), lam[:1]))
        elif np.any(lam > 0):
            leaves.append(Leaf(start, stop, None, lam))
        start = stop
    return Structure(tuple(leaves), np.flatnonzero(decay == 0))


class NotRankOne(Exception):  # noqa: N818  (a finding, caught in this package)
    """A leaf that was taken for an outer product is not one."""

    def __init__(self, start: int) -> None:
        self.start = start


def read_features(problem: Problem, structure: Structure) -> tuple[Features, Structure]:
    """Compress the gradients of all training rows; a leaf that is not of rank one is made plain on the way.

    Returns:
        The features and the structure that they have.
    """
    plain: frozenset[int] = frozenset()
    starts = np.cumsum([0, *[int(np.prod(shape)) for shape in problem.leaves]])
    while True:
        try:
            blocks = [compress(problem.numpy(g), structure) for g in _gradient_blocks(problem)]
            return _joined(blocks), structure
        except NotRankOne as found:
            plain = plain | {int(np.flatnonzero(starts == found.start)[-1])}
            structure = find_structure(problem, plain)


def _gradient_blocks(problem: Problem) -> Iterator[np.ndarray]:
    rows = max(1, _BLOCK_BYTES // (8 * problem.p * problem.outputs))
    for start in range(0, problem.n, rows):
        yield problem.gradients(problem.take(problem.X, start, min(start + rows, problem.n)))


def _joined(blocks: list[Features]) -> Features:
    parts = tuple(
        tuple(np.concatenate([block.parts[i][j] for block in blocks]) for j in range(len(blocks[0].parts[i])))
        for i in range(len(blocks[0].parts))
    )
    return Features(parts, np.concatenate([block.free for block in blocks]))


def compress(g: np.ndarray, structure: Structure) -> Features:
    """Compress gradient rows (k, p).

    Raises:
        NotRankOne: When a leaf taken for an outer product is not one in some row.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    for leaf in structure.leaves:
        block = g[:, leaf.start : leaf.stop]
        if leaf.matrix is None:
            root = np.sqrt(leaf.decay, out=np.zeros_like(leaf.decay), where=leaf.decay > 0)
            parts.append((np.divide(block, root, out=np.zeros_like(block), where=root > 0),))
        else:
            parts.append(_factor(block.reshape(-1, *leaf.matrix), float(leaf.decay[0]), leaf.start))
    return Features(tuple(parts), np.ascontiguousarray(g[:, structure.free]))


def _factor(G: np.ndarray, decay: float, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Write each ``G_i`` as ``u_i (x) w_i``, ``w_i`` its largest row made a unit vector and ``u_i = G_i w_i``.

    What ``u (x) w`` leaves of G is the test; it must be rounding, or the kernel would not belong to the Jacobian.
    """
    squares = np.einsum("iab,iab->ia", G, G)
    largest = np.argmax(squares, axis=1)
    rows = np.arange(len(G))
    size = np.sqrt(squares[rows, largest])[:, None]
    w = np.divide(G[rows, largest], size, out=np.zeros((len(G), G.shape[2])), where=size > 0)
    u = np.matmul(G, w[:, :, None])[:, :, 0]
    left = G - u[:, :, None] * w[:, None, :]
    if np.any(np.einsum("iab,iab->i", left, left) > _RANK_ONE * squares.sum(axis=1)):
        raise NotRankOne(start)
    return u / np.sqrt(decay), w


def gram(a: Features, b: Features, out: np.ndarray | None = None, block: int = 512) -> np.ndarray:
    """Return ``J_a Lam^-1 J_b'`` over the parameters with decay, (len(a), len(b)), a block of rows at a time."""
    out = np.empty((len(a), len(b))) if out is None else out
    for start in range(0, len(a), block):
        rows = slice(start, start + block)
        out[rows] = 0.0
        for left, right in zip(a.parts, b.parts, strict=True):
            product = left[0][rows] @ right[0].T
            if len(left) == 2:
                product *= left[1][rows] @ right[1].T
            out[rows] += product
    return out
